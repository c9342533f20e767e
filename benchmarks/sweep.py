"""What a run of a sweep costs beyond its training: `lab sweep` beside papermill in a loop.

python benchmarks/sweep.py [--runs 20] [--ranks 1]

A small notebook trains on the shipped images by `launch` and leaves a run folder. Three ways to run it so many times,
one after another, in one go of this script:

- *bare*: its code in one Python process that has everything imported; this is "the training itself";
- *papermill*: `papermill.execute_notebook` in a loop, in one process (its command line would add its own import each
  time);
- *sweep*: `Sweep.run`. The start of the warm process, paid once, is reported separately: a sweep of one run is subtracted.

Overhead is seconds per run minus the bare ones.
"""

import contextlib
import io
import os
import tempfile
from pathlib import Path

import nbformat
import papermill
from harness import conditions, parse_options, seconds, summary

from course_lib.runs.labs import Lab
from course_lib.runs.sweep.run_sweep import Sweep

PARAMETERS = """
num_gpus = 1
epochs = 1
batch_size = 64
base_lr = 0.05
seed = 0
train_samples = 1000
output_dir = "run"
"""
TRAINING = """
import matplotlib.pyplot as plt
import pandas as pd
import torch
import torch.distributed as dist
from torch import nn
from course_lib.data.batches import Batches, load
from course_lib.distributed import launch, warm_up
from course_lib.models import WideResNet
from course_lib.training.precision import accelerate_model
from course_lib.runs.records import RunFolder
from course_lib.training.loop import fit

warm_up()
data = load("fashion-mnist-small", train_samples=train_samples, test_samples=500)
run = RunFolder(output_dir, "90_smoke", {"seed": seed}, data.describe()).start(num_gpus, "gloo", "cpu")

def train():
    torch.manual_seed(seed)
    share = dict(mean=data.mean, std=data.std, rank=dist.get_rank(), world_size=dist.get_world_size())
    model = accelerate_model(WideResNet((16, 32, 64)), "cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=base_lr)
    batches = Batches(data.train, batch_size, shuffle=True, seed=seed, **share)
    return fit(model, batches, Batches(data.test, 250, **share), optimizer, epochs=epochs, run=run).epochs[-1].val_accuracy

accuracy = launch(train, num_gpus)[0]
run.finish(False)
"""


def make_lab(folder: Path) -> Lab:
    parameters, training = (nbformat.v4.new_code_cell(source.strip()) for source in (PARAMETERS, TRAINING))
    parameters.metadata["tags"] = ["parameters"]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = nbformat.v4.new_notebook(cells=[parameters, training], metadata={"kernelspec": kernel})
    (folder / "90_smoke").mkdir()
    nbformat.write(notebook, folder / "90_smoke" / "90_smoke.ipynb")
    (folder / "90_smoke" / "profiles.yaml").write_text("laptop: {}\n")
    return Lab("90_smoke", folder / "90_smoke" / "90_smoke.ipynb")


def bare(ranks: int, seed: int, folder: Path) -> float:
    names: dict = {"__name__": "__main__"}
    exec(PARAMETERS, names)
    names |= {"num_gpus": ranks, "seed": seed, "output_dir": str(folder / f"bare-{seed}")}
    return seconds(lambda: exec(TRAINING, names))


def by_papermill(lab: Lab, ranks: int, seed: int, folder: Path) -> float:
    values = {"num_gpus": ranks, "seed": seed, "output_dir": str(folder / f"papermill-{seed}")}
    output = str(folder / f"{seed}.ipynb")
    return seconds(lambda: papermill.execute_notebook(str(lab.notebook), output, values, progress_bar=False))


def by_sweep(lab: Lab, ranks: int, runs: int, folder: Path) -> float:
    sweep = Sweep(lab, "laptop", {"num_gpus": [ranks]}, {}, runs, folder)

    def run() -> None:
        result = sweep.run(jobs=1)
        assert (result.done, result.failed) == (runs, 0)

    return seconds(run)


def main() -> None:
    options = parse_options(__doc__, runs=20, ranks=1)
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    data = "fashion-mnist-small (official images, shipped subset)"
    print(conditions(runs=options.runs, ranks=options.ranks, data=data))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        lab = make_lab(folder)
        quiet = io.StringIO()
        with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
            bare(options.ranks, 10**6, folder)  # imports, the fork server
            alone = [bare(options.ranks, seed, folder) for seed in range(options.runs)]
            looped = [by_papermill(lab, options.ranks, seed, folder) for seed in range(options.runs)]
            once = by_sweep(lab, options.ranks, 1, folder / "one")
            many = by_sweep(lab, options.ranks, options.runs + 1, folder / "many")
        training = sum(alone) / options.runs
        theirs = sum(looped) / options.runs - training
        ours = (many - once) / options.runs - training
        print(f"the training itself: {summary(alone, 2)} s, mean {training:.2f}")
        print(f"papermill in a loop: {summary(looped, 2)} s; overhead {theirs:.2f} s per run")
        print(
            f"lab sweep: {(many - once) / options.runs:.2f} s per run (and {once - training:.1f} s once); overhead {ours:.2f} s per run"
        )
        print(f"papermill's overhead is {theirs / ours:.1f} times ours")


if __name__ == "__main__":
    main()

"""A lab that takes no time, for tests of sweeps: its accuracy is a formula, and some of its trials fail."""

import nbformat

CELLS = [
    (
        "parameters",
        """
num_gpus = 1  # [1, machine] ranks
batch_size = 32  # [1, 1000000]
base_lr = 0.1  # (0.0, 1e6]
momentum = 0.9
warmup_epochs = 5.0
epochs = 2
seed = 0
train_samples = 0
optimizer = "sgd"  # {sgd, novograd}
rule = "linear"
output_dir = "run"
""",
    ),
    ("lesson", "raise RuntimeError('this cell teaches; a sweep leaves it out')"),
    (
        None,
        """
import os, time
if rule == "raises":
    raise ValueError("the optimiser ran away\\nand a second line")
if rule == "dies":
    os._exit(9)
if rule == "hangs":
    open(os.path.join(output_dir, "hanging"), "w").close()
    time.sleep(600)
""",
    ),
    (
        None,
        """
import torch
from course_lib.runs.records import EpochRecord, RunFolder
data = {"name": "none", "provenance": "synthetic", "train_samples": 0}
parameters = dict(num_gpus=num_gpus, batch_size=batch_size, cores=len(os.sched_getaffinity(0)), threads=torch.get_num_threads())
run = RunFolder(output_dir, "01_toy", parameters, data).start(num_gpus, None, "cpu")
rate = 1000 * num_gpus * (0.9 if num_gpus > 1 else 1) + seed
for epoch in range(1, epochs + 1):
    loss = float("nan") if rule == "diverges" and epoch == 2 else 0.5
    accuracy = 0.9 - 0.001 * batch_size * num_gpus / 32 + 0.001 * seed + 0.01 * epoch
    run.append(EpochRecord(epoch, 10.0 * epoch, 1.0 if epoch == 1 else rate, 1.0, accuracy, loss, accuracy, base_lr), 10.0)
run.finish(False)
""",
    ),
]


def make_toy_course(folder, cells=CELLS):
    """Write ``labs/01_toy`` with these cells, pairs of a tag and a source; returns `folder`."""
    lab = folder / "labs" / "01_toy"
    lab.mkdir(parents=True)
    made = [nbformat.v4.new_code_cell(source.strip(), metadata={"tags": [tag]} if tag else {}) for tag, source in cells]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(nbformat.v4.new_notebook(cells=made, metadata={"kernelspec": kernel}), lab / "01_toy.ipynb")
    (lab / "profiles.yaml").write_text("laptop: {}\nsmoke:\n  epochs: 1\n")
    return folder

"""The homework's hand-in programs on two pretended GPUs, as torchrun or they themselves start two ranks; a batch or two each."""

import shutil
from pathlib import Path

import pytest

LABS = Path(__file__).parents[2] / "labs"
SOLUTIONS = LABS.parent / "course_lib" / "exercises" / "answers" / "programs"
PROGRAMS = sorted(
    [*SOLUTIONS.glob("resnet_*.py"), *SOLUTIONS.glob("*sync_sgd_*.py")]
)  # the other needs ImageNet's weights
SMALL = ["--dataset=cifar100-synthetic", "--train-samples=64", "--test-samples=32", "--epochs=1", "--batch-size=16",
         "--warmup-epochs=0.5", "--output-dir=run"]  # fmt: skip
OWN = {"sync_sgd_cifar100": ["--ranks=2"], "async_sgd_cifar100": ["--ranks=2"]}
RUN = """
import runpy
import sys
import torch
from course_lib.distributed import launch

def run_program():
    torch.cuda.set_device(0)  # as in a new process; launch has chosen another
    sys.argv, sys.path = [{program!r}, *{arguments!r}], [{folder!r}, *sys.path]
    runpy.run_path({program!r}, run_name="__main__")

{start}
"""


@pytest.fixture
def ended(two_gpus, tmp_path):
    """How a program ends, with lines of its own or of the library replaced."""

    def run(program, old="", new=""):
        copy = Path(shutil.copy(program, tmp_path))
        assert old in copy.read_text()
        copy.write_text(copy.read_text().replace(old, new) if old else copy.read_text())
        alone = "--ranks=2" in OWN.get(program.stem, ())
        words = {
            "program": str(copy), "folder": str(tmp_path), "arguments": [*SMALL, *OWN.get(program.stem, ())],
            "start": "run_program()" if alone else "launch(run_program, 2, process_group=False)",
        }  # fmt: skip
        return two_gpus.run([(program.stem, RUN.format(**words))])

    return run


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_program_on_two_gpus(ended, program):
    assert ended(program) is None


def test_a_step_that_leaves_its_loss_on_the_host_is_found(ended):
    program = next(path for path in PROGRAMS if path.stem == "sync_sgd_cifar100")
    said = ended(program, "loss = loss_fn(logits, labels)", "loss = loss_fn(logits, labels.cpu())")
    assert said is not None and "on the same device" in said, said


SPEED = """
import json, sys, torch._dynamo
sys.path.insert(0, {benchmarks!r})
import gpu

torch._dynamo.config.disable = True  # it traces no pretended tensor
sys.argv = ["gpu.py", "--tiny", "--runs", "1", "-o", "speed"]
assert gpu.main() == 0
facts = json.load(open("speed/gpu.json"))
assert facts["device"] == "Pretended GPU" and len(facts["results"]) == 3, facts
"""


def test_the_speed_benchmark_on_a_gpu(two_gpus):
    ended = two_gpus.run([("speed", SPEED.format(benchmarks=str(LABS.parent / "benchmarks")))])
    assert ended is None, ended

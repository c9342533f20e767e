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
from course_lib.distributed import launch

def run_program():
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
            "start": "run_program()" if alone else "launch(run_program, 2)",
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

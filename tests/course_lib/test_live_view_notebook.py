"""The live view in a real kernel, asked as JupyterLab asks, and as the programs ask that run notebooks by themselves."""

import re
from pathlib import Path

import nbformat
import papermill
import pytest
from nbgrader.validator import Validator
from notebook_kernel import Kernel

SETUP = """
import threading, time
import torch
import torch.distributed as dist
from torch import nn
from course_lib.distributed import RankFailedError, launch
from course_lib.runs.records import EpochRecord, RunFolder
from course_lib.training.loop import fit, train_step

def train(epochs=4, seconds=0.02, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4))
    batches = [(torch.randn(8, 1, 3, 4), torch.randint(4, (8,))) for _ in range(10)]
    def step(*arguments):
        time.sleep(seconds)
        return train_step(*arguments)
    return fit(model, batches, batches[:3], torch.optim.SGD(model.parameters(), lr=0.1), epochs=epochs, step=step, **options)

def own_loop(run, ends=None):
    for epoch in range(1, 5):
        time.sleep(0.7)
        if not dist.is_initialized() or dist.get_rank() == 0:
            run.append(EpochRecord(epoch, 0.7 * epoch, 250.0, 1.0, 0.4, 1.0, 0.5, 0.1), 0.7)
        if epoch == 2 and ends is not None:
            raise ends

def started(path):
    return RunFolder(path, "02_ddp", {"epochs": 4}, {}).start(2, "gloo", "cpu")

def says():
    print("rank", dist.get_rank(), "<i>says</i>")
    time.sleep(2.5)
    if dist.get_rank() == 1:
        for number in range(1000):
            print("number", number)
        raise ValueError("enough")
"""
LINE = re.compile(r"epoch +(\d) +\d+\.\d s +\d+ images/s  train \d\.\d{3}  validation \d\.\d{3}")


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    with Kernel(tmp_path_factory.mktemp("live")) as kernel:
        assert kernel.run(SETUP).error is None
        yield kernel


def epochs_of(text):
    lines = text.splitlines()
    assert all(LINE.fullmatch(line.removeprefix("[rank 0] ")) for line in lines), text
    return [int(LINE.fullmatch(line.removeprefix("[rank 0] "))[1]) for line in lines]


def test_one_output_grows_in_place_and_keeps_the_lines(kernel):
    cell = kernel.run("train(8);")
    assert cell.error is None and cell.streams == {"stdout": "", "stderr": ""}
    (bundles,), (times,) = cell.displays.values(), cell.times.values()
    assert epochs_of(bundles[-1]["text/plain"]) == list(range(1, 9))
    assert "8 epochs" in bundles[-1]["text/html"] and "images/s" in bundles[1]["text/html"]
    assert 3 <= len(bundles) <= 2 + 2 * (times[-1] - times[0])
    assert sum(map(len, bundles[-1].values())) < 60_000


def test_the_trainings_of_a_cell_share_one_output(kernel):
    cell = kernel.run("train(2, seconds=0); train(2); train(1, seconds=0, quiet=True); train(2);")
    (bundles,) = cell.displays.values()
    text = bundles[-1]["text/plain"]
    assert text.count("validation 0") == 6
    assert [line[:11] for line in text.splitlines() if ":" in line] == ["training 1:", "training 2:"]
    assert ">training 3: 2 epochs: 100%" in bundles[-1]["text/html"]
    assert len(kernel.run("train(1, seconds=0);").displays) == 1  # another cell, another output


def test_a_training_on_ranks_reaches_the_notebook(kernel):
    cell = kernel.run("histories = launch(train, 2, (8,), threads=1)")
    assert cell.streams == {"stdout": "", "stderr": ""} and len(cell.displays) == 2
    by_text = {"rank" in bundles[-1]["text/plain"][:6]: bundles for bundles in cell.displays.values()}
    assert epochs_of(by_text[True][-1]["text/plain"]) == list(range(1, 9))
    training = by_text[False]
    assert len(training) >= 3
    assert "2 ranks" in training[0]["text/html"] and re.search(r"epoch \d of 8", training[0]["text/html"])
    assert training[-1]["text/plain"].startswith("8 epochs") and "<img" in training[-1]["text/html"]


def test_a_loop_of_one_s_own_on_ranks_reaches_the_notebook(kernel):
    cell = kernel.run("run = started('ranks'); launch(own_loop, 2, (run,), threads=1)")
    assert cell.error is None and cell.streams["stderr"] == ""
    (training,) = (each for each in cell.displays.values() if "<img" in each[-1]["text/html"])
    assert ">epoch 1 of 4:   0%" in training[0]["text/html"]  # before there is a point of the curve
    assert training[-1]["text/plain"] == "ended in epoch 4 of 4, 2 ranks, 250 images/s, validation accuracy 50.0%"


@pytest.mark.parametrize("error, phase", [(None, "4 epochs"), ("ValueError('enough')", "failed in epoch 3 of 4"), ("KeyboardInterrupt()", "interrupted in epoch 3 of 4")])  # fmt: skip
def test_a_loop_of_one_s_own_in_the_notebook_ends_with_its_cell(kernel, error, phase):
    cell = kernel.run(f"run = started('own'); own_loop(run, {error})")
    assert (cell.error is None) == (error is None) and cell.streams == {"stdout": "", "stderr": ""}
    (bundles,) = cell.displays.values()
    assert ">epoch 2 of 4:  25%" in bundles[0]["text/html"] and f">{phase}: " in bundles[-1]["text/html"]
    lines = bundles[-1]["text/plain"].splitlines()
    assert [line[:10] for line in lines] == [f"Epoch =  {epoch}" for epoch in range(1, 3 if error else 5)]
    assert Path(kernel.folder, "own", "unfinished", "assessment.out").read_text().splitlines() == lines
    assert kernel.run("own_loop(started('plain'))", False).streams["stdout"].count("Epoch = ") == 4


def test_a_quick_launch_prints_plain_lines_rank_by_rank(kernel):
    cell = kernel.run("""
def counts():
    for number in range(3):
        print(number)
        dist.barrier()
launch(counts, 2, threads=1);""")
    assert cell.displays == {}
    assert cell.streams["stdout"] == "".join(f"[rank {rank}] {number}\n" for rank in (0, 1) for number in range(3))


def test_ranks_that_talk_are_shown_while_they_run_and_after_one_failed(kernel):
    cell = kernel.run("launch(says, 2, threads=1)")
    assert cell.error["ename"] == "RankFailedError" and "enough" in cell.error["evalue"]
    (bundles,) = cell.displays.values()
    assert bundles[0]["text/plain"] == "[rank 0] rank 0 <i>says</i>\n[rank 1] rank 1 <i>says</i>"
    final = bundles[-1]["text/html"]
    assert "<i>" not in final and final.count("rank 0 &lt;i&gt;says") == 1
    assert "1001 lines, the last: number 999" in final
    where = re.search(r"\(801 lines before these: (\S+)/rank-N.txt has all", final)[1]
    kept = Path(where, "rank-1.txt").read_text().splitlines()
    assert kept == ["rank 1 <i>says</i>", *(f"number {n}" for n in range(1000))]


PLAIN = {
    "asked as nbclient asks": ("train(2);", False),
    "switched off": ("%env LAB_LIVE=0\ntrain(2);", True),
    "in a thread": ("thread = threading.Thread(target=train, args=(2,)); thread.start(); thread.join()", True),
    "caught": ("%%capture caught\nhistory = train(2)", True),
    "on ranks": ("launch(train, 2, (2,), threads=1);", False),
}


@pytest.mark.parametrize("how", PLAIN)
def test_it_stays_plain_text(kernel, how):
    code, looked_at = PLAIN[how]
    cell = kernel.run(code, looked_at)
    kernel.run("import os; os.environ.pop('LAB_LIVE', None)")
    if how == "caught":
        cell = kernel.run("print(caught.stdout, end='')")
    assert cell.error is None and cell.displays == {} and cell.streams["stderr"] == ""
    lines = [line for line in cell.streams["stdout"].splitlines() if not line.startswith(("env:", "note:"))]
    assert epochs_of("\n".join(lines)) == [1, 2]
    assert all(line.startswith("[rank 0] ") == (how == "on ranks") for line in lines)


def test_a_fork_of_the_kernel_shows_no_view(kernel):
    kernel.run("""
import os
from course_lib.live_view.interactive import is_interactive
if os.fork() == 0:
    open("fork", "w").write(str(is_interactive()))
    os._exit(0)
os.wait()
open("kernel", "w").write(str(is_interactive()))""")
    assert [Path(kernel.folder, name).read_text() for name in ("fork", "kernel")] == ["False", "True"]


def test_the_switch_turns_it_on_for_every_program(kernel):
    cell = kernel.run("%env LAB_LIVE=1\ntrain(2);", looked_at=False)
    kernel.run("os.environ.pop('LAB_LIVE')")
    assert len(cell.displays) == 1


def asking(folder):
    """A notebook that fails where a page would be shown."""
    code = "from course_lib.live_view.interactive import is_interactive\nassert not is_interactive()\nprint('plain')"
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(code, id="ask", metadata={"nbgrader": {"grade": True, "grade_id": "ask", "locked": True, "points": 1, "schema_version": 3, "solution": False, "task": False}})],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
    )  # fmt: skip
    nbformat.write(notebook, folder / "asking.ipynb")
    return folder / "asking.ipynb"


def by_papermill(notebook):
    papermill.execute_notebook(str(notebook), str(notebook), progress_bar=False, log_output=False)


def by_nbgrader_validate(notebook):  # which executes by nbconvert
    assert Validator().validate(str(notebook)) == {}


@pytest.mark.parametrize("program", [by_papermill, by_nbgrader_validate], ids=lambda program: program.__name__)
def test_programs_that_run_notebooks_get_plain_text(program, tmp_path):
    notebook = asking(tmp_path)
    program(notebook)
    outputs = nbformat.read(notebook, 4).cells[-1].outputs
    assert [output.text for output in outputs] == ["plain\n"] * (program is not by_nbgrader_validate)

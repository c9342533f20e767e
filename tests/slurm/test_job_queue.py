"""Submitting and watching job arrays, with scripts in place of Slurm's commands: what they say is the test's choice."""

import json
import os
import re
import signal

import pytest

from course_lib.runs.slurm import job_queue
from course_lib.runs.slurm.array_task import ENDED, ArrayTask, run_task
from course_lib.runs.slurm.job_array import JobArray, RefusedError, cancel_left
from course_lib.runs.slurm.job_queue import JobQueue
from course_lib.runs.slurm.squeue import SlurmError

SBATCH = r"""#!/bin/bash
script="${@: -1}"
last=$(sed -n 's/^#SBATCH --array=0-\([0-9]*\).*/\1/p' "$script")
if (( ${last:-0} + 1 > $(cat HERE/longest) )); then echo "sbatch: error: $(cat HERE/refusal)" >&2; exit 1; fi
cp "$script" HERE/submitted; echo "Submitted batch job 7"
"""


class FakeSlurm:
    def __init__(self, folder):
        self.folder = folder
        for name, text in {
            "sbatch": SBATCH.replace("HERE", str(folder)),
            "squeue": f"#!/bin/sh\ncat {folder}/states",
            "scancel": f'#!/bin/sh\necho "$@" >> {folder}/cancelled; : > {folder}/states',
        }.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        self.takes(1000)

    def takes(self, longest, refusal="invalid"):
        (self.folder / "longest").write_text(str(longest))
        (self.folder / "refusal").write_text(refusal)

    def shows(self, array, *states, reason="None"):
        lines = [f"{index}|{state}|{reason}|{array.name}\n" for index, state in enumerate(states)]
        (self.folder / "states").write_text("".join(lines))

    def cancelled(self):
        path = self.folder / "cancelled"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    for name, value in {"ASK_SECONDS": (-1.0, -1.0), "GRACE_SECONDS": -1.0, "VISIBLE_SECONDS": -1.0}.items():
        monkeypatch.setattr(job_queue, name, value)
    return FakeSlurm(folder)


@pytest.fixture
def watch(tmp_path):
    """A queue; `watch.said`, `watch.heard` and `watch.results` are what it said and heard, and what can be seen."""
    said, heard, results = [], [], set()
    queue = JobQueue(
        tmp_path / "logs", "toy", "point", said.append,
        lambda task, what, data: heard.append((task.label, what, data)), lambda task: task.label in results,
    )  # fmt: skip
    queue.said, queue.heard, queue.results = said, heard, results
    return queue


def work(*labels):
    return [(label, ()) for label in labels]


def submit(queue, *labels, at_a_time=0):
    return queue.submit(print, work(*labels), {"time": 5}, at_a_time)


def test_slurm_gets_as_many_as_it_takes_and_the_rest_later(slurm, watch):
    slurm.takes(0, "AssocMaxSubmitJobLimit")
    with pytest.raises(RefusedError):  # there is no task whose end would make room
        submit(watch, "a")
    slurm.takes(2)
    assert [task.label for task in submit(watch, *"abcde", at_a_time=1)] == ["a", "b"]
    assert re.search(r"--array=0-1%1\n", (slurm.folder / "submitted").read_text())
    slurm.takes(0, "AssocMaxSubmitJobLimit")
    assert submit(watch, *"cde") == []
    slurm.takes(2)
    assert submit(watch, *"cde") == []  # it is asked again after a while
    assert watch.said == ["Slurm takes no more jobs for now (AssocMaxSubmitJobLimit); the rest follows as these end"]
    watch._later = 0.0
    slurm.takes(0, "invalid partition")
    with pytest.raises(RefusedError, match=r"^invalid partition$"):
        submit(watch, *"cde")
    assert len(JobArray.left_in(watch.folder)) == 1  # a refused array leaves no files


def test_a_task_ends_by_its_own_report_or_by_squeue_s(slurm, watch):
    done, odd, killed, alive = submit(watch, *"abcd")
    slurm.shows(done.array, "RUNNING", "RUNNING", "RUNNING", "RUNNING")
    ArrayTask(done.array.folder, 0).report("began")
    ArrayTask(done.array.folder, 0).report(ENDED, code=28)
    ArrayTask(done.array.folder, 1).report(ENDED, code=1, problem="ValueError: no")
    ArrayTask(done.array.folder, 3).report("graded", "x", student="x")
    watch.results.add("a")
    assert [(task.label, task.lost, task.code) for task in watch.poll()] == [("a", False, 28), ("b", True, 1)]
    assert done.begun and odd.why() == "failed (ValueError: no)"
    assert [(label, what) for label, what, _ in watch.heard] == [("a", "began"), ("d", "graded")]
    assert watch.heard[1][2]["student"] == "x"
    slurm.shows(done.array, "COMPLETED", "FAILED", "TIMEOUT", "RUNNING")
    assert list(watch.poll()) == [killed] and killed.lost and alive in watch.tasks
    assert killed.why() == "came to its time limit; --slurm time=MINUTES asks for more (TIMEOUT)"


def test_a_task_that_slurm_queues_again_is_not_lost(slurm, watch, monkeypatch):
    monkeypatch.setattr(job_queue, "GRACE_SECONDS", 600.0)
    (task,) = submit(watch, "a")
    slurm.shows(task.array, "NODE_FAIL")
    assert list(watch.poll()) == [] and task.over
    slurm.shows(task.array, "PENDING")
    assert list(watch.poll()) == [] and task.over is None and watch.tasks == [task]
    slurm.shows(task.array, "COMPLETED")
    watch.results.add("a")
    assert list(watch.poll()) == [task] and not task.lost  # at once


def test_why_jobs_wait_is_said_once_and_in_words(slurm, watch):
    task, _ = submit(watch, *"ab")
    for reason in ("Resources", "Resources", "PartitionTimeLimit"):
        slurm.shows(task.array, "PENDING", "PENDING", reason=reason)
        list(watch.poll())
    slurm.shows(task.array, "PENDING", "RUNNING", reason="Priority")
    list(watch.poll())
    assert watch.said[0] == "jobs wait: Resources" and len(watch.said) == 2
    assert watch.said[1].startswith("2 points will wait for ever: PartitionTimeLimit (the partition does not give so")


def test_an_exception_cancels_and_silence_does_not(slurm, watch, monkeypatch):
    with pytest.raises(KeyboardInterrupt), watch:
        (task,) = submit(watch, "a")
        slurm.shows(task.array, "RUNNING")
        raise KeyboardInterrupt
    assert task.array.name in slurm.cancelled() and not watch.folder.exists()
    assert watch.said == ["cancelling 1 point that Slurm has"]
    before = slurm.cancelled()
    monkeypatch.setattr(job_queue, "SILENCE_SECONDS", -1.0)
    again = JobQueue(watch.folder, "toy", "point", watch.said.append, print, bool)
    with pytest.raises(SlurmError, match="squeue does not answer; the jobs go on"), again:
        submit(again, "a")
        (slurm.folder / "states").unlink()
        list(again.poll())
    assert slurm.cancelled() == before and len(JobArray.left_in(watch.folder)) == 1


@pytest.mark.parametrize("adopts", [True, False])
def test_what_a_killed_process_left_is_adopted_or_cancelled(slurm, watch, adopts):
    (_, alive, unwanted) = submit(watch, *"abc")
    slurm.shows(alive.array, "COMPLETED", "RUNNING", "RUNNING")
    if adopts:
        heir = JobQueue(watch.folder, "toy", "point", watch.said.append, print, bool)
        heir.adopt(lambda label: label != unwanted.label)
        assert [task.label for task in heir.tasks] == ["b"]
        assert "Slurm has 1 point from an interrupted call" in watch.said[-1] and not slurm.cancelled()
    else:
        assert cancel_left(watch.folder, watch.said.append) == []
        assert "which an interrupted batch left" in watch.said[-1] and alive.array.name in slurm.cancelled()
        assert not watch.folder.exists()


def test_nothing_is_adopted_or_forgotten_while_squeue_is_silent(slurm, watch):
    (task,) = submit(watch, "a")
    (slurm.folder / "states").unlink(missing_ok=True)
    (slurm.folder / "scancel").write_text("#!/bin/sh\nexit 1")
    heir = JobQueue(watch.folder, "toy", "point", watch.said.append, print, bool)
    with pytest.raises(SlurmError, match="once Slurm is back, the same command goes on"):
        heir.adopt(bool)
    assert [array.name for array in cancel_left(watch.folder, watch.said.append)] == [task.array.name]
    assert [array.name for array in JobArray.left_in(watch.folder)] == [task.array.name]


def test_a_task_runs_only_while_a_process_waits_for_it(slurm, watch, capsys, monkeypatch):
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # this process keeps its handlers
    (task,) = submit(watch, "a")
    folder = task.array.folder

    def fails(job, text):
        raise ValueError(f"{text}\n{job.index}")

    for function, code in ((lambda job, text: None, 0), (lambda job, text: 28, 28)):
        with pytest.raises(SystemExit) as end:
            run_task(folder, 0, function, ("x",))
        assert end.value.code == code
        assert json.loads((folder / "reports" / "0-ended-").read_text())["code"] == code
    with pytest.raises(ValueError):
        run_task(folder, 0, fails, ("x",))
    assert json.loads((folder / "reports" / "0-ended-").read_text())["problem"] == "ValueError: x 0"
    task.array.forget()
    with pytest.raises(SystemExit) as end:
        run_task(folder, 0, fails, ("x",))
    assert end.value.code == 0 and "nobody waits" in capsys.readouterr().out

"""Submitting and watching job arrays, with scripts in place of Slurm's commands: the test chooses what they print."""

import json
import os
import re
import signal

import pytest

from course_lib.runs.slurm import job_queue
from course_lib.runs.slurm.array_task import ENDED, ArrayTask, run_task
from course_lib.runs.slurm.job_array import JobArray, cancel_left
from course_lib.runs.slurm.job_queue import JobQueue, Work
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
            "srun": "#!/bin/sh\nexit 1",  # submitit looks for it
            "scancel": f'#!/bin/sh\necho "$@" >> {folder}/cancelled; : > {folder}/states',
        }.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        (folder / "cancelled").touch()
        self.takes(1000)

    def takes(self, longest, refusal="invalid"):
        (self.folder / "longest").write_text(str(longest))
        (self.folder / "refusal").write_text(refusal)

    def shows(self, array, *states, reason="None"):
        lines = [f"{index}|{state}|{reason}|{array.name}\n" for index, state in enumerate(states)]
        (self.folder / "states").write_text("".join(lines))

    def cancelled(self):
        return (self.folder / "cancelled").read_text()


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    for name, value in {"SQUEUE_SECONDS": (-1.0, -1.0), "GRACE_SECONDS": -1.0, "VISIBLE_SECONDS": -1.0, "POLL_SECONDS": 0.0}.items():  # fmt: skip
        monkeypatch.setattr(job_queue, name, value)
    return FakeSlurm(folder)


@pytest.fixture
def queue(tmp_path):
    """A queue; `queue.lines`, `queue.reports` and `queue.results` are what it logged and read, and what is visible."""
    lines, reports, results = [], [], set()
    queue = JobQueue(
        tmp_path / "logs", "toy", "trial", lines.append,
        lambda task, what, data: reports.append((task.label, what, data)), lambda task: task.label in results,
    )  # fmt: skip
    queue.lines, queue.reports, queue.results = lines, reports, results
    return queue


def successor(queue):
    """The queue of a process that comes after the one that had `queue`."""
    return JobQueue(queue.folder, "toy", "trial", queue.lines.append, print, bool)


def work(labels, minutes=5):
    return [Work(label, (), {"time": minutes}, f"{minutes} min") for label in labels]


def submit(queue, labels):
    return queue.submit(print, work(labels))


def test_slurm_gets_as_many_as_it_takes_and_the_rest_later(slurm, queue):
    slurm.takes(0, "AssocMaxSubmitJobLimit")
    with pytest.raises(SlurmError):  # there is no task whose end would make room
        submit(queue, "a")
    slurm.takes(2)
    assert [task.label for task in submit(queue, "abcde")] == ["a", "b"]
    assert re.search(r"--array=0-1(%2)?\n", (slurm.folder / "submitted").read_text())
    slurm.takes(0, "AssocMaxSubmitJobLimit")
    assert submit(queue, "cde") == []
    slurm.takes(2)
    assert submit(queue, "cde") == []  # it is asked again after a while
    assert len(queue.lines) == 2 and queue.lines[1].startswith("Slurm takes no more jobs for now (AssocMaxSubmitJobLim")
    queue._later = 0.0
    slurm.takes(0, "invalid partition")
    with pytest.raises(SlurmError, match=r"^sbatch refuses a trial of 5 min: invalid partition; see --slurm KEY"):
        submit(queue, "cde")
    assert len(JobArray.left_in(queue.folder)) == 1  # a refused array leaves no files


def test_no_more_than_most_run_at_a_time_and_equal_requests_share_an_array(slurm, queue, monkeypatch):
    monkeypatch.setattr(job_queue, "SQUEUE_SECONDS", (600.0, 600.0))
    waiting, arrays = [*work("ab"), *work("c", 9), *work("de")], {}
    for _ in queue.run(print, waiting, most=3):
        arrays |= {task.label: task.array for task in queue.tasks}
        assert len(queue.tasks) <= 3
        if "d" in arrays:
            waiting.clear()  # after a full disk, for example
        for task in queue.tasks[:1]:
            queue.results.add(task.label)
            ArrayTask(task.array.folder, task.index).report(ENDED, code=0)
    assert list(arrays) == ["a", "b", "c", "d"]
    assert arrays["a"] is arrays["b"] and len(set(arrays.values())) == 3
    assert [line.partition(": ")[2] for line in queue.lines] == ["2 trials, each 5 min", "1 trial, each 9 min"]


def test_a_task_ends_by_its_own_report_or_by_squeue_s(slurm, queue):
    done, odd, killed, alive = submit(queue, "abcd")
    slurm.shows(done.array, "RUNNING", "RUNNING", "RUNNING", "RUNNING")
    ArrayTask(done.array.folder, 0).report("began")
    ArrayTask(done.array.folder, 0).report(ENDED, code=28)
    ArrayTask(done.array.folder, 1).report(ENDED, code=1, problem="ValueError: no")
    ArrayTask(done.array.folder, 3).report("graded", "x", student="x")
    queue.results.add("a")
    assert [(task.label, task.lost, task.code) for task in queue.poll()] == [("a", False, 28), ("b", True, 1)]
    assert odd.describe_end() == "its Slurm job never began: it failed (ValueError: no)"
    assert done.begun and odd.tail() == ""
    assert [(label, what) for label, what, _ in queue.reports] == [("a", "began"), ("d", "graded")]
    assert queue.reports[1][2]["student"] == "x"
    slurm.shows(done.array, "COMPLETED", "FAILED", "TIMEOUT", "RUNNING")
    (log := done.array.folder / "7_2_0_log.err").write_text("slow")
    assert list(queue.poll()) == [killed] and killed.lost and alive in queue.tasks
    became = "reached its time limit; --slurm time=MINUTES asks for more (TIMEOUT)"
    assert killed.describe_end() == f"its Slurm job 7_2 {became}" and killed.log == log and killed.tail() == "slow"


def test_a_task_that_slurm_queues_again_is_not_lost(slurm, queue, monkeypatch):
    monkeypatch.setattr(job_queue, "GRACE_SECONDS", 600.0)
    (task,) = submit(queue, "a")
    slurm.shows(task.array, "NODE_FAIL")
    assert list(queue.poll()) == [] and task.over
    slurm.shows(task.array, "PENDING")
    assert list(queue.poll()) == [] and task.over is None and queue.tasks == [task]
    slurm.shows(task.array, "COMPLETED")
    queue.results.add("a")
    assert list(queue.poll()) == [task] and not task.lost  # at once


@pytest.mark.parametrize("lost", [True, False])
def test_logs_stay_where_a_task_was_lost(slurm, queue, lost):
    (task,) = submit(queue, "a")
    (log := task.array.folder / "7_0_log.err").write_text("why")
    queue.results |= set() if lost else {"a"}
    slurm.shows(task.array, "FAILED")
    for _ in range(2):
        list(queue.poll())
    assert list(queue.folder.rglob("*.*")) == ([log] if lost else [])


def test_why_jobs_wait_is_logged_once_and_in_words(slurm, queue):
    task, _ = submit(queue, "ab")
    for reason in ("Resources", "Resources", "PartitionTimeLimit"):
        slurm.shows(task.array, "PENDING", "PENDING", reason=reason)
        list(queue.poll())
    slurm.shows(task.array, "PENDING", "RUNNING", reason="Priority")
    list(queue.poll())
    assert queue.lines[1] == "jobs wait: Resources" and len(queue.lines) == 3
    assert queue.lines[2].startswith("2 trials will wait for ever: PartitionTimeLimit (the partition does not give so")


def test_an_exception_cancels_and_silence_does_not(slurm, queue, monkeypatch):
    with pytest.raises(KeyboardInterrupt), queue:
        (task,) = submit(queue, "a")
        slurm.shows(task.array, "RUNNING")
        raise KeyboardInterrupt
    assert task.array.name in slurm.cancelled() and not queue.folder.exists()
    assert queue.lines[1:] == ["cancelling 1 trial that Slurm has"]
    before = slurm.cancelled()
    monkeypatch.setattr(job_queue, "SILENCE_SECONDS", -1.0)
    with pytest.raises(SlurmError, match="squeue does not answer; the jobs continue"), successor(queue) as again:
        submit(again, "a")
        (slurm.folder / "states").unlink()
        list(again.poll())
    assert slurm.cancelled() == before and len(JobArray.left_in(queue.folder)) == 1


@pytest.mark.parametrize("adopts", [True, False])
def test_the_jobs_of_a_killed_process_are_adopted_or_cancelled(slurm, queue, adopts):
    (_, alive, unwanted) = submit(queue, "abc")
    slurm.shows(alive.array, "COMPLETED", "RUNNING", "RUNNING")
    if adopts:
        heir = successor(queue)
        heir.adopt(lambda label: label != unwanted.label)
        assert [task.label for task in heir.tasks] == ["b"]
        assert "Slurm has 1 trial from an interrupted call" in queue.lines[-1] and not slurm.cancelled()
    else:
        assert cancel_left(queue.folder, queue.lines.append) == []
        assert "which an interrupted batch left" in queue.lines[-1] and alive.array.name in slurm.cancelled()
        assert not queue.folder.exists()


def test_nothing_is_adopted_or_forgotten_while_squeue_is_silent(slurm, queue):
    (task,) = submit(queue, "a")
    (slurm.folder / "scancel").write_text("#!/bin/sh\nexit 1")
    with pytest.raises(SlurmError, match="once Slurm is back, the same command continues"):
        successor(queue).adopt(bool)
    assert [array.name for array in cancel_left(queue.folder, queue.lines.append)] == [task.array.name]
    assert [array.name for array in JobArray.left_in(queue.folder)] == [task.array.name]


def test_a_task_runs_only_while_a_process_waits_for_it(slurm, queue, capsys, monkeypatch):
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # this process keeps its handlers
    (task,) = submit(queue, "a")
    folder = task.array.folder

    def fails(job, text):
        raise ValueError(f"{text}\n{job.index}")

    def end(function, expected):
        with pytest.raises(expected) as raised:
            run_task(folder, 0, function, ("x",))
        return getattr(raised.value, "code", None), json.loads((folder / "reports" / "0-ended-").read_text())

    for code in (0, 28):
        exit_code, report = end(lambda job, text, code=code: code or None, SystemExit)
        assert exit_code == report["code"] == code
    assert end(fails, ValueError)[1]["problem"] == "ValueError: x 0"
    task.array.forget()
    assert end(fails, SystemExit)[0] == 0 and "no process waits" in capsys.readouterr().out

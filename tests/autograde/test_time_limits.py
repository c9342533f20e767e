"""A time limit judges a student's code, and never what runs beside it."""

import math
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from graded_lab import GradedLab, with_seconds

from autograde.sandbox import limits, turns
from autograde.sandbox.bubblewrap import missing_sandbox
from autograde.sandbox.limits import CROWD, Exceeded, Limits, SandboxError, Watch

sandboxed = pytest.mark.skipif(missing_sandbox() is not None, reason="no sandbox on this machine")

CROWDED = """
import os, time
for _ in range({processes}):
    if os.fork() == 0:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            pass
        os._exit(0)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def own_turns(tmp_path, monkeypatch):
    monkeypatch.setattr(turns.tempfile, "gettempdir", lambda: str(tmp_path))


def late(disturbed=True, kind="time"):
    error = Exceeded(kind, "it ended early")
    error.disturbed = disturbed
    return error


def test_what_others_may_have_delayed_is_tried_once_more_alone():
    tries, others = [], []

    def attempt():
        tries.append(len(others))
        neighbour = threading.Thread(target=lambda: others.append(_may_run()), daemon=True)
        neighbour.start()
        neighbour.join(0.3)
        if len(tries) == 1:
            assert others == [True]  # beside others
            raise late()
        assert others == [True]  # the second neighbour is still waiting
        return "done"

    def _may_run():
        with turns.beside_others():
            return True

    assert turns.in_turn(attempt) == "done"
    assert tries == [0, 1]
    with turns.alone():  # everything was let go of
        pass


@pytest.mark.parametrize(
    "error", [late(disturbed=False), late(disturbed=False, kind="memory")], ids=lambda each: each.kind
)
def test_what_others_cannot_have_caused_is_final(error):
    tries = []

    def attempt():
        tries.append(1)
        raise error

    with pytest.raises(Exceeded, match="ended early"):
        turns.in_turn(attempt)
    assert len(tries) == 1


def test_who_wants_to_be_alone_is_not_kept_waiting_by_those_that_keep_coming():
    running, stop = threading.Event(), threading.Event()

    def busy():
        while not stop.is_set():
            with turns.beside_others():
                running.set()
                time.sleep(0.01)

    workers = [threading.Thread(target=busy, daemon=True) for _ in range(4)]
    for worker in workers:
        worker.start()
    running.wait()
    with turns.alone():
        stop.set()
    for worker in workers:
        worker.join(10)
        assert not worker.is_alive()


def test_a_folder_of_somebody_else_in_tmp_costs_no_student_points(tmp_path, monkeypatch):
    """Anybody can make one of that name there, before the account has graded."""
    taken, home = tmp_path / f"autograde-turns-{os.geteuid()}", tmp_path / "home"
    home.mkdir()
    taken.symlink_to(home)
    monkeypatch.setenv("HOME", str(home))
    with turns.alone():
        (folder,) = home.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700 and {path.name for path in folder.iterdir()} == {"queue", "running"}
    monkeypatch.setenv("HOME", "/dev/null")
    with pytest.raises(SandboxError, match=f"{taken.name} in {tmp_path} belongs to somebody else; set TMPDIR"), turns.alone():
        pass


@sandboxed
@pytest.mark.parametrize(
    ("share", "tries"), [(math.inf, 1), (0.0, 2)], ids=["nobody waited", "others had the processors"]
)
def test_an_answer_that_never_returns_stops_the_others_only_where_they_may_be_the_cause(
    warm, monkeypatch, share, tries
):
    monkeypatch.setattr("autograde.sandbox.execution.DISTURBED", share)
    lab = GradedLab(warm, "01_single_gpu")
    with_seconds(monkeypatch, 0.5)
    asked = []
    execute = warm.execute
    monkeypatch.setattr(warm, "execute", lambda *args, **options: asked.append(1) or execute(*args, **options))
    judged = lab.judge("evaluate", "def evaluate(*args):\n    while True:\n        pass\n")
    assert judged.points == 0 and all("timed out after 0.5 s" in reason for reason in judged.reasons.values())
    assert len(asked) == tries


@sandboxed
def test_an_answer_that_others_delayed_keeps_its_points(warm, monkeypatch):
    monkeypatch.setattr("autograde.sandbox.execution.DISTURBED", 0.0)
    asked = []
    execute = warm.execute

    def late_at_first(limits, *args, **options):
        asked.append(limits.seconds)
        return execute(replace(limits, seconds=0.01) if len(asked) == 1 else limits, *args, **options)

    monkeypatch.setattr(warm, "execute", late_at_first)
    lab = GradedLab(warm, "01_single_gpu")
    judged = lab.judge("evaluate")
    assert judged.points == judged.max_points, judged.reasons
    assert asked == [lab.rubric.execution.seconds] * 2  # alone it has the whole limit again


@sandboxed
@pytest.mark.parametrize("counted", [True, False])
def test_busy_processes_are_ended_by_the_processor_time_of_all(warm, monkeypatch, counted):
    if not counted:
        monkeypatch.setattr("autograde.sandbox.warm.control_group", lambda limit: None)
    monkeypatch.setattr("autograde.sandbox.execution.WALL", 1000)  # on a machine however busy
    with warm.execute(Limits(seconds=1.5, processors=1)) as execution:
        if counted and (execution.group is None or execution.group.processor_seconds() is None):
            pytest.skip("no control group for the processor can be made here")
        with pytest.raises(Exceeded, match=r"timed out after 1\.5 s of processor time") as caught:
            execution.cells([{"id": "a", "source": CROWDED.format(processes=8)}])
    assert caught.value.kind == "time"


BUSY_AND_IDLE = """
import os, time

def busy():
    while time.process_time() < 0.5:
        pass

if os.fork() == 0:
    busy()
    os._exit(0)
os.wait()
busy()
"""


@sandboxed
@pytest.mark.parametrize("counted", [True, False], ids=["by a control group", "by the watch"])
def test_processor_time_is_that_of_all_processes_and_not_of_waiting(warm, monkeypatch, counted):
    if not counted:
        monkeypatch.setattr("autograde.sandbox.warm.control_group", lambda limit: None)
    with warm.execute(Limits()) as execution:
        if counted and (execution.group is None or execution.group.processor_seconds() is None):
            pytest.skip("no control group for the processor can be made here")
        execution.cells([{"id": "busy", "source": BUSY_AND_IDLE}])
        busy = execution.processor_seconds
        assert busy > 0.95  # a tick of the clock may be missing from each
        execution.cells([{"id": "idle", "source": "import time\ntime.sleep(3)"}])
        assert execution.processor_seconds - busy < 2


@sandboxed
def test_waiting_for_a_processor_is_not_the_student_s_time(warm, monkeypatch):
    look = Watch.look

    def starved(self):
        before = time.monotonic()
        look(self)
        self.waited += before - getattr(self, "before", before)  # as on a machine where others have every processor
        self.before = before

    monkeypatch.setattr(Watch, "look", starved)
    with warm.execute(Limits(seconds=0.5)) as execution:
        (outcome,) = execution.cells([{"id": "a", "source": "import time\ntime.sleep(1.0)"}])
        assert outcome[0]["error"] is None
        # Not for ever: the wall clock bounds it.
        with pytest.raises(Exceeded, match=r"timed out after 0\.5 s") as caught:
            execution.cells([{"id": "b", "source": "time.sleep(60)"}])
        assert caught.value.disturbed


@sandboxed
def test_without_a_control_group_a_crowd_gets_the_lowest_priority(warm, monkeypatch):
    monkeypatch.setattr("autograde.sandbox.warm.control_group", lambda limit: None)
    sleepers = CROWDED.replace("while time.monotonic() < end:\n            pass", "time.sleep(60)")
    give_way = limits._give_way
    seen = []

    def noted(process):
        give_way(process)
        if len(found := _niceness(process)) > CROWD:
            seen.extend(found)
            raise Exceeded("tasks", "seen")

    monkeypatch.setattr(limits, "_give_way", noted)
    with warm.execute(Limits(seconds=60)) as execution, pytest.raises(Exceeded, match="seen"):
        execution.cells([{"id": "a", "source": sleepers.format(processes=CROWD + 8)}])
    assert sorted(seen)[CROWD // 2] == 19  # but for those whose parent was forking just then


def _niceness(process):
    namespace = os.stat(f"{process}/ns/pid").st_ino
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{name}/ns/pid").st_ino == namespace:
                found.append(os.getpriority(os.PRIO_PROCESS, int(name)))
        except OSError:
            pass
    return found


@sandboxed
def test_the_kernel_shares_the_processor_between_sandboxes(warm):
    with warm.execute(Limits(seconds=60)) as execution:
        if execution.group is None or execution.group.processor_seconds() is None:
            pytest.skip("no control group for the processor can be made here")
        execution.cells([{"id": "a", "source": "x = 1"}])
        groups = Path(f"/proc/{execution.ranks[0].process.pid}/cgroup").read_text().splitlines()
        name = execution.group.folder.name
        own = {controller for line in groups if line.endswith(name) for controller in line.split(":")[1].split(",")}
        assert own >= {"memory", "cpu", "cpuacct"} or own == {""}  # version 1, or version 2
        used = execution.group.processor_seconds()
        execution.cells([{"id": "b", "source": "import time\nwhile time.process_time() < 0.3: pass"}])
        assert execution.group.processor_seconds() > used
        folders = execution.group._folders
    assert not any(folder.exists() for folder in folders)

"""The kernel's own count of a sandbox's memory, where it can be had."""

from pathlib import Path

import pytest

from autograde.sandbox import cgroup
from autograde.sandbox.limits import Exceeded, Limits

# Many small processes: no single one is beyond its own bound.
MANY = """
import os, time
for i in range(6):
    if os.fork() == 0:
        kept = bytearray(150 << 20)
        time.sleep(20)
        os._exit(0)
time.sleep(20)
"""


@pytest.fixture
def group():
    found = cgroup.control_group(64 << 20)
    if found is None:
        pytest.skip("no control group for memory can be made here")
    yield found
    found.close()


def test_a_group_has_its_limit_and_is_gone_once_closed(group):
    name = "memory.max" if group.version == 2 else "memory.limit_in_bytes"
    assert int((group.folder / name).read_text()) == 64 << 20
    assert not group.ended_one()
    folder = group.folder
    group.close()
    assert not folder.exists()


def test_groups_that_a_killed_grader_left_are_removed(group):
    orphan = group.folder.parent / "lab-grade-99999999-0"
    orphan.mkdir()
    other = cgroup.control_group(64 << 20)
    other.close()
    assert not orphan.exists()


def test_many_processes_together_are_ended_by_the_kernel_s_count_alone(group, warm, monkeypatch):
    monkeypatch.setattr("autograde.sandbox.limits.Watch.look", lambda self: None)
    with warm.execute(Limits(seconds=15, memory_bytes=400 << 20)) as execution:
        folder = execution.group.folder
        with pytest.raises(Exceeded, match=r"out of memory at 0\.39\d* GiB") as caught:
            execution.cells([{"id": "a", "source": MANY}])
    assert caught.value.kind == "memory"
    assert not folder.exists()


def test_without_a_group_our_own_count_does_it(warm, monkeypatch):
    monkeypatch.setattr("autograde.sandbox.warm.control_group", lambda limit: None)
    with (
        warm.execute(Limits(seconds=15, memory_bytes=400 << 20)) as execution,
        pytest.raises(Exceeded, match="out of memory") as caught,
    ):
        execution.cells([{"id": "a", "source": MANY}])
    assert caught.value.kind == "memory" and execution.peak_bytes > 400 << 20


@pytest.mark.parametrize(
    ("version", "line", "expected"),
    [
        (2, "0::/user.slice/app.scope", ["user.slice", "user.slice/app.scope"]),
        (1, "4:memory:/job", ["memory/job"]),
        (1, "7:cpu,cpuacct:/job", []),
        (2, "7:cpu,cpuacct:/job", []),
    ],
)
def test_where_a_group_is_looked_for(tmp_path, monkeypatch, version, line, expected):
    for folder in ("user.slice/app.scope", "memory/job"):
        (tmp_path / folder).mkdir(parents=True)
    for folder in ("user.slice", "user.slice/app.scope"):
        (tmp_path / folder / "cgroup.subtree_control").write_text("cpu memory pids")
    own = tmp_path / "cgroup"
    own.write_text(line + "\n")
    monkeypatch.setattr(cgroup, "MOUNT", tmp_path)
    monkeypatch.setattr(cgroup, "Path", lambda *parts: own if parts == ("/proc/self/cgroup",) else Path(*parts))
    assert cgroup._parents(version) == [tmp_path / name for name in expected]

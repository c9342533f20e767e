"""What is left of a hub that ends: nothing."""

import contextlib
import os
import subprocess
import sys
import time

import psutil
import pytest

# Two children that outlive the hub, one of which does not listen; and each has one of its own.
HUB = """
setsid sh -c 'sleep 987 & sleep 987' &
setsid sh -c 'trap "" TERM; sleep 987 & while :; do sleep 1; done' &
(exit 0) & sleep 0.5; echo started; wait
"""
START = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from hub_process import HubProcess
import hub_process
log = Path(sys.argv[2])
hub = HubProcess(["sh", "-c", sys.argv[3]], log.parent, {"PATH": "/usr/bin:/bin"}, log)
while "started" not in log.read_text():
    assert hub.runs()
    time.sleep(0.05)
print(*hub_process._children(), flush=True)
input()  # the test looks at what is there
if sys.argv[4] == "killed":
    hub._process.kill()
    while hub.runs():
        time.sleep(0.05)
begun = time.monotonic()
hub.end(60, 1)
assert not hub.runs() and not hub_process._children() and time.monotonic() - begun < 60
"""


@pytest.mark.parametrize("way", ["killed", "told to end"])
def test_nothing_outlives_the_hub(deploy, tmp_path, way):
    command = [sys.executable, "-c", START, deploy, tmp_path / "log", HUB, way]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process, below = subprocess.Popen(command, text=True, **pipes), []
    try:
        hub = psutil.Process(int(process.stdout.readline()))
        below = hub.children(recursive=True)
        assert len(below) >= 4
        said = process.communicate("go on\n", timeout=300)[1]
        left = [one for one in below if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    finally:
        for one in [process, *below]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        process.wait()
    assert process.returncode == 0, said
    assert left == []


@pytest.mark.skipif(os.geteuid() != 0, reason="looks at root's processes")
def test_only_what_has_the_mark_is_ended(deploy, tmp_path):
    from hub_process import MARK, end_marked

    marks = [str(tmp_path), f"{tmp_path}/other", None]
    processes = [
        subprocess.Popen(["sleep", "987"], env={"PATH": os.environ["PATH"]} | ({MARK: mark} if mark else {}))
        for mark in marks
    ]
    try:
        time.sleep(0.2)
        end_marked(str(tmp_path), seconds=2)
        assert processes[0].wait(5) == -15
        assert [one.poll() for one in processes[1:]] == [None, None]
    finally:
        for process in processes:
            process.kill()
            process.wait()

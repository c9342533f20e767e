import os
import subprocess
import sys
import time

import psutil
import pytest

TEST = """
import subprocess, sys

def test_that_forgets_a_process():
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep({seconds})"], start_new_session={detached})
"""


@pytest.mark.parametrize(("seconds", "detached", "code"), [(60, False, 1), (60, True, 1), (0, False, 0)])
def test_a_forgotten_process_fails_the_run(tmp_path, repository, seconds, detached, code):
    for name in ("conftest.py", "cost_classes.py", "leftovers.py"):
        (tmp_path / name).write_text((repository / "tests" / name).read_text())
    (tmp_path / "test_it.py").write_text(TEST.format(seconds=seconds, detached=detached))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "LAB_TEST"))}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(tmp_path)]
    environment |= {"LAB_TEST_PATIENCE": "0.5"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == code, run.stdout
    assert ("left behind: process" in run.stdout) == bool(code)
    assert ("time.sleep(60)" in run.stdout) == bool(code)
    _end(run.stdout)


def test_servers_that_end_with_the_run_are_not_left_behind():
    import multiprocessing

    import leftovers

    context = multiprocessing.get_context("forkserver")
    child = context.Process(target=time.sleep, args=(0,))
    child.start()  # and with it the server, a child of this process
    child.join()
    alive = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    servers = [child.pid for child in alive if "forkserver" in " ".join(child.cmdline())]
    assert servers and not set(servers) & set(leftovers.processes(os.environ[leftovers.MARK]))


def _end(text):
    for line in text.splitlines():
        if "left behind: process" in line:
            os.kill(int(line.partition("process ")[2].partition(":")[0]), 9)


def test_segments_of_processes_that_are_gone_are_found(tmp_path, monkeypatch):
    import leftovers

    monkeypatch.setattr(leftovers, "SHARED_MEMORY", tmp_path)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for pid in (gone.pid, os.getpid()):
        (tmp_path / f"torch_{pid}_1_0").touch()
    assert leftovers.segments(time.time() - 60) == [f"torch_{gone.pid}_1_0"]
    assert leftovers.segments(time.time() + 60) == []

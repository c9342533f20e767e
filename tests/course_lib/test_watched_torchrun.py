"""`python -m course_lib.watched_torchrun`: what its last line says, by what has ended the job."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from rank_processes import noted_pids, survivors

# Ranks that import nothing: they leave their process ids and do what the option says.
PROGRAM = """
import os, signal, sys, time
from pathlib import Path
Path(sys.argv[1], os.environ["RANK"] + ".pid").write_text(str(os.getpid()))
while len(list(Path(sys.argv[1]).glob("*.pid"))) < int(os.environ["WORLD_SIZE"]):
    time.sleep(0.05)
print("rank", os.environ["RANK"], "master", os.environ["MASTER_ADDR"], flush=True)
if sys.argv[2] == "rank 1 is killed" and os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "rank 1 fails" and os.environ["RANK"] == "1":
    sys.exit(7)
if sys.argv[2] == "all deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if sys.argv[2] != "well":
    time.sleep(120)
"""
HOST = socket.gethostname()


@pytest.fixture
def start(tmp_path):
    """Starts a launcher; `start.said` ends it and gives its exit code and what it said."""
    (tmp_path / "program.py").write_text(PROGRAM)
    started = []

    def start(what, *options, name=None):
        environment = {k: v for k, v in os.environ.items() if k != "SLURMD_NODENAME"} | {"OMP_NUM_THREADS": "1"}
        if name:
            environment["SLURMD_NODENAME"] = name
        command = [
            sys.executable,
            "-m",
            "course_lib.watched_torchrun",
            *options,
            tmp_path / "program.py",
            tmp_path,
            what,
        ]
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    def said(process, seconds=60):
        told = process.communicate(timeout=seconds)[0]
        return process.returncode, told.splitlines()

    start.said, start.folder = said, tmp_path
    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


ONE_NODE = ("--standalone", "--nproc-per-node=2")


def two_nodes():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return [
        "--nnodes=2",
        "--nproc-per-node=2",
        "--rdzv-backend=c10d",
        "--rdzv-id=7",
        f"--rdzv-endpoint=127.0.0.1:{port}",
    ]


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("rank 1 is killed", "rank 1 was ended by SIGKILL (the system kills so when memory runs out)"),
        ("rank 1 fails", "rank 1 failed (exit code 7, see its traceback above)"),
    ],
)
def test_a_rank_s_end_is_the_last_line(start, what, told):
    code, lines = start.said(start(what, *ONE_NODE))
    assert (code, lines[-1]) == (1, f"{HOST}: the job ends: {told} on {HOST}")


def test_a_launcher_that_is_told_to_end_ends_its_ranks_too(start):
    process = start("sleep", *ONE_NODE)
    pids = noted_pids(start.folder, 2, 60)
    process.send_signal(signal.SIGTERM)
    code, lines = start.said(process)
    assert (code, lines[-1]) == (
        128 + signal.SIGTERM,
        f"{HOST}: the job ends: the launcher was ended by SIGTERM on {HOST}",
    )
    assert not survivors(pids, 2)


@pytest.mark.parametrize("lost", [pytest.param("first", marks=pytest.mark.slow), "second"])
def test_of_two_launchers_one_is_killed_and_the_other_names_it(start, lost):
    """Its ranks ignore SIGTERM, as those do that hang in C++: they are killed in spite of that."""
    options = two_nodes()
    first = start("all deaf", *options, name="first")
    time.sleep(1.0)
    second = start("all deaf", *options, name="second")
    pids = noted_pids(start.folder, 4, 60)
    time.sleep(1.0)  # until the ranks are known to the first node
    gone, left = (first, second) if lost == "first" else (second, first)
    start_time = time.monotonic()
    os.kill(gone.pid, signal.SIGKILL)
    code, lines = start.said(left)
    assert code == 1 and time.monotonic() - start_time < 15
    name = "first, where the nodes meet, is gone" if lost == "first" else "ranks 2, 3 on second are gone"
    other = "second" if lost == "first" else "first"
    if lost == "second" and "ranks 0, 1" in lines[-1]:  # torchrun numbers the nodes as it likes
        name = name.replace("2, 3", "0, 1")
    assert (
        lines[-1]
        == f"{other}: the job ends: {name}: its launcher ended without a word; was it killed, or did the node go down?"
    )
    orphans = survivors(pids, 2)  # the killed launcher's own: on a node that goes down they would be gone as well
    for pid in orphans:
        os.kill(pid, signal.SIGKILL)
    assert len(orphans) == 2


@pytest.mark.slow
def test_a_node_that_does_not_come_is_waited_for_and_then_told(start):
    code, lines = start.said(start("well", "--rdzv-conf=join_timeout=3", *two_nodes(), name="first"))
    assert (code, lines[-1]) == (
        1, "first: the job ends: not all of 2 nodes came in time; those that came: first on first"
    )  # fmt: skip


@pytest.mark.slow
def test_two_launchers_that_end_well_say_nothing(start):
    options = two_nodes()
    both = [start("well", *options, name=name) for name in ("first", "second")]
    for process in both:
        code, lines = start.said(process)
        assert code == 0 and not [line for line in lines if "the job ends" in line], lines

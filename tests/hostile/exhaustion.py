"""Using up time, memory, processes, disk and patience. The rubric's limits are made small for the test."""

from __future__ import annotations

import os

from exhibits import UNKNOWN, Submission, World, exhibit


@exhibit(train_step=0, flags="limit", reason="timed out after .* while the notebook's answers were executed")
def sleeps_in_a_cell(submission: Submission, world: World) -> None:
    """Sleeps for ever in a cell of definitions: it costs one limit's time, not one for each exercise."""
    submission.before("train-step", "import time\ntime.sleep(1e6)")


@exhibit(memory=0, flags="limit", reason="timed out", answers="memory")
def loop_that_ignores_signals(submission: Submission, world: World) -> str:
    """An endless loop in a function, with every signal ignored and every exception caught."""
    return """
        import signal

        def saved_bytes(function):
            for number in range(1, 65):
                try:
                    signal.signal(number, signal.SIG_IGN)
                except (OSError, ValueError):
                    pass
            while True:
                try:
                    while True:
                        pass
                except BaseException:
                    pass

        forward_checkpointed = saved_bytes
        """


@exhibit(**UNKNOWN | {"train_step": 0}, flags="limit", reason="processes|threads|timed out")
def fork_bomb(submission: Submission, world: World) -> str:
    """Every process forks for ever."""
    return """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""


@exhibit(**UNKNOWN | {"train_step": 0}, flags="limit", reason="processes|threads", slow=True)
def zombies(submission: Submission, world: World) -> str:
    """Children that end at once and are never waited for."""
    return """
import os
for _ in range(100_000):
    if os.fork() == 0:
        os._exit(0)
"""


@exhibit(**UNKNOWN | {"train_step": 0}, flags="limit", reason="processes|threads|memory", slow=True)
def threads(submission: Submission, world: World) -> str:
    """Threads that sleep, without end."""
    return """
import threading, time
while True:
    threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()
"""


@exhibit(train_step=0, flags="limit", reason="out of memory", answers="train-step")
def memory_in_one_process(submission: Submission, world: World) -> str:
    """One process takes and fills memory until there is none."""
    return """
        def train_step(model, images, labels, optimizer, loss_fn):
            kept = []
            while True:
                kept.append(torch.ones(1 << 24))
        """


@exhibit(train_step=0, flags="limit", reason="out of memory")
def memory_in_many_processes(submission: Submission, world: World) -> str:
    """Twenty children, each within the limit of one process."""
    return """
import os, time
for _ in range(20):
    if os.fork() == 0:
        kept = b"x" * (300 << 20)
        time.sleep(60)
time.sleep(60)
"""


@exhibit(train_step=0, flags="limit", reason="out of memory|disk")
def memory_that_is_not_mapped(submission: Submission, world: World) -> str:
    """Shared memory that is filled and taken out of the process's own tables, where only the kernel still counts it."""
    return """
import mmap, time
kept = []
while True:
    kept.append(mmap.mmap(-1, 1 << 28))
    for start in range(0, 1 << 28, 1 << 20):
        kept[-1][start : start + (1 << 20)] = bytes([1]) * (1 << 20)
    kept[-1].madvise(mmap.MADV_DONTNEED)
"""


@exhibit(train_step=0, flags="limit", reason="filled its disk", slow=True)
def fills_the_disk(submission: Submission, world: World) -> str:
    """Writes until the disk is full, and lets the error through."""
    return """
for number in range(1000):
    with open(f"/tmp/{number}", "wb") as file:
        file.write(bytes(100 << 20))
"""


@exhibit(train_step=0, flags="limit", reason="files|disk|memory")
def files_without_number(submission: Submission, world: World) -> str:
    """Empty files without end: they take no disk, and a kilobyte of the kernel's memory each."""
    return """
import os
for number in range(100_000_000):
    os.close(os.open(f"/dev/shm/{number}", os.O_CREAT))
"""


@exhibit(train_step=0, flags="limit", reason="printed too much")
def prints_a_gigabyte(submission: Submission, world: World) -> str:
    """A gigabyte to standard output and to standard error."""
    return """
import os
for _ in range(1000):
    os.write(1, b"x" * (1 << 20))
    os.write(2, b"x" * (1 << 20))
"""


@exhibit(train_step=0, flags="crash", reason="did not execute: RuntimeError|printed too much|did not execute")
def huge_exception(submission: Submission, world: World) -> str:
    """An exception with a message of a hundred kilobytes, which a reason quotes, with the output thrown away."""
    return 'import os, sys\nsys.stderr = sys.stdout = open(os.devnull, "w")\nraise RuntimeError("x" * 100_000)'


@exhibit(train_step=0, reason=".", answers="train-step")
def huge_representation(submission: Submission, world: World) -> str:
    """Returns objects whose type's name and representation are megabytes."""
    return """
        Huge = type("H" * 5_000_000, (), {"__repr__": lambda self: "r" * 100_000_000})

        def train_step(model, images, labels, optimizer, loss_fn):
            return Huge(), {Huge(): Huge()}
        """


@exhibit(memory=0, flags="crash", reason="RecursionError", answers="memory")
def deep_recursion(submission: Submission, world: World) -> str:
    """Recursion in Python without end."""
    return "def saved_bytes(function):\n    return saved_bytes(function)\n\nforward_checkpointed = saved_bytes"


@exhibit(memory=0, flags="crash", reason="signal 11", answers="memory")
def overflow_of_the_stack(submission: Submission, world: World) -> str:
    """Recursion through C without a limit, which ends the interpreter."""
    return """
        import sys

        def saved_bytes(function):
            sys.setrecursionlimit(10**9)
            class Deep:
                def __getattr__(self, name):
                    return getattr(self, name + "x")
            deep = []
            for _ in range(10**6):
                deep = [deep]
            return repr(deep), Deep().x

        forward_checkpointed = saved_bytes
        """


@exhibit(memory=0, reason=".", answers="memory")
def giant_integer(submission: Submission, world: World) -> str:
    """An integer whose decimal digits take years to write down."""
    return "def saved_bytes(*given):\n    return 1 << 200_000_000\n\nforward_checkpointed = saved_bytes"


@exhibit(train_step=0, flags="crash", reason="not permitted")
def memory_in_sockets(submission: Submission, world: World) -> str:
    """Bytes in sockets' buffers, which belong to no process: an exercise without a network cannot make a socket."""
    return """
import os, socket, time
parent = os.getpid()
for _ in range(10):
    if os.fork() == 0:
        break
kept = []
try:
    while True:
        kept += socket.socketpair()
        kept[-1].setblocking(False)
        kept[-1].send(bytes(1 << 14))
except OSError:
    if os.getpid() == parent and not kept:
        raise
    time.sleep(1e6)
"""


@exhibit(**UNKNOWN, slow=True, before="memory")
def hogs_the_processor(submission: Submission, world: World) -> str:
    """A hundred processes that compute while its own answers, and an honest neighbour's, are timed."""
    return """
import os
for _ in range(100):
    if os.fork() == 0:
        os.setsid()  # a scheduling group each
        while True:
            pass
"""


@exhibit(flags="missing", reason="at most .* are read|could not be tested")
def weights_of_a_gigabyte(submission: Submission, world: World) -> None:
    """A sparse file of a gigabyte as weights."""
    os.truncate(submission.run() / "model.safetensors", 1 << 30)


@exhibit(flags="missing", reason="at most .* are read|could not be tested|does not fit")
def weights_of_300_megabytes(submission: Submission, world: World) -> None:
    """A sparse file just as large as might still be read."""
    os.truncate(submission.run() / "model.safetensors", 300 << 20)

"""Using up time, memory, processes, disk and patience. The rubric's limits are made small for the test."""

from __future__ import annotations

import os

from exhibits import UNKNOWN, Submission, World, exhibit, hostile_code

# fmt: off

hostile_code("sleeps_in_a_cell",
    "Sleeps for ever in a cell of definitions: it costs one limit's time, not one for each exercise.",
    train_step=0, flags="limit", reason="timed out after .* while the notebook's answers were executed",
    source="import time\ntime.sleep(1e6)")

hostile_code("loop_that_ignores_signals",
    "An endless loop in a function, with every signal ignored and every exception caught.",
    memory=0, flags="limit", reason="timed out", answers="memory", source="""
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
        """)

hostile_code("fork_bomb", "Every process forks for ever.",
    **UNKNOWN | {"train_step": 0}, flags="limit", reason="processes|threads|timed out", source="""
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
""")

hostile_code("zombies", "Children that end at once and are never waited for.",
    **UNKNOWN | {"train_step": 0}, flags="limit", reason="processes|threads", slow=True, source="""
import os
for _ in range(100_000):
    if os.fork() == 0:
        os._exit(0)
""")

hostile_code("memory_in_one_process", "One process takes and fills memory until there is none.",
    train_step=0, flags="limit", reason="out of memory", answers="train-step", source="""
        def train_step(model, images, labels, optimizer, loss_fn):
            kept = []
            while True:
                kept.append(torch.ones(1 << 24))
        """)

hostile_code("memory_in_many_processes", "Twenty children, each within the limit of one process.",
    train_step=0, flags="limit", reason="out of memory", source="""
import os, time
for _ in range(20):
    if os.fork() == 0:
        kept = b"x" * (300 << 20)
        time.sleep(60)
time.sleep(60)
""")

hostile_code("memory_that_is_not_mapped",
    "Shared memory that is filled and taken out of the process's own tables, where only the kernel still counts it.",
    train_step=0, flags="limit", reason="out of memory|disk", source="""
import mmap, time
kept = []
while True:
    kept.append(mmap.mmap(-1, 1 << 28))
    for start in range(0, 1 << 28, 1 << 20):
        kept[-1][start : start + (1 << 20)] = bytes([1]) * (1 << 20)
    kept[-1].madvise(mmap.MADV_DONTNEED)
""")

hostile_code("fills_the_disk", "Writes until the disk is full, and lets the error through.",
    train_step=0, flags="limit", reason="filled its disk", slow=True, source="""
for number in range(1000):
    with open(f"/tmp/{number}", "wb") as file:
        file.write(bytes(100 << 20))
""")

hostile_code("prints_a_gigabyte", "A gigabyte to standard output and to standard error.",
    train_step=0, flags="limit", reason="printed too much", source="""
import os
for _ in range(1000):
    os.write(1, b"x" * (1 << 20))
    os.write(2, b"x" * (1 << 20))
""")

hostile_code("huge_exception",
    "An exception with a message of a hundred kilobytes, which a reason quotes, with the output thrown away.",
    train_step=0, flags="crash", reason="did not execute: RuntimeError|printed too much|did not execute",
    source='import os, sys\nsys.stderr = sys.stdout = open(os.devnull, "w")\nraise RuntimeError("x" * 100_000)')

hostile_code("huge_representation", "Returns objects whose type's name and representation are megabytes.",
    train_step=0, reason=".", answers="train-step", source="""
        Huge = type("H" * 5_000_000, (), {"__repr__": lambda self: "r" * 100_000_000})

        def train_step(model, images, labels, optimizer, loss_fn):
            return Huge(), {Huge(): Huge()}
        """)

hostile_code("deep_recursion", "Recursion in Python without end.",
    memory=0, flags="crash", reason="RecursionError", answers="memory",
    source="def saved_bytes(function):\n    return saved_bytes(function)\n\nforward_checkpointed = saved_bytes")

hostile_code("overflow_of_the_stack", "Recursion through C without a limit, which ends the interpreter.",
    memory=0, flags="crash", reason="signal 11", answers="memory", source="""
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
        """)

hostile_code("giant_integer", "An integer whose decimal digits take years to write down.",
    memory=0, reason=".", answers="memory",
    source="def saved_bytes(*given):\n    return 1 << 200_000_000\n\nforward_checkpointed = saved_bytes")

hostile_code("memory_in_sockets",
    "Bytes in sockets' buffers, which belong to no process: an exercise without a network cannot make a socket.",
    train_step=0, flags="crash", reason="not permitted", source="""
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
""")

hostile_code("hogs_the_processor",
    "A hundred processes that compute while its own answers, and an honest neighbour's, are timed.",
    **UNKNOWN, slow=True, before="memory", source="""
import os
for _ in range(100):
    if os.fork() == 0:
        os.setsid()  # a scheduling group each
        while True:
            pass
""")


@exhibit(flags="missing", reason="at most .* are read|could not be tested")
def weights_of_a_gigabyte(submission: Submission, world: World) -> None:
    """A sparse file of a gigabyte as weights."""
    os.truncate(submission.run() / "model.safetensors", 1 << 30)


@exhibit(flags="missing", reason="at most .* are read|could not be tested|does not fit")
def weights_of_300_megabytes(submission: Submission, world: World) -> None:
    """A sparse file just as large as might still be read."""
    os.truncate(submission.run() / "model.safetensors", 300 << 20)

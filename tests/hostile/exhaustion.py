"""Using up time, memory, processes, disk and patience. The rubric's limits are made small for the test."""

from __future__ import annotations

import os

from exhibits import Submission, World, exhibit


@exhibit(speedup=0, flags="limit", reason="timed out")
def loop_that_ignores_signals(submission: Submission, world: World) -> None:
    """An endless loop in a function, with every signal ignored and every exception caught."""
    submission.answer(
        "speedup",
        """
        import signal

        def speedup_and_efficiency(times, ranks):
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
        """,
    )


@exhibit(train_step=0, flags="limit", reason="out of memory")
def memory_in_one_process(submission: Submission, world: World) -> None:
    """One process takes and fills memory until there is none."""
    submission.answer(
        "train-step",
        """
        def train_step(model, images, labels, optimizer, loss_fn):
            kept = []
            while True:
                kept.append(torch.ones(1 << 24))
        """,
    )


@exhibit(train_step=0, flags="limit", reason="filled its disk", slow=True)
def fills_the_disk(submission: Submission, world: World) -> None:
    """Writes until the disk is full, and lets the error through."""
    submission.before(
        "train-step",
        """
for number in range(1000):
    with open(f"/tmp/{number}", "wb") as file:
        file.write(bytes(100 << 20))
""",
    )


@exhibit(train_step=0, flags="limit", reason="printed too much")
def prints_a_gigabyte(submission: Submission, world: World) -> None:
    """A gigabyte to standard output and to standard error."""
    submission.before(
        "train-step",
        """
import os
for _ in range(1000):
    os.write(1, b"x" * (1 << 20))
    os.write(2, b"x" * (1 << 20))
""",
    )


@exhibit(train_step=0, flags="crash", reason="did not execute: RuntimeError|printed too much|did not execute")
def huge_exception(submission: Submission, world: World) -> None:
    """An exception with a message of a hundred kilobytes, which a reason quotes, with the output thrown away."""
    submission.before(
        "train-step",
        'import os, sys\nsys.stderr = sys.stdout = open(os.devnull, "w")\nraise RuntimeError("x" * 100_000)',
    )


@exhibit(train_step=0, reason=".")
def huge_representation(submission: Submission, world: World) -> None:
    """Returns objects whose type's name and representation are megabytes."""
    submission.answer(
        "train-step",
        """
        Huge = type("H" * 5_000_000, (), {"__repr__": lambda self: "r" * 100_000_000})

        def train_step(model, images, labels, optimizer, loss_fn):
            return Huge(), {Huge(): Huge()}
        """,
    )


@exhibit(speedup=0, flags="crash", reason="RecursionError")
def deep_recursion(submission: Submission, world: World) -> None:
    """Recursion in Python without end."""
    submission.answer(
        "speedup", "def speedup_and_efficiency(times, ranks):\n    return speedup_and_efficiency(times, ranks)"
    )


@exhibit(speedup=0, reason=".")
def giant_integer(submission: Submission, world: World) -> None:
    """An integer whose decimal digits take years to write down."""
    submission.answer(
        "speedup", "def speedup_and_efficiency(times, ranks):\n    return 1 << 200_000_000, 1 << 200_000_000"
    )


@exhibit(train_step=None, evaluate=None, throughput=None, speedup=None, slow=True)
def hogs_the_processor(submission: Submission, world: World) -> None:
    """A hundred processes that compute while its own answers, and an honest neighbour's, are timed."""
    submission.before(
        "speedup",
        """
import os
for _ in range(100):
    if os.fork() == 0:
        os.setsid()  # a scheduling group each
        while True:
            pass
""",
    )


@exhibit(flags="missing", reason="at most .* are read|could not be tried|does not fit")
def weights_of_300_megabytes(submission: Submission, world: World) -> None:
    """A sparse file just as large as might still be read."""
    os.truncate(submission.run() / "model.safetensors", 300 << 20)

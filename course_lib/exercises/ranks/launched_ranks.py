"""The visible check's ranks: processes of `launch`, whose traced messages are the evidence that `MessageBroker` gives."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch.distributed as dist

from course_lib.distributed import LaunchTimeoutError, MessageTrace, RankFailedError, launch, trace_messages
from course_lib.distributed.messages.message_rounds import message_rounds
from course_lib.exercises.comparing import plain
from course_lib.exercises.description import Exercise
from course_lib.live_view.check_failed import CheckFailed

__all__ = ["launch_for_check", "on_launched_ranks", "shown_to_the_student"]

TIMEOUT = 12.0  # seconds in which a rank computes, or all wait


def on_launched_ranks(exercise: Exercise, case: Any, functions: Sequence[Callable[..., Any]]) -> dict[str, Any]:
    """`Exercise.transport`: observe a case whose ranks send and receive, over Gloo.

    Raises
    ------
    CheckFailed
        The ranks wait for each other, one raised, or one calls a collective of the backend's.
    """
    ranks = exercise.world(case)

    def raised(error: RankFailedError) -> str:
        aborted = (
            " Gloo aborts where a message is longer than the receiver's tensor." if "SIGABRT" in error.reason else ""
        )
        return f"on {'1 rank' if ranks == 1 else f'{ranks} ranks'} your function raised.{aborted}"

    hangs = (
        f"deadlock: on {ranks} ranks it hangs. A rank waits for a message, or for its own to be received, or a request "
        "was not kept and waited for: Gloo then forgets the message. Where each stood tells which."
    )
    with shown_to_the_student(hangs, raised):
        seen = launch_for_check(_observe, ranks, (exercise, case, functions), backend="gloo")
    return {"ranks": [one for one, _ in seen], **_evidence([trace for _, trace in seen])}


@contextlib.contextmanager
def shown_to_the_student(hangs: str, raised: Callable[[RankFailedError], str]) -> Iterator[None]:
    """What ranks of `launch` print, and `CheckFailed` with these words where they do not end well."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            yield
    except LaunchTimeoutError as error:
        raise CheckFailed(f"{hangs}\n{error}") from None
    except RankFailedError as error:
        raise CheckFailed(f"{raised(error)}\n{error}") from None
    finally:  # what the student's function prints is worth reading; how many cores there are is not
        lines = [line for line in printed.getvalue().splitlines() if not line.startswith("note: ")]
        print(*lines, sep="\n", end="\n" if lines else "")


def launch_for_check(worker: Callable[..., Any], ranks: int, args: Sequence[Any], **options: Any) -> list[Any]:
    """`launch` with a time limit that ranks on a busy machine do not reach, but ranks that wait for each other do."""
    return launch(worker, ranks, args, timeout=TIMEOUT, own_time=True, threads=1, **options)


def _observe(exercise: Exercise, case: Any, functions: Sequence[Callable[..., Any]]) -> tuple[Any, MessageTrace]:
    rank = dist.get_rank()
    with _other_ranks_only(), trace_messages() as trace:
        seen = plain(exercise.observe(exercise.share(case, rank), rank, None, *functions))
    dist.barrier()  # no rank leaves while another still sends to it what nobody waits for
    return seen, trace


@contextlib.contextmanager
def _other_ranks_only() -> Iterator[None]:
    """Refuse a message to or from a rank that is not there, or the rank itself: Gloo crashes, or hangs."""
    originals = {name: vars(dist.ProcessGroup)[name] for name in ("send", "recv")}

    def refusing(name: str) -> Callable[..., Any]:
        original = getattr(dist.ProcessGroup, name)

        def method(group: dist.ProcessGroup, tensors: Any, peer: int, tag: int) -> Any:
            rank, size = group.rank(), group.size()
            what = f"rank {rank} {'sends to' if name == 'send' else 'receives from'}"
            if peer == rank:
                raise ValueError(f"{what} itself; the world size is {size}")
            if not 0 <= peer < size:
                raise ValueError(f"{what} rank {peer}, and the ranks are 0 to {size - 1}: count modulo {size}")
            return original(group, tensors, peer, tag)

        return method

    try:
        for name in originals:
            setattr(dist.ProcessGroup, name, refusing(name))
        yield
    finally:
        for name, original in originals.items():
            setattr(dist.ProcessGroup, name, original)


def _evidence(traces: Sequence[MessageTrace]) -> dict[str, Any]:
    """As `MessageBroker.evidence`, and each rank's messages as (kind, start, end); one that nobody waited for has no end."""
    for trace in traces:
        if trace.collectives:
            raise CheckFailed(
                f"rank {trace.rank} calls dist.{trace.collectives[0].kind}: build it from send, recv, isend and irecv"
            )
    every = [(trace.rank, message) for trace in traces for message in trace.messages]
    sends = [(rank, message.peer, message.nbytes) for rank, message in every if message.kind == "send"]
    taken = not any(math.isnan(message.end) for _, message in every if message.kind == "recv")
    try:
        rounds = max((message.round for message in message_rounds(traces)), default=0)
    except ValueError:
        rounds, taken = 0, False
    spans = [[(each.kind, each.start, each.end) for each in trace.messages] for trace in traces]
    return {"messages": sends, "rounds": rounds, "taken": taken, "spans": spans}

"""The visible check's ranks: processes of `launch` that ask the exercise's watch in this process.

So the visible check has the hidden check's evidence: the same watch, the same process group, and another transport.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from course_lib.distributed import RankFailedError
from course_lib.exercises.comparing import plain
from course_lib.exercises.description import Exercise, Watch
from course_lib.exercises.ranks.launched_ranks import failure, launch_for_check, shown_to_the_student
from course_lib.live_view.check_failed import CheckFailed

__all__ = ["on_watched_ranks", "watched"]

_GROUP = {  # what PyTorch says of the process group → the fault
    "process group has not been initialized": "there is no process group yet",
    "default process group twice": "dist.init_process_group() is called where the process group exists",
}


def on_watched_ranks(exercise: Exercise, case: Any, functions: Sequence[Callable[..., Any]]) -> dict[str, Any]:
    """`Exercise.transport`: observe a case whose ranks reach each other through `exercise.watch`.

    Raises
    ------
    CheckFailed
        The ranks wait for each other, or one raised.
    """
    ranks = exercise.world(case) if exercise.world is not None else exercise.ranks
    watch, on = exercise.watch(case), f"on {'1 rank' if ranks == 1 else f'{ranks} ranks'}"

    def raised(error: RankFailedError) -> str:
        for said, fault in _GROUP.items():
            if said in error.reason:
                where = re.search(rf"line \d+, in ({'|'.join(exercise.functions)})\b", error.rank_traceback)
                raise CheckFailed(
                    f"{on} {fault}{f' ({where[0]})' if where else ''}. "
                    "Call dist.init_process_group() once, where dist.is_initialized() is False."
                ) from None
        return f"{on} {getattr(watch, 'fault', '') or f'your function failed: {failure(error)}'}."

    hangs = f"{on} it hangs: one waits for something that never comes. Where each was tells which."
    with shown_to_the_student(hangs, raised), _served(watch) as address:
        seen = launch_for_check(_observe, ranks, (exercise, case, functions, address), process_group=False)
    return {"ranks": seen, **watch.evidence()}


def watched(ranks: int, watch: Callable[[Any], Watch], world: Callable[[Any], int] | None = None) -> dict[str, Any]:
    """The fields of an `Exercise` on several ranks whose messages or collectives the watch moves and counts."""
    return {"ranks": ranks, "watch": watch, "world": world, "transport": on_watched_ranks, "seconds": 40.0}


def _observe(exercise: Exercise, case: Any, functions: Sequence[Callable[..., Any]], address: str) -> Any:
    rank = int(os.environ["RANK"])
    with Client(address) as channel:
        asking = threading.Lock()

        def outside(name: str, *args: Any) -> Any:
            with asking:
                # Bytes: `send` would move a tensor to memory that both processes share.
                channel.send_bytes(pickle.dumps((name, rank, [plain(each) for each in args])))
                return pickle.loads(channel.recv_bytes())

        return plain(exercise.observe(exercise.share(case, rank), rank, outside, *functions))


@contextlib.contextmanager
def _served(watch: Watch) -> Iterator[str]:
    """The address at which `watch` answers."""
    answering = threading.Lock()

    def serve(channel: Connection) -> None:
        with channel, contextlib.suppress(EOFError, OSError):
            while True:
                name, rank, args = pickle.loads(channel.recv_bytes())
                with answering:
                    reply = watch.answer(name, rank, *args)
                channel.send_bytes(pickle.dumps(reply))

    def accept() -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                threading.Thread(target=serve, args=[listener.accept()], daemon=True).start()

    with Listener(backlog=16) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield listener.address

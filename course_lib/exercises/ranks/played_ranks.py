"""The partners of one rank, played from a script: workers to a server, or a server to a worker.

The other half is `message_group`. Nobody waits for a clock: a message is posted as soon as its place in the script has
come, and a rank that waits for what cannot come any more is stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from course_lib.exercises.comparing import plain
from course_lib.exercises.description import Exercise
from course_lib.exercises.ranks.message_broker import MessageBroker
from course_lib.live_view.check_failed import CheckFailed

__all__ = ["PlayedServer", "PlayedWorkers", "on_played_ranks"]

PATIENCE = 500  # unanswered questions, after which nothing can move any more


class _Played(MessageBroker):
    """The student's process is rank `me`; all other ranks are played."""

    def __init__(self, size: int, me: int) -> None:
        super().__init__(size, buffered=True)
        self.me = me

    def answer(self, name: str, rank: int, *args: Any) -> Any:
        return super().answer(name, self.me, *args)

    def _stopped(self) -> str:
        if self._unanswered[self.me] >= PATIENCE:
            self.fault = "it waits for a message that nobody sends"
        return self.fault


class PlayedServer(_Played):
    """Rank 0 to a worker, which is rank 1: every message that comes is kept, and answered by the next answer.

    Parameters
    ----------
    answers : sequence of Tensor
    """

    def __init__(self, answers: Sequence[torch.Tensor]) -> None:
        super().__init__(2, me=1)
        self._answers, self.questions = list(answers), []

    def post(self, rank: int, destination: Any, tag: Any, tensor: Any) -> int | str:
        if rank == 0:
            return super().post(rank, destination, tag, tensor)
        receive = self.expect(0, 1, tag)
        number = super().post(rank, destination, tag, tensor)
        message = self.collect(0, receive) if type(receive) is int else None
        if isinstance(message, torch.Tensor):
            self.questions.append(message)
            if len(self.questions) <= len(self._answers):
                self.post(0, 1, tag, self._answers[len(self.questions) - 1])
        return number

    def evidence(self) -> dict[str, Any]:
        return {"questions": self.questions}


class PlayedWorkers(_Played):
    """Workers 1, 2, … to a server, which is rank 0.

    Parameters
    ----------
    workers : int
    script : sequence of (worker, message, after, awaits)
        In the order in which the messages are sent. A message is sent when its worker waits for no answer and the server
        has sent `after` answers; `awaits` says whether the worker then waits for one.
    """

    def __init__(self, workers: int, script: Sequence[tuple[int, torch.Tensor, int, bool]]) -> None:
        super().__init__(workers + 1, me=0)
        self._script = list(script)
        self._receives: dict[int, int] = {}  # of the workers that wait for an answer
        self.answers_to: dict[int, list[torch.Tensor]] = {worker: [] for worker in range(1, workers + 1)}
        self.answered: list[int] = []
        self._place = 0
        self._play()

    def _play(self) -> None:
        while self._place < len(self._script):
            worker, message, after, awaits = self._script[self._place]
            if worker in self._receives or len(self.answered) < after:
                return
            super().post(worker, 0, 0, message)
            if awaits:
                self._receives[worker] = self.expect(worker, 0, 0)
            self._place += 1

    def post(self, rank: int, destination: Any, tag: Any, tensor: Any) -> int | str:
        number = super().post(rank, destination, tag, tensor)
        receive = self._receives.get(destination) if rank == 0 else None
        answer = self.collect(destination, receive) if receive is not None else None
        if isinstance(answer, torch.Tensor):
            del self._receives[destination]
            self.answers_to[destination].append(answer)
            self.answered.append(destination)
            self._play()
        return number

    def evidence(self) -> dict[str, Any]:
        """For an observation: each worker's answers, and how many messages were not sent or not taken."""
        left = len(self._script) - self._place + sum(not message.taken for message in self.messages)
        return {"answers": [self.answers_to[worker] for worker in sorted(self.answers_to)], "left": left}


def on_played_ranks(exercise: Exercise, case: Any, functions: Sequence[Callable[..., Any]]) -> dict[str, Any]:
    """`Exercise.transport`: observe a case in this process, with its watch.

    Raises
    ------
    CheckFailed
        The function waits for what nobody sends any more.
    """
    watch = exercise.watch(case)
    try:
        seen = exercise.observe(
            exercise.share(case, 0), lambda name, *args: watch.answer(name, 0, *map(plain, args)), *functions
        )
    except RuntimeError:
        if not watch.fault:
            raise
        raise CheckFailed(
            f"{case['about']}: deadlock. Your function waits for a message that nobody sends: its partners wait, too, or have "
            "finished. Whom does it receive from, and has it answered everybody?"
        ) from None
    return plain(seen) | watch.evidence()

"""Messages between ranks that share no network pass through here, in the grader: counted and delivered out of their reach.

The ranks' half is `broker_process_group`, for MPI `mpi_comm`. The grader may play a rank itself: `post` and `collect`
are then its own. Ranks that wait for what never comes are stopped by the number of their questions: no clock says that a
rank on a busy machine is late.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["ANY", "Message", "MessageBroker"]

ANY = -1  # for a receive from the rank that sends first
WILD = (-1, -2)  # MPI's any source and any tag, in Open MPI and MPICH; a tag below these is matched by itself alone
PATIENCE = 40  # unanswered questions of every rank, after which nothing can move any more
AFTER_AN_ERROR = 1500  # where a rank raised, its own error is the better report: the others wait for its end
WAITS = {"taken": False, "collect": None, "result": None}  # the question of a rank that waits, and what it is answered
MOST = 4_000  # messages
MOST_BYTES = 1 << 26
TAGS = range(-(1 << 31), 1 << 31)  # 32 bits, as in MPI and Gloo: a larger number would carry data that nobody counts


@dataclass
class Message:
    """A message that was posted.

    Attributes
    ----------
    source, destination, tag : int
    nbytes : int
    round : int
        Steps that had to come before it, and itself: Lamport's clock, in which a rank sends one message a step.
    """

    source: int
    destination: int
    tag: int
    nbytes: int
    round: int
    taken: bool = False


class MessageBroker:
    """Delivers messages between `size` ranks, in the order in which they were posted.

    Parameters
    ----------
    size : int
    buffered : bool
        A send has ended at once, as small messages may with some backends; else when its receiver has taken it.

    Attributes
    ----------
    messages : list of Message
    fault : str
        Why the ranks were stopped; empty while they were not.
    """

    def __init__(self, size: int, buffered: bool = False) -> None:
        self.size, self.buffered, self.fault = size, buffered, ""
        self.messages: list[Message] = []
        self._waiting: list[tuple[Message, torch.Tensor]] = []  # posted and not yet asked for
        # Number, source, destination and tag of each receive without a message.
        self._asking: list[tuple[int, int, int, int]] = []
        self._delivered: dict[int, tuple[Message, torch.Tensor]] = {}
        self._sources: dict[int, int] = {}  # of what was collected, by the number of the receive
        self._receivers: list[int] = []  # rank, by the number of the receive
        self._clock = [0] * size
        self._bytes = 0
        self._unanswered = [0] * size  # questions of each rank since it last had an answer
        self._waits_in = [""] * size
        self._left: set[int] = set()
        self._raised: set[int] = set()

    def answer(self, name: str, rank: int, *args: Any) -> Any:
        """What a rank is answered that asks ``outside(name, *args)``."""
        reply = self.answers[name](rank, *args)
        if name in WAITS and reply is WAITS[name]:
            self._waits_in[rank] = self._waited_for(name, *args)
            self._unanswered[rank] += 1
        else:
            self._unanswered[rank] = 0
            if name not in WAITS:
                self._unanswered = [0] * self.size
        return reply

    def evidence(self) -> dict[str, Any]:
        """For an observation: ``(source, destination, bytes)`` of each message, their rounds, and whether all arrived."""
        messages = [(message.source, message.destination, message.nbytes) for message in self.messages]
        rounds = max((message.round for message in self.messages), default=0)
        return {"messages": messages, "rounds": rounds, "taken": all(message.taken for message in self.messages)}

    @property
    def answers(self) -> Mapping[str, Callable[..., Any]]:
        """For `Ask.call`."""
        return {"left": self.leave, "post": self.post, "taken": self._taken, "expect": self.expect, "collect": self.collect,
                "source": self._source}  # fmt: skip

    def sent(self) -> list[int]:
        """Bytes that each rank sent."""
        return [sum(message.nbytes for message in self.messages if message.source == rank) for rank in range(self.size)]

    def leave(self, rank: int, raised: Any = False) -> None:
        """A rank's function has returned, or raised."""
        if raised is True:
            self._raised.add(rank)
        self._left.add(rank)

    def post(self, rank: int, destination: Any, tag: Any, tensor: Any) -> int | str:
        """A rank sends; the number of the message, or what is wrong with it."""
        if problem := self._problem(rank, self._is_rank(destination), tag):
            return problem
        if not isinstance(tensor, torch.Tensor):
            return "a message is a tensor"
        nbytes = tensor.numel() * tensor.element_size()
        self._bytes += nbytes
        if len(self.messages) >= MOST or self._bytes > MOST_BYTES:
            return "far too many messages"
        self._clock[rank] += 1
        message = Message(rank, destination, tag, nbytes, self._clock[rank])
        self.messages.append(message)
        asking = next((one for one in self._asking if _fits(one, message)), None)
        if asking is None:
            self._waiting.append((message, tensor))
        else:
            self._asking.remove(asking)
            self._deliver(asking[0], message, tensor)
        return len(self.messages) - 1

    def expect(self, rank: int, source: Any, tag: Any) -> int | str:
        """A rank is ready to receive, from one source or any; the number of the receive, or what is wrong with it."""
        known = self._is_rank(source) or (type(source) is int and source in WILD)
        if problem := self._problem(rank, known, tag):
            return problem
        if len(self._receivers) >= MOST:
            return "far too many messages"
        self._receivers.append(rank)
        number = len(self._receivers) - 1
        asking = (number, source, rank, tag)
        place = next((place for place, (message, _) in enumerate(self._waiting) if _fits(asking, message)), None)
        if place is None:
            self._asking.append(asking)
        else:
            self._deliver(number, *self._waiting.pop(place))
        return number

    def _deliver(self, number: int, message: Message, tensor: torch.Tensor) -> None:
        """Once both ends are there the message moves, whether or not anybody waits for it already."""
        message.taken = True
        self._delivered[number] = (message, tensor)

    def _taken(self, rank: int, number: Any) -> bool | str:
        if type(number) is not int or not 0 <= number < len(self.messages):
            return "there is no such message"
        return self.buffered or self.messages[number].taken or self._stuck() or False

    def collect(self, rank: int, number: Any) -> torch.Tensor | str | None:
        """The message that came for a receive, once; None while there is none."""
        if type(number) is not int or not 0 <= number < len(self._receivers) or self._receivers[number] != rank:
            return "there is no such message"
        if number not in self._delivered:
            return self._stuck() or None
        message, tensor = self._delivered.pop(number)
        self._clock[rank] = max(self._clock[rank], message.round)
        self._sources[number] = message.source
        return tensor

    def _source(self, rank: int, number: Any) -> int | str:
        return self._sources.get(number if type(number) is int else -1, "there is no such message")

    def _stuck(self) -> str:
        """What a rank is told that waits for a message which never comes; empty while it may come."""
        stopped = self.fault or self._stopped()
        return "deadlock: no message moves any more, the ranks wait for each other" if stopped else ""

    def _stopped(self) -> str:
        """Why the ranks wait for ever; empty while they may not. A rank that has not begun may still send."""
        patience = AFTER_AN_ERROR if self._raised else PATIENCE
        if any(rank not in self._left and self._unanswered[rank] < patience for rank in range(self.size)):
            return ""
        waiting = [
            f"rank {rank} waits in {self._waits_in[rank]}" for rank in range(self.size) if rank not in self._left
        ]
        left = ", ".join(str(rank) for rank in sorted(self._left))
        gone = f"rank {left} {'have' if ',' in left else 'has'} left the function" if left else ""
        self.fault = f"deadlock: {', '.join(filter(None, [*waiting, gone]))}"
        return self.fault

    def _waited_for(self, name: str, number: int) -> str:
        """What a rank waits for that asks ``outside(name, number)``."""
        if name == "taken":
            return f"a send to rank {self.messages[number].destination}"
        source = next(source for each, source, *_ in self._asking if each == number)
        return f"a receive from rank {source}" if source >= 0 else "a receive from any rank"

    def _problem(self, rank: int, peer_known: bool, tag: Any) -> str:
        """What is wrong with the address of a message or a receive; empty where nothing is."""
        if not (self._is_rank(rank) and peer_known):
            return "there is no such rank"
        return "" if type(tag) is int and tag in TAGS else "a tag is a whole number of 32 bits"

    def _is_rank(self, rank: Any) -> bool:
        return type(rank) is int and 0 <= rank < self.size


def _fits(asking: tuple[int, int, int, int], message: Message) -> bool:
    _, source, destination, tag = asking
    return (
        destination == message.destination
        and (source == message.source or source in WILD)
        and (tag == message.tag or (tag in WILD and message.tag >= 0))
    )

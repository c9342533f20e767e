"""Which message had to come before which: sends matched with receives, and numbered by rounds.

`message_rounds` orders messages by what had to happen before what, without any clock (Lamport 1978): a message is sent in
the round after the last one in which its sender received or sent something. That is the number of steps an algorithm takes
when every message takes one.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from course_lib.distributed.messages.message_trace import Message, MessageTrace

__all__ = ["DeliveredMessage", "delivered_messages", "message_rounds"]

Pair = tuple[int, Message, int, Message]  # source and its send, destination and its receive


@dataclass(frozen=True)
class DeliveredMessage:
    """A message with both its ends.

    Attributes
    ----------
    source, destination : int
        Ranks.
    nbytes : int
    sent, received : float
        Seconds: the call of the send, the end of the receive.
    round : int
        From 1; 0 in `delivered_messages`, which knows no rounds.
    """

    source: int
    destination: int
    nbytes: int
    sent: float
    received: float
    round: int = 0


def delivered_messages(traces: Sequence[MessageTrace]) -> list[DeliveredMessage]:
    """Match each send with its receive: those of one pair of ranks and one tag arrive in the order in which they went.

    Parameters
    ----------
    traces : sequence of MessageTrace
        Of all ranks, in order of rank.

    Raises
    ------
    ValueError
        A message was sent that nobody received, or awaited that nobody sent.
    """
    return [_joined(source, send, destination, receive) for source, send, destination, receive in _pairs(traces)]


def _joined(source: int, send: Message, destination: int, receive: Message, number: int = 0) -> DeliveredMessage:
    return DeliveredMessage(source, destination, send.nbytes, send.start, receive.end, number)


def _pairs(traces: Sequence[MessageTrace]) -> list[Pair]:
    sends: dict[tuple[int, int | None, int], deque[Message]] = defaultdict(deque)
    for trace in traces:
        for message in trace.messages:
            if message.kind == "send":
                sends[trace.rank, message.peer, message.tag].append(message)
    pairs = []
    for trace in traces:
        for message in trace.messages:
            if message.kind == "recv":
                waiting = sends[message.peer, trace.rank, message.tag] if message.peer is not None else ()
                if not waiting:
                    raise ValueError(f"rank {trace.rank} awaits a message from rank {message.peer} that nobody sent")
                pairs.append((message.peer, waiting.popleft(), trace.rank, message))
    if lost := [(source, peer) for (source, peer, _), waiting in sends.items() if waiting]:
        raise ValueError(f"rank {lost[0][0]} sent rank {lost[0][1]} a message that nobody received")
    return pairs


def message_rounds(traces: Sequence[MessageTrace]) -> list[DeliveredMessage]:
    """`delivered_messages` with the round of each, in order of rounds.

    In a round a rank sends at most one message and receives at most one, at the same time.

    Raises
    ------
    ValueError
        As `delivered_messages`.
    """
    waiting = sorted(_pairs(traces), key=lambda pair: pair[1].start)
    last_send, last_receive = [0] * len(traces), [0] * len(traces)  # rounds
    # Of each rank: what it has received, as (end, round), for the sends that came later.
    known: list[list[tuple[float, int]]] = [[] for _ in traces]
    found = []
    while waiting:
        # In the program's order: a rank's sends as they were called, a rank's receives as they were called. Where messages
        # that are not waited for make that impossible, as they went.
        chosen = next((pair for pair in waiting if _comes_next(pair, waiting)), None)
        source, send, destination, receive = chosen or waiting[0]
        waiting.remove((source, send, destination, receive))
        learnt = max((number for end, number in known[source] if end <= send.start), default=0)
        number = 1 + max(last_send[source], last_receive[destination], learnt)
        last_send[source] = last_receive[destination] = number
        known[destination].append((receive.end, number))
        found.append(_joined(source, send, destination, receive, number))
    return sorted(found, key=lambda message: message.round)


def _comes_next(pair: Pair, waiting: Sequence[Pair]) -> bool:
    """Whether no other message that is left must come before this one."""
    source, send, destination, receive = pair
    return not any(
        (other[0] == source and other[1].start < send.start)
        or (other[2] == destination and other[3].start < receive.start)
        or (other[2] == source and other[3].end <= send.start)
        for other in waiting
    )

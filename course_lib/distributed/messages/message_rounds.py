"""The order of messages without a clock: sends matched with receives, and numbered by rounds (Lamport 1978).

A message belongs to the round after the last one in which its sender sent or received something. The number of rounds is
the number of steps of an algorithm in which every message takes one step.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from course_lib.distributed.messages.message_trace import Message, MessageTrace

__all__ = ["DeliveredMessage", "message_rounds"]

Pair = tuple[int, Message, int, Message]  # source and its send, destination and its receive


@dataclass(frozen=True)
class DeliveredMessage:
    """A message, from its send to its receive.

    Attributes
    ----------
    source, destination : int
        Ranks.
    nbytes : int
    sent, received : float
        Seconds: the call of the send, the end of the receive.
    round : int
        From 1.
    """

    source: int
    destination: int
    nbytes: int
    sent: float
    received: float
    round: int


def _pairs(traces: Sequence[MessageTrace]) -> list[Pair]:
    """Match each send with its receive: messages of one pair of ranks and one tag arrive in the order of their sends."""
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
    """Match sends with receives, and number the messages by rounds; in order of rounds.

    In a round a rank sends at most one message and receives at most one, at the same time.

    Parameters
    ----------
    traces : sequence of MessageTrace
        Of all ranks, in order of rank.

    Raises
    ------
    ValueError
        A send has no receive, or a receive has no send.
    """
    waiting = sorted(_pairs(traces), key=lambda pair: pair[1].start)
    last_send, last_receive = [0] * len(traces), [0] * len(traces)  # rounds
    # For each rank, its receives as (end, round): they precede its later sends.
    known: list[list[tuple[float, int]]] = [[] for _ in traces]
    delivered = []
    while waiting:
        # Each rank's sends and receives are numbered in the order of their calls. Where messages without a wait make that
        # impossible, in the order of the sends.
        chosen = next((pair for pair in waiting if _comes_next(pair, waiting)), None)
        source, send, destination, receive = chosen or waiting[0]
        waiting.remove((source, send, destination, receive))
        learnt = max((number for end, number in known[source] if end <= send.start), default=0)
        number = 1 + max(last_send[source], last_receive[destination], learnt)
        last_send[source] = last_receive[destination] = number
        known[destination].append((receive.end, number))
        delivered.append(DeliveredMessage(source, destination, send.nbytes, send.start, receive.end, number))
    return sorted(delivered, key=lambda message: message.round)


def _comes_next(pair: Pair, waiting: Sequence[Pair]) -> bool:
    """Whether no other message that is left must come before this one."""
    source, send, destination, receive = pair
    return not any(
        (other[0] == source and other[1].start < send.start)
        or (other[2] == destination and other[3].start < receive.start)
        or (other[2] == source and other[3].end <= send.start)
        for other in waiting
    )

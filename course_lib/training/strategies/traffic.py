"""Bytes that a rank sent, from the trace of its messages."""

from __future__ import annotations

from course_lib.distributed import MessageTrace

__all__ = ["bytes_on_the_wire"]


def bytes_on_the_wire(trace: MessageTrace) -> int:
    """Bytes that this rank sent: what the trace counted, and for each all_reduce what a ring sends of its payload.

    The messages inside a backend's all_reduce are not visible. A ring sends 2·(N − 1)/N of the payload from each of N
    ranks, and no algorithm in which all ranks send the same amount sends less (Patarasuk and Yuan, 2009).

    Raises
    ------
    ValueError
        The trace has another collective with a payload, whose bytes are unknown.
    """
    sent = trace.bytes_sent
    for message in trace.collectives:
        if message.kind == "all_reduce":
            sent += round(2 * (trace.world_size - 1) / trace.world_size * message.nbytes)
        elif message.nbytes:
            raise ValueError(f"no count of bytes for {message.kind}")
    return sent

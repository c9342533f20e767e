"""Space-time diagrams: a line for each rank, an arrow for each message (Lamport 1978)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from course_lib.distributed.messages.message_rounds import message_rounds
from course_lib.distributed.messages.message_trace import MessageTrace
from course_lib.plots.curves import COLOURS

__all__ = ["space_time"]


def space_time(
    traces: Sequence[MessageTrace],
    title: str,
    clock: str = "rounds",
    axes: Axes | None = None,
    rounds: int = 0,
    largest: int = 0,
) -> Axes:
    """Draw the messages of one collective; the wider an arrow, the more bytes.

    Parameters
    ----------
    traces : sequence of MessageTrace
        Of all ranks, in order of rank.
    title : str
        With the clock "rounds", the number of rounds is written behind it.
    clock : {"rounds", "seconds"}
        The rounds of `message_rounds`, or milliseconds since the first send.
    axes : matplotlib Axes, optional
    rounds : int
        The least width in rounds, for pictures side by side.
    largest : int
        Bytes of the widest arrow; by default this picture's largest message.

    Raises
    ------
    ValueError
        As `message_rounds`, or an unknown clock.
    """
    if clock not in ("rounds", "seconds"):
        raise ValueError(f"clock must be 'rounds' or 'seconds', got {clock!r}")
    messages = message_rounds(traces)
    if axes is None:
        _, axes = plt.subplots(figsize=(6.4, 0.9 + 0.55 * len(traces)), layout="constrained")
    begin = min((message.sent for message in messages), default=0.0)
    largest = max(largest, 1, *(message.nbytes for message in messages))
    ends = [1.0, float(rounds) if clock == "rounds" else 0.0]
    for message in messages:
        if clock == "rounds":
            start, end = message.round - 0.95, message.round - 0.1
        else:
            start, end = 1000 * (message.sent - begin), 1000 * (message.received - begin)
        ends.append(end)
        axes.annotate(
            "",
            (end, message.destination),
            (start, message.source),
            arrowprops={
                "arrowstyle": "-|>",
                "color": COLOURS["measured"],
                "linewidth": 0.8 + 2.4 * message.nbytes / largest,
                "shrinkA": 0,
                "shrinkB": 0,
                "mutation_scale": 11,
            },
        )
    for rank in range(len(traces)):
        axes.axhline(rank, color=COLOURS["reference"], linewidth=0.8, zorder=0)
    span = max(ends)
    axes.set_xlim(-0.03 * span, 1.03 * span)
    axes.set_ylim(len(traces) - 0.6, -0.4)  # rank 0 on top
    axes.set_yticks(range(len(traces)), [f"rank {rank}" for rank in range(len(traces))])
    axes.set_xlabel("round" if clock == "rounds" else "time (ms)")
    if clock == "rounds":  # numbers in the middle of the rounds
        numbers = range(1, math.ceil(span) + 1)
        axes.set_xticks([number - 0.5 for number in numbers], [str(number) for number in numbers])
        last = max((message.round for message in messages), default=0)
        title += f": {last} round" + "s" * (last != 1)
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(left=False, bottom=clock != "rounds")
    return axes

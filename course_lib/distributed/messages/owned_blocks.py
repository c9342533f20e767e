"""Pictures of what each rank owns: before and after a collective, and after each step of a ring.

A block's colour is the rank that its numbers come from. A sum has the colours of all ranks in it, and is hatched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course_lib.plots.style import COLOURS, PALETTE, figure_title, in_course_style

__all__ = ["before_and_after", "ring_arrivals", "ring_steps", "topologies"]

Owned = Sequence[Sequence[Sequence[int]]]
"""``[rank][place]``: the ranks whose numbers a block has; empty where there is no block."""

RANKS = 4


def _owned(block) -> Owned:
    return [[block(rank, place) for place in range(RANKS)] for rank in range(RANKS)]


_EVERY = tuple(range(RANKS))
_ALL_ON_ZERO = _owned(lambda rank, place: (0,) if rank == 0 else ())
_OWN_PLACE = _owned(lambda rank, place: (rank,) if rank == place else ())
_OWN = _owned(lambda rank, place: (rank,))
_SUM = _owned(lambda rank, place: _EVERY)
COLLECTIVES = {
    "scatter": (_ALL_ON_ZERO, _owned(lambda rank, place: (0,) if rank == place else ())),
    "gather": (_OWN_PLACE, _owned(lambda rank, place: (place,) if rank == 0 else ())),
    "all-gather": (_OWN_PLACE, _owned(lambda rank, place: (place,))),
    "broadcast": (_ALL_ON_ZERO, _owned(lambda rank, place: (0,))),
    "reduce": (_OWN, _owned(lambda rank, place: _EVERY if rank == 0 else ())),
    "all-reduce": (_OWN, _SUM),
    "reduce-scatter": (_OWN, _owned(lambda rank, place: _EVERY if rank == place else ())),
}


@in_course_style
def before_and_after() -> Figure:
    """Seven collectives on four ranks: what each rank owns before (left) and after (right)."""
    figure, axes = plt.subplots(2, 4, figsize=(10, 4.4), layout="constrained")
    for ax, (name, (before, after)) in zip(axes.flat, COLLECTIVES.items(), strict=False):
        _draw(ax, before, 0)
        _draw(ax, after, RANKS + 1.6)
        ax.annotate("", (RANKS + 1.4, 1.5), (RANKS + 0.2, 1.5), arrowprops={"arrowstyle": "->", "color": "0.3"})
        ax.set(xlim=(-0.2, 2 * RANKS + 1.8))
        ax.set_title(name, loc="left", fontsize=10)
    key = axes.flat[-1]
    for rank in range(RANKS):
        _block(key, 0.5, rank, (rank,))
        key.text(2, rank + 0.4, f"numbers of rank {rank}", va="center", fontsize=9)
    _block(key, 0.5, RANKS + 0.3, _EVERY)
    key.text(2, RANKS + 0.7, "sum over ranks 0…3", va="center", fontsize=9)
    key.set(xlim=(0, 9), ylim=(RANKS + 1.3, -0.3))
    key.axis("off")
    figure_title(figure, "What each rank owns before and after a collective (a row for each rank, rank 0 on top)")
    return figure


def ring_arrivals(all_reduce: Callable, *halves: Callable) -> list[tuple[int, list[int]]]:
    """On a rank: run a ring all-reduce, and write down what arrives in each ``swap(outgoing, to, incoming, source)``.

    Parameters
    ----------
    all_reduce : callable
        Sums a tensor in place.
    halves : callable
        The functions that `all_reduce` calls and that call the `swap` beside them.

    Returns
    -------
    list of (int, list of int)
        The chunk that arrived, and the ranks whose numbers it has: for `ring_steps`.
    """
    rank, size, seen = dist.get_rank(), dist.get_world_size(), []
    swap = halves[0].__globals__["swap"]

    def watched(outgoing, to, incoming, source):
        swap(outgoing, to, incoming, source)
        number = int(incoming[0])  # digit i is 1 where rank i's numbers are in it; before them, the chunk's, summed
        ranks = [each for each in range(size) if number // 10**each % 10]
        seen.append((number // 10**size // max(1, len(ranks)), ranks))

    for half in halves:
        half.__globals__["swap"] = watched
    all_reduce(torch.arange(size, dtype=torch.float64) * 10**size + 10**rank)
    return seen


@in_course_style
def ring_steps(arrivals: Sequence[Sequence[tuple[int, Sequence[int]]]], title: str) -> Figure:
    """What each rank owns after each step of a ring, from what arrived.

    Parameters
    ----------
    arrivals : sequence over steps, of sequences over ranks
        ``(chunk, ranks)``: which chunk arrived, and the ranks whose numbers it is the sum of. What is no whole sum yet
        is added to the rank's own numbers.
    title : str
    """
    size = max((len(step) for step in arrivals), default=RANKS)
    owned = [[(rank,) for _ in range(size)] for rank in range(size)]
    columns = min(4, len(arrivals) + 1)
    rows = math.ceil((len(arrivals) + 1) / columns)
    figure, axes = plt.subplots(rows, columns, figsize=(10, 2.4 * rows), layout="constrained", squeeze=False)
    for number, ax in enumerate(axes.flat):
        if number > len(arrivals):
            ax.axis("off")
            continue
        new = []
        for rank, (chunk, ranks) in enumerate(arrivals[number - 1] if number else ()):
            owned[rank][chunk] = tuple(sorted({*ranks} if len(ranks) == size else {*ranks, rank}))
            new.append((rank, chunk))
        _draw(ax, owned, 0, new)
        ax.set(xlim=(-0.2, size + 0.1), xticks=[place + 0.45 for place in range(size)])
        ax.set_xticklabels([f"{place}" for place in range(size)], fontsize=8)
        ax.set_title(f"after step {number}" if number else "start", loc="left", fontsize=10)
        ax.set_xlabel("chunk", fontsize=8)
    figure_title(figure, title)
    return figure


@in_course_style
def topologies() -> Figure:
    """Three ways from rank 0 to seven others: a star, a binomial tree, a ring."""
    figure, axes = plt.subplots(1, 3, figsize=(9, 2.6), layout="constrained")
    links = {
        "star: the root sends 7 times": [(0, rank) for rank in range(1, 8)],
        "tree: 3 rounds": [(rank, rank + gap) for gap in (1, 2, 4) for rank in range(gap)],
        "ring: neighbours only": [(rank, (rank + 1) % 8) for rank in range(8)],
    }
    for ax, (title, pairs) in zip(axes, links.items(), strict=True):
        at = {rank: (math.sin(rank * math.pi / 4), math.cos(rank * math.pi / 4)) for rank in range(8)}
        if title.startswith("star"):
            at = {rank: (math.sin(rank * 2 * math.pi / 7), math.cos(rank * 2 * math.pi / 7)) for rank in range(1, 8)}
            at[0] = (0.0, 0.0)
        for source, destination in pairs:
            arrow = {"arrowstyle": "-|>", "color": COLOURS["measured"], "shrinkA": 9, "shrinkB": 9}
            ax.annotate("", at[destination], at[source], arrowprops=arrow)
        for rank, (x, y) in at.items():
            ax.text(x, y, rank, ha="center", va="center", bbox={"boxstyle": "circle", "facecolor": "0.93"}, fontsize=9)
        ax.set(xlim=(-1.35, 1.35), ylim=(-1.35, 1.35), aspect="equal")
        ax.set_title(title, fontsize=10)
        ax.axis("off")
    return figure


def _draw(axes: Axes, owned: Owned, left: float, new: Sequence[tuple[int, int]] = ()) -> None:
    """Rows of blocks, rank 0 on top; `new` ones have a thick edge."""
    for rank, row in enumerate(owned):
        for place, ranks in enumerate(row):
            _block(axes, left + place, rank, ranks, (rank, place) in new)
    axes.set(ylim=(len(owned) + 0.1, -0.2), xticks=[], aspect="equal")
    axes.set_yticks([rank + 0.45 for rank in range(len(owned))], [f"rank {rank}" for rank in range(len(owned))])
    axes.tick_params(length=0, labelsize=8)
    axes.spines[:].set_visible(False)
    axes.grid(False)


def _block(axes: Axes, x: float, y: float, ranks: Sequence[int], new: bool = False) -> None:
    """A block with a stripe for each rank whose numbers are in it."""
    for number, rank in enumerate(ranks):
        stripe = (x + 0.9 * number / len(ranks), y), 0.9 / len(ranks), 0.9
        axes.add_patch(plt.Rectangle(*stripe, facecolor=PALETTE[rank % len(PALETTE)], alpha=0.85, linewidth=0))
    whole = {"fill": False, "linewidth": 2.2 if new else 0.6, "edgecolor": "black" if new else "0.4"}
    if len(ranks) > 1:
        axes.add_patch(plt.Rectangle((x, y), 0.9, 0.9, fill=False, hatch="///", edgecolor="white", linewidth=0))
    axes.add_patch(plt.Rectangle((x, y), 0.9, 0.9, linestyle="-" if ranks else ":", **whole))

"""Hidden checks of lab 06: what is built from messages, counted in the grader, and what the messages cost."""

from __future__ import annotations

from .lab06_cost import cost, fit
from .lab06_messages import RANKS, ring, send_receive, tree
from .registry import HiddenCheck

__all__ = ["CHECKS"]

SECONDS = 40.0

CHECKS = {
    "send-receive": HiddenCheck(
        send_receive,
        {
            "values": "The source's tensor arrives",
            "kept": "The tensor that is sent stays as it was",
            "deadlock": "It ends where sends wait for their receivers",
        },
        ranks=RANKS,
        process_group=False,
        network=False,
        seconds=SECONDS,
    ),
    "tree-broadcast": HiddenCheck(
        tree,
        {
            "values": "Every rank ends with the root's tensor",
            "messages": "Every rank but the root receives it once",
            "rounds": "⌈log₂ N⌉ rounds",
        },
        ranks=RANKS,
        process_group=False,
        network=False,
        seconds=SECONDS,
    ),
    "ring": HiddenCheck(
        ring,
        {
            "values": "Every rank holds the sum, in place",
            "lengths": "Any length and any number of ranks",
            "bytes": "Every rank sends 2(N − 1)/N of the tensor",
            "neighbours": "Every rank sends to one neighbour only",
        },
        ranks=RANKS,
        process_group=False,
        network=False,
        seconds=SECONDS,
    ),
    "fit": HiddenCheck(
        fit,
        {
            "line": "Finds the line that the times lie on",
            "latency": "Finds the latency among noisy times",
            "bandwidth": "Finds the bandwidth among noisy times",
        },
    ),
    "cost": HiddenCheck(
        cost,
        {
            "ring": "Time of a ring all-reduce",
            "tree": "Time of a tree all-reduce",
            "bus": "Bus bandwidth",
        },
    ),
}

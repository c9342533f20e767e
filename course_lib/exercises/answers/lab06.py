"""Lab 06's answers, right and wrong. What ranks do together, and how they join, is judged without a reference."""

from __future__ import annotations

import math

from course_lib.exercises.description import Answers, Mistake

__all__ = ["ANSWERS"]


def _seconds(ring=lambda n, r, a, b: 2 * (r - 1) * (a + b * n / r), levels=lambda r: 2 * math.ceil(math.log2(r))):
    return lambda name, n, r, a, b: ring(n, r, a, b) if name == "ring" else levels(r) * (a + b * n)


cost = Answers(
    (_seconds(), lambda n, t, r: 2 * (r - 1) / r * n / t),
    {
        "half the rounds": Mistake("it has N − 1 rounds; reduce-scatter and all-gather are 2(N − 1)",
            _seconds(ring=lambda n, r, a, b: (r - 1) * (a + b * n / r)), None),
        "whole tensors": Mistake("its messages carry the whole tensor; a ring's carry one chunk of N",
            _seconds(ring=lambda n, r, a, b: 2 * (r - 1) * (a + b * n)), None),
        "one latency": Mistake("it counts the latency once; each of the 2(N − 1) messages has it",
            _seconds(ring=lambda n, r, a, b: a + 2 * (r - 1) * b * n / r), None),
        "up only": Mistake("it has ⌈log₂ N⌉ rounds; the sum goes up the tree and down again",
            _seconds(levels=lambda r: math.ceil(math.log2(r))), None),
        "not rounded": Mistake("the number of rounds is not rounded up to a whole one",
            _seconds(levels=lambda r: 2 * math.log2(r)), None),
        "n over t": Mistake("it is n/t, which falls with the number of ranks even on a perfect ring",
            None, lambda n, t, r: n / t),
        "half of it": Mistake("it is half of it: a rank sends in the reduce-scatter and in the all-gather",
            None, lambda n, t, r: (r - 1) / r * n / t),
    },
)  # fmt: skip

ANSWERS = {
    name: Answers() for name in ("join", "exchange", "six", "tree-broadcast", "ring", "two-level")
} | {"cost": cost}  # fmt: skip

"""Hidden checks of lab 07: what three ranks hold afterwards; `lab07_server` has the two sides of Algorithm 2."""

from __future__ import annotations

from typing import Any

import torch

from autograde.checks.compare import same_tensor, same_tensors, trusted
from autograde.checks.lab07_server import server, worker
from autograde.checks.registry import Ask, Findings, HiddenCheck, shape_of
from autograde.rubric.criteria import Finding

__all__ = ["CHECKS"]

RANKS = 3
SECONDS = 20.0

NORMED = [["linear", [3, 5]], ["norm1d", [5]], ["relu", []], ["linear", [5, 2]]]
LYING = [["conv", [2, 4, 3]]]  # its weight lies channels-last in memory
MANY = [["linear", [2, 2]] for _ in range(20)]  # forty small parameters: messages of their own would be seen


def _state(ask: Ask, spec: list[Any]) -> list[torch.Tensor]:
    """Every tensor of such a network, drawn anew."""
    model = trusted("lab07.initial", "make_model")(spec)
    drawn = []
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            drawn.append(torch.from_numpy(ask.random.uniform(0.5, 3, tuple(tensor.shape))).float())
        else:
            drawn.append(torch.tensor(int(ask.random.integers(5, 500))))
    return drawn


def _names(spec: list[Any]) -> list[str]:
    return list(trusted("lab07.initial", "make_model")(spec).state_dict())


def initial(ask: Ask) -> Findings:
    """Each rank brings a network of its own."""
    states = [_state(ask, NORMED) for _ in range(RANKS)]
    found = ask.call("initial", [{"spec": NORMED, "state": state} for state in states])
    names = _names(NORMED)
    buffers = [place for place, name in enumerate(names) if "running" in name or "num_batches" in name]
    others = [place for place in range(len(names)) if place not in buffers]
    look = "on two ranks, fill the model with the rank's number, call it, and print every tensor of state_dict()"
    return {
        "parameters": _all_have(found, states[0], others, "parameters", look),
        "buffers": _all_have(found, states[0], buffers, "buffers", look),
    }


def _all_have(found: list[Any], state: list[torch.Tensor], places: list[int], what: str, look: str) -> Finding:
    for rank, tensors in enumerate(found):
        if not isinstance(tensors, list) or len(tensors) != len(state):
            return Finding(False, f"the model could not be read afterwards: {shape_of(tensors)}", look)
        if not same_tensors([tensors[place] for place in places], [state[place] for place in places], 1e-6):
            return Finding(False, f"rank {rank} does not have rank 0's {what}", look)
    return Finding(True, f"every rank has rank 0's {what}")


def average(ask: Ask) -> Findings:
    """Images drawn unevenly; one rank without any; frozen parameters; channels-last weights; the bytes of many parameters."""
    state = _state(ask, NORMED)
    shapes = [tuple(p.shape) for p in trusted("lab07.initial", "make_model")(NORMED).parameters()]

    def drawn(shapes: list[tuple[int, ...]]) -> list[torch.Tensor]:
        return [torch.from_numpy(ask.random.normal(0, 2, shape)).float() for shape in shapes]

    counts = [int(n) for n in ask.random.permutation([3, 40, 150]) + ask.random.integers(0, 9, RANKS)]
    even = [int(ask.random.integers(10, 50))] * RANKS
    idle = int(ask.random.integers(0, RANKS))
    absent = [0 if rank == idle else n for rank, n in enumerate(counts)]
    frozen = int(ask.random.integers(1, len(shapes) - 1))
    gradients = {case: [drawn(shapes) for _ in range(RANKS)] for case in ("uneven", "even", "absent", "frozen")}
    samples = {"uneven": counts, "even": even, "absent": absent, "frozen": counts}
    given = []
    for rank in range(RANKS):
        cases = []
        for case in gradients:
            none = case == "absent" and rank == idle
            mine: list[Any] = [None] * len(shapes) if none else list(gradients[case][rank])
            cases.append({"gradients": mine, "samples": samples[case][rank], "frozen": [frozen] * (case == "frozen")})
        given.append({"spec": NORMED, "state": state, "cases": cases})
    lying_state = _state(ask, LYING)
    lying = [drawn([tuple(tensor.shape) for tensor in lying_state]) for _ in range(RANKS)]
    for rank, one in enumerate(given):
        case = {"gradients": lying[rank], "samples": counts[rank], "frozen": []}
        one["cases"].append(case | {"spec": LYING, "state": lying_state, "channels_last": True})
    found = ask.call("average", given)
    look = "give rank 0 three images with gradient 1 and rank 1 one image with gradient 5, and compare with 2"
    judged = {}
    for place, case in enumerate(gradients):
        expected: list[torch.Tensor | None] = [
            sum(n * one[number] for n, one in zip(samples[case], gradients[case], strict=True)) / sum(samples[case])
            for number in range(len(shapes))
        ]
        if case == "frozen":
            expected[frozen] = None
        judged[case] = all(_same_gradients(one, place, expected) for one in found)
    means: list[torch.Tensor | None] = [
        sum(n * one[number] for n, one in zip(counts, lying, strict=True)) / sum(counts) for number in range(2)
    ]
    judged["lying"] = all(_same_gradients(one, len(gradients), means) for one in found)
    rest = judged["absent"] and judged["frozen"] and judged["lying"]
    return {
        "even": Finding(
            judged["even"], "the mean over the ranks" if judged["even"] else "wrong even where all have as many images", look
        ),
        "uneven": Finding(
            judged["uneven"],
            "the mean over all images" if judged["uneven"] else "wrong where ranks have different numbers of images",
            look,
        ),
        "edges": Finding(
            rest,
            "right with a rank without images, and frozen parameters stay without gradient"
            if rest
            else "wrong where a rank has no images" if not judged["absent"]
            else "wrong with a frozen parameter" if not judged["frozen"]
            else "wrong, or raises, where a convolution's weight lies channels-last in memory",
            "call it with samples=0 and gradients that are None on one rank; freeze one parameter; "
            "call it on a convolution after .to(memory_format=torch.channels_last)",
        ),
        "one-message": _one_message(ask),
    }  # fmt: skip


def _same_gradients(found: Any, place: int, expected: list[torch.Tensor | None]) -> bool:
    if not isinstance(found, list) or len(found) <= place or not isinstance(found[place], list):
        return False
    if len(found[place]) != len(expected):
        return False
    return all(
        one is None if wanted is None else same_tensor(one, wanted)
        for one, wanted in zip(found[place], expected, strict=True)
    )


def _one_message(ask: Ask) -> Finding:
    """Forty parameters of a few numbers each: one collective is a few packets, forty are hundreds."""
    state = _state(ask, MANY)
    gradients = [torch.ones_like(tensor) for tensor in state]
    case = {"gradients": gradients, "samples": 4, "frozen": []}

    def bytes_of(cases: list[Any]) -> int | None:
        before = ask.bytes_on_loopback()
        found = ask.call("average", [{"spec": MANY, "state": state, "cases": cases}] * RANKS)
        after = ask.bytes_on_loopback()
        right = all(isinstance(one, list) and len(one) == len(cases) for one in found)
        if not right or before is None:
            return None if before is None else 10**9
        return after - before

    # Ranks that come up and go send bytes too; the difference of two calls leaves the collectives.
    once, often = bytes_of([case]), bytes_of([case] * 6)
    if once is None or often is None:
        return Finding(True, "not counted here: there is no sandbox")
    each = (often - once) / 5
    return Finding(
        0 < each < A_FEW,
        "one message for all gradients" if 0 < each < A_FEW else "a network of many parameters takes many messages",
        "count the calls of dist.all_reduce: one is enough for all gradients and the number of images",
    )


A_FEW = 14_000  # bytes on three ranks' loopback: one collective takes 10,000, two take 18,000, forty-one 166,000


def statistics(ask: Ask) -> Findings:
    """Different statistics and counters on each rank; the parameters are equal, as they are in use."""
    shared, names = _state(ask, NORMED), _names(NORMED)
    states = []
    for _ in range(RANKS):
        own = _state(ask, NORMED)
        states.append(
            [o if "running" in n or "num_batches" in n else s for n, o, s in zip(names, own, shared, strict=True)]
        )
    found = ask.call("statistics", [{"spec": NORMED, "state": state} for state in states])
    look = "on two ranks, fill running_mean with the rank's number, call it, and print running_mean"
    mean = [torch.stack([state[i] for state in states]).double().mean(0) for i in range(len(names))]
    right, kept = True, True
    for rank, tensors in enumerate(found):
        if not isinstance(tensors, list) or len(tensors) != len(names):
            return dict.fromkeys(
                ("mean", "kept"), Finding(False, f"the model could not be read: {shape_of(tensors)}", look)
            )
        for place, name in enumerate(names):
            if "running" in name:
                right &= same_tensor(tensors[place], mean[place])
            else:
                kept &= same_tensor(tensors[place], states[rank][place], 1e-5)
    return {
        "mean": Finding(right, "the mean of the ranks' statistics" if right else "not the mean of the ranks' statistics", look),
        "kept": Finding(
            kept, "counters and parameters stay" if kept else "counters or parameters were changed",
            "print num_batches_tracked and the weights before and after",
        ),
    }  # fmt: skip


CHECKS = {
    "initial": HiddenCheck(
        initial,
        {"parameters": "Every rank has rank 0's parameters", "buffers": "Every rank has rank 0's buffers"},
        ranks=RANKS,
        seconds=SECONDS,
    ),
    "average": HiddenCheck(
        average,
        {
            "even": "The mean of equal batches",
            "uneven": "The mean over all images of uneven batches",
            "edges": "Ranks without images, frozen parameters, channels-last weights",
            "one-message": "One collective for all gradients",
        },
        ranks=RANKS,
        seconds=2 * SECONDS,
    ),
    "statistics": HiddenCheck(
        statistics,
        {"mean": "The mean of the running statistics", "kept": "Everything else stays"},
        ranks=RANKS,
        seconds=SECONDS,
    ),
    "worker": HiddenCheck(
        worker,
        {
            "message": "The gradients, their kind and version arrive",
            "parameters": "The model has the parameters that came back",
            "version": "Returns their version",
        },
        seconds=SECONDS,
    ),
    "server": HiddenCheck(
        server,
        {
            "parameters": "Every gradient is applied, and answered with the parameters after it",
            "versions": "Answers carry their kind and the version",
            "staleness": "Returns who it was and how stale",
        },
        seconds=SECONDS,
    ),
}

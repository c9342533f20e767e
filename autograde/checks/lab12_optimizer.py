"""Hidden checks of lab 12's optimiser and its learning rate."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from autograde.checks.compare import close, same_tensors, trusted
from autograde.checks.registry import AnswerError, Ask, Findings
from autograde.rubric.criteria import Finding
from course_lib.optim import NovoGrad

__all__ = ["optimizer", "schedule"]

_SPEC = [("conv", (2, 5, 3)), ("norm2d", (5,)), ("tanh", ()), ("flatten", ()), ("linear", (5 * 36, 4))]


def _model(state: list[torch.Tensor]) -> nn.Module:
    return trusted("lab12.wrap", "make_model")(_SPEC, state)


def optimizer(ask: Ask) -> Findings:
    """Three steps along given gradients, from given weights."""
    random = ask.random
    blank = trusted("lab12.wrap", "make_model")(_SPEC)
    state = [torch.from_numpy(random.normal(1, 0.5, tuple(t.shape))).to(t.dtype) for t in blank.state_dict().values()]
    gradients = [
        [torch.from_numpy(random.normal(0, 1, tuple(p.shape))).float() for p in blank.parameters()] for _ in range(3)
    ]
    lr, decay = float(random.uniform(0.02, 0.2)), float(random.uniform(0.05, 0.3))
    momentum = float(random.uniform(0.6, 0.9))

    def steps(name: str, momentum: float, decay: float) -> Any:
        given = {
            "name": name, "lr": lr, "momentum": momentum, "weight_decay": decay, "spec": _SPEC, "state": state,
            "gradients": gradients,
        }  # fmt: skip
        try:
            return ask.call("optimizer", given)
        except AnswerError as error:
            return error

    cases = [
        ("sgd", momentum, 0.0),
        ("sgd", 0.0, 0.0),
        ("novograd", momentum, 0.0),
        ("sgd", momentum, decay),
        ("novograd", momentum, decay),
    ]
    found = [steps(*case) for case in cases]
    if all(isinstance(one, AnswerError) for one in found):
        raise found[0]
    right = [_stepped(one, _expected(state, gradients, lr, *case)) for one, case in zip(found, cases, strict=True)]
    all_decay = [
        _stepped(one, _expected(state, gradients, lr, *case, everywhere=True))
        for one, case in zip(found[3:], cases[3:], strict=True)
    ]
    look = "give a small model gradients by hand, step once, and compare with torch.optim.SGD or course_lib's NovoGrad"
    decayed = [ok for ok, base in zip(right[3:], (right[0] and right[1], right[2]), strict=True) if base]
    return {
        "sgd": _optimizer_finding(right[:2], found[:2], "SGD's steps, with Nesterov momentum and without any", look),
        "novograd": _optimizer_finding(right[2:3], found[2:3], "NovoGrad's steps", look),
        "decay": _decay(decayed, right[3:], all_decay, look),
        "names": _names(ask),
    }


def _expected(
    state: list[torch.Tensor], gradients: list[list[torch.Tensor]], lr: float, name: str, momentum: float, decay: float,
    everywhere: bool = False,
) -> list[list[torch.Tensor]]:  # fmt: skip
    model = _model(state)
    groups = [{"params": [p], "weight_decay": decay if everywhere or p.ndim > 1 else 0.0} for p in model.parameters()]
    if name == "sgd":
        made: torch.optim.Optimizer = torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=momentum > 0)
    else:
        made = NovoGrad(groups, lr=lr, betas=(momentum, 0.98), grad_averaging=True)
    steps = []
    for step in gradients:
        for parameter, gradient in zip(model.parameters(), step, strict=True):
            parameter.grad = gradient.clone()
        made.step()
        steps.append([parameter.detach().clone() for parameter in model.parameters()])
    return steps


def _stepped(found: Any, expected: list[list[torch.Tensor]]) -> bool:
    return (
        isinstance(found, list)
        and len(found) == len(expected)
        and all(same_tensors(a, b, 1e-5) for a, b in zip(found, expected, strict=True))
    )


def _optimizer_finding(right: list[bool], found: list[Any], what: str, look: str) -> Finding:
    if all(right):
        return Finding(True, f"{what} are right")
    error = next((one for one in found if isinstance(one, AnswerError)), None)
    if error is not None:
        return Finding(False, str(error), error.remedy)
    return Finding(False, f"{what} are not those asked for", look)


def _decay(bases: list[bool], right: list[bool], everywhere: list[bool], look: str) -> Finding:
    """Judged where the steps without decay are right."""
    if bases and all(bases):
        return Finding(True, "the decay acts on weights, not on biases and norms")
    if not bases:
        return Finding(False, "without weight decay the steps are not right yet", look)
    if any(everywhere):
        return Finding(False, "the decay acts on biases and norms too", look)
    return Finding(False, "with weight decay the steps are not those asked for", look)


def _names(ask: Ask) -> Finding:
    names = ["".join(chr(97 + int(n)) for n in ask.random.integers(0, 26, 6)) for _ in range(2)]
    try:
        found = ask.call("optimizer_names", {"names": names, "spec": _SPEC})
    except AnswerError as error:
        return Finding(False, str(error), error.remedy)
    right = found == ["ValueError"] * 2
    reason = "an unknown name raises ValueError" if right else "an unknown name does not raise ValueError"
    return Finding(right, reason, "call make_optimizer with a name that does not exist")


def schedule(ask: Ask) -> Findings:
    """Every step's rate, for schedules drawn anew, with two groups of different rates."""
    random = ask.random
    cases = []
    for _ in range(4):
        total = int(random.integers(20, 60))
        cases.append((total, int(random.integers(3, total - 5)), [float(x) for x in random.uniform(0.01, 2, 2)]))
    edges = [
        (int(random.integers(5, 30)), 0, [0.3, 0.7]),
        (int(random.integers(5, 9)), 1, [1.0, 0.2]),
        (1, 0, [0.5, 0.1]),
    ]
    found = ask.call("schedule", cases + edges)
    found = found if isinstance(found, list) and len(found) == len(cases + edges) else [None] * len(cases + edges)
    look = "print the rate at every step for T = 10 and w = 4, and compare with the formula"
    before = [_follows(one, case, range(case[1])) for one, case in zip(found, cases, strict=False)]
    after = [_follows(one, case, range(case[1], case[0] + 1)) for one, case in zip(found, cases, strict=False)]
    edge = [_follows(one, case, range(case[0] + 4)) for one, case in zip(found[len(cases) :], edges, strict=True)]
    return {
        "warmup": Finding(all(before), "rises as asked" if all(before) else "the rates of the warm-up are wrong", look),
        "decay": Finding(
            all(after), "falls to 0 as asked" if all(after) else "the rates after the warm-up are wrong", look
        ),
        "edges": Finding(
            all(edge),
            "right without warm-up, with one step of it, and beyond the last step"
            if all(edge)
            else "is wrong without warm-up, with one step of it, or beyond the last step",
            look,
        ),
    }


def _follows(found: Any, case: tuple[int, int, list[float]], steps: range) -> bool:
    total, warm, rates = case
    if not isinstance(found, list) or len(found) < total + 4:
        return False
    for step in steps:
        factor = 0.1 + 0.9 * step / warm if step < warm else max(0.0, (total - step) / (total - warm))
        seen = found[step]
        if not isinstance(seen, list) or not all(close(a, b * factor) for a, b in zip(seen, rates, strict=True)):
            return False
    return True

"""Hidden checks of lab 05's training recipe and fine-tuning."""

from __future__ import annotations

from typing import Any

import torch

from autograde.checks.compare import close, same_tensor, same_tensors
from autograde.checks.registry import Ask, Findings
from autograde.rubric.criteria import Finding
from course_lib.checks.lab05_training import factor

__all__ = ["recipe", "transfer"]


def recipe(ask: Ask) -> Findings:
    """Groups of a small model, and factors of every step for lengths drawn anew, one without warm-up."""
    random = ask.random
    a, b, classes = (int(n) for n in random.integers(3, 9, 3))
    spec = [
        ("conv", (3, a, 3)),
        ("norm2d", (a,)),
        ("relu", ()),
        ("conv", (a, b, 1, 1, 0, 1, 1, False)),
        ("flatten", ()),
        ("linear", (b, classes)),
    ]
    decays = [
        True,
        False,
        False,
        False,
        True,
        True,
        False,
    ]  # conv, its bias, norm, norm, conv without bias, linear, bias
    decay, fallback = float(random.uniform(0.01, 0.1)), float(random.uniform(0.2, 0.5))
    schedules = [(int(n), int(w)) for n, w in zip(random.integers(30, 60, 2), random.integers(3, 20, 2), strict=True)]
    schedules.append((int(random.integers(20, 40)), 0))
    found = ask.call("recipe", {"spec": spec, "weight_decay": decay, "fallback": fallback, "schedules": schedules})
    answers = found if isinstance(found, dict) else {}
    told, factors = answers.get("decays"), answers.get("factors")
    groups = isinstance(told, list) and len(told) == len(decays) and all(
        isinstance(one, list) and len(one) == 1 and close(one[0], decay if wanted else 0.0)
        for one, wanted in zip(told, decays, strict=True)
    )  # fmt: skip
    factors = factors if isinstance(factors, list) and len(factors) == 3 else [None] * 3
    rise, fall, without = [], [], False
    for values, (total, warm) in zip(factors, schedules, strict=True):
        whole = isinstance(values, list) and len(values) == total
        right = [whole and close(values[step], factor(step, total, warm)) for step in range(total)]
        if warm:
            rise.append(all(right[:warm]))
            fall.append(all(right[warm:]))
        else:
            without = all(right)
    look = "plot one_cycle for 100 steps with 20 of warm-up beside the formula"
    return {
        "groups": Finding(groups, "weights decay, biases and batch norm do not" if groups else
                          "some parameter is in no group, in two, or has the wrong weight decay",
                          "print name, shape and weight_decay of every parameter of a small network"),
        "rise": Finding(all(rise), "rises as it should" if all(rise) else "is wrong during the warm-up", look),
        "fall": Finding(all(fall), "falls as it should" if all(fall) else "is wrong after the warm-up", look),
        "without": Finding(without, "without warm-up it falls from the first step" if without else
                           "without warm-up it is wrong, or divides by zero", "call it with warm = 0"),
    }  # fmt: skip


def transfer(ask: Ask) -> Findings:
    """A small network with a body and a head, once with a rate for the body and once frozen."""
    random = ask.random
    features, old, classes = (int(n) for n in random.integers([4, 5, 11], [9, 10, 30]))
    rates = {"lr_head": float(random.uniform(0.1, 0.5)), "body": float(random.uniform(0.001, 0.05))}
    given = {
        "spec": [("conv", (3, features, 4)), ("norm2d", (features,)), ("tanh", ())],
        "features": features,
        "old": old,
        "classes": classes,
        "lr_head": rates["lr_head"],
        "lr_body": [rates["body"], 0.0],
        "fallback": 77.0,
        "seed": int(random.integers(1, 10**6)),
        "images": torch.from_numpy(random.normal(0, 1, (5, 3, 4, 4))).float(),
    }
    found = ask.call("transfer", given)
    answers = found if isinstance(found, list) and len(found) == 2 else [None] * 2
    answers = [answer if isinstance(answer, dict) else {} for answer in answers]
    heads = all(_right_head(answer, features, classes) for answer in answers)
    tuned, frozen = answers
    head_rates = all(_told(answer.get("in head"), 2, rates["lr_head"]) for answer in answers)
    both = head_rates and _told(tuned.get("in body"), 4, rates["body"])
    still = _told(frozen.get("in body"), 4, None) and frozen.get("kept") is True and head_rates
    return {
        "head": Finding(heads, "a new head of the right size, on the body as it was" if heads else
                        "the head is the old one or of the wrong size, or the body's weights changed",
                        "print network.classifier before and after"),
        "rates": Finding(both, "head and body have their rates" if both else
                         "some parameter is in no group, in two, or has the wrong learning rate",
                         "print name and learning rate of every parameter, from the groups"),
        "frozen": Finding(still, "with rate 0 the body is frozen, and the head is trained" if still else
                          "with lr_body = 0 some of the body asks for a gradient or is in a group, or the head is not",
                          "look at requires_grad of every parameter with lr_body = 0"),
    }  # fmt: skip


def _right_head(answer: dict[str, Any], features: int, classes: int) -> bool:
    head, old, inputs = answer.get("head"), answer.get("old"), answer.get("features")
    if answer.get("new") is not True or answer.get("kept") is not True or not isinstance(head, list) or len(head) != 2:
        return False
    if any(not isinstance(t, torch.Tensor) for t in (*head, inputs)) or inputs.dim() != 2:
        return False
    if [tuple(t.shape) for t in head] != [(classes, features), (classes,)] or same_tensors(head, old or []):
        return False
    varied = bool(head[0].isfinite().all()) and float(head[0].std()) > 0
    return varied and same_tensor(answer.get("logits"), inputs @ head[0].T + head[1], 1e-3)


def _told(found: Any, count: int, rate: float | None) -> bool:
    """Whether so many parameters have this rate and ask for a gradient; None: in no group, and without one."""
    if not isinstance(found, list) or len(found) != count:
        return False
    for item in found:
        if not isinstance(item, tuple | list) or len(item) != 2 or not isinstance(item[0], list):
            return False
        rates, asks = item
        if rate is None and (rates or asks is not False):
            return False
        if rate is not None and (len(rates) != 1 or not close(rates[0], rate) or asks is not True):
            return False
    return True

"""Hidden checks of lab 01."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from autograde.checks.compare import by_reference, close, is_number, number, same_tensor, same_tensors
from autograde.checks.registry import Ask, DelayedReply, Findings, HiddenCheck, shape_of
from autograde.rubric.criteria import Finding

__all__ = ["CHECKS"]


def _problem(random: np.random.Generator, images: int, normed: bool = False) -> dict[str, Any]:
    """A small network with weights, and a batch of images, drawn anew."""
    features, hidden, classes = (int(n) for n in random.integers([8, 10, 4], [20, 24, 9]))
    norm = [("norm1d", (hidden,)), ("tanh", ()), ("dropout", (0.5,))] if normed else [("tanh", ())]
    spec = [("flatten", ()), ("linear", (features, hidden)), *norm, ("linear", (hidden, classes))]
    shapes = [(hidden, features), (hidden,)]
    state = [torch.from_numpy(random.normal(0, 0.5, shape)).float() for shape in shapes]
    if normed:
        state += [
            torch.from_numpy(random.uniform(0.5, 1.5, hidden)).float(),
            torch.from_numpy(random.normal(0, 0.3, hidden)).float(),
            torch.from_numpy(random.normal(0, 0.3, hidden)).float(),
            torch.from_numpy(random.uniform(0.5, 2.0, hidden)).float(),
            torch.tensor(7),
        ]
    state += [torch.from_numpy(random.normal(0, 0.5, shape)).float() for shape in [(classes, hidden), (classes,)]]
    batch = (
        torch.from_numpy(random.normal(0, 1, (images, 1, 1, features))).float(),
        torch.from_numpy(random.integers(0, classes, images)),
    )
    return {"spec": spec, "state": state, "batch": batch, "classes": classes}


def train_step(ask: Ask) -> Findings:
    """One step against plain SGD's weights, and two against the gradients of their own batches."""
    problem = _problem(ask.random, 24)
    images, labels = problem["batch"]
    given = {
        "spec": problem["spec"],
        "state": problem["state"],
        "sgd": {"lr": float(ask.random.uniform(0.05, 0.3)), "momentum": float(ask.random.uniform(0.3, 0.9))},
        "smoothing": float(ask.random.uniform(0.3, 0.6)),  # enough that no other loss passes for it
        "batches": [(images[:8], labels[:8])],
    }
    (expected,) = _reference(given)
    (step,) = _steps(ask, given)
    # Two steps without momentum and smoothing: whatever rule or loss a step follows, it shows whose gradients it used.
    plain = {**given, "sgd": {"lr": given["sgd"]["lr"]}, "smoothing": 0.0}
    plain["batches"] = [(images[i : i + 8], labels[i : i + 8]) for i in (8, 16)]
    # Batch norm tells the modes apart: in a call of its own, so that a wrong mode costs the update and nothing else.
    normed = _problem(ask.random, 24, normed=True)
    keeps = {**given, "spec": [layer for layer in normed["spec"] if layer[0] != "dropout"], "state": normed["state"]}
    keeps["batches"] = [normed["batch"]]
    in_training = _reference(keeps)[0]["state"]
    after = _steps(ask, keeps)[0].get("state")
    return {
        "update": _update(
            same_tensors(step.get("state"), expected["state"]),
            same_tensors(step.get("state"), given["state"]),
            _same_weights(after, in_training),
        ),
        "repeat": _repeat(plain, _steps(ask, plain)),
        "returns": _returned(step.get("returned"), *expected["returned"]),
    }


def _reference(given: dict[str, Any]) -> list[dict[str, Any]]:
    return by_reference("lab01.train-step", "train_step", given, {"train_step": _train_step})


def _steps(ask: Ask, given: dict[str, Any]) -> list[dict[str, Any]]:
    """What the driver says of each step; empty where it says something odd."""
    found, count = ask.call("train_step", given), len(given["batches"])
    odd = not (isinstance(found, list) and len(found) == count and all(isinstance(step, dict) for step in found))
    return [{}] * count if odd else found


def _same_weights(found: Any, expected: list[torch.Tensor]) -> bool:
    """Whether the parameters agree; batch norm's statistics, which a second look at the images moves, may differ."""
    weights = [0, 1, 2, 3, 7, 8]  # of linear, batch norm, linear
    if not isinstance(found, list) or len(found) != len(expected):
        return False
    return same_tensors([found[n] for n in weights], [expected[n] for n in weights])


def _train_step(model: Any, images: Any, labels: Any, optimizer: Any, loss_fn: Any) -> tuple[Any, Any]:
    optimizer.zero_grad()
    logits = model(images)
    loss = loss_fn(logits, labels)
    loss.backward()
    optimizer.step()
    return loss.detach(), logits.detach()


def _update(updated: bool, unmoved: bool, in_training: bool) -> Finding:
    if updated and not in_training:
        return Finding(
            False,
            "with batch norm a step is not right: its weights are not those of training mode",
            "print model.training inside a forward hook, in train_step",
        )
    if updated:
        return Finding(True, "one step moves the weights as the optimiser's rule says")
    if unmoved:
        return Finding(
            False,
            "after a step the weights are where they were",
            "compare a weight before and after train_step; look at the order of zero_grad, backward and step",
        )
    return Finding(
        False,
        "after one step the weights are not those of the given optimiser and loss",
        "do one step by hand for a linear layer and compare: one backward of loss_fn's value, one optimizer.step()",
    )


def _repeat(given: dict[str, Any], steps: list[dict[str, Any]]) -> Finding:
    """Both steps move the weights by the same multiple of their own batch's gradient.

    The multiple is the update's business. Where no weight moves, the gradients that a step leaves are judged.
    """
    look = "print a gradient's norm before each step: PyTorch adds to .grad"
    first, second = (step.get("state") for step in steps)
    if not (_alike(first, given["state"]) and _alike(second, given["state"])):
        return Finding(False, "what became of the weights cannot be seen", look)
    starts = (given["state"], first)
    own = [
        _reference({**given, "state": start, "batches": [batch]})[0]["gradients"]
        for start, batch in zip(starts, given["batches"], strict=True)
    ]
    used = [_flat(after) - _flat(before) for before, after in zip(starts, (first, second), strict=True)]
    if not any(moved.any() for moved in used):
        left = [step.get("gradients") for step in steps]
        if all(_alike(one, given["state"]) for one in left):
            used = [_flat(one) for one in left]
    if not any(one.any() for one in used):
        return Finding(
            False, "no step moves a weight or leaves a gradient, so nothing of later steps can be seen", look
        )
    scale = used[0].dot(_flat(own[0])) / _flat(own[0]).square().sum()
    if _follows(used[0], scale * _flat(own[0])) and _follows(used[1], scale * _flat(own[1])):
        return Finding(True, "each step uses the gradients of its own batch")
    if _follows(used[1], scale * (_flat(own[0]) + _flat(own[1]))):
        return Finding(False, "the second step uses the first one's gradients too", look)
    return Finding(False, "two steps do not move the weights along their own gradients", look)


def _alike(found: Any, state: list[torch.Tensor]) -> bool:
    """Finite tensors like those of `state`."""
    return (
        isinstance(found, list)
        and len(found) == len(state)
        and all(
            isinstance(a, torch.Tensor) and (a.shape, a.dtype) == (b.shape, b.dtype)
            for a, b in zip(found, state, strict=True)
        )
        and all(bool(a.isfinite().all()) for a in found)
    )


def _flat(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.detach().double().flatten() for tensor in tensors])


def _follows(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool((found - expected).norm() <= 1e-2 * expected.norm())


def _returned(returned: Any, loss: torch.Tensor, logits: torch.Tensor) -> Finding:
    look = "print type, shape and requires_grad of what train_step returns; the docstring says what they should be"
    if not isinstance(returned, tuple) or len(returned) != 2:
        return Finding(False, f"train_step should return (loss, logits), it returned {shape_of(returned)}", look)
    first, second = returned
    if not isinstance(second, torch.Tensor) or second.shape != logits.shape:
        return Finding(False, f"the logits should have shape (batch, classes), they are {shape_of(second)}", look)
    if any(isinstance(value, torch.Tensor) and value.requires_grad for value in returned):
        return Finding(False, "what it returns still carries its graph", look)
    if not close(first, loss.item()) or not same_tensor(second, logits):
        return Finding(False, "loss and logits are not those of the weights before the update", look)
    return Finding(True, "returns the loss and the logits of the weights before the update, detached")


def evaluate(ask: Ask) -> Findings:
    """On a plain network, on one with batch norm and dropout, and on one that notices whether a graph is recorded."""
    cuts = [int(n) for n in ask.random.integers([5, 27], [23, 45])]  # no batch of one image

    def run(problem: dict[str, Any], spec: list[Any]) -> tuple[Any, Any]:
        images, labels = problem["batch"]
        batches = list(zip(np.split(images.numpy(), cuts), np.split(labels.numpy(), cuts), strict=True))
        given = {
            "spec": spec,
            "state": problem["state"],
            "batches": [(torch.from_numpy(x.copy()), torch.from_numpy(y.copy())) for x, y in batches],
        }
        expected = by_reference("lab01.evaluate", "evaluate", given, {"evaluate": _evaluate})
        return ask.call("evaluate", given), expected

    plain, normed = (_problem(ask.random, 50, normed) for normed in (False, True))
    weight, bias, last, shift = plain["state"]
    logits = (plain["batch"][0].flatten(1) @ weight.T + bias).tanh() @ last.T + shift
    plain["batch"][1][:30] = logits.argmax(1)[:30]  # more right than any other rule than the largest logit gets
    found, expected = run(plain, plain["spec"])
    loss, correct, images = _three(found)
    look = "add up the three numbers by hand for two small batches of different sizes, and compare"
    counted, summed = close(correct, expected["returned"][1]), close(loss, expected["returned"][0], 1e-3)
    # Mode and graph are judged by the answer's own sums, of the same function of the images in another network: a
    # mistake in a sum costs that sum alone. Something must be right that only the network's logits can tell.
    real = counted or summed or _permuted(found, expected)
    in_eval, expected_eval = run(normed, normed["spec"])
    unmoved = isinstance(in_eval, dict) and same_tensors(in_eval.get("state"), expected_eval["state"])
    steady = _agree(in_eval, run(_folded(normed), _folded(normed)["spec"])[0])
    flat = [plain["spec"][0], ("unless_grad", (float(ask.random.uniform(2, 5)),)), *plain["spec"][1:]]
    no_graph = _agree(run(plain, flat)[0], found)
    return {
        "counts": _counted(counted, close(images, 50), look),
        "loss": Finding(summed, "the losses of all images are summed, whatever the batches' sizes" if summed else
                        "the sum of the images' losses is wrong when batches differ in size", look),
        "mode": _mode(real, steady, unmoved),
        "no-graph": Finding(
            real and no_graph,
            "no graph is recorded" if real and no_graph else "a graph is recorded in the forward passes" if real else _NO_SUMS,
            "print torch.is_grad_enabled() inside a forward hook",
        ),
    }  # fmt: skip


def _counted(correct: bool, images: bool, look: str) -> Finding:
    if correct and images:
        return Finding(True, "the correct predictions and the images are counted")
    which = (
        "predictions and of images are" if not correct and not images else "predictions is" if images else "images is"
    )
    return Finding(False, f"the number of {'correct ' if not correct else ''}{which} wrong", look)


_NO_SUMS = "neither the losses nor the correct predictions are right, so this cannot be judged"


def _mode(real: bool, steady: bool, unmoved: bool) -> Finding:
    if real and steady and unmoved:
        return Finding(True, "the network is evaluated in evaluation mode")
    reason = "the sums of a network with batch norm and dropout are not those of evaluation mode" if real else _NO_SUMS
    if not unmoved:
        reason = "batch norm's statistics moved during the evaluation"
    return Finding(False, reason, "print model.training inside a forward hook")


def _three(found: Any) -> tuple[Any, Any, Any]:
    returned = found.get("returned") if isinstance(found, dict) else None
    return tuple(returned) if isinstance(returned, tuple | list) and len(returned) == 3 else (None, None, None)


def _agree(found: Any, expected: Any) -> bool:
    """Whether two answers are the same three numbers."""
    return all(is_number(b) and close(a, number(b), 1e-3) for a, b in zip(_three(found), _three(expected), strict=True))


def _permuted(found: Any, expected: Any) -> bool:
    """Whether the three numbers are right and in another order."""
    mine = sorted(number(value) for value in _three(found))
    return all(close(a, float(b), 1e-3) for a, b in zip(mine, sorted(map(float, expected["returned"])), strict=True))


def _folded(problem: dict[str, Any]) -> dict[str, Any]:
    """The same function of the images as the normed network in evaluation mode, without batch norm and dropout."""
    weight, bias, scale, shift, mean, variance, _, *last = problem["state"]
    scale = scale / (variance + 1e-5).sqrt()
    spec = [layer for layer in problem["spec"] if layer[0] not in ("norm1d", "dropout")]
    return {**problem, "spec": spec, "state": [weight * scale[:, None], (bias - mean) * scale + shift, *last]}


def _evaluate(model: Any, batches: Any, loss_fn: Any) -> tuple[float, int, int]:
    model.eval()
    loss_sum = correct = images = 0
    with torch.no_grad():
        for x, y in batches:
            logits = model(x)
            loss_sum += loss_fn(logits, y).item() * len(y)
            correct += (logits.argmax(1) == y).sum().item()
            images += len(y)
    return loss_sum, correct, images


class _Device:
    """A pretend device outside the sandbox, which works behind the caller's back: only it knows how long it took."""

    def __init__(self, slow: float, fast: float, warmup: int) -> None:
        self.slow, self.fast, self.warmup = slow, fast, warmup
        self.calls: list[float] = []
        self.waits: list[tuple[int, float]] = []
        self.busy_until = 0.0

    def step(self, rank: int) -> None:
        now = time.perf_counter()
        self.busy_until = max(now, self.busy_until) + (self.slow if len(self.calls) < self.warmup else self.fast)
        self.calls.append(now)
        if len(self.calls) > 1000:
            raise ValueError

    def synchronize(self, rank: int) -> DelayedReply:
        now = time.perf_counter()
        self.waits.append((len(self.calls), max(now, self.busy_until)))
        if len(self.waits) > 1000:
            raise ValueError
        return DelayedReply(max(0.0, self.busy_until - now))


def throughput(ask: Ask) -> Findings:
    """On two devices, one after the other, whose speeds and clock are outside: no guess is right for both."""
    # Over a factor of ten, and the second at least 2.2 times as fast or slow: more than the bounds below are apart.
    speed = ask.random.uniform()
    first, second = _throughput(ask, speed), _throughput(ask, (speed + ask.random.uniform(0.35, 0.65)) % 1)
    return {part: second[part] if finding.passed else finding for part, finding in first.items()}


def _throughput(ask: Ask, speed: float) -> Findings:
    warmup, steps, batch_size = (int(n) for n in ask.random.integers([2, 12, 20], [5, 20, 200]))
    fast = float(0.005 * 10**speed)
    # The warm-up lasts as long as the rest.
    slow = float(ask.random.uniform(0.8, 1.2)) * steps * fast / warmup
    # A process that a busy machine stops between the last step and the return is asked again, on the same device; one
    # who always puts the return off gains nothing by it.
    for _ in range(4):
        findings, put_off = _throughput_once(ask, _Device(slow, fast, warmup), steps, batch_size)
        if not put_off:
            break
    return findings


def _throughput_once(ask: Ask, device: _Device, steps: int, batch_size: int) -> tuple[Findings, bool]:
    """What was found, and whether the rate was too low for a return that came later than the bound allows for."""
    warmup = device.warmup
    found = ask.call(
        "throughput",
        {"batch_size": batch_size, "steps": steps, "warmup": warmup},
        {"step": device.step, "synchronize": device.synchronize},
    )
    returned = time.perf_counter()
    asked = len(device.calls) == warmup + steps
    ready = [clock for calls, clock in device.waits if calls == warmup]
    done = [clock for calls, clock in device.waits if calls == warmup + steps]
    ran = "as often as" if asked else "more often than" if len(device.calls) > warmup + steps else "less often than"
    calls = Finding(asked, f"step() ran {ran} warmup and steps ask for", _COUNT)
    if not is_number(found):
        reason = f"should return a number, it returned {shape_of(found)}"
        return {"calls": calls, "rate": Finding(False, reason, _COUNT)}, False
    if not asked:
        reason = "the steps are not those asked for, so neither is the rate"
        return {"calls": calls, "rate": Finding(False, reason, _COUNT)}, False
    if not done:
        reason = "the clock was read while the device was still at work"
        return {"calls": calls, "rate": Finding(False, reason, _CLOCK)}, False
    if not ready:
        reason = "the clock was started while the device was still busy with the warm-up"
        return {"calls": calls, "rate": Finding(False, reason, _CLOCK)}, False
    # The inner clock starts between the device's being ready and its first timed step, and stops between its being done
    # and the return: bounds that hold on a busy machine. One who puts off the return cannot widen them at will.
    latest = min(returned, done[0] + 0.3 * (done[0] - ready[-1]) + 0.05)
    highest, lowest = (batch_size * steps / t for t in (done[0] - device.calls[warmup], latest - ready[-1]))
    right = lowest * 0.99 < number(found) < highest * 1.01
    reason = "the rate is that of the timed steps"
    if not right:
        more = "higher" if number(found) > highest else "lower"
        reason = f"the rate is {more} than what the device did in the timed steps"
    too_low = number(found) <= lowest * 0.99
    return {"calls": calls, "rate": Finding(right, reason, _CLOCK)}, too_low and returned > latest


_COUNT = "count the calls of step() by a counter of your own"
_CLOCK = "write down, in order, every call of step() and synchronize() and every reading of the clock"


def speedup(ask: Ask) -> Findings:
    """On times drawn anew."""
    questions = []
    for _ in range(6):
        ranks = sorted({1, *(int(n) for n in ask.random.integers(2, 600, 4))})
        times = {n: float(ask.random.uniform(5, 500)) for n in ranks}
        questions.append((times, int(ask.random.choice(ranks))))
    found = ask.call("speedup", questions)
    pairs = found if isinstance(found, list) and len(found) == 6 else [None] * 6
    gains, shares = [], []
    for pair, (times, ranks) in zip(pairs, questions, strict=True):
        gain, share = pair if isinstance(pair, tuple | list) and len(pair) == 2 else (None, None)
        gains.append(close(gain, times[1] / times[ranks]))
        shares.append(close(share, times[1] / times[ranks] / ranks))
    look = "for 2 ranks that take 60 s where one takes 100 s, write the pair down by hand"
    is_pair = isinstance(pairs[0], tuple | list) and len(pairs[0]) == 2
    wrong = "is wrong" if is_pair else f"should return a pair, it returned {shape_of(pairs[0])}"
    return {
        "speedup": Finding(all(gains), "right for times drawn anew" if all(gains) else wrong, look),
        "efficiency": Finding(all(shares), "right for times drawn anew" if all(shares) else wrong, look),
    }


CHECKS = {
    "train-step": HiddenCheck(
        train_step,
        {
            "update": "One step of the given optimiser on the given loss",
            "repeat": "Several steps, each with its own gradients",
            "returns": "Returns loss and logits of before the update, detached",
        },
    ),
    "evaluate": HiddenCheck(
        evaluate,
        {
            "counts": "Counts correct predictions and images",
            "loss": "Sums the losses of all images, with a short last batch too",
            "mode": "In evaluation mode, the network unchanged",
            "no-graph": "Records no graph",
        },
    ),
    "throughput": HiddenCheck(
        throughput,
        {"calls": "Runs the steps that were asked for", "rate": "Times the timed steps, all of them, and nothing else"},
    ),
    "speedup": HiddenCheck(speedup, {"speedup": "Speed-up", "efficiency": "Efficiency"}),
}

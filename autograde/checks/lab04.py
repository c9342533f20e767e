"""Hidden checks of lab 04."""

from __future__ import annotations

import csv
import math
from typing import Any

import torch

from course_lib.optim import NovoGrad

from ..criteria import Finding
from .compare import close, is_number, number, same_tensors
from .registry import Ask, Findings, HiddenCheck, shape_of

__all__ = ["CHECKS"]


def momentum(ask: Ask) -> Findings:
    """Step lengths and distances for rates, momenta and steps drawn anew, without momentum too."""
    questions = [
        (float(ask.random.uniform(0.01, 1)), float(ask.random.uniform(0.2, 0.95)), int(ask.random.integers(2, 60)))
        for _ in range(5)
    ]
    questions += [(questions[0][0], questions[0][1], 1), (questions[1][0], 0.0, questions[1][2])]
    found = ask.call("momentum", questions)
    pairs = found if isinstance(found, list) and len(found) == len(questions) else [None] * len(questions)
    lengths, distances = [], []
    for pair, (lr, m, steps) in zip(pairs, questions, strict=True):
        length, distance = pair if isinstance(pair, tuple | list) and len(pair) == 2 else (None, None)
        moves = [lr * (1 - m**t) / (1 - m) for t in range(1, steps + 1)]
        lengths.append(close(length, moves[-1]))
        distances.append(close(distance, sum(moves)))
    is_pair = isinstance(pairs[0], tuple | list) and len(pairs[0]) == 2
    wrong = "is wrong" if is_pair else f"should return a pair, it returned {shape_of(pairs[0])}"
    look = "set a weight's gradient to 1 by hand, step torch.optim.SGD three times, and print where the weight is"
    return {
        "length": Finding(all(lengths), "right for cases drawn anew" if all(lengths) else wrong, look),
        "distance": Finding(all(distances), "right for cases drawn anew" if all(distances) else wrong, look),
    }


def warmup(ask: Ask) -> Findings:
    """Factors at every step of a warm-up and beyond its end, both ways, and where there is none."""
    n, epochs = (int(x) for x in ask.random.integers([4, 2], [15, 7]))
    start = float(ask.random.uniform(0.02, 0.5))
    # A whole number of iterations, though no whole epochs: what becomes of a part of one is nowhere said.
    lengths = [length for length in range(2, n * epochs) if length % n and int(length / n * n) == length]
    length = int(ask.random.choice(lengths))
    steps = list(range(n * (epochs + 2)))
    given = {
        "iteration": (steps, n, length / n, start, "iteration"),
        "epoch": (steps, n, epochs, start, "epoch"),
        "without": [([0, 1, n, 3 * n], n, 0, start, per) for per in ("iteration", "epoch")],
    }
    found = ask.call("warmup", given)
    answers = found if isinstance(found, dict) else {}

    def expected(step: int, length: float, done: float) -> float:
        return start + (1 - start) * min(1.0, done / length)

    right = {
        "iteration": _same_numbers(answers.get("iteration"), [expected(s, length, s) for s in steps]),
        "epoch": _same_numbers(answers.get("epoch"), [expected(s, epochs, s // n) for s in steps]),
    }
    without = answers.get("without")
    none = isinstance(without, list) and len(without) == 2 and all(_same_numbers(w, [1.0] * 4) for w in without)
    look = "plot the factor for three epochs of ten steps beside that of torch.optim.lr_scheduler.LinearLR"
    return {
        "iteration": Finding(right["iteration"], "rises at every step, as it should" if right["iteration"] else
                             "the factor per iteration is wrong somewhere between the first step and past the end", look),
        "epoch": Finding(right["epoch"], "rises from epoch to epoch, as it should" if right["epoch"] else
                         "the factor per epoch is wrong somewhere between the first step and past the end", look),
        "without": Finding(none, "without warm-up the factor is 1" if none else
                           "without warm-up the factor is not 1 throughout, or there is none",
                           "call warmup_factor with warmup_epochs = 0"),
    }  # fmt: skip


def _same_numbers(found: Any, expected: list[float]) -> bool:
    return (
        isinstance(found, list | tuple)
        and len(found) == len(expected)
        and all(close(a, b) for a, b in zip(found, expected, strict=True))
    )


def range_test(ask: Ask) -> Findings:
    """Geometric rates, and four curves of losses: one that ends in nan, one in inf, one that explodes, one that does not."""
    random = ask.random
    ends = [
        (float(10 ** random.uniform(-4, -1)), float(10 ** random.uniform(0, 2)), int(random.integers(3, 60)))
        for _ in range(3)
    ]
    read, truth = [], []
    for kind in ("nan", "inf", "explodes", "recovers", "steady"):
        falling = sorted((float(x) for x in random.uniform(0.6, 2.4, int(random.integers(4, 12)))), reverse=True)
        losses = [*falling, *(falling[-1] * float(x) for x in random.uniform(1.1, 2.5, 3))]
        stop, lowest = len(losses), len(falling) - 1
        if kind in ("nan", "inf"):
            losses += [getattr(math, kind)] * 2
        elif kind in ("explodes", "recovers"):
            losses += [falling[-1] * float(random.uniform(4.2, 9))]
        else:
            stop = len(losses)
        if kind in ("nan", "recovers"):
            losses += [falling[-1] * float(random.uniform(0.2, 0.8))]  # lower than all, but after the end
        first, ratio = float(10 ** random.uniform(-4, -2)), float(random.uniform(1.1, 2))
        rates = [first * ratio**index for index in range(len(losses))]
        read.append((rates, losses))
        truth.append((stop, rates[lowest] / 10))
    found = ask.call("range_test", {"rates": ends, "read": read})
    answers = found if isinstance(found, dict) else {}
    series, pairs = answers.get("rates"), answers.get("read")
    geometric = isinstance(series, list) and len(series) == len(ends) and all(
        _same_numbers(_plain(rates), [low * (high / low) ** (i / (count - 1)) for i in range(count)])
        for rates, (low, high, count) in zip(series, ends, strict=True)
    )  # fmt: skip
    pairs = pairs if isinstance(pairs, list) and len(pairs) == len(truth) else [None] * len(truth)
    pairs = [pair if isinstance(pair, tuple | list) and len(pair) == 2 else (None, None) for pair in pairs]
    stops = all(is_number(found) and number(found) == stop for (found, _), (stop, _) in zip(pairs, truth, strict=True))
    chosen = all(close(found, rate) for (_, found), (_, rate) in zip(pairs, truth, strict=True))
    look = "write down five losses by hand, one of them nan, and go through them with a pencil"
    return {
        "rates": Finding(geometric, "the rates are geometric, from end to end" if geometric else
                         "the rates are not the geometric sequence from the lowest to the highest",
                         "print the ratio of each rate to the one before it"),
        "stop": Finding(stops, "stops where the loss is lost" if stops else
                        "stops in the wrong place on some curve", look),
        "choice": Finding(chosen, "chooses a tenth of the rate of the lowest loss before the stop" if chosen else
                          "the chosen rate is wrong on some curve", look),
    }  # fmt: skip


def _plain(rates: Any) -> Any:
    if isinstance(rates, torch.Tensor):
        return rates.flatten().tolist()
    return rates.tolist() if hasattr(rates, "tolist") else rates


def novograd(ask: Ask) -> Findings:
    """On layers of very different scale: the first step, forty, with decay, with averaging, with a large eps."""
    random = ask.random
    shapes = [tuple(int(n) for n in random.integers(2, 6, dims)) for dims in (2, 1, 4)]
    scales = [float(10 ** random.uniform(low, low + 1)) for low in (-1.5, 0.5, -0.5)]

    def draw(scale: float, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.from_numpy(random.normal(0, scale, shape))

    weights = [draw(1.0, shape) for shape in shapes]
    gradients = [
        [draw(scale * (0.2 + 2 * 0.9**step), shape) + 0.3 * scale for scale, shape in zip(scales, shapes, strict=True)]
        for step in range(40)
    ]
    plain = {
        "lr": float(random.uniform(0.005, 0.02)),
        "betas": (float(random.uniform(0.85, 0.95)), float(random.uniform(0.95, 0.99))),
        "eps": 1e-12,  # where it stands is asked by one run alone
    }
    decay = {"weight_decay": float(random.uniform(0.05, 0.2))}
    runs = {
        "first": (plain, 1),
        "later": (plain, 40),
        "default": ({"lr": plain["lr"]}, 6),
        "decay": ({**plain, **decay}, 20),
        "averaging": ({**plain, "grad_averaging": True}, 10),
        "both": ({**plain, **decay, "grad_averaging": True}, 10),
        "eps": ({**plain, "eps": float(random.uniform(0.3, 0.8))}, 5),
    }
    found = ask.call("novograd", {"weights": weights, "gradients": gradients, "runs": list(runs.values())})
    answers = found if isinstance(found, list) and len(found) == len(runs) else [None] * len(runs)
    answers = [answer if isinstance(answer, dict) else {} for answer in answers]
    right, moved = {}, {}
    for name, (options, steps), answer in zip(runs, runs.values(), answers, strict=True):
        expected = _steps(weights, gradients[:steps], options)
        # What counts is how far the weights went, which is little beside the weights themselves.
        right[name] = same_tensors(
            _moves(answer.get("weights"), weights), _moves(expected, weights), 1e-4 * options["lr"]
        )
        went = _moves(answer.get("weights"), weights)
        moved[name] = went is not None and any(bool((move != 0).any()) for move in went)
        moved[name] = moved[name] and all(bool(move.isfinite().all()) for move in went)
    untouched = all(answer.get("untouched") is True for answer in answers) and moved["first"]
    later = right["first"] and right["later"] and right["default"]
    decayed = later and right["decay"]
    options = later and right["averaging"] and right["eps"] and (right["both"] or not decayed)
    if later and not options:
        wrong = "with grad_averaging" if right["eps"] else "with a large eps"
    else:
        wrong = "without any option it is not right yet, so neither is it with them"
    return {
        "first": Finding(right["first"], "the first step is the paper's" if right["first"] else
                         "the weights did not move" if not moved["first"] else "the first step is not the paper's",
                         "in the first step each layer moves by lr in norm: print the norms"),
        "later": _later(right["first"], later),
        "decay": Finding(decayed, "weight decay enters as the paper says" if decayed else
                         "wrong with weight decay" if later else "without weight decay it is not right yet",
                         "one weight, one step, weight_decay = 0.1: do it by hand"),
        "options": Finding(options, "right with grad_averaging and with another eps" if options else
                           wrong if not later else f"wrong {wrong}",
                           "one weight, two steps, with and without the option: do it by hand"),
        "gradients": Finding(untouched, "the gradients stay as they were" if untouched else
                             "the gradients were changed, or nothing was done",
                             "compare a gradient before and after the step: g /= … changes it, g / … does not"),
    }  # fmt: skip


def _later(first: bool, later: bool) -> Finding:
    look = "print v and m of one layer after steps 1, 2 and 3, and compute them by hand"
    if later:
        return Finding(True, "forty steps are the paper's")
    if first:
        return Finding(False, "the first step is right, later ones are not", look)
    return Finding(False, "the first step is not right, so later ones are not either", look)


def _moves(found: Any, weights: list[torch.Tensor]) -> Any:
    if not isinstance(found, list | tuple) or len(found) != len(weights):
        return None
    if any(not isinstance(a, torch.Tensor) or a.shape != w.shape for a, w in zip(found, weights, strict=True)):
        return None
    return [a.detach().double() - w for a, w in zip(found, weights, strict=True)]


def _steps(
    weights: list[torch.Tensor], gradients: list[list[torch.Tensor]], options: dict[str, Any]
) -> list[torch.Tensor]:
    params = [torch.nn.Parameter(weight.clone()) for weight in weights]
    optimizer = NovoGrad(params, **options)
    for step in gradients:
        for param, gradient in zip(params, step, strict=True):
            param.grad = gradient.clone()
        optimizer.step()
    return [param.detach() for param in params]


def curve(ask: Ask) -> Findings:
    """Names for numbers drawn anew; three files, two of them under one name."""
    random = ask.random
    names = [
        (int(random.integers(1, 65)), int(random.choice([32, 64, 256])), round(float(random.uniform(0.01, 1)), 3),
         float(random.choice([0.0, 0.9, 0.95])), float(random.choice([0.0, 0.5, 5.0])))
        for _ in range(4)
    ]  # fmt: skip

    def draw(path: str, epochs: int) -> tuple[str, list[float], list[float]]:
        times = [float(t) for t in random.uniform(1, 20, epochs).cumsum()]
        return path, times, [float(a) for a in random.uniform(0.1, 0.95, epochs)]

    curves = [draw("first.csv", 3), draw("second.csv", 5), draw("second.csv", 2)]
    found = ask.call("curve", {"names": names, "curves": curves})
    answers = found if isinstance(found, dict) else {}
    wanted = ["{}ranks-{}bs-{}lr-{}m-{}w.csv".format(*arguments) for arguments in names]
    given, texts = answers.get("names"), answers.get("texts")
    named = isinstance(given, list | tuple) and len(given) == len(wanted) and all(
        type(a) is str and a == b for a, b in zip(given, wanted, strict=True)
    )  # fmt: skip
    texts = texts if isinstance(texts, list | tuple) and len(texts) == 3 else [None] * 3
    rows = [_is_curve(text, times, accuracies) for text, (_, times, accuracies) in zip(texts, curves, strict=True)]
    written, again = rows[0] and rows[1], rows[0] and rows[2]
    look = "open the file that you wrote, in a text editor, beside the multi-GPU tutorial's two functions"
    return {
        "name": Finding(named, "the names are the multi-GPU tutorial's" if named else "a name is not the multi-GPU tutorial's", look),
        "rows": Finding(written, "header, first row and rows are the multi-GPU tutorial's" if written else
                        "no file" if texts[0] is None else "header, first row, rounding or rows are not the multi-GPU tutorial's", look),
        "again": Finding(again, "a second curve replaces the first" if again else
                         "a second curve under the same name does not replace the first, or is wrong itself",
                         "call write_curve twice with the same path and look at the file"),
    }  # fmt: skip


def _is_curve(text: Any, times: list[float], accuracies: list[float]) -> bool:
    if type(text) is not str or not text.endswith("\n"):
        return False
    rows = [row for row in csv.reader(text.splitlines()) if row]
    if not rows or rows[0] != ["time", "val_accuracy"]:
        return False
    wanted = [(0.0, 0.0), *((round(t, 1), round(a, 4)) for t, a in zip(times, accuracies, strict=True))]
    try:
        numbers = [tuple(float(value) for value in row) for row in rows[1:]]
    except ValueError:
        return False
    return len(numbers) == len(wanted) and all(
        len(row) == 2 and all(math.isclose(a, b, abs_tol=1e-9) for a, b in zip(row, pair, strict=True))
        for row, pair in zip(numbers, wanted, strict=True)
    )


CHECKS = {
    "momentum": HiddenCheck(
        momentum, {"length": "Length of a step under a constant gradient", "distance": "Distance after so many steps"}
    ),
    "warmup": HiddenCheck(
        warmup,
        {
            "iteration": "The factor that rises at every step",
            "epoch": "The factor that rises from epoch to epoch",
            "without": "No warm-up at all",
        },
    ),
    "range-test": HiddenCheck(
        range_test,
        {
            "rates": "A geometric sequence of rates",
            "stop": "Stops where the loss is lost",
            "choice": "Chooses a tenth of the best rate",
        },
    ),
    "novograd": HiddenCheck(
        novograd,
        {
            "first": "The first step, layer by layer",
            "later": "Forty steps with running averages",
            "decay": "Weight decay beside the normalised gradient",
            "options": "Gradient averaging and eps",
            "gradients": "Leaves the gradients alone",
        },
    ),
    "curve": HiddenCheck(
        curve,
        {
            "name": "The file's name",
            "rows": "Header, first row and rounding",
            "again": "A new curve replaces an old one",
        },
    ),
}

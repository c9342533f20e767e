"""Lab 04: momentum's steps, the warm-up's factor, the range test, NovoGrad, the learning curve's file."""

from __future__ import annotations

import csv
import math
import pathlib
import tempfile

import numpy as np
import torch

from course_lib.exercises.description import Exercise, Part

__all__ = ["EXERCISES"]


def pair(found, *names):
    """Two values by name."""
    values = found if isinstance(found, tuple | list) and len(found) == 2 else ["no pair"] * 2
    return dict(zip(names, values, strict=True))


# --- momentum_step


def _draw_steps(random):
    def question(step):
        return round(float(random.uniform(0.01, 0.9)), 3), round(float(random.uniform(0.3, 0.95)), 3), step

    # The first step tells a length from its limit, later ones a distance from a length.
    return {"steps": [question(1), *map(question, random.integers(2, 60, 5).tolist()), (0.3, 0.0, 5)]}


def observe_steps(case, momentum_step):
    return pair(momentum_step(*case), "length", "distance")


momentum = Exercise(("momentum_step",), _draw_steps, observe_steps, {
    "length": Part("Length of a step under a constant gradient",
        "the length of a step is wrong; write out v₁, v₂, v₃ for m = 0.9: 1, 1.9, 2.71; a step is lr times that",
        cases="steps", keys="length"),
    "distance": Part("Distance after so many steps", "the distance is the sum of the lengths of steps 1 to t",
        cases="steps", keys="distance"),
}, "set a weight's gradient to 1 by hand, step torch.optim.SGD three times, and print where the weight is",
   "lr = {0}, momentum = {1}, constant gradient 1, step {2}")  # fmt: skip

# --- warmup_factor


def _draw_warmups(random):
    start = round(float(random.uniform(0.02, 0.5)), 3)

    def case(n, epochs, per):
        about = f"{n} steps an epoch, {epochs:g} epochs of warm-up from {start}, per={per!r}, at steps 0, 1, … (places)"
        return {"question": (n, epochs, start, per), "steps": math.ceil(n * (epochs + 2)), "about": about}

    # A whole number of iterations, though no whole epochs: what becomes of a part of one is nowhere said.
    n = int(random.choice([4, 5, 8, 10]))
    parts = [length for length in range(2, 4 * n) if length % n and int(length / n * n) == length]
    below, above = ([length / n for length in parts if (length > n) is more] for more in (False, True))
    return {
        "iteration": [case(n, float(random.choice(lengths)), "iteration") for lengths in (below, above)],
        "epoch": [case(int(random.integers(4, 15)), int(random.integers(2, 7)), "epoch") for _ in range(2)],
        "without": [case(n, 0, per) for per in ("iteration", "epoch")],
    }


def observe_factors(case, warmup_factor):
    n, epochs, start, per = case["question"]
    try:
        return [warmup_factor(step, n, epochs, start, per=per) for step in range(case["steps"])]
    except ArithmeticError:
        if epochs:
            raise
        return "divided by zero"


_SOMEWHERE = "is wrong somewhere between the first step and past the end"

warmup = Exercise(("warmup_factor",), _draw_warmups, observe_factors, {
    "iteration": Part("The factor that rises at every step", f"the factor per iteration {_SOMEWHERE}"),
    "epoch": Part("The factor that rises from epoch to epoch", f"the factor per epoch {_SOMEWHERE}"),
    "without": Part("No warm-up at all", "without warm-up the factor is not 1 throughout, or there is none",
        "call warmup_factor with warmup_epochs = 0"),
}, "plot the factor for three epochs of ten steps beside that of torch.optim.lr_scheduler.LinearLR")  # fmt: skip

# --- range_test_rates, read_range_test


def _draw_range_tests(random):
    def rates():
        low, high = (round(float(10 ** random.uniform(*ends)), 5) for ends in ((-4, -1), (0, 2)))
        count = int(random.integers(3, 60))
        return {"ends": (low, high, count), "about": f"{count} rates from {low} to {high}"}

    def curve(kind):
        """Losses that fall, rise again, and end beyond 4 times the lowest, though below 4 times the first."""
        falling = sorted(random.uniform(1, 1.9, int(random.integers(2, 9))), reverse=True)
        lowest, lost = random.uniform(0.5, 0.9), {"nan": math.nan, "inf": math.inf}.get(kind)
        losses = [random.uniform(2, 2.4), *falling, lowest, *lowest * random.uniform(1.1, 2.5, 3)]
        if kind != "steady":
            losses += [lost or lowest * random.uniform(4.2, 6)] * int(random.integers(1, 3))
        if kind in ("nan", "recovers"):
            losses.append(lowest * random.uniform(0.2, 0.8))
        losses = [round(float(loss), 3) for loss in losses]
        first, ratio = 10 ** random.uniform(-4, -2), random.uniform(1.1, 2)
        places = range(len(losses))
        return {"rates": [float(first * ratio**n) for n in places], "losses": losses, "about": f"losses {losses}"}

    kinds = ("nan", "inf", "explodes", "recovers", "steady")
    return {"rates": [rates() for _ in range(3)], "curves": [curve(kind) for kind in kinds]}


def observe_range_test(case, range_test_rates, read_range_test):
    if "losses" in case:
        return pair(read_range_test(list(case["rates"]), list(case["losses"])), "stop", "chosen")
    rates = range_test_rates(*case["ends"])
    return rates.tolist() if isinstance(rates, torch.Tensor | np.ndarray) else rates


range_test = Exercise(("range_test_rates", "read_range_test"), _draw_range_tests, observe_range_test, {
    "rates": Part("A geometric sequence of rates",
        "the rates are not the geometric sequence from the lowest to the highest",
        "print the ratio of each rate to the one before it"),
    "stop": Part("Stops where the loss is lost",
        "stops in the wrong place on some curve: go through the losses in order and keep the lowest so far",
        cases="curves", keys="stop"),
    "choice": Part("Chooses a tenth of the best rate",
        "the chosen rate is wrong on some curve: look for the lowest loss before the stop",
        cases="curves", keys="chosen"),
}, "write down five losses by hand, one of them nan, and go through them with a pencil")  # fmt: skip

# --- novograd_step


def _draw_trainings(random):
    """Layers of very different scale, whose gradients shrink with time."""
    shapes = [tuple(int(n) for n in random.integers(2, 5, dims)) for dims in (2, 1, 3)]
    scales = [10 ** random.uniform(low, low + 1) for low in (-1.5, 0.5, -0.5)]

    def normal(scale, shape):
        return torch.from_numpy(random.normal(0, scale, shape))

    weights = [normal(1, shape) for shape in shapes]
    sizes = [0.2 + 2 * 0.9**step for step in range(40)]
    layers = list(zip(scales, shapes, strict=True))
    gradients = [[normal(scale * size, shape) + 0.3 * scale for scale, shape in layers] for size in sizes]

    def uniform(low, high):
        return round(float(random.uniform(low, high)), 3)

    lr, decay = {"lr": uniform(0.005, 0.02)}, {"weight_decay": uniform(0.05, 0.2)}
    plain = {**lr, "betas": (uniform(0.85, 0.95), uniform(0.95, 0.99)), "eps": 1e-12}  # eps counts in one run alone

    def case(steps, options, networks=1):
        trained = "one network" if networks == 1 else "two networks in turn, each with a state of its own"
        named = ", ".join(f"{name}={value}" for name, value in options.items())
        about = f"{trained}, {steps} step(s), {named}; how far each weight went, divided by lr (places are layers)"
        given = {"weights": weights, "gradients": gradients[:steps], "options": options}
        return given | {"networks": networks, "about": about}

    return {
        "first": [case(1, plain)],
        "steps": [case(40, plain), case(6, lr)],
        "turns": [case(4, plain, networks=2)],
        "decay": [case(10, plain | decay)],
        "averaging": [case(5, plain | more | {"grad_averaging": True}) for more in ({}, decay)],
        "eps": [case(3, plain | {"eps": uniform(0.3, 0.8)})],
    }


def observe_training(case, novograd_step):
    """How far each weight went, in units of lr; whether the gradients stayed."""
    networks = [([weight.clone() for weight in case["weights"]], {}) for _ in range(case["networks"])]
    held, kept = [weights[:] for weights, _ in networks], True
    for gradients in case["gradients"]:
        for weights, state in networks:
            mine = [gradient.clone() for gradient in gradients]
            novograd_step(weights, mine, state, **case["options"])
            kept = kept and all(bool((a == b).all()) for a, b in zip(mine, gradients, strict=True))
    pairs = [both for weights in held for both in zip(weights, case["weights"], strict=True)]
    return {"moves": [(after.detach() - before) / case["options"]["lr"] for after, before in pairs], "kept": kept}


def _gradients_kept(case, seen, right):
    if not 0 < sum(float(move.abs().sum()) for move in seen["moves"]) < math.inf:
        return "no weight moved to another number, so nothing was done with the gradients"
    if seen["kept"] is True:
        return ""
    return "the gradients were changed in place (g /= …, g.div_(…)?); a log after the step then shows other numbers"


novograd = Exercise(("novograd_step",), _draw_trainings, observe_training, {
    "first": Part("The first step, layer by layer",
        "the first step is not the paper's: v = ‖g‖² for each layer, so each moves by lr in norm, along −g",
        "in the first step each layer moves by lr in norm: print the norms", keys="moves"),
    "steps": Part("", "the first step is right, later ones are not: look at v ← β2 v + (1 − β2) ‖g‖² and "
        "m ← β1 m + g/(√v + eps), and at what state keeps for each layer", keys="moves", needs="first"),
    "later": Part("Forty steps with running averages",
        "one network alone is right; of two in turn, each with a state of its own, one is not",
        cases="turns", keys="moves", needs="steps"),
    "decay": Part("Weight decay beside the normalised gradient", "wrong with weight decay",
        "one weight, one step, weight_decay = 0.1: do it by hand", keys="moves", needs="steps"),
    "options": Part("Gradient averaging and eps", "wrong with grad_averaging, or with a large eps",
        "one weight, two steps, with and without the option: do it by hand", cases="averaging eps", keys="moves",
        needs="steps", forgives="no decay, decay in the norm, decay twice, decay of the weights, decay's sign"),
    "gradients": Part("Leaves the gradients alone", "the gradients were changed, or nothing was done",
        "compare a gradient before and after the step: g /= … changes it, g / … does not",
        cases="first steps turns decay averaging eps", judge=_gradients_kept),
}, "print v and m of one layer after steps 1, 2 and 3, and compute them by hand")  # fmt: skip

# --- curve_name, write_curve


def _draw_curves(random):
    def name():
        ranks, percent = random.integers(1, [65, 100]).tolist()  # a rate of three digits would hide a format's
        choices = [32, 64, 256], [0.0, 0.9, 0.95], [0.0, 0.5, 5.0]
        batch_size, momentum, epochs = (some[random.integers(3)] for some in choices)
        numbers = ranks, batch_size, percent / 100, momentum, epochs
        return {"numbers": numbers, "about": f"curve_name{numbers}"}

    def curve(epochs):
        rest = random.uniform(0.1, 0.4, (2, epochs)) + np.arange(epochs) % 2 / 2  # rounded down, up, down, …
        times = (random.integers(1, 200, epochs).cumsum() + rest[0]) / 10
        accuracies = (random.integers(1000, 9500, epochs) + rest[1]) / 1e4
        return [round(float(t), 3) for t in times], [round(float(a), 6) for a in accuracies]

    def file(*epochs):
        curves = [curve(each) for each in epochs]
        (times, accuracies), before = curves[-1], "after another curve under the same path, " * (len(epochs) - 1)
        return {"curves": curves, "about": f"{before}write_curve(path, {times}, {accuracies})"}

    return {"name": [name() for _ in range(4)], "rows": [file(3), file(5)], "again": [file(3, 2)]}


def observe_curve(case, curve_name, write_curve):
    """A name; or the last file: its header, its rows as numbers, whether the last of them has a line end."""
    if "numbers" in case:
        return curve_name(*case["numbers"])
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "curve.csv"
        for times, accuracies in case["curves"]:
            write_curve(path, list(times), list(accuracies))
        if not path.is_file():
            return "no file"
        with path.open(newline="") as file:
            text = file.read(20_000)
    header, *rows = [row for row in csv.reader(text.splitlines()) if row] or [[]]
    return {"header": header, "rows": [list(map(number, row)) for row in rows], "line end": text.endswith("\n")}


def number(cell):
    try:
        return float(cell)
    except ValueError:
        return cell


curve = Exercise(("curve_name", "write_curve"), _draw_curves, observe_curve, {
    "name": Part("The file's name", "a name is not the multi-GPU tutorial's: "
        "'{}ranks-{}bs-{}lr-{}m-{}w.csv'.format(…), the numbers as Python prints them"),
    "rows": Part("Header, first row and rounding",
        "header, first row, rounding or rows are not the multi-GPU tutorial's", tolerance=1e-9),
    "again": Part("A new curve replaces an old one",
        "a second curve under the same path does not replace the first, or is wrong itself",
        "call write_curve twice with the same path and look at the file", tolerance=1e-9),
}, "open the file that you wrote, in a text editor, beside the multi-GPU tutorial's two functions")  # fmt: skip

EXERCISES = {"momentum": momentum, "warmup": warmup, "range-test": range_test, "novograd": novograd, "curve": curve}

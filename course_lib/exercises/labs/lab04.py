"""Lab 04: SGD with momentum, the warm-up's factor, the range test, relative steps, AdamW, LAMB, NovoGrad, Muon's matrix."""

from __future__ import annotations

import copy
import math

import numpy as np
import torch

from course_lib.exercises.description import Exercise, Part

__all__ = ["EXERCISES"]


def pair(found, *names):
    """Two values by name."""
    values = found if isinstance(found, tuple | list) and len(found) == 2 else ["no pair"] * 2
    return dict(zip(names, values, strict=True))


# --- sgd_step


def _draw_momenta(random):
    def case(momentum, nesterov):
        lr, tensors = round(float(random.uniform(0.05, 0.5)), 3), random.normal(0, 1, (2, 6, 5))
        options = {"lr": lr, "momentum": momentum, "nesterov": nesterov}
        weights = [torch.from_numpy(random.normal(0, 1, 5)) for _ in range(2)]
        named = ", ".join(f"{name}={value}" for name, value in options.items())
        about = f"two tensors, 6 steps each, {named}; how far each went, divided by lr"
        return {"weights": weights, "gradients": torch.from_numpy(tensors), "options": options, "about": about}

    m = [round(float(value), 2) for value in random.uniform(0.5, 0.95, 3)]
    return {
        "plain": [case(0.0, False)],
        "heavy": [case(m[0], False), case(m[1], False)],
        "nesterov": [case(m[2], True)],
    }


def observe_sgd(case, sgd_step):
    weights, states = [w.clone() for w in case["weights"]], [{} for _ in case["weights"]]
    moves, given = {}, [[g.clone() for g in gradients] for gradients in case["gradients"]]
    for step in range(6):
        for w, state, gradients in zip(weights, states, given, strict=True):
            sgd_step(w, gradients[step], state, **case["options"])
        if step in (0, 1, 5):
            for number, (after, before) in enumerate(zip(weights, case["weights"], strict=True), 1):
                moves[f"after step {step + 1}, tensor {number}"] = (after.detach() - before) / case["options"]["lr"]
    kept = torch.equal(torch.stack([torch.stack(each) for each in given]), case["gradients"])
    return moves | ({"gradients as they were": kept} if case["options"]["momentum"] else {})


momentum = Exercise(("sgd_step",), _draw_momenta, observe_sgd, {
    "plain": Part("", "without momentum the step is not w − lr g, in place"),
    "heavy": Part("Heavy-ball momentum",
        "with momentum the steps are wrong: v ← m v + g, then w ← w − lr v, with a v for each tensor", needs="plain"),
    "nesterov": Part("A step of Nesterov's variant",
        "with nesterov=True the steps are wrong: v as before, then w ← w − lr (g + m v)", needs="plain"),
}, "take one weight, set its gradient to 1 by hand, and compare three steps with torch.optim.SGD's")  # fmt: skip

# --- warmup_factor


def _draw_warmups(random):
    start = round(float(random.uniform(0.02, 0.5)), 3)

    def case(n, epochs, per):
        about = f"{n} steps per epoch, {epochs:g} epochs of warm-up from {start}, per={per!r}"
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
        return {f"step {step}": warmup_factor(step, n, epochs, start, per=per) for step in range(case["steps"])}
    except ArithmeticError:
        if epochs:
            raise
        return "divided by zero"


_SOMEWHERE = "is wrong: it is start + (1 − start) · (the finished share of the warm-up, at most 1)"

warmup = Exercise(("warmup_factor",), _draw_warmups, observe_factors, {
    "iteration": Part("The factor that rises at every step", f"the factor per iteration {_SOMEWHERE}"),
    "epoch": Part("The factor that rises from epoch to epoch", f"the factor per epoch {_SOMEWHERE}"),
    "without": Part("No warm-up at all", "without warm-up the factor is not 1 throughout, or there is none",
        "call warmup_factor with warmup_epochs = 0"),
}, "plot the factor for three epochs of ten steps beside that of torch.optim.lr_scheduler.LinearLR")  # fmt: skip

# --- learning_rates, lr_range_test


def _draw_range_tests(random):
    def rates():
        low, high = (round(float(10 ** random.uniform(*ends)), 5) for ends in ((-4, -1), (0, 2)))
        count = int(random.integers(3, 60))
        return {"ends": (low, high, count), "about": f"{count} learning rates from {low} to {high}"}

    def training(kind):
        """Losses that fall, rise again, and end beyond 4 times the lowest, though below 4 times the first."""
        falling = sorted(random.uniform(1, 1.9, int(random.integers(3, 9))), reverse=True)
        lowest, lost = random.uniform(0.5, 0.9), {"nan": math.nan, "inf": math.inf}.get(kind)
        losses = [random.uniform(2, 2.4), *falling, lowest, *lowest * random.uniform(1.1, 2.5, 3)]
        if kind != "steady":
            losses += [lost or lowest * random.uniform(4.2, 6)] * int(random.integers(1, 3))
        if kind in ("nan", "recovers"):
            losses.append(lowest * random.uniform(0.2, 0.8))
        losses = [round(float(loss), 3) for loss in losses]
        first, ratio = 10 ** random.uniform(-4, -2), random.uniform(1.1, 2)
        rates = [float(first * ratio**n) for n in range(len(losses))]
        batches = int(random.integers(2, 5))  # fewer than there are learning rates
        about = f"a training with the losses {losses}, {batches} batches, two parameter groups"
        diverges = kind != "steady"
        return {"rates": rates, "losses": losses, "batches": batches, "diverges": diverges, "about": about}

    kinds = ("nan", "inf", "explodes", "recovers", "steady")
    return {"rates": [rates() for _ in range(3)], "trainings": [training(kind) for kind in kinds]}


class Line(torch.nn.Module):
    """Two numbers, whose sum is what comes out."""

    def __init__(self):
        super().__init__()
        self.a, self.b = (torch.nn.Parameter(torch.zeros((), dtype=torch.float64)) for _ in range(2))

    def forward(self, images):
        return (self.a + self.b).expand(len(images))


def observe_range_test(case, learning_rates, lr_range_test):
    """The rates; or what came of a training whose losses are given, whatever the weights, and whose gradients are 1."""
    if "ends" in case:
        rates = learning_rates(*case["ends"])
        return rates.tolist() if isinstance(rates, torch.Tensor | np.ndarray) else rates
    model, seen, ways = Line(), [], []
    groups = [{"params": [model.a], "lr": 1.0}, {"params": [model.b], "lr": 2.0}]

    def loss_fn(logits, labels):
        seen.append(int(labels[0]))
        ways.append((model.a.item(), model.b.item()))
        if len(seen) > 2 * len(case["losses"]):
            raise RuntimeError("lr_range_test goes on training after the last learning rate")
        return logits.mean() - logits.mean().detach() + case["losses"][(len(seen) - 1) % len(case["losses"])]

    batches = [(torch.zeros(2, 1), torch.full((2,), n)) for n in range(case["batches"])]
    found = lr_range_test(model, torch.optim.SGD(groups), batches, loss_fn, list(case["rates"]))
    # Whether the diverged loss is followed by an update is left open.
    way = ways[-1] if case["diverges"] and ways else (model.a.item(), model.b.item())
    moved = [-way[0] / case["rates"][0], -way[1] / case["rates"][0]]
    order = all(n == place % case["batches"] for place, n in enumerate(seen))
    return pair(found, "losses", "chosen") | {"moved": moved, "order": order}


range_test = Exercise(("learning_rates", "lr_range_test"), _draw_range_tests, observe_range_test, {
    "rates": Part("A geometric sequence of learning rates",
        "the learning rates are not the geometric sequence from the lowest to the highest",
        "print the ratio of each learning rate to the one before it"),
    "losses": Part("Trains until the loss diverges, and returns the losses",
        "the losses are wrong on some training: the loss of each step before its update, the diverged one last",
        cases="trainings", keys="losses"),
    "steps": Part("Takes one step at each learning rate",
        "the weights did not move by one step at each learning rate: set lr in every parameter group, clear the "
        "gradients, and begin again with the first batch after the last",
        "here moved is how far the weight of each group went, divided by the first learning rate; an update after a "
        "diverged loss does not count", cases="trainings",
        keys="moved order", needs="losses"),
    "choice": Part("Chooses a tenth of the learning rate with the lowest loss",
        "the chosen learning rate is wrong on some training: look for the lowest loss before the divergence",
        cases="trainings", keys="chosen"),
}, "run it on five steps of a small network and print each learning rate beside its loss")  # fmt: skip

# --- relative_steps


def _draw_steps(random):
    def case(kind):
        inputs, hidden, classes = (int(n) for n in random.integers(3, 7, 3))
        scales = np.repeat(10 ** random.uniform(-1, 1, 2), 2)
        layers = list(zip(scales, [(hidden, inputs), (hidden,), (classes, hidden), (classes,)], strict=True))
        layers = layers if kind == "biases" else layers[::2]
        name, lr = "AdamW" if kind == "other" else "SGD", round(float(random.uniform(0.1, 0.5)), 3)

        def tensors():
            return [torch.from_numpy(random.normal(0, scale, shape)) for scale, shape in layers]

        images = torch.from_numpy(random.normal(0, 1, (8, inputs)))
        labels = torch.from_numpy(random.integers(0, classes, 8))
        given = {"parameters": tensors(), "left": tensors() if kind == "left" else [], "optimizer": name, "lr": lr}
        how = f"{'with' if kind == 'biases' else 'without'} biases, {name} with lr={lr}"
        how += ", gradients left from an earlier step" * (kind == "left")
        return given | {"images": images, "labels": labels, "about": f"two linear layers {how}"}

    return {kind: [case(kind), case(kind)] for kind in ("weights", "biases", "left", "other")}


def observe_relative_steps(case, relative_steps):
    """What it returned, and the parameters after its step."""
    parameters, bias = case["parameters"], len(case["parameters"]) > 2
    first, last = parameters[0], parameters[2 if bias else 1]
    layers = [torch.nn.Linear(w.size(1), w.size(0), bias=bias, dtype=torch.float64) for w in (first, last)]
    model = torch.nn.Sequential(layers[0], torch.nn.Tanh(), layers[1])
    for place, (parameter, value) in enumerate(zip(model.parameters(), parameters, strict=True)):
        parameter.data = value.clone()
        parameter.grad = case["left"][place].clone() if case["left"] else None
    optimizer = getattr(torch.optim, case["optimizer"])(model.parameters(), lr=case["lr"])
    loss_fn = torch.nn.functional.cross_entropy
    found = relative_steps(model, optimizer, case["images"].clone(), case["labels"].clone(), loss_fn)
    return {"steps": found, "after": [parameter.detach().clone() for parameter in model.parameters()]}


relative = Exercise(("relative_steps",), _draw_steps, observe_relative_steps, {
    "weights": Part("One step, weight tensor by weight tensor", "the step, or its length ‖Δw‖ / ‖w‖, is wrong: take one "
        "step of the optimiser, and compare each tensor with what it was before"),
    "biases": Part("Leaves biases out", "right without biases, wrong with them: only parameters of more than one dimension",
        needs="weights"),
    "left": Part("A model with old gradients", "wrong where an earlier step has left its gradients",
        "call it twice with the same model", needs="weights"),
    "other": Part("Any optimiser", "right for SGD, wrong for AdamW: let the optimiser take the step, and measure the weights",
        needs="weights"),
}, "one weight: take a step with a large learning rate, and print the weight before and after it")  # fmt: skip

# --- adam_direction, adamw_step, lamb_step


def _draw_adams(random):
    def case(kind, steps, **more):
        options = {"betas": (round(float(random.uniform(0.8, 0.95)), 3), round(float(random.uniform(0.98, 0.999)), 4))}
        options |= {"eps": 1e-20} | more
        shapes, scales = [(3, 4), (5,)], 10 ** random.uniform(-2, 1, 2)
        weights = [torch.from_numpy(random.normal(0, 1, shape)) for shape in shapes]
        gradients = [[torch.from_numpy(random.normal(0.3 * s, s, shape)) for s, shape in zip(scales, shapes, strict=True)]
                     for _ in range(steps)]  # fmt: skip
        lr = round(float(random.uniform(0.005, 0.05)), 4)
        named = ", ".join(f"{name}={value}" for name, value in options.items())
        what = "the last direction" if kind == "adam_direction" else "how far each went, divided by lr"
        about = f"{kind}, two tensors, {steps} step(s), {named}; {what}"
        return {"kind": kind, "weights": weights, "gradients": gradients, "lr": lr, "options": options, "about": about}

    decay = {"weight_decay": round(float(random.uniform(0.05, 0.3)), 3)}
    return {
        "first": [case("adam_direction", 1)],
        "later": [case("adam_direction", 7)],
        "eps": [case("adam_direction", 2, eps=round(float(random.uniform(0.2, 0.6)), 3))],
        "adamw": [case("adamw_step", 1, weight_decay=0.0), case("adamw_step", 4, **decay)],
        "lamb": [case("lamb_step", 1, weight_decay=0.0), case("lamb_step", 4, **decay)],
    }


def observe_adam(case, adam_direction, adamw_step, lamb_step):
    weights, states = [w.clone() for w in case["weights"]], [{} for _ in case["weights"]]
    last = []
    for gradients in case["gradients"]:
        last = []
        for w, g, state in zip(weights, gradients, states, strict=True):
            if case["kind"] == "adam_direction":
                last.append(adam_direction(g.clone(), state, **case["options"]))
            else:
                step = adamw_step if case["kind"] == "adamw_step" else lamb_step
                step(w, g.clone(), state, lr=case["lr"], **case["options"])
    if case["kind"] == "adam_direction":
        return {"tensor 1": last[0], "tensor 2": last[1]}
    first, second = ((w.detach() - before) / case["lr"] for w, before in zip(weights, case["weights"], strict=True))
    return {"tensor 1": first, "tensor 2": second}


adam = Exercise(("adam_direction", "adamw_step", "lamb_step"), _draw_adams, observe_adam, {
    "first": Part("The first direction of Adam", "the first direction is not m̂/(√v̂ + eps), which is nearly ±1 everywhere"),
    "later": Part("Later directions of Adam", "later directions are wrong: running averages of g and g², each corrected",
        needs="first"),
    "eps": Part("The eps of Adam", "wrong with a large eps: it is added to √v̂, after the correction", needs="first"),
    "adamw": Part("Steps of AdamW", "the step is not w ← w − lr (direction + weight_decay · w), in place", needs="later"),
    "lamb": Part("Steps of LAMB", "the step is not AdamW's bracket u, times lr ‖w‖/‖u‖, in place", needs="later"),
}, "compare two steps on one weight with torch.optim.AdamW's")  # fmt: skip

# --- HandmadeNovoGrad


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
    plain = {**lr, "betas": (uniform(0.85, 0.95), uniform(0.95, 0.99)), "eps": 1e-12, "grad_averaging": False}

    def case(steps, options, **more):
        named = ", ".join(f"{name}={value}" for name, value in options.items())
        how = {"saved": ", saved and loaded after step {saved}", "without": ", the first {without} step(s) without a gradient in layer 1",
               "slow": ", layer 2 in a group of its own with lr/{slow}"}  # fmt: skip
        how = "".join(text.format(**more) for name, text in how.items() if name in more)
        about = f"{steps} step(s), {named}{how}; how far each weight went, divided by lr (place: the layer, from 0)"
        given = {"weights": weights, "gradients": gradients[:steps], "options": options}
        return given | {"saved": 0, "without": 0, "slow": 1} | more | {"about": about}

    return {
        "first": [case(1, plain)],
        "steps": [case(40, plain)],
        "saved": [case(8, plain, saved=4)],
        "groups": [case(3, plain, slow=4)],
        "frozen": [case(5, plain, without=5), case(5, plain, without=2)],
        "decay": [case(10, plain | decay)],
        "averaging": [case(5, plain | more | {"grad_averaging": True}) for more in ({}, decay)],
        "eps": [case(3, plain | {"eps": uniform(0.3, 0.8)})],
    }


def observe_training(case, HandmadeNovoGrad):
    """How far each weight went, in units of lr; whether the gradients stayed."""
    weights = [torch.nn.Parameter(weight.clone()) for weight in case["weights"]]
    groups = [{"params": weights[:2]}, {"params": weights[2:], "lr": case["options"]["lr"] / case["slow"]}]

    def make():
        return HandmadeNovoGrad(groups if case["slow"] > 1 else weights, **case["options"])

    optimizer, kept = make(), True
    if not isinstance(optimizer, torch.optim.Optimizer):
        return "no optimiser"
    for step, gradients in enumerate(case["gradients"]):
        if step and step == case["saved"]:
            state, optimizer = copy.deepcopy(optimizer.state_dict()), make()
            optimizer.load_state_dict(state)
        for layer, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
            weight.grad = None if layer == 1 and step < case["without"] else gradient.clone()
        optimizer.step()
        pairs = [(w.grad, g) for w, g in zip(weights, gradients, strict=True) if w.grad is not None]
        kept = kept and all(bool((a == b).all()) for a, b in pairs)
    pairs = zip(weights, case["weights"], strict=True)
    return {"moves": [(after.detach() - before) / case["options"]["lr"] for after, before in pairs], "kept": kept}


def _gradients_kept(case, seen, right):
    if not 0 < sum(float(move.abs().sum()) for move in seen["moves"]) < math.inf:
        return "no weight moved to another number, so nothing was done with the gradients"
    if seen["kept"] is True:
        return ""
    return "the gradients were changed in place (g /= …, g.div_(…)?); a log after the step then shows other numbers"


novograd = Exercise(("HandmadeNovoGrad",), _draw_trainings, observe_training, {
    "first": Part("The first step, layer by layer",
        "the first step is not the paper's: v = ‖g‖² for each layer, so each moves by lr in norm, along −g",
        "in the first step each layer moves by lr in norm: print the norms", keys="moves"),
    "later": Part("Forty steps with running averages", "the first step is right, later ones are not: look at "
        "v ← β2 v + (1 − β2) ‖g‖² and m ← β1 m + g/(√v + eps), and at what is kept for each layer",
        cases="steps", keys="moves", needs="first"),
    "saved": Part("Continues from a state_dict", "after state_dict() and load_state_dict() the training is another: "
        "keep v and m in self.state[w], which PyTorch saves, and nowhere else",
        "print optimizer.state_dict()['state'] after a step", keys="moves", needs="later"),
    "groups": Part("", "of two groups with learning rates of their own one is wrong: read each setting from its group",
        keys="moves", needs="first"),
    "frozen": Part("Groups of their own, and layers without a gradient", "a layer without a gradient stays where it is, "
        "and its first step is the first with a gradient",
        "freeze a layer (requires_grad_(False)) and train two steps", keys="moves", needs="first groups"),
    "decay": Part("Weight decay beside the normalised gradient", "wrong with weight decay",
        "one weight, one step, weight_decay = 0.1: do it by hand", keys="moves", needs="later"),
    "options": Part("Gradient averaging and eps", "wrong with grad_averaging, or with a large eps",
        "one weight, two steps, with and without the option: do it by hand", cases="averaging eps", keys="moves",
        needs="later", forgives="no decay, decay in the norm, decay twice, decay of the weights, decay's sign, "
        "decay divided, decay after the step"),
    "gradients": Part("Leaves the gradients alone", "the gradients were changed, or nothing was done",
        "compare a gradient before and after the step: g /= … changes it, g / … does not",
        cases="first steps decay averaging eps", judge=_gradients_kept),
}, "print v and m of one layer after steps 1, 2 and 3, and compute them by hand", guarded="frozen")  # fmt: skip

# --- orthogonalise


def _draw_matrices(random):
    def case(rows, columns, steps):
        scale = float(10 ** random.uniform(-3, 3))
        matrix = torch.from_numpy(random.normal(0, scale, (rows, columns)))
        return {
            "matrix": matrix,
            "steps": steps,
            "about": f"a {rows} × {columns} matrix, {steps} step(s)",
        }

    sizes = sorted(random.choice(np.arange(2, 12), 2, replace=False).tolist())
    few, many = (int(n) for n in (random.integers(1, 3), random.integers(4, 7)))
    return {
        "wide": [case(*sizes, few), case(*sizes, many)],
        "tall": [case(*sizes[::-1], few), case(*sizes[::-1], many)],
    }


def observe_matrix(case, orthogonalise):
    matrix = case["matrix"].clone()
    return {"result": orthogonalise(matrix, case["steps"]), "kept": bool((matrix == case["matrix"]).all())}


def _matrix_kept(case, seen, right):
    return (
        "" if seen["kept"] is True else "the matrix that was given is another one afterwards: do not change it in place"
    )


muon = Exercise(("orthogonalise",), _draw_matrices, observe_matrix, {
    "wide": Part("A wide matrix", "the result is not that of so many Newton–Schulz steps", keys="result"),
    "tall": Part("A tall matrix", "right for wide matrices, wrong for tall ones", keys="result", needs="wide"),
    "kept": Part("Leaves its argument alone", "the matrix that was given is changed in place",
        cases="wide tall", judge=_matrix_kept, needs="wide"),
}, "print the singular values before and after each step (torch.linalg.svdvals)")  # fmt: skip

EXERCISES = {
    "momentum": momentum, "warmup": warmup, "range-test": range_test, "relative-steps": relative, "adam": adam,
    "novograd": novograd, "muon": muon,
}  # fmt: skip

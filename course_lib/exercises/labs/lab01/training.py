"""Lab 01's training of one network: a step, the evaluation, the loop over epochs, a step from several micro-batches."""

from __future__ import annotations

import contextlib
import functools
import inspect
import warnings
import weakref

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from course_lib.exercises.comparing import equal, is_number, kind_of, short
from course_lib.exercises.description import Exercise, Part

__all__ = ["ACCUMULATE", "EVALUATE", "TRAINING", "TRAIN_STEP", "PeakOfSaved", "normal", "pair"]

KEYS = ("train_loss", "train_accuracy", "val_loss", "val_accuracy")
MOST_QUESTIONS = 100_000  # of a watch


def normal(random, *shape, scale=1.0):
    return torch.from_numpy(random.normal(0, scale, shape))


def _network(random, features, hidden, classes, norm=False):
    """Parameters and buffers of `perceptron`, in order."""
    ends = [
        normal(random, *shape, scale=0.5) for shape in ((hidden, features), (hidden,), (classes, hidden), (classes,))
    ]
    scale, variance = (torch.from_numpy(random.uniform(low, 2, hidden)) for low in (0.5, 0.5))
    between = [scale, *(normal(random, hidden, scale=0.3) for _ in range(2)), variance, torch.tensor(7)]
    return [*ends[:2], *(between if norm else []), *ends[2:]]


def _batch(random, images, features, classes):
    return normal(random, images, 1, 1, features), torch.from_numpy(random.integers(0, classes, images))


def perceptron(state, *between):
    """A network of two layers, with layers between the first and its activation; `state` are its tensors in order."""
    (hidden, features), classes = state[0].shape, len(state[-1])
    layers = [nn.Flatten(), nn.Linear(features, hidden), *between, nn.Tanh(), nn.Linear(hidden, classes)]
    model = nn.Sequential(*layers).double()
    for tensor, value in zip(model.state_dict().values(), state, strict=True):
        tensor.copy_(value)
    return model


def hidden_units(state):
    return len(state[1])


def weights_of(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def pair(found, *names):
    """Two values by name; None for both where there is no pair."""
    values = found if isinstance(found, tuple | list) and len(found) == 2 else [None] * 2
    return dict(zip(names, values, strict=True))


# --- train_step


def _draw_steps(random):
    features, hidden, classes = (int(n) for n in random.integers([6, 7, 4], [11, 11, 7]))
    sgd = {"lr": round(float(random.uniform(0.05, 0.3)), 3), "momentum": round(float(random.uniform(0.3, 0.9)), 2)}
    smoothing = round(float(random.uniform(0.3, 0.6)), 2)  # enough that no other loss passes for it

    def case(about, images, steps=1, norm=False, sgd=sgd, smoothing=smoothing):
        state = _network(random, features, hidden, classes, norm)
        batches = [_batch(random, images, features, classes) for _ in range(steps)]
        return {"state": state, "norm": norm, "batches": batches, "sgd": sgd, "smoothing": smoothing, "about": about}

    return {
        "one": [case(f"one step of SGD, {sgd}, loss with label_smoothing={smoothing}", 8)],
        "normed": [case("one step of a network with batch norm", 24, norm=True)],
        # Without momentum and smoothing: whatever rule or loss a step follows, it shows whose gradients it used.
        "two": [case("two steps of plain SGD", 8, 2, sgd={"lr": sgd["lr"]}, smoothing=0.0)],
    }


def observe_steps(case, train_step):
    norm = [nn.BatchNorm1d(hidden_units(case["state"]))] if case["norm"] else []
    model = perceptron(case["state"], *norm).train()
    optimizer = torch.optim.SGD(model.parameters(), **case["sgd"])
    loss_fn, found, steps, forwards = nn.CrossEntropyLoss(label_smoothing=case["smoothing"]), None, [], []
    model.register_forward_pre_hook(lambda *given: forwards.append(1))
    for images, labels in case["batches"]:
        found = train_step(model, images.clone(), labels.clone(), optimizer, loss_fn)
        gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
        steps.append({"weights": weights_of(model), "gradients": gradients})
    values = pair(found, "loss", "logits")
    attached = any(isinstance(value, torch.Tensor) and value.requires_grad for value in values.values())
    found = {"steps": steps} if len(steps) > 1 else {"weights": steps[0]["weights"]}
    return values | found | {"attached": attached, "training": model.training, "forwards": len(forwards)}


def _flat(tensors, like):
    """Tensors as one vector; `TypeError` where they are not finite and shaped like those of `like`."""
    if not isinstance(tensors, list) or len(tensors) != len(like):
        raise TypeError
    for one, other in zip(tensors, like, strict=True):
        if not isinstance(one, torch.Tensor) or one.shape != other.shape or not bool(one.isfinite().all()):
            raise TypeError
    return torch.cat([tensor.double().flatten() for tensor in tensors])


def _own_gradient(state, images, labels):
    weights = [tensor.clone().requires_grad_() for tensor in state]
    logits = (images.flatten(1) @ weights[0].T + weights[1]).tanh() @ weights[2].T + weights[3]
    return _flat(list(torch.autograd.grad(functional.cross_entropy(logits, labels), weights)), state)


def _repeats(case, seen, right):
    """Both steps move the weights by the same multiple of their own batch's gradient.

    The multiple is the update's business. Where no weight moves, the gradients that a step leaves are judged.
    """
    start, (first, second) = case["state"], seen["steps"]
    places = [_flat(state, start) for state in (start, first["weights"], second["weights"])]
    used = [places[1] - places[0], places[2] - places[1]]
    own = [
        _own_gradient(state, *batch) for state, batch in zip((start, first["weights"]), case["batches"], strict=True)
    ]
    if not any(bool(moved.any()) for moved in used):
        used = [_flat(step["gradients"], start) for step in (first, second)]
    scale = used[0].dot(own[0]) / own[0].square().sum()

    def follows(gradient):
        return bool((used[1] - scale * gradient).norm() <= 1e-2 * abs(scale) * gradient.norm())

    if not any(bool(one.any()) for one in used) or not (used[0] - scale * own[0]).norm() <= 1e-2 * used[0].norm():
        return _NO_REPEAT
    if follows(own[1]):
        return ""
    return _PILED_UP if follows(own[0] + own[1]) else _NO_REPEAT


_NO_REPEAT = "two steps do not move the weights along the gradients of their own batches"
_PILED_UP = (
    "the second step uses the first one's gradients too: PyTorch adds to .grad; call optimizer.zero_grad() before "
    "backward()"
)

TRAIN_STEP = Exercise(("train_step",), _draw_steps, observe_steps, {
    "update": Part("One step of the given optimiser on the given loss",
        "after one step the weights are not those of the given optimiser and loss: one backward() of loss_fn's value, "
        "then one optimizer.step(), in training mode", cases="one normed", keys="weights training"),
    "repeat": Part("Several steps, each with its own gradients", _NO_REPEAT,
        "print a gradient's norm before each step: PyTorch adds to .grad", cases="two", judge=_repeats),
    "returns": Part("Returns loss and logits of before the update, detached",
        "loss and logits are not those of the weights before the update",
        "print type, shape and requires_grad of what train_step returns", cases="one", keys="loss logits attached forwards"),
}, "do one step by hand for a linear layer, and compare a weight before and after train_step")  # fmt: skip

# --- evaluate


def _draw_evaluations(random):
    features, hidden, classes = (int(n) for n in random.integers([8, 10, 4], [20, 24, 9]))
    cuts = [int(n) for n in random.integers([5, 27], [23, 45])]  # no batch of one image
    sizes = [cuts[0], cuts[1] - cuts[0], 50 - cuts[1]]
    plain, normed = (_network(random, features, hidden, classes, norm) for norm in (False, True))
    # The same function of the images as the normed network in evaluation mode, without batch norm and dropout.
    weight, bias, scale, shift, mean, variance, _, *last = normed
    scale = scale / (variance + 1e-5).sqrt()
    folded = [weight * scale[:, None], (bias - mean) * scale + shift, *last]
    images, labels = _batch(random, 50, features, classes)
    logits = (images.flatten(1) @ plain[0].T + plain[1]).tanh() @ plain[2].T + plain[3]
    labels[:30] = logits.argmax(1)[:30]  # more right than any other rule than the largest logit gets
    batches = list(zip(images.split(sizes), labels.split(sizes), strict=True))
    about = f"three batches of {sizes} images"
    return {"networks": [{"plain": plain, "normed": normed, "folded": folded, "batches": batches,
                          "amount": float(random.uniform(2, 5)), "about": about}]}  # fmt: skip


class UnlessGrad(nn.Module):
    """Changes its input while a graph is recorded."""

    def __init__(self, amount):
        super().__init__()
        self.amount = amount
        # What is asked is what autograd does, not a function that says so.
        self.probe = torch.ones((), requires_grad=True)

    def forward(self, x):
        return x + self.amount * x.roll(1, dims=1) if (self.probe * 1).requires_grad else x


def observe_evaluation(case, evaluate):
    """The three numbers of each network, and the normed one's tensors afterwards."""
    norm = nn.BatchNorm1d(hidden_units(case["normed"])), nn.Dropout(0.5)
    models = {
        "plain": perceptron(case["plain"]), "watched": perceptron(case["plain"], UnlessGrad(case["amount"])),
        "normed": perceptron(case["normed"], *norm), "folded": perceptron(case["folded"]),
    }  # fmt: skip
    found = {}
    for name, model in models.items():
        batches = [(images.clone(), labels.clone()) for images, labels in case["batches"]]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # of dropout, where it is left on
            three = evaluate(model.train(), batches, nn.CrossEntropyLoss())
        found[name] = list(three) if isinstance(three, tuple | list) and len(three) == 3 else [None] * 3
    loss_sum, correct, images = found["plain"]
    state = [tensor.clone() for tensor in models["normed"].state_dict().values()]
    return found | {"loss_sum": loss_sum, "correct": correct, "images": images, "state": state}


def _same_numbers(found, expected):
    return all(is_number(b) and equal(a, float(b), 1e-3) for a, b in zip(found, expected, strict=True))


def _evaluates(seen, right):
    """Whether something is right that only the network's logits can tell: a mistake in a sum costs that sum alone."""
    numbers = all(is_number(value) for value in seen["plain"])
    in_order = numbers and _same_numbers(sorted(map(float, seen["plain"])), sorted(map(float, right["plain"])))
    return in_order or equal(seen["correct"], right["correct"]) or equal(seen["loss_sum"], right["loss_sum"], 1e-3)


def _mode(case, seen, right):
    if not equal(seen["state"], right["state"]):
        return (
            "evaluating changed the model: batch norm's statistics moved, so it was in training mode; call model.eval() "
            "first"
        )
    if not _evaluates(seen, right):
        return _NO_SUMS
    steady = _same_numbers(seen["normed"], seen["folded"])
    return "" if steady else "the sums of a network with batch norm and dropout are not those of evaluation mode"


def _no_graph(case, seen, right):
    if not _evaluates(seen, right):
        return _NO_SUMS
    same = _same_numbers(seen["watched"], seen["plain"])
    return "" if same else "a graph is recorded in the forward passes, which costs memory: use torch.no_grad()"


_NO_SUMS = "neither the losses nor the correct predictions are right, so this cannot be judged"

EVALUATE = Exercise(("evaluate",), _draw_evaluations, observe_evaluation, {
    "counts": Part("Counts correct predictions and images", "the number of correct predictions or of images is wrong",
        cases="networks", keys="correct images"),
    "loss": Part("Sums the losses of all images, with a short last batch too",
        "the sum of the images' losses is wrong when batches differ in size", cases="networks", keys="loss_sum",
        tolerance=1e-3),
    "mode": Part("In evaluation mode, the network unchanged", _NO_SUMS, "print model.training inside a forward hook",
        cases="networks", judge=_mode),
    "no-graph": Part("Records no graph", _NO_SUMS, "print torch.is_grad_enabled() inside a forward hook",
        cases="networks", judge=_no_graph),
}, "add up the three numbers by hand for two small batches of different sizes, and compare")  # fmt: skip

# --- train

TRAIN_SIZES, VALIDATION_SIZES = (9, 3, 7, 4), (8, 2, 6)  # of the batches, in another order each time
VALIDATION = range(len(TRAIN_SIZES), len(TRAIN_SIZES) + len(VALIDATION_SIZES))  # the validation batches' numbers


def _draw_trainings(random):
    def case(about, epochs, **more):
        sizes = [int(size) for some in (TRAIN_SIZES, VALIDATION_SIZES) for size in random.permutation(some)]
        passes, count = epochs + 1, len(sizes)
        given = {
            "epochs": epochs, "rates": [], "ends": 0, "lr": round(float(random.uniform(0.2, 0.5)), 3),
            "labels": [torch.from_numpy(random.integers(0, 4, size)) for size in sizes],
            # What the recorders return of each batch, pass by pass: the grader has these numbers, and no rank.
            "losses": normal(random, passes, count).exp(), "logits": normal(random, passes, count, max(sizes), 4),
            "means": normal(random, passes, count).exp(),
            "hits": torch.from_numpy(np.stack([random.integers(1, size, passes) for size in sizes], 1)),
        }  # fmt: skip
        about = (
            f"{epochs} epochs, {len(TRAIN_SIZES)} training batches, {len(VALIDATION_SIZES)} validation batches{about}; "
            "your train_step and evaluate are replaced by recorders"
        )
        return given | {"about": about} | more

    rates = random.uniform(0.2, 2.0, 20).round(3).tolist()
    return {
        "scheduled": [case(", a scheduler", 3, rates=rates)],
        "plain": [case("", 3)],
        "stops": [case(f", to stop after {ends}", 5, ends=ends) for ends in (2, 3)],
    }


class Again:
    """Batches that can be read again, though not by their numbers."""

    def __init__(self, batches):
        self.batches, self.passes = batches, 0

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        self.passes += 1
        for images, labels in self.batches:
            yield images.clone(), labels.clone()


def globals_of(function):
    """The global names of a function, behind its decorators; an empty dict where it has none."""
    function = inspect.unwrap(function)
    while isinstance(function, functools.partial):
        function = inspect.unwrap(function.func)
    return getattr(function, "__globals__", {})


@contextlib.contextmanager
def replaced(names, functions):
    """Other functions under global names, as long as it is open."""
    before = {name: names[name] for name in functions if name in names}
    names.update(functions)
    try:
        yield
    finally:
        for name in functions:
            names.pop(name, None)
        names.update(before)


class Loop:
    """What `train` does with its recorders, in order, and the numbers that they return: nobody knows one before its batch.

    The numbers of an evaluation depend on the passes over the training batches so far, not on the number of evaluations.
    """

    def __init__(self, case):
        self.case, self.passes, self.questions = case, {}, 0
        self.known = [
            ([[[[float(number)]]]] * len(labels), labels.tolist()) for number, labels in enumerate(case["labels"])
        ]
        self.seen = {
            "steps": [],
            "modes": [],
            "evaluated": [],
            "evaluates-given": True,
            "reported": [],
            "accuracies": [],
        }

    def answer(self, name, rank, *arguments):
        self.questions += 1
        if self.questions > MOST_QUESTIONS:
            raise ValueError("far too many calls")
        actions = {"step": self.step, "evaluate": self.evaluate, "report": self.report, "stop": self.stop}
        return actions[name](*arguments)

    def evidence(self):
        return self.seen

    def number(self, images, labels):
        """Which batch it is; -1 for none."""
        found = images.tolist(), labels.tolist()
        return self.known.index(found) if found in self.known else -1

    def step(self, images, labels, training, facts):
        number = self.number(images, labels)
        self.seen["steps"].append({"batch": number} | facts)
        self.seen["modes"].append(training)
        self.passes[number] = self.passes.get(number, -1) + 1
        place = self.passes[number] % len(self.case["losses"]), number
        return [self.case["losses"][place].clone(), self.case["logits"][place][: len(labels)].clone()]

    def evaluate(self, batches, given):
        numbers = [self.number(images, labels) for images, labels in batches]
        self.seen["evaluated"] += numbers
        self.seen["evaluates-given"] &= given is True
        sizes = torch.tensor([len(self.case["labels"][number]) for number in numbers])
        passes = max(self.passes.values(), default=-1) + 1
        means, hits = (self.case[key][passes % len(self.case[key])][numbers] for key in ("means", "hits"))
        return [float((means * sizes).sum()), int(hits.sum()), int(sizes.sum())]

    def report(self, epoch):
        self.seen["reported"].append(epoch)

    def stop(self, accuracies):
        """Whether the training is to end."""
        self.seen["accuracies"].append(accuracies)
        return len(self.seen["accuracies"]) == self.case["ends"]


class Recorders:
    """In the place of `train_step` and `evaluate`. An evaluation leaves the network in evaluation mode."""

    def __init__(self, model, optimizer, outside):
        self.model, self.optimizer, self.outside = model, optimizer, outside
        self.probe, self.losses_asked = torch.ones((), requires_grad=True), 0

    def given(self, model, loss_fn):
        """Whether these are the model and the loss that `train` was given."""
        before = self.losses_asked
        loss_fn(torch.zeros(1, 4), torch.zeros(1, dtype=torch.int64))
        return self.losses_asked > before and next(model.parameters()) is next(self.model.parameters())

    def loss_fn(self, logits, labels):
        self.losses_asked += 1
        return logits.sum() * 0

    def train_step(self, model, images, labels, optimizer, loss_fn):
        facts = {"lr": float(self.optimizer.param_groups[0]["lr"]),
                 "given": self.given(model, loss_fn) and optimizer is self.optimizer,
                 "gradients": (self.probe * 1).requires_grad}  # fmt: skip
        return tuple(self.outside("step", images, labels, model.training, facts))

    def evaluate(self, model, batches, loss_fn):
        found = self.outside("evaluate", [[images, labels] for images, labels in batches], self.given(model, loss_fn))
        model.eval()
        return tuple(found)


def accuracies_of(found):
    try:
        return [float(value) for value in found]
    except (TypeError, ValueError):
        return "no list"


def _without_numbers(case, rank):
    return {key: case[key] for key in ("labels", "epochs", "rates", "ends", "lr")}


def observe_training(case, outside, train):
    """The rows; the recorders, `report` and `stop` tell the grader what they were called with."""
    batches = [
        (torch.full((len(labels), 1, 1, 1), float(number)), labels) for number, labels in enumerate(case["labels"])
    ]
    model = nn.Sequential(nn.Flatten(), nn.Linear(1, 4)).eval()
    optimizer, rates = torch.optim.SGD(model.parameters(), lr=case["lr"]), case["rates"]
    recorders = Recorders(model, optimizer, outside)

    def report(epoch, row):
        outside("report", epoch if isinstance(row, dict) and set(row) >= set(KEYS) else "no row")

    options = {"stop": lambda found: outside("stop", accuracies_of(found)), "report": report} if case["ends"] else {}
    if rates:
        options["scheduler"] = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda number: rates[number % len(rates)])
    mine = {"train_step": recorders.train_step, "evaluate": recorders.evaluate}
    with warnings.catch_warnings(), replaced(globals_of(train), mine):
        warnings.simplefilter("ignore")
        some = Again(batches[: len(TRAIN_SIZES)]), Again(batches[len(TRAIN_SIZES) :])
        rows = train(model, *some, optimizer, recorders.loss_fn, case["epochs"], **options)
    if isinstance(rows, list | tuple):
        rows = [[row.get(key) for key in KEYS] if isinstance(row, dict) else None for row in rows]
    return {
        "rows": rows,
        "epochs": len(rows) if isinstance(rows, list) else None,
        "passes": [each.passes for each in some],
    }


def _calls_step(case, seen, right):
    return "" if seen["steps"] else (
        "no step was recorded: train must call your train_step and your evaluate, by these names"
    )  # fmt: skip


def _calls_evaluate(case, seen, right):
    return "" if seen["evaluated"] else (
        "no evaluation was recorded: train must call your train_step and your evaluate, by these names"
    )  # fmt: skip


def _modes(case, seen, right):
    evaluated = [number for number in seen["evaluated"] if number in VALIDATION]
    if len(seen["modes"]) < case["epochs"] * len(TRAIN_SIZES):
        return "some training batch does not reach train_step in every epoch"
    if len(evaluated) > case["epochs"] * len(VALIDATION):
        return "the validation batches are evaluated more than once an epoch, which costs more time than the training"
    if sorted(evaluated) != sorted([*VALIDATION] * case["epochs"]):
        return "some validation batch does not reach evaluate in every epoch"
    if list(seen["passes"]) != [case["epochs"]] * 2:
        return "the batches are read more than once an epoch, which costs as much as loading them all: sum len(labels) in the loop"
    if all(mode is True for mode in seen["modes"]):
        return ""
    return ("some step was made in evaluation mode, in which batch norm and dropout do not train: evaluate() leaves the "
            "network so; call model.train() at the start of every epoch")  # fmt: skip


def _step_in_words(seen, right):
    steps, expected = seen["steps"], right["steps"]
    for place, (mine, theirs) in enumerate(zip(steps, expected, strict=False)):
        where = f"epoch {place // len(TRAIN_SIZES) + 1}, step {place % len(TRAIN_SIZES) + 1}"
        if mine["batch"] != theirs["batch"]:
            return f"{where}: train_step is given {_batch_in_words(mine['batch'])}, expected {_batch_in_words(theirs['batch'])}"
        if not equal(mine["lr"], theirs["lr"]):
            return f"{where}: the learning rate is {short(mine['lr'])}, expected {short(theirs['lr'])}"
        if mine["given"] is not True:
            return f"{where}: train_step is given another model, optimizer or loss_fn than train was given"
        if mine["gradients"] is not True:
            return f"{where}: no gradients are computed"
    return (
        ""
        if len(steps) == len(expected)
        else f"train_step was called {len(steps)} times, expected {len(expected)} times"
    )


def _batch_in_words(number):
    if number < 0:
        return "other images or labels than a batch has"
    return f"validation batch {number - VALIDATION[0] + 1}" if number in VALIDATION else f"training batch {number + 1}"


def _row_in_words(seen, right):
    rows, expected = seen["rows"], right["rows"]
    if not isinstance(rows, list | tuple):
        return f"expected a list of {len(expected)} rows, train returned {kind_of(rows)}"
    for epoch, (mine, theirs) in enumerate(zip(rows, expected, strict=False), 1):
        if mine is None:
            return f"epoch {epoch}: the row is not a dict"
        for name, value, wanted in zip(KEYS, mine, theirs, strict=True):
            if not equal(value, wanted):
                value = "missing" if value is None else short(value) if is_number(value) else kind_of(value)
                return f"epoch {epoch}: {name} is {value}, expected {short(wanted)}"
    if len(rows) != len(expected):
        return f"train returned {len(rows)} rows, expected {len(expected)}"
    return "evaluate was given another model or loss_fn than train was given"


def _stop_in_words(seen, right):
    if seen["reported"] != right["reported"]:
        return f"report was called with the epochs {seen['reported']}, expected {right['reported']}"
    for call, (mine, theirs) in enumerate(zip(seen["accuracies"], right["accuracies"], strict=False), 1):
        if not equal(mine, theirs):
            mine = short(mine) if isinstance(mine, list) else "not a list of numbers"
            return f"call {call} of stop: the validation accuracies are {mine}, expected {short(theirs)}"
    if len(seen["accuracies"]) != len(right["accuracies"]):
        return f"stop was called {len(seen['accuracies'])} times, expected {len(right['accuracies'])} times"
    rows = "no list" if seen["epochs"] is None else f"{seen['epochs']} rows"
    return f"train returned {rows}, expected {right['epochs']} rows"


TRAINING = Exercise(("train",), _draw_trainings, observe_training, {
    "calls-step": Part("", cases="plain", judge=_calls_step),
    "calls-evaluate": Part("", cases="plain", judge=_calls_evaluate),
    "loop": Part("Trains on every batch of every epoch, the scheduler stepped after each step",
        "there is not one train_step for each batch of each epoch, in their order, with the model, optimizer and loss_fn "
        "that train was given and the scheduler's learning rate", cases="plain scheduled", keys="steps",
        needs="calls-step", words=_step_in_words),
    "metrics": Part("A row for each epoch, with means over all images",
        "the rows are wrong: a list of one dict for each epoch, with means over the images",
        "print loss and size of each batch of one epoch, and take the mean by hand", cases="plain",
        keys="rows evaluates-given", needs="calls-step calls-evaluate", words=_row_in_words),
    "modes": Part("Training mode in every step, one evaluation an epoch",
        hint="print model.training at the start of train_step", cases="plain", needs="calls-step calls-evaluate",
        judge=_modes),
    "stop": Part("Reports every epoch, and ends where stop says so",
        "report(epoch, row) once for each epoch, from 1; then stop(all validation accuracies so far); a true answer ends "
        "the training, with that epoch's row as the last", "call it with stop=lambda found: print(found)",
        cases="stops", keys="reported accuracies epochs", needs="calls-evaluate", words=_stop_in_words),
}, "print, in order, each call of train_step, scheduler.step and evaluate in two epochs of two batches",
    watch=Loop, share=_without_numbers)  # fmt: skip

# --- accumulated_step


def _draw_accumulations(random):
    features, hidden, classes = 10, 8, 4

    def case(sizes, dtype=""):
        given = {"state": _network(random, features, hidden, classes), "dtype": dtype}
        given |= {
            "lr": round(float(random.uniform(0.2, 0.5)), 3),
            "smoothing": round(float(random.uniform(0.3, 0.6)), 2),
        }
        about = f"{len(sizes)} micro-batches of {sizes} images, dtype={dtype or None}"
        return given | {"batches": [_batch(random, size, features, classes) for size in sizes], "about": about}

    uneven = [int(size) for size in random.permutation([12, 3, 7, 9])]
    return {
        "even": [case([8] * 4)],
        "uneven": [case(uneven)],
        "autocast": [case([8] * 3, "bfloat16"), case([8] * 3, "float16"), case([8] * 3)],
    }


class Held:
    """A tensor that autograd saved, as long as it is kept."""

    def __init__(self, tensor):
        self.tensor = tensor


class PeakOfSaved(contextlib.AbstractContextManager):
    """Elements that are saved: now, and the most at a time."""

    def __enter__(self):
        self.held, self.most = weakref.WeakSet(), 0
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, lambda held: held.tensor)
        self.hooks.__enter__()
        return self

    def __exit__(self, *exc_info):
        self.hooks.__exit__(*exc_info)

    def pack(self, tensor):
        held = Held(tensor.detach())  # an output that knew its node would keep it for ever
        self.held.add(held)
        self.most = max(self.most, self.now())
        return held

    def now(self):
        return sum(each.tensor.numel() for each in self.held)


def autocast_now():
    return str(torch.get_autocast_dtype("cpu")).removeprefix("torch.") if torch.is_autocast_enabled("cpu") else ""


def observe_accumulation(case, accumulated_step):
    """Weights and loss; whether there was ever more than one graph; autocast's type at each place, empty without."""
    model = perceptron(case["state"]).to(torch.float32 if case["dtype"] else torch.float64)
    own, seen = nn.CrossEntropyLoss(label_smoothing=case["smoothing"]), {"forward": [], "loss_fn": [], "backward": []}
    batches = [(images.to(model[1].weight.dtype), labels.clone()) for images, labels in case["batches"]]

    def loss_fn(logits, labels):
        seen["loss_fn"].append(autocast_now())
        return own(logits, labels)

    largest = max(batches, key=lambda batch: len(batch[1]))
    with (
        PeakOfSaved() as alone,
        torch.autocast("cpu", getattr(torch, case["dtype"] or "bfloat16"), enabled=bool(case["dtype"])),
    ):
        own(model(largest[0]), largest[1])
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)  # left from an earlier step
        parameter.register_hook(lambda gradient: seen["backward"].append(autocast_now()))
    model.register_forward_pre_hook(lambda *given: seen["forward"].append(autocast_now()))
    options = {"dtype": getattr(torch, case["dtype"])} if case["dtype"] else {}
    with PeakOfSaved() as together:
        loss = accumulated_step(model, batches, torch.optim.SGD(model.parameters(), lr=case["lr"]), loss_fn, **options)
    return seen | {"weights": weights_of(model), "loss": loss, "one-graph": together.most < 1.5 * alone.most}


def _autocast(case, seen, right):
    places = {"forward": "the forward pass", "loss_fn": "the loss"}
    for key, place in places.items():
        if not isinstance(seen[key], list) or not seen[key] or any(found != case["dtype"] for found in seen[key]):
            return (
                f"{place} did not run under torch.autocast(device_type, dtype) with the dtype that was given" if case["dtype"]
                else f"without a dtype {place} runs without autocast"
            )  # fmt: skip
    if not seen["backward"]:
        return "there was no backward pass"
    if any(found != "" for found in seen["backward"]):
        return "the backward pass ran under autocast: call backward() after the with block"
    return ""


_ACCUMULATED = (
    "the weights did not move by one step along the gradient of the mean loss over all images, or the loss that came "
    "back is not that mean"
)

ACCUMULATE = Exercise(("accumulated_step",), _draw_accumulations, observe_accumulation, {
    "gradient": Part("One update from several micro-batches, one graph at a time", _ACCUMULATED, cases="even",
        keys="weights loss one-graph"),
    "uneven": Part("Micro-batches of different sizes", _ACCUMULATED, "give it micro-batches of 1 and 3 images",
        keys="weights loss"),
    "autocast": Part("Forward and loss under autocast, the backward pass outside",
        "print torch.is_autocast_enabled() in a forward hook", judge=_autocast),
}, "compare its gradients with those of one backward pass over all images together")  # fmt: skip

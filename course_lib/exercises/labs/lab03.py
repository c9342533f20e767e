"""Lab 03: batch-size scaling. Training at a batch size, comparing runs, gradient noise, the critical batch size."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch
from torch import nn

from course_lib.exercises.comparing import equal, finite, is_number
from course_lib.exercises.description import Exercise, Part
from course_lib.exercises.ranks.collective_broker import CollectiveBroker
from course_lib.exercises.ranks.collective_process_group import collective_group
from course_lib.exercises.ranks.watched_ranks import watched
from course_lib.metrics.student_t import t_limit

__all__ = ["EXERCISES"]


def by_name(found, *names):
    """The items of what an answer returned; one and the same text for each where they are not so many."""
    right = isinstance(found, tuple | list) and len(found) == len(names)
    return dict(zip(names, found if right else [f"not {len(names)} values"] * len(names), strict=True))


def network(weights):
    """A small network with batch norm, whose parameters are these."""
    (hidden, features), (classes, _) = weights[0].shape, weights[-2].shape
    model = nn.Sequential(nn.Linear(features, hidden), nn.BatchNorm1d(hidden), nn.Tanh(), nn.Linear(hidden, classes))
    with torch.no_grad():
        for parameter, weight in zip(model.parameters(), weights, strict=True):
            parameter.copy_(weight)
    return model.to(weights[0].dtype)


def _weights(random, features=6, hidden=5, classes=4):
    shapes = (hidden, features), (hidden,), (hidden,), (hidden,), (classes, hidden), (classes,)
    return [torch.from_numpy(random.normal(0, 0.8, shape)) for shape in shapes]


def _images(random, count, features=6, classes=4):
    return torch.from_numpy(random.normal(0, 1, (count, features))), torch.from_numpy(
        random.integers(0, classes, count)
    )


# --- train_steps, scaled_lr


def _draw_trainings(random):
    def training(about, passes, per_pass, steps, factors=None, ends=None):
        weights = _weights(random)
        batches = [[_images(random, int(random.integers(5, 9))) for _ in range(per_pass)] for _ in range(passes)]
        lr, momentum = random.uniform([0.1, 0.5], [0.2, 0.8]).round(3).tolist()
        return {
            "weights": weights, "batches": batches, "steps": steps, "lr": lr, "momentum": momentum, "factors": factors,
            "ends": ends, "about": f"{about}: {steps} steps, {per_pass} batches per pass",
        }  # fmt: skip

    long = int(random.integers(5, 8))
    factors = random.uniform(0.3, 0.9, 8).cumprod().tolist()
    ends = int(random.integers(3, 6))
    bases = random.uniform(0.01, 0.5, 4).round(4).tolist()
    sizes = random.integers([8, 3], [100, 40], (4, 2)).tolist()
    return {
        "one": [training("one pass, no schedule", 1, long, long)],
        "several": [training("several passes", 4, 3, int(random.choice([7, 8, 10, 11])))],
        "scheduled": [training("one pass, with a schedule", 1, 6, 6, factors)],
        "watched": [training(f"watch returns True after {ends} updates", 1, 7, 7, ends=ends)],
        "rates": [
            {"rates": (lr, b, b * k, b * k + b // 3, b // 2), "about":
             f"base_lr {lr}, reference batch {b}, batches of {b * k}, {b * k + b // 3} and {b // 2}"}
            for lr, (b, k) in zip(bases, sizes, strict=True)
        ],
    }  # fmt: skip


class Passes:
    """Batches that differ from pass to pass, as those of `Batches` do; without `set_epoch` they are those of the last."""

    def __init__(self, batches):
        self.batches, self.epoch, self.epochs = batches, -1, []

    def set_epoch(self, epoch):
        self.epoch = epoch
        self.epochs.append(epoch)

    def __iter__(self):
        return iter(
            [(images.clone(), labels.clone()) for images, labels in self.batches[self.epoch % len(self.batches)]]
        )

    def __len__(self):
        return len(self.batches[0])


def observe_training(case, train_steps, scaled_lr):
    if "rates" in case:
        (base, reference, whole, *others), rates = case["rates"], {}
        for rule in ("linear", "sqrt", "none"):
            rates[rule] = scaled_lr(base, whole, reference, rule)
            rates[f"{rule}-others"] = [scaled_lr(base, batch, reference, rule) for batch in others]
        return rates
    model, passes = network(case["weights"]).eval(), Passes(case["batches"])
    optimizer = torch.optim.SGD(model.parameters(), lr=case["lr"], momentum=case["momentum"])
    factors, schedule = case["factors"], None
    if factors is not None:
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factors[min(step, len(factors) - 1)])
    given = model, passes, case["steps"], optimizer, schedule, nn.functional.cross_entropy, torch.device("cpu")
    if case["ends"] is None:
        losses = train_steps(*given)
    else:
        watched, before = [], [model[0].weight.detach().clone()]

        def watch(losses):
            before.append(model[0].weight.detach().clone())
            seen = len(losses) if isinstance(losses, list) else None
            watched.append([seen, not torch.equal(*before[-2:]), attached(losses)])
            return len(watched) == case["ends"]

        losses = train_steps(*given, watch)
        ended = len(losses) if isinstance(losses, list | torch.Tensor) else None
        return {"watched": watched, "ended": [ended, attached(losses)]}
    return {
        "weights": [tensor.detach().clone() for tensor in model.state_dict().values()],
        "losses": losses.tolist() if isinstance(losses, torch.Tensor) else losses,
        "epochs": passes.epochs,
        "lr": optimizer.param_groups[0]["lr"],
    }


def attached(losses):
    some = losses if isinstance(losses, list) else [losses]
    return any(isinstance(loss, torch.Tensor) and loss.requires_grad for loss in some)


def _same_fractions(seen, right):
    """Where factors are no whole number or below 1, of the scaling rules that are right for whole ones."""
    two_rules = not equal(right[0], right[2])  # a mistake that makes one of both explains nothing here
    scaling = [n for n in (0, 2) if two_rules and equal(seen[n], right[n])]
    return bool(scaling) and all(equal(seen[n + 1], right[n + 1]) for n in scaling)


_BY_HAND = "write down the learning rate for a batch 4 times the reference batch, by hand"
_rule = partial(Part, cases="rates")

training = Exercise(("train_steps", "scaled_lr"), _draw_trainings, observe_training, {
    "updates": Part("The weights after some steps", "the weights after the steps of one pass are not those of SGD",
        "compare with a loop of your own on one batch: model.train(), loss, zero_grad, backward, step",
        cases="one", keys="weights"),
    "losses": Part("The loss of each step's batch, before its update", "the losses are not those of the batches before "
        "their updates, a number per step", "with a learning rate of 0 the losses are those of the first weights",
        cases="one", keys="losses"),
    "passes": Part("A new pass where the batches end, and exactly so many steps",
        "where steps need several passes: set_epoch(0), (1), … before each pass, and as many updates as asked for",
        "ask for 7 steps of 3 batches: three passes, epochs 0, 1 and 2, and the last one is cut after one step",
        cases="several", keys="weights epochs"),
    "schedule": Part("The schedule advances after every update", "with a schedule the weights or the learning rate are "
        "wrong: it advances once after each update", "print the learning rate of each step",
        cases="scheduled", keys="weights lr"),
    "watch": Part("watch sees the losses after every update, and can end the training", "watch(losses) is called after "
        "every update with the list of the losses so far, detached; where it returns True, the training ends, and these "
        "losses are returned",
        "let watch print len(losses) and return len(losses) == 3: it prints 1, 2 and 3", cases="watched",
        keys="watched ended"),
    "linear": _rule("Linear scaling", "rule 'linear' is wrong", _BY_HAND, keys="linear"),
    "sqrt": _rule("Square-root scaling", "rule 'sqrt' is wrong", _BY_HAND, keys="sqrt"),
    "none": _rule("The constant learning rate", "rule 'none' is wrong",
        "rule 'none' is the constant learning rate", keys="none none-others"),
    "fraction": _rule("Factors that are no whole number, and below 1",
        "wrong where the factor is no whole number, or below 1", "a batch of 48 for a reference of 32; one of 16",
        keys="linear linear-others sqrt sqrt-others", same=_same_fractions),
}, "", "{about}")  # fmt: skip

# --- summarise, distinguishable

# Differences of two means, in units of what they must exceed. Between two of them is the limit of a known mistake: two
# errors where t is asked for, the error of one mean alone, n for n − 1, the sum of both errors, deviations of single runs.
APART = (0.4, 0.79, 0.93, 1.07, 1.2, 1.34, 1.7, 3.0)


def _draw_runs(random):
    def pair(apart, sign, ratio, *shapes):
        errors = np.array([1, ratio]) * (0.003 if sign > 0 else 0.016)  # no fixed limit serves both
        squares, ns = errors**2, np.array([len(shape) for shape in shapes])
        limit = t_limit(squares.sum() ** 2 / (squares**2 / (ns - 1)).sum()) * math.sqrt(squares.sum())
        means = 0.7, 0.7 + sign * apart * limit
        first, second = (
            (mean + error * len(shape) ** 0.5 * (shape - shape.mean()) / shape.std(ddof=1)).round(6).tolist()
            for shape, error, mean in zip(shapes, errors, means, strict=True)
        )
        return {"first": first, "second": second, "about": f"{first} against {second}, a difference of {apart} limits"}

    def shape(n):
        return random.normal(0, 1, int(n))

    pairs = [
        pair(apart, sign, random.uniform(0.8, 1.25), shape(random.integers(4, 7)), shape(random.integers(4, 7)))
        for apart in APART for sign in (1, -1)
    ]  # fmt: skip
    # Few runs that differ much against many that differ little: the first ones alone say how many degrees there are.
    pairs += [pair(apart, 1, 0.2, shape(3), shape(12)) for apart in (0.8, 1.2)]
    pairs += [pair(apart, -1, 5.0, shape(12), shape(3)) for apart in (0.8, 1.2)]
    # In 64ths a sum has no rounding error, and the deviation of equal values is exactly 0.
    same, other = ((random.uniform([0.1, 0.5], [0.4, 0.9]) * 64).round() / 64).tolist()
    identical = [([same] * 3, [same] * 2), ([same] * 2, [other] * 3)]
    return {
        "pairs": pairs,
        "identical": [{"first": a, "second": b, "about": f"{a} against {b}"} for a, b in identical],
    }


def observe_runs(case, summarise, distinguishable):
    first, second = case["first"], case["second"]
    verdict = distinguishable(list(first), list(second))
    verdict = verdict.tolist() if isinstance(verdict, np.bool_ | torch.Tensor) else verdict
    return by_name(summarise(list(first)), "mean", "deviation", "error") | {"decision": verdict}


def _same_error(seen, right):
    """The standard error, or that of the deviation beside it: n for n − 1 is the deviation's mistake alone."""
    return equal(seen[2], right[2]) or (
        equal(seen[0], right[0]) and finite(seen[1]) > 0 and equal(seen[2], right[2] * finite(seen[1]) / right[1])
    )


def _same_verdict(seen, right):
    return type(seen) in (bool, int) and seen == right


_SIDE_BY_SIDE = "write the difference, √(e₁² + e₂²), ν and t_limit(ν) side by side, for both orders"

comparison = Exercise(("summarise", "distinguishable"), _draw_runs, observe_runs, {
    "mean": Part("Mean", "the mean is wrong", "add the values up by hand", cases="pairs", keys="mean"),
    "deviation": Part("Standard deviation of single runs (n − 1)",
        "it is √(the sum of squared distances from the mean / (n − 1))",
        "three values 1, 2, 3 have a standard deviation of exactly 1", cases="pairs", keys="deviation"),
    "error": Part("Standard error of the mean", "the mean of n runs varies √n times less than one run",
        "how much does the mean of 4 runs vary, how much one run?", cases="pairs", keys="mean deviation error",
        same=_same_error),
    "decision": Part("Decision by Welch's test", "some comparisons are decided wrongly", _SIDE_BY_SIDE, cases="pairs",
        keys="decision", same=_same_verdict),
    "identical": Part("Runs without any variation", "wrong where both standard errors are 0: then any difference counts",
        "try [0.5, 0.5] against [0.5, 0.5], and against [0.6, 0.6]", needs="decision", keys="decision",
        same=_same_verdict),
}, "", "{about}", guarded="identical")  # fmt: skip

# --- squared_norms


def _draw_gradients(random):
    def case(ranks):
        weights = _weights(random)
        stale = [torch.from_numpy(random.normal(0, 1, tuple(weight.shape))) for weight in weights]
        each = [_images(random, 8) for _ in range(ranks)]
        return {"weights": weights, "stale": stale, "tensors": each, "about": f"{ranks} ranks with 8 images each"}

    return {"ranks": [case(3), case(2)]}


def _share_of_images(case, rank):
    known = {name: case[name] for name in ("weights", "stale")}
    return known | {"images": case["tensors"][rank], "size": len(case["tensors"])}


def observe_norms(case, rank, outside, squared_norms):
    calls = []

    def loss_fn(logits, labels):
        calls.append(len(labels))
        return nn.functional.cross_entropy(logits, labels)

    with collective_group(rank, case["size"], outside):
        model = network(case["weights"]).eval()  # an image's gradient depends on no other image
        wrapped = nn.parallel.DistributedDataParallel(model)
        for parameter, stale in zip(model.parameters(), case["stale"], strict=True):
            parameter.grad = stale.clone()  # of an earlier step
        images, labels = (tensor.clone() for tensor in case["images"])
        found = by_name(squared_norms(wrapped, images, labels, loss_fn), "small", "big")
        gradient = [None if p.grad is None else p.grad.detach().clone() for p in model.parameters()]
    found = {
        name: value.item() if torch.is_tensor(value) and value.numel() == 1 else value for name, value in found.items()
    }
    return {**found, "gradient": gradient, "calls": len(calls)}


def _gradients(case):
    """Each rank's own gradient, and their mean, flat."""
    own = []
    for images, labels in case["tensors"]:
        model = network(case["weights"]).eval()
        nn.functional.cross_entropy(model(images), labels).backward()
        own.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    return own, torch.stack(own).mean(0)


def _squares(case):
    own, mean = _gradients(case)
    return [one.square().sum().item() for one in own], mean.square().sum().item()


def _everywhere(seen, name, value):
    return all(equal(one[name], float(value)) for one in seen["ranks"])


def _small(case, seen, right):
    own, big = _squares(case)
    if _everywhere(seen, "small", sum(own) / len(own)):
        return ""
    if _everywhere(seen, "small", big):
        return "that is the averaged gradient's: DDP has averaged before you measured. Run backward() under model.no_sync()"
    if all(equal(one["small"], alone) for one, alone in zip(seen["ranks"], own, strict=True)):
        return "each rank returns its own |G_b|²; the ranks' mean was asked for"
    if _everywhere(seen, "small", sum(own)):
        return "that is the sum of the ranks' |G_b|²; their mean was asked for"
    if _everywhere(seen, "small", (sum(root**0.5 for root in own) / len(own)) ** 2):
        return "that is the square of the mean norm; the mean of the squared norms was asked for"
    return _stale(case, seen) or "|G_b|² is not the ranks' mean of their own gradients' squared norms"


def _big(case, seen, right):
    own, big = _squares(case)
    size = len(own)
    if _everywhere(seen, "big", big):
        return ""
    if _everywhere(seen, "big", big * size**2):
        return "that is the summed gradient's; divide by the number of ranks before you take the norm"
    if _everywhere(seen, "big", big / size**2):
        return "the gradient is divided by the number of ranks twice"
    if _everywhere(seen, "big", sum(own) / size):
        return "that is the mean of the ranks' squared norms; average the gradients first, then take the norm"
    if all(equal(one["big"], alone) for one, alone in zip(seen["ranks"], own, strict=True)):
        return "that is each rank's own; the gradients were never averaged over the ranks"
    return _stale(case, seen) or "|G_B|² is not the squared norm of the gradient's mean over the ranks"


def _stale(case, seen):
    """What is in `.grad` before the call comes from an earlier step."""
    own, mean = _gradients(case)
    stale = torch.cat([tensor.flatten() for tensor in case["stale"]])
    squares = sum((one + stale).square().sum().item() for one in own) / len(own)
    if _everywhere(seen, "small", squares) or _everywhere(seen, "big", (mean + stale).square().sum().item()):
        return "an earlier step's gradient is counted, too: backward() adds to .grad, so clear it first"
    return ""


def _left(case, seen, right):
    own, mean = _gradients(case)

    def hold(wanted):
        return all(
            None not in one["gradient"]
            and equal(torch.cat([part.flatten() for part in one["gradient"]]), gradient, 1e-6)
            for one, gradient in zip(seen["ranks"], wanted, strict=True)
        )

    if hold([mean] * len(own)):
        return ""
    if hold(own):
        return "each rank is left with its own gradient: copy the mean back into the parameters' .grad"
    if hold([mean * len(own)] * len(own)):
        return "the ranks are left with the sum of the gradients, not with their mean"
    return "afterwards the parameters' .grad do not hold the gradient's mean over the ranks"


def _once(case, seen, right):
    if all(one["calls"] == 1 for one in seen["ranks"]):
        return ""
    return "one forward and one backward pass per rank are enough; the loss is computed more often, or never"


gradient_norms = Exercise(("squared_norms",), _draw_gradients, observe_norms, {
    "small": Part("|G_b|², averaged over the ranks", cases="ranks", judge=_small),
    "big": Part("|G_B|² of the averaged gradient", cases="ranks", judge=_big),
    "gradient": Part("The averaged gradient is left in .grad", cases="ranks", judge=_left),
    "once": Part("One forward and one backward pass per rank", cases="ranks", judge=_once),
}, "on 2 ranks, print both numbers and each rank's own |G_b|²: the big one is smaller, and every rank returns the same",
    share=_share_of_images,
    **watched(3, lambda case: CollectiveBroker(len(case["tensors"])), lambda case: len(case["tensors"])))  # fmt: skip

# --- noise_scale


def _draw_norms(random):
    def question():
        small, factor = (int(n) for n in random.integers([4, 3], [64, 40]))
        signal, noise = random.uniform([0.5, 50], [5, 500])
        wobble = random.uniform(0.9, 1.1, (2, 6))
        wobble /= wobble.mean(1, keepdims=True)  # single estimates of |G|² may be negative, their mean is not
        norms = [signal + noise / small], [signal + noise / (small * factor)]
        lost = random.uniform(5, 50) / np.array([[1], [factor * random.uniform(1.25, 3)]])
        return small, small * factor, *(norms * wobble).round(4).tolist(), *lost.round(4).tolist()

    return {"norms": [question() for _ in range(5)]}


def observe_noise(case, noise_scale):
    small, big, *norms = case
    some, lost = (noise_scale(small, big, list(norms[n]), list(norms[n + 1])) for n in (0, 2))
    return by_name(some, "signal", "noise", "scale") | {"lost": by_name(lost, 0, 1, 2)[2]}


def _same_quotient(seen, right):
    """The quotient, or that of the two numbers beside it if one is right: their mistake is not this part's."""
    if equal(seen[2], right[2]):
        return True
    one_right = equal(seen[0], right[0]) or equal(seen[1], right[1])
    return one_right and finite(seen[0]) > 0 and equal(seen[2], finite(seen[1]) / finite(seen[0]))


_INSERT = "insert |G_b|² = |G|² + tr Σ/b and |G_B|² = |G|² + tr Σ/B into your formula: is {} left?"

noise = Exercise(("noise_scale",), _draw_norms, observe_noise, {
    "signal": Part("|G|², free of bias", "|G|² is wrong", _INSERT.format("|G|²"), keys="signal"),
    "noise": Part("tr Σ, free of bias", "the estimate of tr Σ is wrong", _INSERT.format("tr Σ"), keys="noise"),
    "scale": Part("The noise scale from averages", "B_simple is not the quotient of the two averages",
        "of two measurements, write down the mean of the quotients and the quotient of the means",
        keys="signal noise scale", same=_same_quotient),
    "lost": Part("A gradient lost in noise", "B_simple is not infinite where the estimate of |G|² is not positive",
        "try squared norms 10.0 at batch 16 and 1.0 at batch 64", keys="lost"),
}, "", "batches of {0} and {1}, squared norms {2} and {3}; lost in noise: {4} and {5}")  # fmt: skip

# --- steps_to_loss, fastest, critical_batch, predicted_steps


def _draw_race(random):
    """Losses that fall in noise: where the mean of the latest ones is at the target, a single one was there before."""
    window, target = int(random.integers(4, 8)), round(float(random.uniform(0.4, 0.8)), 3)

    def losses(end, early):
        high = target + np.linspace(1.2, 0.4, 3 * window) + random.uniform(-0.05, 0.05, 3 * window)
        high[[0, 2 * window] if early else 2 * window] = target - 0.3  # alone at the target
        last = target - 0.1 + random.uniform(-0.05, 0.05, 2 * window)
        return [*high, *last[:end]]

    def case(about, some):
        about = f"{about}: the mean of the latest {window} losses shall be at most {target}, losses {[round(x, 3) for x in some]}"
        return {"losses": list(map(float, some)), "window": window, "target": target, "about": about}

    return {
        "races": [case("a training that arrives", losses(2 * window, True))],
        "never": [case("a training that ends above the target", losses(1, False))],
    }


def _draw_laps(random):
    def laps():
        """Of four batch sizes one wins at its lowest learning rate, one does not, one has a single time, one has none."""
        batches, rates = random.choice([8, 16, 32, 64, 128, 256], 4, replace=False).tolist(), (0.06, 0.12, 0.24)
        one, other, single = random.integers([15, 15, 20], [60, 60, 90]).tolist()
        times = (one, 3 * one, 2 * one), (3 * other, 2 * other, other), (math.nan, single, math.nan), (math.nan,) * 3
        trials = [
            (batch, lr, float(steps)) for batch, row in zip(batches, times, strict=True)
            for lr, steps in zip(rates, row, strict=True)
        ]  # fmt: skip
        trials = [trials[place] for place in random.permutation(len(trials))]
        known = [trial for trial in trials if not math.isnan(trial[2])]
        trials.sort(key=lambda trial: trial is not max(known))  # a time of the largest batch comes first
        return {"trials": trials, "about": f"trials {trials}"}

    return {"laps": [laps() for _ in range(3)]}


def _draw_curves(random):
    def curve(amount):
        fewest, critical = random.uniform([30, 100], [200, 900])
        batches = critical * 2.0 ** np.array([-4, -2.6, -1.4, 0, 1.2, 2.4, 4]) * random.uniform(0.8, 1.25, 7)
        factors = 1 + amount * random.uniform(-1, 1, 7)
        factors[[0, -1]] = 1 + amount * random.choice([-1, 1]) * np.array([1, -1])  # the worst pair to fit alone
        steps = fewest * (1 + critical / batches) * factors
        off = f", each off by up to {amount:.0%}" if amount else ""
        return {
            "steps": steps.tolist(), "images": (steps * batches).tolist(),
            "about": f"7 points of a curve with S_min {fewest:.4g} and E_min {fewest * critical:.6g}{off}",
        }  # fmt: skip

    def bent():  # both grow together: no hyperbola has such points
        growth = np.cumprod([1, *random.uniform(1.3, 1.8, 4)])
        steps, batch = random.uniform([50, 100], [90, 300])
        images = steps * batch * growth ** random.uniform(1.1, 1.3)
        return {
            "steps": (steps * growth).tolist(),
            "images": images.tolist(),
            "about": "points that lie on no such curve",
        }

    races, laps = _draw_race(random), _draw_laps(random)
    known = random.integers([4, 4, 100], [5000, 500, 9000], (6, 3)).tolist()
    scales = random.uniform(50, 3000, 6).round(2).tolist()
    return races | laps | {
        "exact": [curve(0.0) for _ in range(3)],
        "noisy": [curve(0.1) for _ in range(3)],
        "bent": [bent() for _ in range(2)],
        "questions": [
            {"known": (batch, scale, *point), "about":
             f"batch {batch}, critical batch size {scale}, known: {point[1]:,} steps with batches of {point[0]}"}
            for (batch, *point), scale in zip(known, scales, strict=True)
        ],
    }  # fmt: skip


def observe_critical(case, steps_to_loss, fastest, critical_batch, predicted_steps):
    if "losses" in case:
        trained = []

        def train(watch):
            begun = len(trained)
            for loss in case["losses"]:
                trained.append(loss)
                if watch([torch.tensor(loss, dtype=torch.float64) for loss in trained[begun:]]):
                    break
            return trained[begun:]

        steps = steps_to_loss(train, case["target"], case["window"])
        return {"steps": float(steps) if is_number(steps) else steps, "trained": len(trained)}
    if "trials" in case:
        found = fastest(list(case["trials"]))
        return {"fastest": list(map(list, found.items())) if isinstance(found, dict) else "no dict"}
    if "known" in case:
        return {"prediction": predicted_steps(*case["known"])}
    try:
        found = critical_batch(list(case["steps"]), list(case["images"]))
    except ValueError:
        return dict.fromkeys(("fewest_steps", "fewest_images", "critical"), "ValueError")
    return by_name(found, "fewest_steps", "fewest_images", "critical")


def _refused(case, seen, right):
    return (
        ""
        if seen["critical"] == "ValueError"
        else "it returns numbers where the fit is no curve: S_min or E_min is not positive. Raise a ValueError"
    )


_OWN_POINTS = "make points from an S_min and an E_min of your own, S = S_min + E_min/B and E = S·B, and fit them"

critical = Exercise(("steps_to_loss", "fastest", "critical_batch", "predicted_steps"), _draw_curves, observe_critical, {
    "target": Part("Steps to the target loss", "it is not the number of steps after which the mean of the latest losses is "
        "at the target, or nan where it never is", "with window 2 and target 1 the losses 0.5, 3, 1.2, 0.7 are there after "
        "step 4", cases="races never", keys="steps"),
    "stopped": Part("The training ends at the target", "the training goes beyond the target, or runs more than once",
        "let the function that you give to train print len(losses)", cases="races never", keys="trained"),
    "fastest": Part("The fastest trial of each batch size", "it is not the trial with the fewest steps of each batch size, "
        "as batch → (learning rate, steps, images), batches rising", "nan is neither smaller nor larger than a number: leave "
        "it out before you compare", cases="laps", keys="fastest"),
    "fit": Part("The fit of points on the curve", "where the points lie on the curve, it does not find S_min and "
        "E_min", _OWN_POINTS, cases="exact", keys="fewest_steps fewest_images", tolerance=1e-3),
    "noisy": Part("The least-squares fit of noisy points", "with points that are off by a tenth, it is not the least-squares "
        "fit of S_min/S + E_min/E = 1", "the unknowns are S_min and E_min, the columns 1/S and 1/E, the right side ones",
        cases="noisy", keys="fewest_steps fewest_images", tolerance=1e-3),
    "critical": Part("The critical batch size", "B_crit is not E_min/S_min", _OWN_POINTS, cases="exact",
        keys="fewest_steps fewest_images critical", same=_same_quotient),
    "refused": Part("Points on no such curve are refused", "points on no such curve are not refused",
        "try steps [10, 20, 40] and images [1000, 2200, 4600]", cases="bent", judge=_refused),
    "prediction": Part("Steps at another batch", "first S_min from the known point, then S_min (1 + B_crit/B)",
        "at the known batch it must give the known steps; at the critical batch size twice S_min",
        cases="questions", keys="prediction"),
}, "", "{about}")  # fmt: skip

# --- choose_lr


def _draw_searches(random):
    def grid(count):
        start, factor = random.uniform([0.005, 1.6], [0.05, 2.4])
        return [float(f"{start * factor**n:.3g}") for n in range(count)]

    def runs(mean, n=3):
        wobble = random.uniform(-0.004, 0.004, n)
        return (mean + wobble - wobble.mean()).round(5).tolist()

    def hill(rates, best):
        """Validation accuracies that are best at one place, clearly."""
        return {lr: runs(0.85 - 0.02 * abs(place - best) - random.uniform(0, 0.01)) for place, lr in enumerate(rates)}

    def shuffled(results):
        order = random.permutation(len(results)).tolist()
        return {list(results)[place]: list(results.values())[place] for place in order}

    def case(results):
        about = ", ".join(f"{lr:g}: [{', '.join(f'{value:.1%}' for value in some)}]" for lr, some in results.items())
        return {"results": results, "about": about}

    def odd_runs():
        """One learning rate has the best mean, another the best run, and another the best median."""
        rates = grid(6)
        results, low = hill(rates, 2), float(random.uniform(0.845, 0.86))
        lists = (0, 0, 0, 0.04, 0.04), (-0.01, -0.01, -0.01, 0.0, 0.08), (0.01,) * 5
        for place, above in zip(random.permutation([1, 2, 3]).tolist(), lists, strict=True):
            results[rates[place]] = [round(low + value, 5) for value in above]
        return case(shuffled(results))

    def in_order(results, order):
        return case({list(results)[place]: list(results.values())[place] for place in order})

    def with_diverged(best, gone, order):
        """At place `gone` one of three runs has diverged; the other two are the best of all."""
        rates = grid(5)
        results = hill(rates, best)
        results[rates[gone]] = [0.95, math.nan, 0.94][:: int(random.choice([-1, 1]))]
        return in_order(results, order)

    def anyhow():
        return random.permutation(5).tolist()

    inside = int(random.integers(1, 4))
    others = [place for place in range(5) if place != inside]
    return {
        "clean": [odd_runs() for _ in range(3)],
        # `max` keeps a nan that comes first, and a sort leaves it anywhere.
        "diverged": [
            with_diverged(1, 3, [3, *[place for place in anyhow() if place != 3]]),
            with_diverged(2, 4, anyhow()),
            with_diverged(3, 0, [*[place for place in anyhow() if place != 0], 0]),
        ],
        "edges": [
            in_order(hill(grid(5), 0), [0, 2, 4, 1, 3]),
            in_order(hill(grid(5), 4), [1, 3, 4, 2, 0]),
            in_order(hill(grid(5), inside), [inside, *others]),
            with_diverged(3, 4, [2, 4, 3, 0, 1]),
        ],
    }


def observe_search(case, choose_lr):
    found = choose_lr({lr: list(values) for lr, values in case["results"].items()})
    return by_name(found, "lr", "edge")


def _same_edge(seen, right):
    return equal(seen[0], right[0]) and _same_verdict(seen[1], right[1])


search = Exercise(("choose_lr",), _draw_searches, observe_search, {
    "choice": Part("The best mean validation accuracy", "it is not the learning rate with the best mean",
        "write the mean beside each learning rate", cases="clean", keys="lr"),
    "diverged": Part("A learning rate with a diverged run is out", "wrong where a run has diverged (nan)",
        "a nan compares as neither larger nor smaller; drop that learning rate before you compare", cases="diverged", keys="lr"),
    "edge": Part("The edge of the grid is flagged", "the edge is flagged wrongly: the best is at the edge where it is the "
        "smallest or the largest of all learning rates that were tried", "the edges are the smallest and the largest key of `results`, in any order, those with a nan included",
        cases="edges", keys="lr edge", same=_same_edge),
}, "", "{about}")  # fmt: skip

EXERCISES = {
    "training": training,
    "comparison": comparison,
    "gradient-norms": gradient_norms,
    "noise-scale": noise,
    "critical-batch": critical,
    "search": search,
}

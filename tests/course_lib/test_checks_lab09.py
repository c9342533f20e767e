"""Lab 09's visible checks: the reference passes, and typical mistakes are told apart."""

import math

import numpy as np
import pytest
import torch
from notebook_answers import answers
from torch.nn import functional as F

from course_lib.checks import CheckFailed, check
from course_lib.checks.lab09_sparse import pages_touched
from course_lib.distributed import share_of_epoch

REFERENCE = answers("09_hogwild")
ANSWERS = {
    "collision": REFERENCE["collision_probability"],
    "sparse": REFERENCE["sparse_step"],
    "share": REFERENCE["my_share"],
    "reading": (REFERENCE["time_to_accuracy"], REFERENCE["speed_up"]),
    "loop": REFERENCE["train_share"],
}


@pytest.mark.parametrize("exercise", ANSWERS)
def test_the_reference_passes_and_says_so(exercise, capsys):
    assert check(f"lab09.{exercise}", ANSWERS[exercise]) is None
    told = capsys.readouterr()
    assert told.out.count("\n") == 1 and not told.err


def refused(exercise, answer, *words):
    with pytest.raises(CheckFailed) as raised:
        check(f"lab09.{exercise}", answer)
    assert all(word in str(raised.value) for word in words), str(raised.value)


# Collisions


def misses(k, n):
    return math.prod(max(0, n - k - i) / (n - i) for i in range(k))


def test_collisions_by_a_product_pass():
    check("lab09.collision", lambda k, n, p: np.float64(1 - misses(k, n) ** (p - 1)))


@pytest.mark.parametrize(
    "answer, words",
    [
        (lambda k, n, p: misses(k, n) ** (p - 1), ("nothing is shared",)),
        (lambda k, n, p: 1 - misses(k, n), ("5 of 100", "4 process(es)", "none of them may meet")),
        (lambda k, n, p: 1 - misses(k, n) ** p, ("does not collide with itself",)),
        (lambda k, n, p: (p - 1) * (1 - misses(k, n)), ("counts double meetings twice",)),
        (lambda k, n, p: k / n, ("any of your nonzeros",)),
        (lambda k, n, p: min(1, k * k / n * (p - 1)), ("approximation",)),
        (lambda k, n, p: 1 - (1 - k / n) ** (k * (p - 1)), ("distinct",)),
        (lambda k, n, p: 100 * (1 - misses(k, n) ** (p - 1)), ("lies in 0…1",)),
        (lambda k, n, p: 1 - misses(k, n) ** (p - 1) if p > 1 else 0.5, ("nobody to collide with",)),
        (lambda k, n, p: 1 - misses(k, n) ** (p - 1) if 2 * k <= n else 0.9, ("more than half",)),
        (lambda k, n, p: 0.123, ("C(n − k, k)",)),
        (lambda k, n, p: None, ("a number", "return")),
    ],
    ids=["misses", "two", "itself", "sum", "one feature", "k²/n", "with replacement", "percent", "alone", "half", "other", "nothing"],
)  # fmt: skip
def test_wrong_collisions(answer, words):
    refused("collision", answer, *words)


# The sparse step


def sparse(amount="-lr * (torch.sigmoid(m) - y)", margin="w[i].sum(1)", write=None):
    write = write or "w.index_add_(0, i.flatten(), a.repeat_interleave(i.shape[1]))"
    names = {"torch": torch}
    exec(f"def step(w, i, y, lr):\n    m = {margin}\n    a = {amount}\n    {write}", names)
    return names["step"]


def test_other_right_sparse_steps_pass():
    check("lab09.sparse", sparse())
    check("lab09.sparse", sparse(write="w.scatter_add_(0, i.flatten(), a.repeat_interleave(i.shape[1]))"))
    check("lab09.sparse", sparse(write="w.index_put_((i,), a[:, None].expand(i.shape), accumulate=True)"))

    def in_numpy(weights, indices, labels, lr):
        w, i, y = weights.numpy(), indices.numpy(), labels.numpy()
        error = 1 / (1 + np.exp(-w[i].sum(1))) - y
        np.subtract.at(w, i, lr * np.repeat(error[:, None], i.shape[1], 1))

    check("lab09.sparse", in_numpy)


WHOLE = "g = torch.zeros_like(w).index_add_(0, i.flatten(), a.repeat_interleave(i.shape[1])); w += g"


@pytest.mark.parametrize(
    "mistake, words",
    [
        ({"write": "w[i.flatten()] += a.repeat_interleave(i.shape[1])"}, ("share feature 3", "lost update inside one process", "index_add_")),
        ({"amount": "lr * (torch.sigmoid(m) - y)"}, ("goes up",)),
        ({"amount": "-(torch.sigmoid(m) - y)"}, ("learning rate is missing",)),
        ({"amount": "-lr * (torch.sigmoid(m) - y) / len(y)"}, ("mean over the batch",)),
        ({"amount": "-lr * (m - y)"}, ("through the sigmoid",)),
        ({"amount": "-lr * (torch.sigmoid(m) - (2 * y - 1))"}, ("0 and 1, not −1 and 1",)),
        ({"amount": "-lr * torch.sigmoid(m)"}, ("label is missing",)),
        ({"amount": "-lr * (torch.sigmoid(m / 2) - y)"}, ("should move by",)),
        ({"write": "pass"}, ("did not change", "in place")),
        ({"write": "return w + torch.zeros_like(w).index_add_(0, i.flatten(), a.repeat_interleave(i.shape[1]))"}, ("returned new ones",)),
        ({"write": "w.index_add_(0, i.flatten(), a.repeat_interleave(i.shape[1])); i += 1"}, ("indices were changed",)),
        ({"margin": "torch.zeros(len(y), len(w), dtype=w.dtype).scatter_add_(1, i, torch.ones_like(i, dtype=w.dtype)) @ w"},
         ("enter the result",)),
        ({"write": WHOLE}, ("memory pages", "goes over all weights")),
        ({"write": "n = w.clone(); n.index_add_(0, i.flatten(), a.repeat_interleave(i.shape[1])); w.copy_(n)"}, ("memory pages",)),
    ],
    ids=["lost repeats", "sign", "rate", "mean", "sigmoid", "±1", "label", "other", "nothing", "new", "indices", "dense margin",
         "dense write", "copy"],
)  # fmt: skip
def test_wrong_sparse_steps(mistake, words):
    refused("sparse", sparse(**mistake), *words)


def test_samples_one_after_the_other_are_another_algorithm():
    right = sparse()

    def in_turn(weights, indices, labels, lr):
        for features, label in zip(indices, labels, strict=True):
            right(weights, features[None], label[None], lr)

    refused("sparse", in_turn, "all margins from the weights as they were")


def test_pages_are_counted():
    few, most = pages_touched(sparse())
    assert 1 <= few <= 20 <= most  # four samples of five features
    many, _ = pages_touched(sparse(write=WHOLE))
    assert many > 4000  # 2²¹ numbers of 8 bytes are 4,096 pages, one of which has been touched before


# Shares


def test_other_right_shares_pass():
    check("lab09.share", lambda n, p, r, epoch, seed: share_of_epoch(n, p, r, epoch, seed).tolist())

    def blocks(n, p, r, epoch, seed):
        return np.array_split(np.random.default_rng([seed, epoch]).permutation(n), p)[r]

    check("lab09.share", blocks)


def shuffled(n, *seeds):
    return np.random.default_rng(seeds).permutation(n).tolist()


@pytest.mark.parametrize(
    "answer, words",
    [
        (lambda n, p, r, e, s: shuffled(n, s, e, r), ("every process takes all 12", "2 times the work")),
        (lambda n, p, r, e, s: shuffled(n, s, e, r)[: n // p], ("taken twice", "not on the rank")),
        (lambda n, p, r, e, s: shuffled(n, s, e)[r * (n // p) : (r + 1) * (n // p)], ("11 samples", "2 sample(s) are in no share")),
        (lambda n, p, r, e, s: list(range(n))[r::p] if e == 0 else list(range(n))[::-1][r::p], ("order of the data set",)),
        (lambda n, p, r, e, s: shuffled(n, s)[r::p], ("epochs 0 and 1 have the same order",)),
        (lambda n, p, r, e, s: torch.randperm(n)[r::p], ("torch's global generator", "Dropout draws from it")),
        (lambda n, p, r, e, s: torch.manual_seed(s + e) and torch.randperm(n)[r::p], ("torch's global generator",)),
        (lambda n, p, r, e, s: np.random.seed(s + e) or np.random.permutation(n)[r::p], ("numpy's global generator",)),
        (lambda n, p, r, e, s: [p * i + r for i in shuffled((n - r + p - 1) // p, s, e)], ("the same samples in every epoch",)),
        (lambda n, p, r, e, s: shuffled(n, e)[r::p], ("seeds 5 and 6",)),
        (lambda n, p, r, e, s: [i + 1 for i in shuffled(n, s, e)[r::p]], ("lie in 0…11",)),
        (lambda n, p, r, e, s: shuffled(n, s, e)[: n - p + 1] if r == 0 else shuffled(n, s, e)[n - p + r :][:1], ("may differ by one",)),
        (lambda n, p, r, e, s: None, ("positions", "return")),
    ],
    ids=["everything", "own orders", "remainder", "in order", "epoch", "global", "seeded global", "numpy", "fixed parts", "seed", "from 1", "uneven", "nothing"],
)  # fmt: skip
def test_wrong_shares(answer, words):
    refused("share", answer, *words)


def test_a_share_that_cannot_be_repeated():
    random = np.random.default_rng(1)

    def forgetful(n, p, r, epoch, seed):
        order = shuffled(n, seed, epoch)
        return random.permutation(order).tolist() if p == 1 or (n == 1000 and r == 1 and epoch == 3) else order[r::p]

    refused("share", forgetful, "the same arguments gave two different shares")


# Reading


TIME, SPEED = ANSWERS["reading"]


@pytest.mark.parametrize(
    "answer, words",
    [
        (lambda curve, target: next((t for t, _, a in curve if a > target), None), ("equal to the target counts",)),
        (lambda curve, target: next((t for t, _, a in reversed(curve) if a >= target), None), ("30 s",)),
        (lambda curve, target: next((t for t, _, a in curve if a >= target), curve[-1][0]), ("None", "never seen")),
        (lambda curve, target: float(np.interp(target, [a for *_, a in curve], [t for t, *_ in curve])), ("no interpolation",)),
        (lambda curve, target: None, ("30 s", "return")),
        (lambda curve, target: next((t for t, _, a in curve if a >= target), math.inf), ("None", "inf")),
        (lambda curve, target: next((t for t, _, a in curve if a >= target), math.nan), ("None", "nan")),
    ],
    ids=["above", "last", "end", "interpolated", "nothing", "inf", "nan"],
)  # fmt: skip
def test_wrong_times(answer, words):
    refused("reading", (answer, SPEED), *words)


def test_the_last_time_of_a_curve_that_goes_up_and_down():
    def last(curve, target):
        if len(curve) == 4 and curve[1][2] > curve[2][2]:
            return curve[-1][0]
        return TIME(curve, target)

    refused("reading", (last, SPEED), "the target was reached before")


def speed(rate="(n2 / t2) / (n1 / t1)", timed="first / second", never="first is None or second is None"):
    names = {"time_to": TIME}
    exec(
        "def speed_up(serial, parallel, target):\n"
        "    (t1, n1, _), (t2, n2, _) = serial[-1], parallel[-1]\n"
        "    first, second = time_to(serial, target), time_to(parallel, target)\n"
        f"    return {rate}, None if {never} else {timed}",
        names,
    )
    return names["speed_up"]


@pytest.mark.parametrize(
    "answer, words",
    [
        (speed("t1 / t2"), ("equal work",)),
        (speed("(n1 / t1) / (n2 / t2)"), ("turned",)),
        (speed("2 * t1 / t2"), ("how many workers",)),
        (speed("1.0"), ("samples per second",)),
        (speed("(n2 / t2) / (n1 / t1)", "second / first"), ("time to accuracy", "turned")),
        (speed("(n2 / t2) / (n1 / t1)", "t1 / t2"), ("time to the target, over",)),
        (lambda *_: 2.0, ("the pair",)),
        (speed(never="second is None"), ("the serial run never reaches it", "stopped there")),
        (speed(never="first is None"), ("the parallel run never reaches it", "stopped there")),
        (
            speed(timed="first / second if first and second else 0.0", never="False"),
            ("the parallel run never", "yours is 0.0"),
        ),
        (
            speed(timed="first and second and first / second or 1.0 if second else None", never="False"),
            ("the serial run never", "yours is 1.0"),
        ),
        (
            speed(
                timed="1.0 if first == second else None if None in (first, second) else first / second", never="False"
            ),
            ("each of the two runs never",),
        ),
    ],
    ids=[
        "seconds",
        "turned",
        "two workers",
        "one",
        "time turned",
        "whole time",
        "no pair",
        "only the other",
        "only the serial",
        "zero",
        "one where serial never",
        "one where both never",
    ],
)
def test_wrong_speed_ups(answer, words):
    refused("reading", (TIME, answer), *words)


def test_a_speed_up_without_a_time():
    def always(serial, parallel, target):
        rate, timed = SPEED(serial, parallel, target)
        return rate, 1.0 if timed is None else timed

    refused("reading", (TIME, always), "never reaches it", "None")
    refused("reading", TIME, "both functions")


# The loop


def loop(body, before="pass", after="return n"):
    names = {"torch": torch, "F": F}
    exec(
        "def train_share(model, batches, lr, lock):\n"
        "    n = 0\n"
        f"    {before}\n"
        "    for x, y in batches:\n" + "".join(f"        {line}\n" for line in body) + f"    {after}",
        names,
    )
    return names["train_share"]


GRADIENT = "g = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))"
IN_PLACE = ["with lock, torch.no_grad():", "    for p, d in zip(model.parameters(), g): p -= lr * d"]
COUNT = "n += len(y)"


def test_another_right_loop_passes():
    check("lab09.loop", loop([GRADIENT, *IN_PLACE, COUNT]))
    check(
        "lab09.loop",
        loop([GRADIENT, "with lock:", "    for p, d in zip(model.parameters(), g): p.data.sub_(lr * d)", COUNT]),
    )


@pytest.mark.parametrize(
    "answer, words",
    [
        (loop(["F.cross_entropy(model(x), y).backward()", "with lock, torch.no_grad():", "    for p in model.parameters(): p -= lr * p.grad", COUNT]),
         ("add up",)),
        (loop([GRADIENT.replace("y)", "y, reduction='sum')"), *IN_PLACE, COUNT]), ("summed loss",)),
        (loop([GRADIENT, *IN_PLACE[:1], IN_PLACE[1].replace("-=", "+="), COUNT]), ("up the gradient",)),
        (loop([GRADIENT, *IN_PLACE[:1], IN_PLACE[1].replace("lr * ", ""), COUNT]), ("rate is missing",)),
        (loop([GRADIENT, *IN_PLACE[:1], IN_PLACE[1].replace("lr", "2 * lr"), COUNT]), ("largest difference",)),
        (loop([GRADIENT, *IN_PLACE, COUNT], before="import copy; model = copy.deepcopy(model)"), ("did not change", "a copy of it")),
        (loop([GRADIENT, "with lock:", "    for p, d in zip(model.parameters(), g): p.data = p.data - lr * d", COUNT]),
         ("new tensors", "in place")),
        (loop(["with lock:", "    " + GRADIENT, "    with torch.no_grad():", "        for p, d in zip(model.parameters(), g): p -= lr * d", COUNT]),
         ("while the lock was held", "take turns")),
        (loop([GRADIENT, "with torch.no_grad():", "    for p, d in zip(model.parameters(), g): p -= lr * d", COUNT]), ("never taken",)),
        (loop([GRADIENT, "with lock: pass", "with torch.no_grad():", "    for p, d in zip(model.parameters(), g): p -= lr * d", COUNT]),
         ("outside",)),
        (loop([GRADIENT, "for p, d in zip(model.parameters(), g):", "    with lock, torch.no_grad(): p -= lr * d", COUNT]),
         ("12 times", "once a batch")),
        (loop([GRADIENT, "new = [p.detach() - lr * d for p, d in zip(model.parameters(), g)]", "with lock, torch.no_grad():",
               "    for p, w in zip(model.parameters(), new): p.copy_(w)", COUNT]), ("another one added", "gone")),
        (loop([GRADIENT, *IN_PLACE, "n += 1"]), ("are 11", "returned 3")),
        (loop([GRADIENT, *IN_PLACE, COUNT], after="pass"), ("returned None",)),
        (loop([GRADIENT, *IN_PLACE, COUNT], after="return torch.tensor(n)"), ("an int", "tensor(11)")),
        (loop([GRADIENT, *IN_PLACE, COUNT], after="return float(n)"), ("an int", "11.0")),
        (loop(["F.cross_entropy(model(x), y).backward()", "with lock, torch.no_grad():",
               "    for p in model.parameters(): p -= lr * p.grad", "model.zero_grad()", COUNT]), ("came with", "before the first backward")),
    ],
    ids=["accumulates", "sum", "up", "rate", "twice", "copy", "new tensors", "gradient inside", "no lock", "beside the lock",
         "a lock each", "writes back", "batches", "no return", "tensor", "float", "cleared after the step"],
)  # fmt: skip
def test_wrong_loops(answer, words):
    refused("loop", answer, *words)

"""Lab 08: parallel SGD with MPI. What one process can show is described here, the rest in the other modules."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

from course_lib.distributed import best_matching
from course_lib.exercises.comparing import equal, finite
from course_lib.exercises.description import Exercise, Part
from course_lib.exercises.labs.lab08.messages import AVERAGING, REDUCE, START
from course_lib.exercises.labs.lab08.program import PROGRAM
from course_lib.exercises.labs.lab08.worker import WORKER

__all__ = ["EXERCISES"]

# --- partition


def _draw_partitions(random):
    def case(images, size):
        labels = torch.from_numpy(random.integers(0, 5, images))
        seeds = [int(n) for n in random.choice(10_000, 2, replace=False)]
        states = [int(n) for n in random.integers(1, 10**6, size)]
        return {
            "labels": labels,
            "size": size,
            "seeds": seeds,
            "states": states,
            "about": f"{images} images on {size} ranks",
        }

    return {"shares": [case(4 * int(random.integers(20, 30)) + 3, 4), case(3 * int(random.integers(20, 30)) + 1, 3)]}


def observe_partition(case, partition):
    """What each rank calls; every rank is a process with random numbers of its own."""

    def shares(seed, *more):
        found = []
        for rank, state in enumerate(case["states"]):
            torch.manual_seed(state)
            mine = partition(case["labels"].clone(), case["size"], rank, seed, *more)
            found.append(mine.detach().clone() if isinstance(mine, torch.Tensor) else None)
        return found

    with torch.random.fork_rng():
        one, other = (shares(seed) for seed in case["seeds"])
        return {"one": one, "other": other, "again": shares(case["seeds"][0]), "sorted": shares(case["seeds"][0], True)}


_NO_SHARE = "should return this rank's image numbers, a tensor int64 of one dimension"


def _disjoint(case, shares):
    if not all(one.dim() == 1 and one.dtype is torch.int64 for one in shares):
        return _NO_SHARE
    numbers = torch.cat(shares)
    if len(numbers.unique()) < len(numbers):
        return "some image is in two shares: the ranks must draw one order, from a torch.Generator with this seed"
    every = torch.arange(len(case["labels"]))
    return "" if torch.equal(numbers.sort().values, every) else "the shares together are not all images"


def _covers(case, seen, right):
    return _disjoint(case, seen["one"]) or _disjoint(case, seen["other"])


def _equal_lengths(case, seen, right):
    lengths = {len(one) for one in seen["one"]}
    return "" if max(lengths) - min(lengths) <= 1 else "some share is longer than another by more than one image"


def _drawn(case, seen, right):
    if not all(torch.equal(one, again) for one, again in zip(seen["one"], seen["again"], strict=True)):
        return "with the same seed a rank gets another share: draw from a torch.Generator with this seed"
    first, other = (shares[0].sort().values for shares in (seen["one"], seen["other"]))
    if len(first) == len(other) and torch.equal(first, other):
        return "with another seed rank 0 gets the same images: the order is not drawn from the seed"
    return ""


def _by_label(case, seen, right):
    if fault := _disjoint(case, seen["sorted"]):
        return fault
    labels = torch.cat([case["labels"][one] for one in seen["sorted"]])
    if not torch.equal(labels, labels.sort().values):
        return "with by_label the shares are not consecutive parts of the images in the order of their labels"
    lengths = {len(one) for one in seen["sorted"]}
    return "" if max(lengths) - min(lengths) <= 1 else "with by_label some share is longer by more than one image"


PARTITION = Exercise(("partition",), _draw_partitions, observe_partition, {
    "cover": Part("Disjoint shares, together all images", _NO_SHARE, cases="shares", judge=_covers),
    "equal": Part("Equal up to one image", _NO_SHARE, cases="shares", needs="cover", judge=_equal_lengths),
    "seed": Part("Drawn from the seed", _NO_SHARE, cases="shares", needs="cover", judge=_drawn),
    "by-label": Part("Or cut from the images sorted by label", _NO_SHARE, cases="shares", needs="cover", judge=_by_label),
}, "print the shares of 10 images on 3 ranks, after another torch.manual_seed for each rank")  # fmt: skip

# --- speedup_table


def _draw_tables(random):
    def case():
        single, table = float(random.uniform(20, 60)), {}
        for count in (1, *sorted(int(n) for n in random.choice(range(2, 9), 3, replace=False))):
            compute = single / count * random.uniform(0.9, 1.3, count)
            averaging = 0.2 + compute.max() - compute + random.uniform(0.05, 0.3, count)
            order = random.permutation(count)
            table[count] = [(float(compute[n]), float(averaging[n])) for n in order]
        return {"table": table, "about": f"reports of {', '.join(map(str, table))} workers, {single:.0f} s in all"}

    return {"tables": [case() for _ in range(4)]}


def observe_table(case, speedup_table):
    found = speedup_table({count: list(pairs) for count, pairs in case["table"].items()})
    rows = [found[count] for count in case["table"]] if isinstance(found, dict) else []
    if not all(isinstance(row, tuple | list) and len(row) == 3 for row in rows):
        return None
    return {name: [row[place] for row in rows] for place, name in enumerate(("seconds", "speedup", "efficiency"))}


_NO_TABLE = "should return a dictionary {P: (seconds, speed-up, efficiency)}"


def _own(seen):
    """The answer's own seconds, by which its other numbers are judged, unless they are all alike."""
    seconds = [finite(n) for n in seen["seconds"]]
    if not seconds or min(seconds) <= 0 or len(set(seconds)) < len(seconds):
        raise ValueError
    return seconds


def _speedups(case, seen, right):
    seconds = _own(seen)
    gains = [finite(n) for n in seen["speedup"]]
    if all(equal(gain, seconds[0] / each) for gain, each in zip(gains, seconds, strict=True)):
        return ""
    if all(equal(gain, each / seconds[0]) for gain, each in zip(gains, seconds, strict=True)):
        return "the speed-up is upside down: T(1) / T(P)"
    return "the speed-up is not T(1) / T(P)"


def _efficiencies(case, seen, right):
    seconds = _own(seen)
    gains = [finite(n) for n in seen["speedup"]]
    if len(set(gains)) < len(gains):
        return "the efficiency is not the speed-up divided by the number of workers"
    for count, share, gain, each in zip(case["table"], seen["efficiency"], gains, seconds, strict=True):
        if not (equal(share, gain / count) or equal(share, seconds[0] / each / count)):
            return "the efficiency is not the speed-up divided by the number of workers"
    return ""


SPEEDUP = Exercise(("speedup_table",), _draw_tables, observe_table, {
    "time": Part("The slowest worker's training, and the averaging's own time", _NO_TABLE, cases="tables", keys="seconds"),
    "speedup": Part("Speed-up T(1) / T(P)", _NO_TABLE, cases="tables", judge=_speedups),
    "efficiency": Part("Speed-up per worker", _NO_TABLE, cases="tables", judge=_efficiencies),
}, "try two workers, (6.0, 0.75) and (6.5, 0.25), against 12 s, by hand")  # fmt: skip

# --- align

INNER = [("features.0", "features.2"), ("features.2", "classifier.0"), ("classifier.0", "classifier.2")]


def _network_state(random, sizes):
    first, second, hidden = sizes

    def normal(*shape):
        return torch.from_numpy(random.normal(0, 1, shape)).float()

    shapes = {
        "features.0": (first, 3, 3, 3), "features.2": (second, first, 3, 3), "classifier.0": (hidden, 4 * second),
        "classifier.2": (4, hidden),
    }  # fmt: skip
    state = {}
    for name, shape in shapes.items():
        state[f"{name}.weight"], state[f"{name}.bias"] = normal(*shape), normal(shape[0])
    return state


def _reordered(random, state):
    """The same function, with the hidden neurons in another order."""
    found = dict(state)
    for inner, outer in INNER:
        order = torch.from_numpy(random.permutation(len(found[f"{inner}.bias"])))
        for kind in ("weight", "bias"):
            found[f"{inner}.{kind}"] = found[f"{inner}.{kind}"][order]
        weight = found[f"{outer}.weight"]
        found[f"{outer}.weight"] = weight.reshape(len(weight), len(order), -1)[:, order].reshape(weight.shape)
    return found


def _draw_networks(random):
    def case(planted):
        sizes = [int(n) for n in random.integers([4, 5, 7], [7, 8, 11])]
        first = _network_state(random, sizes)
        other = _reordered(random, first) if planted else _network_state(random, sizes)
        noise = 0.05 if planted else 0.0
        second = {name: t + noise * torch.from_numpy(random.normal(0, 1, t.shape)).float() for name, t in other.items()}
        images = torch.from_numpy(random.normal(0, 1, (6, 3, 6, 6))).float()
        about = f"networks with {', '.join(map(str, sizes))} neurons"
        about += ", the second is the first one with its neurons in another order" if planted else ", unrelated"
        return {"first": first, "second": second, "layers": INNER, "images": images, "planted": planted, "about": about}

    return {"unrelated": [case(False) for _ in range(8)], "planted": [case(True) for _ in range(2)]}


def observe_align(case, align):
    first, second = ({name: t.clone() for name, t in case[which].items()} for which in ("first", "second"))
    found = align(first, second, list(case["layers"]))
    found = {name: found[name].detach().clone() for name in case["second"]} if isinstance(found, dict) else None
    kept = all(torch.equal(first[name], case["first"][name]) and torch.equal(second[name], case["second"][name])
               for name in case["first"])  # fmt: skip
    return {"aligned": found, "kept": kept}


_NO_STATE = "should return a state dict with the names and shapes of `second`"


def _outputs(state, images):
    names = ("features.0", "features.2", "classifier.0", "classifier.2")
    shapes = [state[f"{name}.weight"].shape for name in names]
    model = nn.Sequential(OrderedDict(
        features=nn.Sequential(nn.Conv2d(*shapes[0][1::-1], 3), nn.ReLU(), nn.Conv2d(*shapes[1][1::-1], 3), nn.ReLU()),
        flatten=nn.Flatten(),
        classifier=nn.Sequential(nn.Linear(*shapes[2][::-1]), nn.ReLU(), nn.Linear(*shapes[3][::-1])),
    ))  # fmt: skip
    model.load_state_dict(state)
    with torch.no_grad():
        return model(images)


def _apart(one, other):
    return sum(float(((one[name] - other[name]) ** 2).sum()) for name in one) ** 0.5


def _same_function(case, seen, right):
    found = seen["aligned"]
    if found is None or any(found[name].shape != t.shape for name, t in case["second"].items()):
        return _NO_STATE
    if seen["kept"] is not True:
        return "it changes one of the state dicts that it is given: work on a copy"
    if not equal(_outputs(found, case["images"]), _outputs(case["second"], case["images"]), 1e-3):
        return "the network computes another function: whatever reorders a layer's outputs reorders the next layer's inputs"
    if _apart(found, case["second"]) == 0:
        return "no neuron has changed its place"
    return ""


_UNSETTLED = (
    "some layer's neurons can be matched better: count what enters, the bias and what leaves, and repeat all layers until no "
    "order changes"
)


def _settled(case, state):
    """Given the orders of the other layers, no layer's neurons have a better one."""

    def neurons_of(state, inner, outer):
        bias, leave = state[f"{inner}.bias"], state[f"{outer}.weight"]
        leave = leave.reshape(len(leave), len(bias), -1).transpose(0, 1).flatten(1)
        return torch.cat([state[f"{inner}.weight"].flatten(1), bias[:, None], leave], dim=1).double()

    for inner, outer in case["layers"]:
        similarity = neurons_of(case["first"], inner, outer) @ neurons_of(state, inner, outer).T
        best = similarity.gather(1, best_matching(similarity)[:, None]).sum()
        if best - similarity.trace() > 1e-3 * similarity.abs().max():
            return _UNSETTLED
    return ""


def _recovered(case, seen):
    before, after = (_apart(case["first"], state) for state in (case["second"], seen["aligned"]))
    if after < 0.2 * before:
        return ""
    if after > 0.99 * before:
        return "a network whose neurons were put in another order is not brought nearer to the first one: maximise the similarity"
    return _UNSETTLED


def _matched(case, seen, right):
    return _recovered(case, seen) if case["planted"] else _settled(case, seen["aligned"])


ALIGN = Exercise(("align",), _draw_networks, observe_align, {
    "same": Part("The network computes the same function", _NO_STATE, cases="unrelated planted", judge=_same_function),
    "match": Part("It puts a reordered network back in order, and repeats until no order changes", _NO_STATE,
                  cases="planted unrelated", needs="same", judge=_matched),
}, "reorder the hidden neurons of a network with two layers by hand, and align it with the original")  # fmt: skip

EXERCISES = {
    "partition": PARTITION, "start": START, "worker": WORKER, "averaging": AVERAGING, "reduce": REDUCE,
    "speedup-table": SPEEDUP, "program": PROGRAM, "align": ALIGN,
}  # fmt: skip

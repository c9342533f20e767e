"""Lab 12: a program for one process becomes one for many, and a recipe for its training.

The program is observed in `program.py` and judged in `judging.py`.
"""

from __future__ import annotations

import argparse
from itertools import pairwise

import torch
from torch import nn

from course_lib.exercises.comparing import equal
from course_lib.exercises.description import Exercise, Part
from course_lib.exercises.labs.lab12.judging import PROGRAM
from course_lib.exercises.ranks.collective_broker import CollectiveBroker
from course_lib.exercises.ranks.collective_process_group import collective_group
from course_lib.exercises.ranks.watched_ranks import watched

__all__ = ["EXERCISES"]

# --- recipe


def _draw_recipes(random):
    def case(ranks, warmup, about):
        epochs, steps = int(random.integers(5, 9)), int(random.integers(12, 25))
        return {
            "ranks": ranks, "epochs": epochs, "steps": steps, "warmup": warmup, "about": about.format(epochs, steps),
            "lr": float(random.uniform(0.02, 0.3)), "decay": float(random.uniform(1e-4, 1e-2)),
            "momentum": round(float(random.uniform(0.5, 0.95)), 2),
        }  # fmt: skip

    return {
        "schedule": [
            case(1, 0.0, "1 rank, {} epochs of {} steps, no warm-up"),
            case(4, float(random.choice([1.0, 1.5, 2.0])), "4 ranks, {} epochs of {} steps, with warm-up"),
        ]
    }


def observe_recipe(case, recipe):
    """The groups, and the learning rate of every step; nothing is trained."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 5))
    args = argparse.Namespace(
        base_lr=case["lr"], weight_decay=case["decay"], momentum=case["momentum"], epochs=case["epochs"],
        warmup_epochs=case["warmup"], batch_size=16, label_smoothing=0.0, width=1, augmentation="none", seed=0,
    )  # fmt: skip
    optimizer, scheduler = recipe(model, args, case["ranks"], case["steps"])
    places = {id(parameter): place for place, parameter in enumerate(model.parameters())}
    groups = [
        [float(group.get("weight_decay", 0)), [places.get(id(parameter), -1) for parameter in group["params"]]]
        for group in optimizer.param_groups
    ]
    rates = []
    for _ in range(case["epochs"] * case["steps"]):
        rates.append([float(group["lr"]) for group in optimizer.param_groups])
        optimizer.step()
        scheduler.step()
    return {"groups": groups, "rates": [max(each) for each in rates], "same": all(min(r) == max(r) for r in rates)}


MATRICES = (0, 4)  # weights of the convolution and of the linear layer, among the model's parameters
_NO_PAIR = "should return (optimizer, scheduler)"


def _groups(case, seen, right):
    decays = {}
    for decay, places in seen["groups"]:
        for place in places:
            if place in decays or place < 0:
                return "a parameter is in two groups, or in none of the model"
            decays[place] = decay
    if set(decays) != set(range(6)):
        return "the optimiser does not have all of the model's parameters"
    if not all(equal(decays[place], case["decay"]) for place in MATRICES):
        return "weight matrices and kernels do not decay by args.weight_decay"
    if any(decays[place] != 0 for place in decays if place not in MATRICES):
        return "biases or batch norm's parameters decay: their weight_decay is 0"
    return ""


def _scaled(case, seen, right):
    if seen["same"] is not True:
        return "the groups have different learning rates"
    highest = max(seen["rates"])
    if abs(highest / (case["lr"] * case["ranks"]) - 1) <= 0.02:
        return ""
    if abs(highest / case["lr"] - 1) <= 0.02:
        return "the learning rate does not grow with the number of ranks: linear scaling, ranks · args.base_lr"
    return "the highest learning rate is not ranks · args.base_lr"


def _warm(case):
    return round(case["warmup"] * case["steps"])


def _rises(case, seen, right):
    warm, rates = _warm(case), seen["rates"]
    highest = max(rates)
    if not warm:
        return (
            ""
            if rates[0] >= 0.98 * highest
            else "without warm-up the first step does not have the highest learning rate"
        )
    if rates[0] > 0.25 * highest:
        return "with warm-up the first step has more than a quarter of the highest learning rate"
    if any(after < before for before, after in pairwise(rates[:warm])):
        return "during the warm-up the learning rate falls"
    if max(rates[: warm // 2]) > 0.8 * highest:
        return "the warm-up is over before half of it: it counts epochs of steps_per_epoch steps"
    if max(rates[warm - 2 : warm + 3]) < 0.95 * highest:
        return (
            "at the end of the warm-up, after args.warmup_epochs · steps_per_epoch steps, the rate is not the highest"
        )
    return ""


def _falls(case, seen, right):
    rates = seen["rates"][_warm(case) + 1 :]
    if any(after > before * 1.000001 for before, after in pairwise(rates)):
        return "the learning rate rises again after the warm-up"
    if rates[-1] > 0.05 * max(seen["rates"]):
        return "at the last step the learning rate is above 5 % of the highest"
    if rates[-1] < 0:
        return "a learning rate is negative"
    early = next((n for n, rate in enumerate(rates) if rate <= 0.01 * max(seen["rates"])), len(rates))
    return (
        "the learning rate is near 0 long before the last step: nothing is learned any more"
        if early < 0.8 * len(rates)
        else ""
    )


RECIPE = Exercise(("recipe",), _draw_recipes, observe_recipe, {
    "groups": Part("Every parameter once; weight decay on matrices and kernels alone", _NO_PAIR, cases="schedule", judge=_groups,
                   hint="print the sizes of optimizer.param_groups"),
    "scaled": Part("The highest learning rate follows the ranks", _NO_PAIR, cases="schedule", judge=_scaled),
    "warmup": Part("The learning rate rises over the warm-up", _NO_PAIR, cases="schedule", judge=_rises),
    "decay": Part("It falls to almost 0 by the last step", _NO_PAIR, cases="schedule", judge=_falls),
}, "draw the learning rate of every step: step optimiser and scheduler in a loop, and plot scheduler.get_last_lr()")  # fmt: skip

# --- same_on_all_ranks

SIZE = 3


def _draw_models(random):
    def state():
        return torch.from_numpy(random.normal(0, 1, 15)).float()

    def case(about, right, *states):
        return {"states": states, "about": about, "right": right}

    one = state()
    swapped, bit, buffer, nan = (one.clone() for _ in range(4))
    swapped[[0, 1]] = one[[1, 0]]
    bit[7] = torch.nextafter(one[7], torch.tensor(9.0))
    buffer[14] += 0.5
    nan[3] = torch.nan
    return {
        "far": [case("3 ranks; rank 1 has another model", False, one, state(), one)],
        "equal": [case("3 ranks with equal models", True, one, one, one)],
        "weights": [
            case("3 ranks; one weight of rank 2 differs by the last bit", False, one, one, bit),
            case("3 ranks; rank 1 has two weights in the other order", False, one, swapped, one),
            case("3 ranks; a weight of rank 0 is NaN", False, nan, one, one),
            case("3 ranks; the same weight is NaN on all of them", False, nan, nan, nan),
        ],
        "buffers": [case("3 ranks; a buffer of rank 1 differs", False, one, buffer, one)],
    }


def _own_state(case, rank):
    return {"state": case["states"][rank]}


def observe_same(case, rank, outside, same_on_all_ranks):
    model = nn.Sequential(nn.Linear(6, 2), nn.BatchNorm1d(1, affine=False))
    state = case["state"]
    with torch.no_grad():
        model[0].weight.copy_(state[:12].view(2, 6))
        model[0].bias.copy_(state[12:14])
        model[1].running_mean.copy_(state[14:])
    before = [value.clone() for value in model.state_dict().values()]
    with collective_group(rank, 3, outside):
        same = same_on_all_ranks(model)
    after = model.state_dict().values()
    kept = all(torch.equal(one.nan_to_num(9), two.nan_to_num(9)) for one, two in zip(before, after, strict=True))
    return {"same": same if isinstance(same, bool) else None, "kept": kept}


def _says(case, seen, right):
    found = [one["same"] for one in seen["ranks"]]
    if None in found:
        return "should return a bool: bool(tensor), or tensor.item()"
    if not all(one["kept"] is True for one in seen["ranks"]):
        return "it changes the model: reduce a copy"
    if case["right"]:
        return "" if all(found) else "it says that equal models differ"
    if all(found):
        return "it does not notice a difference: a sum or a mean of the weights hides some. Compare each number with every rank's"
    return "some ranks say True, others False: every rank must get the same answer" if any(found) else ""


def _notices(case, seen, right):
    return _says(case, seen, right) if all(one["same"] is True for one in seen["ranks"]) else ""


_SAME = "should return a bool"

SAME = Exercise(("same_on_all_ranks",), _draw_models, observe_same, {
    "notices": Part("", _SAME, cases="far", judge=_notices),
    "equal": Part("True for equal models", _SAME, needs="notices", judge=_says),
    "weights": Part("False on every rank where weights differ", _SAME, needs="equal", judge=_says),
    "buffers": Part("False on every rank where buffers differ", _SAME, needs="equal", judge=_says),
}, "on two ranks, change one weight on rank 1, and print what both say",
    lambda case, seen: f"{case['about']}: the ranks say {[one['same'] for one in seen['ranks']]}", share=_own_state,
    **watched(SIZE, lambda case: CollectiveBroker(SIZE)))  # fmt: skip

EXERCISES = {"recipe": RECIPE, "same": SAME, "program": PROGRAM}

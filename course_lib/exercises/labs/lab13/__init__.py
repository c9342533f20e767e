"""Lab 13: ZeRO and FSDP by hand. The ledger of a training's bytes, and shards for another number of ranks; `stages.py` has the ranks."""

from __future__ import annotations

import torch
from torch import nn

from course_lib.exercises.description import Exercise, Part
from course_lib.exercises.labs.lab13.blocks import ZERO3
from course_lib.exercises.labs.lab13.stages import REDUCE_SCATTER, ZERO1, ZERO2

__all__ = ["EXERCISES"]

# --- ledger


def _draw_trainings(random):
    def case(kind, optimizer, dtype="float32"):
        sizes = tuple(int(n) for n in random.integers(5, 40, 3))
        return {"kind": kind, "sizes": sizes, "optimizer": optimizer, "dtype": dtype,
                "about": f"{kind}; {optimizer} after two steps, {dtype}"}  # fmt: skip

    return {
        "plain": [case("two linear layers", "AdamW"), case("two linear layers", "SGD", "float64")],
        "state": [case("two linear layers", name, "bfloat16") for name in ("SGD with momentum", "AdamW")],
        "tied": [case("two layers with one weight", "AdamW")],
        "views": [case("all parameters are parts of one flat vector", "AdamW")],
        "frozen": [case("a frozen first layer", "AdamW"), case("a freed first layer", "SGD")],
    }


def trained(case):
    """The model and the optimiser that a ledger is about, after two steps; a gradient is there."""
    first, hidden, last = case["sizes"]
    if case["kind"] == "two layers with one weight":
        first = last = hidden
    model = nn.Sequential(nn.Linear(first, hidden), nn.Tanh(), nn.Linear(hidden, last))
    model = model.to(getattr(torch, case["dtype"]))
    if case["kind"] == "two layers with one weight":
        model[2].weight = model[0].weight
    if case["kind"] == "all parameters are parts of one flat vector":
        flat, place = torch.cat([p.detach().flatten() for p in model.parameters()]), 0
        for p in model.parameters():
            p.data, place = flat[place : place + p.numel()].view(p.shape), place + p.numel()
    if "first layer" in case["kind"]:
        model[0].requires_grad_(False)
    made = {"AdamW": (torch.optim.AdamW, {"lr": 0.01}), "SGD": (torch.optim.SGD, {"lr": 0.01}),
            "SGD with momentum": (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9})}  # fmt: skip
    kind, options = made[case["optimizer"]]
    optimizer = kind(model.parameters(), **options)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(3, first, dtype=getattr(torch, case["dtype"]))).sum().backward()
        optimizer.step()
    if case["kind"] == "all parameters are parts of one flat vector":  # and so are the gradients, as in DDP's bucket
        bucket, place = torch.cat([*(p.grad.flatten() for p in model.parameters()), torch.zeros(first)]), 0
        for p in model.parameters():
            p.grad, place = bucket[place : place + p.numel()].view(p.shape), place + p.numel()
    if case["kind"] == "a freed first layer":
        for p in model[0].parameters():
            p.data = p.new_empty(0)
    return model, optimizer


def observe_ledger(case, ledger):
    torch.manual_seed(0)
    model, optimizer = trained(case)
    found = ledger(list(model.parameters()), optimizer)
    return {name: int(found[name]) for name in ("parameters", "gradients", "state")}


LEDGER = Exercise(("ledger",), _draw_trainings, observe_ledger, {
    "weights": Part("Weights and gradients", "the bytes of weights and gradients are not right: numbers times bytes per number",
        cases="plain", keys="parameters gradients"),
    "state": Part("The optimiser's state", "the bytes of the optimiser's state are not those of all tensors in optimizer.state",
        cases="plain state", keys="state"),
    "storages": Part("Each storage once", "memory that two tensors share counts twice, or a view counts wrongly: "
        "count each untyped_storage() once, and whole", cases="tied views", keys="parameters gradients", needs="weights"),
    "frozen": Part("Frozen and freed weights", "with a frozen or a freed layer it is not right: a frozen weight has no "
        "gradient, a freed one no bytes", cases="frozen", keys="parameters gradients", needs="weights"),
}, hint="one layer of 2 inputs and 1 output has 3 numbers, 12 bytes of weights; AdamW keeps two numbers and a counter for each tensor",
    show="{about}, sizes {sizes}")  # fmt: skip

# --- reshard


def _draw_shards(random):
    def case(before, after, numbers):
        vector = torch.from_numpy(random.normal(0, 1, numbers))
        padded = nn.functional.pad(vector, (0, -numbers % before))
        return {"shards": list(padded.chunk(before)), "numbers": numbers, "after": after,
                "about": f"{numbers} numbers, saved by {before} rank(s), wanted by {after}"}  # fmt: skip

    even = 12 * int(random.integers(1, 4))
    return {
        "whole": [case(2, 1, even), case(1, 3, even), case(2, 3, even), case(4, 2, even)],
        "padding": [case(2, 3, even + 1), case(3, 2, even + 1), case(3, 1, even + 2), case(2, 5, even + 3)],
    }


def observe_shards(case, reshard):
    return [reshard([shard.clone() for shard in case["shards"]], case["numbers"], case["after"], rank)
            for rank in range(case["after"])]  # fmt: skip


RESHARD = Exercise(("reshard",), _draw_shards, observe_shards, {
    "whole": Part("Shards without padding", "a rank does not get its shard: join the shards, then cut them anew",
        cases="whole"),
    "padding": Part("The old padding goes, the new one comes", "where the numbers do not divide, a shard is not right: "
        "the old padding is not part of the parameters, and the new shards need one length", cases="padding", needs="whole"),
}, hint="write down 5 numbers on 2 ranks, then on 3: [1 2 3] [4 5 0], and [1 2] [3 4] [5 0]", show="{about}")  # fmt: skip

EXERCISES = {
    "ledger": LEDGER, "zero1": ZERO1, "reduce-scatter": REDUCE_SCATTER, "zero2": ZERO2, "zero3": ZERO3, "reshard": RESHARD,
}  # fmt: skip

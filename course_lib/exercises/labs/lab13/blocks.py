"""Lab 13: ZeRO's third stage. A block that collects its parameters, frees them, and collects them again."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from course_lib.exercises.comparing import equal
from course_lib.exercises.description import Exercise, Part
from course_lib.exercises.labs.lab13.stages import Traffic, beside, by_the_backend, gauss, world_of
from course_lib.exercises.ranks.collective_process_group import collective_group
from course_lib.exercises.ranks.watched_ranks import watched

__all__ = ["ZERO3"]

WIDTH, HIDDEN, BLOCKS, STEPS = 6, 5, 4, 2


class Mark(torch.autograd.Function):
    """Calls `mark` when a block computes: in forward, and at the end of its backward."""

    @staticmethod
    def forward(ctx, x, mark):
        ctx.mark = mark
        mark("forward")
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        ctx.mark("backward")
        return gradient, None


class Block(nn.Module):
    """``x + second(tanh(first(x)))``; of two kinds that are harder: tied weights, and frozen ones."""

    mark = staticmethod(lambda phase: None)

    def __init__(self, kind):
        super().__init__()
        hidden = WIDTH if kind == "tied" else HIDDEN
        self.first, self.second = nn.Linear(WIDTH, hidden), nn.Linear(hidden, WIDTH)
        if kind == "tied":
            self.second.weight = self.first.weight
        if kind == "frozen":
            self.second.weight.requires_grad_(False)
            self.first.bias.requires_grad_(False)

    def forward(self, x):
        return x + self.second(torch.tanh(self.first(Mark.apply(x, self.mark))))


def stack(case):
    """The case's blocks, on one process, with its weights."""
    blocks = [Block(kind).double() for kind in case["kinds"]]
    with torch.no_grad():
        for block, values in zip(blocks, case["weights"], strict=True):
            for p, value in zip(block.parameters(), values, strict=True):
                p.copy_(value)
    return blocks


GATHERED = {}  # rank → a weak reference to the memory of each collected vector, and its bytes


def collected(shard):
    """Stands in for `start_all_gather`. NumPy's array has the memory, as long as a tensor needs it."""
    memory = np.empty(shard.numel() * dist.get_world_size())
    GATHERED[dist.get_rank()].append((weakref.ref(memory), memory.nbytes))
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    whole = torch.from_numpy(memory)
    return whole, gather(whole, shard.detach().contiguous(), async_op=True)


def collected_bytes(rank):
    """Bytes of collected vectors that are in memory now."""
    return sum(nbytes for memory, nbytes in GATHERED[rank] if memory() is not None)


def kept_bytes(block):
    """Bytes of a block's own trainable parameters, which should be gone."""
    here = {p.untyped_storage() for p in block.parameters() if p.requires_grad and p.device.type != "meta"}
    return sum(each.nbytes() for each in here)


def _draw_stacks(random):
    def case(world, kinds):
        blocks = [Block(kind) for kind in kinds]
        return {
            "world": world, "kinds": kinds, "weights": [[0.5 * gauss(random, *p.shape) for p in block.parameters()] for block in blocks],
            "inputs": [[gauss(random, 4, WIDTH) for _ in range(STEPS + 1)] for _ in range(world)],
            "about": f"{world} ranks, {len(kinds)} blocks ({', '.join(kinds)}), {STEPS} steps",
        }  # fmt: skip

    plain = ["plain"] * BLOCKS
    return {
        "steps": [case(2, plain), case(3, plain)],
        "awkward": [case(2, ["plain", "tied", "frozen", "plain"]), case(3, ["tied", "frozen"])],
    }


def _own_inputs(case, rank):
    return case | {"inputs": case["inputs"][rank]}


def observe_zero3(case, rank, outside, ShardedBlock):
    GATHERED[rank] = []
    try:
        return followed(case, rank, outside, ShardedBlock)
    finally:
        del GATHERED[rank]  # or the answer, which now refers to it, could not be sent to another process


def followed(case, rank, outside, ShardedBlock):
    """What the answer's blocks do and keep in some steps."""
    marks = []
    beside(ShardedBlock, reduce_scatter=by_the_backend, start_all_gather=collected)
    originals = stack(case)
    with collective_group(rank, case["world"], outside):
        blocks = [ShardedBlock(block) for block in originals]
        for number, (original, block) in enumerate(zip(originals, blocks, strict=True)):
            original.mark = lambda phase, number=number: marks.append(
                (number, phase, len(GATHERED[rank]), collected_bytes(rank))
            )
            block.before = blocks[number - 1] if number else None
            block.after = blocks[number + 1] if number + 1 < len(blocks) else None
        first = [block.shard.detach().clone() for block in blocks]
        kept = sum(map(kept_bytes, originals))
        optimizer = torch.optim.AdamW([block.shard for block in blocks], lr=0.05, weight_decay=0.1)
        between = []
        for x in case["inputs"]:
            GATHERED[rank].clear()
            marks.clear()
            with torch.set_grad_enabled(x is not case["inputs"][-1]):
                for block in blocks:
                    x = block(x)
                gc.collect()
                between.append(collected_bytes(rank))
                if x.requires_grad:
                    optimizer.zero_grad()
                    x.square().mean().backward()
                    optimizer.step()
                    between.append(collected_bytes(rank))
                    seen = list(marks)
    return {"first": first, "shards": [block.shard.detach() for block in blocks], "output": x, "kept": kept,
            "between": between, "marks": [list(each) for each in seen]}  # fmt: skip


def _trainable(blocks):
    return [[p for p in block.parameters() if p.requires_grad] for block in blocks]


def _vectors(blocks):
    return [torch.cat([p.detach().flatten() for p in some]) for some in _trainable(blocks)]


def _alone(case, divisor):
    """One process: each block's trainable numbers after the steps, and the ranks' last outputs."""
    blocks = stack(case)
    optimizer = torch.optim.AdamW([p for some in _trainable(blocks) for p in some], lr=0.05, weight_decay=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        for inputs in case["inputs"]:
            (nn.Sequential(*blocks)(inputs[step]).square().mean() / divisor).backward()
        optimizer.step()
    with torch.no_grad():
        return _vectors(blocks), [nn.Sequential(*blocks)(inputs[-1]) for inputs in case["inputs"]]


def _joined(case, seen, name):
    """Each block's vector from the ranks' shards; what is behind the numbers is padding."""
    lengths = [len(vector) for vector in _vectors(stack(case))]
    return [torch.cat([one[name][n] for one in seen["ranks"]])[:length] for n, length in enumerate(lengths)]


def _near(seen, right):
    return equal(seen, right, 1e-9)


def _one_process(case, seen, right):
    numbers, outputs = _alone(case, case["world"])
    found = _joined(case, seen, "shards")
    if _near(found, numbers):
        same = _near([one["output"] for one in seen["ranks"]], outputs)
        return "" if same else "the weights are right, but a forward under torch.no_grad() is not that of one process"
    if _near(found, _vectors(stack(case))):
        return "the shards never change: does a gradient reach block.shard?"
    if _near(found, _alone(case, 1)[0]):
        return "the gradient is the ranks' sum; divide by their number"
    return "the shards are not those of one process that has the ranks' mean gradient"


def _only_a_shard(case, seen, right):
    vectors = _vectors(stack(case))
    if not _near(_joined(case, seen, "first"), vectors):
        return "the shards together are not flatten's vector of the trainable parameters, in the order of named_parameters()"
    lengths = [-(-len(vector) // case["world"]) for vector in vectors]
    if any([len(shard) for shard in one["shards"]] != lengths for one in seen["ranks"]):
        return "a shard is not 1/N of its block"
    kept = any(one["kept"] for one in seen["ranks"])
    return "the block's own parameters are still in memory: p.data = p.new_empty(0)" if kept else ""


def _whole(case):
    return [8 * case["world"] * -(-len(vector) // case["world"]) for vector in _vectors(stack(case))]


def _freed(case, seen, right):
    if seen["kinds"].count("allgather") * case["world"] == 0:
        return "no all-gather was called"
    if any(any(one["between"]) for one in seen["ranks"]):
        return "whole vectors are still in memory after the forward or after the backward: who keeps a reference?"
    most = 2 * max(_whole(case))
    if any(size > most for one in seen["ranks"] for *_, size in one["marks"]):
        return "more than two blocks' vectors are in memory at a time"
    if any(size == 0 for one in seen["ranks"] for *_, size in one["marks"]):
        return "a block computes while no collected vector is in memory: collect with start_all_gather"
    return ""


def _three_parts(case, seen, right):
    if {"allreduce", "broadcast"} & set(seen["kinds"]) or seen["count"]:
        return "it sends something else than all-gathers and reduce-scatters"
    ranks = case["world"]
    share = sum(_whole(case)) * (ranks - 1) / ranks
    if equal(seen["sent"], [(3 * STEPS + 1) * share] * ranks, 1e-9):
        return ""
    if equal(seen["sent"], [(2 * STEPS + 1) * share] * ranks, 1e-9):
        return "a step sends 2·(N − 1)/N of the numbers: the vectors are not freed and collected again, or gradients are not sent"
    return "a step does not send 3·(N − 1)/N of the numbers: all-gather, all-gather again, reduce-scatter, each once for a block"


def _ahead(case, seen, right):
    blocks = len(case["kinds"])
    for number, phase, started, _ in (mark for one in seen["ranks"] for mark in one["marks"]):
        due = min(number + 2, blocks) if phase == "forward" else min(2 * blocks - number + 1, 2 * blocks)
        if started < due:
            where = "its successor" if phase == "forward" else "its predecessor"
            return f"in {phase} a block computes before the all-gather of {where} was started"
    return ""


def _awkward_too(case, seen, right):
    return _one_process(case, seen, right) or _only_a_shard(case, seen, right)


_NO_BLOCK = "a block has to have .shard, and block(x) has to return the block's output"

ZERO3 = Exercise(("ShardedBlock",), _draw_stacks, observe_zero3, {
    "values": Part("The weights of one process", _NO_BLOCK, cases="steps", judge=_one_process),
    "shard": Part("Between steps a rank has a shard", _NO_BLOCK, cases="steps", judge=_only_a_shard),
    "free": Part("Whole vectors are freed", _NO_BLOCK, cases="steps", needs="values", judge=_freed),
    "bytes": Part("3·(N − 1)/N of the numbers are sent", _NO_BLOCK, cases="steps", needs="values", judge=_three_parts),
    "prefetch": Part("The next block's vector is on its way", _NO_BLOCK, cases="steps", needs="values bytes", judge=_ahead),
    "awkward": Part("Tied and frozen weights", "with tied or frozen weights in a block it is not right", cases="awkward", needs="values",
        judge=_awkward_too),
}, hint="launch two ranks with one nn.Linear(2, 2), and print the shard, the collected vector and the gradient", show="{about}",
    share=_own_inputs, guarded="awkward", **watched(3, lambda case: Traffic(case["world"]), world_of))  # fmt: skip

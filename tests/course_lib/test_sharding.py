"""The sharded optimiser and the sharded model against one process, PyTorch's own, and the ledger of bytes."""

import copy
import functools
import gc

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import error_of, on_ranks
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from course_lib.distributed import average_gradients, trace_messages
from course_lib.distributed.collectives.reduce_scatter import start_reduce_scatter
from course_lib.distributed.sharded_data_parallel import ShardedDataParallel, _Use
from course_lib.distributed.sharded_optimizer import ShardedOptimizer

STEPS, BATCH = 10, 12
MODELS = {
    "stage 3": ShardedDataParallel,
    "stage 3, no prefetch": functools.partial(ShardedDataParallel, prefetch=False),
    "stage 2": functools.partial(ShardedDataParallel, reshard_after_forward=False),
}
OPTIMIZERS = {
    "sgd": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adamw": functools.partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
}


class Block(nn.Module):
    def __init__(self, frozen_first):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        (self.first if frozen_first else self.second).requires_grad_(False)

    def forward(self, x):
        return x + self.second(torch.tanh(self.first(x)))


class Awkward(nn.Module):
    """Tied weights, frozen ones before and after others, a frozen block, channels last, a block that is used twice."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3).to(memory_format=torch.channels_last)
        self.norm = nn.GroupNorm(2, 4)
        self.first = nn.Linear(4 * 36, 8)
        self.blocks = nn.ModuleList([Block(True), Block(False), nn.Linear(8, 8).requires_grad_(False)])
        self.tied = nn.Linear(8, 8)
        self.head = nn.Linear(8, 8)
        self.head.weight = self.tied.weight
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, images):
        x = self.first(torch.tanh(self.norm(self.conv(images))).flatten(1))
        for block in self.blocks:
            x = torch.tanh(block(x))
        return self.head(torch.tanh(self.tied(self.blocks[0](x)))) * self.scale


def batch(step, dtype):
    generator = torch.Generator().manual_seed(step)
    images = torch.randn(BATCH, 2, 8, 8, generator=generator, dtype=dtype)
    return images, torch.randint(8, (BATCH,), generator=generator)


def train(how, make, dtype=torch.float32, steps=STEPS, pieces=1):
    """Losses and the whole state after some steps; each rank begins with another initialisation."""
    rank, ranks = (0, 1) if how == "one process" else (dist.get_rank(), dist.get_world_size())
    torch.manual_seed(7 + rank)
    model, optimizer = Awkward().to(dtype), None
    wrapped = model
    if how in MODELS:
        wrapped = MODELS[how](model)
    elif how != "one process":
        wrapped = DistributedDataParallel(model)
    if how == "stage 1":
        groups = [
            {"params": [p for p in model.parameters() if p.dim() > 1]},
            {"params": [p for p in model.parameters() if p.dim() == 1]},
        ]
        optimizer = ShardedOptimizer(groups, make.func, **make.keywords)
    else:
        optimizer = make(wrapped.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    losses = []
    for step in range(steps):
        images, labels = (part[rank * BATCH // ranks : (rank + 1) * BATCH // ranks] for part in batch(step, dtype))
        optimizer.zero_grad()
        for piece in range(pieces):
            loss = F.cross_entropy(wrapped(images[piece::pieces]), labels[piece::pieces]) / pieces
            if how in MODELS or piece == pieces - 1 or ranks == 1:
                loss.backward()
            else:
                with wrapped.no_sync():
                    loss.backward()
        if how in MODELS:
            wrapped.finish_gradient_synchronization()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    state = wrapped.full_state_dict() if how in MODELS else model.state_dict()
    return {name: tensor.detach().clone() for name, tensor in state.items()}


HOW = ("stage 1", *MODELS, "DDP")


def trajectories():
    found = {(how, name): train(how, make) for how in HOW for name, make in OPTIMIZERS.items()}
    found |= {(how, "float64"): train(how, OPTIMIZERS["adamw"], torch.float64) for how in HOW}
    return found | {(how, "pieces"): train(how, OPTIMIZERS["sgd"], pieces=2) for how in HOW}


def distance(a, b):
    assert list(a) == list(b)
    return max((a[name].double() - b[name].double()).abs().max().item() for name in a)


@pytest.mark.parametrize("ranks", [2, 3])
def test_ten_steps_are_those_of_one_process(ranks):
    results = on_ranks(trajectories, ranks)
    truths = {name: train("one process", make) for name, make in OPTIMIZERS.items()}
    truths["float64"] = train("one process", OPTIMIZERS["adamw"], torch.float64)
    torch.manual_seed(7)
    start = Awkward().state_dict()
    for name in ("conv.weight", "tied.weight", "scale", "blocks.0.second.weight", "blocks.1.first.bias"):
        assert (truths["adamw"][name] - start[name]).abs().max() > 1e-2, name  # or the comparison would say nothing
    assert torch.equal(truths["sgd"]["blocks.0.first.weight"], start["blocks.0.first.weight"])
    for how in HOW:
        for rank, states in enumerate(results):
            for name, truth in truths.items():
                assert distance(states[how, name], truth) < (1e-10 if name == "float64" else 1e-5), (how, name, rank)
                assert distance(states[how, name], results[0][how, name]) == 0
            assert distance(states[how, "pieces"], states["DDP", "pieces"]) < 1e-5, (how, rank)


WIDTH, LAYERS = 32, 5
LETTERS = {"all_gather": "g", "send": "s"}


def stack():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))


def ledger():
    """Numbers that this rank holds and sends, by stage."""
    ranks, found = dist.get_world_size(), {}
    x = torch.randn(4, WIDTH)
    for how in MODELS:
        model = MODELS[how](stack())
        optimizer = torch.optim.Adam(model.parameters())
        model(x).sum().backward()
        model.finish_gradient_synchronization()
        optimizer.step()
        peak = []
        note = functools.partial(lambda model, peak, *_: peak.append(collected(model)), model, peak)
        hooks = [layer.register_forward_pre_hook(note) for layer in model.module]
        with trace_messages() as trace:
            loss = model(x).sum()
            between = collected(model)
            optimizer.zero_grad()
            loss.backward()
            model.finish_gradient_synchronization()
        most = max(peak)
        peak.clear()
        with torch.no_grad():
            model(x)
        for hook in hooks:
            hook.remove()
        gathered = sum(message.nbytes for message in trace.collectives if message.kind == "all_gather") * (ranks - 1)
        found[how] = {
            "parameters": sum(p.numel() for p in model.parameters()),
            "gradients": sum(p.grad.numel() for p in model.parameters()),
            "state": sum(t.numel() for s in optimizer.state.values() for t in s.values() if t.dim()),
            "sent": (gathered + trace.bytes_sent) / 4,
            "most in forward": most,
            "most in evaluation": max(peak),
            "between": between,
            "after": collected(model),
            "order": "".join(LETTERS.get(message.kind, "") for message in trace.messages).replace(
                "s" * (ranks - 1), "s"
            ),
        }
    whole = stack()
    optimizer = ShardedOptimizer(whole.parameters(), torch.optim.Adam)
    DistributedDataParallel(whole)(x).sum().backward()
    with trace_messages() as trace:
        optimizer.step()
    found["stage 1"] = {
        "state": sum(t.numel() for s in optimizer.state.values() for t in s.values() if t.dim()),
        "sent": sum(message.nbytes for message in trace.collectives) / 4,
    }
    return found


def collected(model):
    """Numbers of whole vectors in memory now."""
    uses = [use for use in gc.get_objects() if isinstance(use, _Use) and use.wrapper is model]
    return sum(memory.untyped_storage().nbytes() // 4 for use in uses for memory in use._memory)


@pytest.mark.parametrize("ranks", [2, 4])
def test_each_rank_holds_and_sends_what_the_ledger_says(ranks):
    psi, layer = WIDTH * WIDTH * LAYERS, WIDTH * WIDTH
    share = psi // ranks
    for found in on_ranks(ledger, ranks):
        for how in MODELS:
            assert [found[how][kind] for kind in ("parameters", "gradients", "state")] == [share, share, 2 * share]
            assert found[how]["after"] == 0
        assert found["stage 3"]["sent"] == found["stage 3, no prefetch"]["sent"] == 3 * psi * (ranks - 1) / ranks
        assert found["stage 2"]["sent"] == 2 * psi * (ranks - 1) / ranks
        assert found["stage 3"]["between"] == 0 and found["stage 2"]["between"] == psi
        assert found["stage 3, no prefetch"]["most in forward"] == layer
        assert found["stage 3"]["most in forward"] == 2 * layer
        assert all(found[how]["most in evaluation"] <= 2 * layer for how in MODELS)
        # In backward a block's collection begins before the one behind it computes and scatters its gradient.
        assert found["stage 3"]["order"] == "ggggg" + "gg" + "sgsgsg" + "ss"
        assert found["stage 3, no prefetch"]["order"] == "ggggg" + "gsgsgsgsgs"
        assert found["stage 1"]["sent"] == psi
    assert sum(found["stage 1"]["state"] for found in on_ranks(ledger, ranks)) == 2 * psi


def against_pytorch():
    """Losses of our ways and of PyTorch's, the same model and data; checkpoints; errors."""
    rank = dist.get_rank()
    torch.manual_seed(1)
    images = torch.randn(STEPS, 6, WIDTH)[:, rank * 3 : rank * 3 + 3]

    def losses(model, optimizer, average=lambda: None):
        found = []
        for x in images:
            optimizer.zero_grad()
            loss = (model(x) - x).square().mean()
            loss.backward()
            average()
            optimizer.step()
            found.append(loss.item())
        return found

    found = {}
    plain = stack()
    found["ZeroRedundancyOptimizer"] = losses(
        DistributedDataParallel(plain), ZeroRedundancyOptimizer(plain.parameters(), torch.optim.Adam, lr=0.01)
    )
    own = stack()
    sharded_optimizer = ShardedOptimizer(own.parameters(), torch.optim.Adam, lr=0.01)
    found["ShardedOptimizer"] = losses(own, sharded_optimizer, lambda: average_gradients(own))
    theirs = stack()
    for layer in theirs:
        fully_shard(layer)
    fully_shard(theirs)
    found["fully_shard"] = losses(theirs, torch.optim.Adam(theirs.parameters(), lr=0.01))
    ours = ShardedDataParallel(stack())
    found["ShardedDataParallel"] = losses(
        ours, torch.optim.Adam(ours.parameters(), lr=0.01), ours.finish_gradient_synchronization
    )
    vector = torch.arange(6.0) + 10 * rank
    found["scattered"], found["vector"] = start_reduce_scatter(vector)().tolist(), vector.tolist()
    sizes = [torch.nn.Parameter(torch.zeros(n)) for n in (1, 1, 1, 3)]
    found["owners"] = list(ShardedOptimizer(sizes, torch.optim.SGD, lr=1.0).owner.values())
    normed = ShardedDataParallel(nn.Sequential(nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 1)))
    normed(images[0]).sum().backward()
    normed.finish_gradient_synchronization()
    found["buffer"] = normed.full_state_dict()["0.running_mean"], 0.1 * images[0].mean(0)
    found["evaluation"] = ours(images[0]).detach()
    with torch.no_grad():
        found["evaluation without graph"] = ours(images[0])
    found["model"], found["optimizer"] = ours.full_state_dict(), sharded_optimizer.full_state_dict()
    found["one rank's part"] = sharded_optimizer.state_dict()
    shards = ours.state_dict()
    ours.load_state_dict(shards)
    found["another mesh"] = error_of(lambda: ours.load_state_dict({name: t[:-1] for name, t in shards.items()}))
    whole = found["model"]
    found["a part"] = error_of(ours.load_full_state_dict, whole | {"4.weight": whole["4.weight"][:2]})
    found["not there"] = error_of(
        ours.load_full_state_dict, {name: t + 1 for name, t in whole.items() if name != "4.weight"}
    )
    found["kept"] = distance(ours.full_state_dict(), whole)
    found["few numbers"] = error_of(ShardedDataParallel, nn.Linear(1, 1, bias=False))
    with ours.whole_parameters():
        found["inside"] = ours.module[0].weight.shape
    found["outside"] = error_of(lambda: ours.module[0].weight.sum(), kind=RuntimeError)
    found["in a function"] = error_of(lambda: F.linear(images[0], ours.module[1].weight), kind=RuntimeError)
    found["other ranks' parameters"] = error_of(
        lambda: ShardedOptimizer(stack()[: 2 + rank].parameters(), torch.optim.SGD, lr=1.0)
    )
    return found


def resumed(model_state, optimizer_state, part):
    """One step from a checkpoint, and a state that is only a part."""
    torch.manual_seed(2)
    x = torch.randn(6, WIDTH)[dist.get_rank() * 6 // dist.get_world_size() :][: 6 // dist.get_world_size()]
    model = ShardedDataParallel(stack())
    model.load_full_state_dict(model_state)
    plain = stack()
    plain.load_state_dict(model_state)
    optimizer = ShardedOptimizer(plain.parameters(), torch.optim.Adam, lr=0.5)
    optimizer.load_state_dict(optimizer_state)
    difference = (model(x) - plain(x)).abs().max().item()
    plain(x).square().mean().backward()
    average_gradients(plain)
    optimizer.step()
    return difference, plain.state_dict(), error_of(lambda: optimizer.load_state_dict(part))


def test_as_pytorch_s_own_and_resumed_on_one_two_and_three_ranks():
    first, second = on_ranks(against_pytorch, 2)
    for found in (first, second):
        for ours, theirs in (("ShardedOptimizer", "ZeroRedundancyOptimizer"), ("ShardedDataParallel", "fully_shard")):
            assert found[ours] == pytest.approx(found[theirs], abs=1e-6)
        assert torch.equal(found["evaluation"], found["evaluation without graph"])
        assert found["inside"] == (WIDTH, WIDTH)
        assert sorted(found["owners"]) == [0, 1, 1, 1]  # three numbers each, by the largest first
        assert torch.allclose(found["buffer"][0], first["buffer"][1])  # rank 0's
        assert found["outside"].startswith("0.weight is used outside the forward of its block")
        assert found["in a function"].startswith("1.weight is used outside the forward of its block")
        assert found["another mesh"].startswith("shards.0 is not the shard of one of 2 rank(s) of this model")
        remedy = f"the whole model {(WIDTH, WIDTH)}; load what full_state_dict() of the same model returned"
        assert found["a part"] == f"4.weight: the checkpoint has the shape {(2, WIDTH)}, {remedy}"
        assert found["not there"] == f"4.weight: the checkpoint has no such tensor, {remedy}"
        assert found["kept"] == 0  # by what was refused
        assert found["few numbers"] == "the model has 1 number(s), fewer than the mesh's 2 ranks; use fewer ranks"
        assert found["other ranks' parameters"].startswith("rank 1 gave other parameters than rank 0 (3 against 2")
    assert first["scattered"] + second["scattered"] == [10.0, 12, 14, 16, 18, 20]
    assert second["vector"] == [10.0, 11, 12, 13, 14, 15]  # as it was
    assert second["optimizer"] is None and len(first["one rank's part"]["state"]) < LAYERS

    torch.manual_seed(2)
    x, plain = torch.randn(6, WIDTH), stack()
    plain.load_state_dict(first["model"])
    optimizer = torch.optim.Adam(plain.parameters(), lr=0.5)
    optimizer.load_state_dict(copy.deepcopy(first["optimizer"]))
    assert optimizer.param_groups[0]["lr"] == 0.01
    plain(x).square().mean().backward()
    optimizer.step()
    for ranks in (1, 2, 3):
        found = on_ranks(resumed, ranks, first["model"], first["optimizer"], first["one rank's part"])
        for rank, (difference, state, refusal) in enumerate(found):
            assert difference < 1e-6 and distance(state, plain.state_dict()) < 1e-5
            itself = (rank, ranks) == (0, 2)
            assert refusal == "no error" if itself else refusal.startswith("this is the state of rank 0 of 2 alone")


def test_without_a_process_group_it_says_where_to_build_it():
    for make in (ShardedDataParallel, lambda module: ShardedOptimizer(module.parameters(), torch.optim.SGD)):
        assert "build it in a worker that launch() runs" in error_of(
            lambda make=make: make(nn.Linear(2, 2)), kind=RuntimeError
        )


def in_bfloat16():
    """Losses, dtypes and gathered bytes of a training that computes in bfloat16; and PyTorch's own losses."""
    found = {}
    for how in ("ours", "PyTorch's", "float32"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.BatchNorm1d(16, affine=False), nn.Linear(16, 4))
        if how == "PyTorch's":
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
            for layer in (model[0], model[3], model):
                fully_shard(layer, mp_policy=policy)
        else:
            model = ShardedDataParallel(model, torch.bfloat16 if how == "ours" else None)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        losses = []
        for step in range(8):
            generator = torch.Generator().manual_seed(2 * step + dist.get_rank())
            x, labels = torch.randn(6, 8, generator=generator), torch.randint(4, (6,), generator=generator)
            optimizer.zero_grad()
            with trace_messages() as trace:
                output = model(x)
            loss = F.cross_entropy(output.float(), labels)
            loss.backward()
            if how != "PyTorch's":
                model.finish_gradient_synchronization()
            optimizer.step()
            losses.append(loss.item())
        sent = sum(message.nbytes for message in trace.collectives if message.kind == "all_gather")
        found[how] = {"losses": losses, "sent": sent, "output": output.dtype}
        if how != "PyTorch's":
            kept = [t for state in optimizer.state.values() for t in state.values() if t.dim()]
            kept += [shard.grad for shard in model.parameters()] + [*model.parameters()]
            found[how] |= {"kept": {t.dtype for t in kept}, "whole": model.gather_full_parameters()}
    return found


def test_blocks_compute_in_another_dtype_and_the_shards_keep_theirs():
    first, second = on_ranks(in_bfloat16, 2)
    for rank in (first, second):
        assert rank["ours"]["losses"] == pytest.approx(rank["PyTorch's"]["losses"], abs=0.01)
        assert rank["ours"]["losses"] != rank["float32"]["losses"]
        assert rank["ours"]["output"] == rank["PyTorch's"]["output"] == torch.bfloat16
        assert rank["ours"]["kept"] == {torch.float32}
        assert rank["ours"]["sent"] * 2 == rank["float32"]["sent"] > 0
    whole = first["ours"]["whole"]
    assert {name: tuple(t.shape) for name, t in whole.items()} == {
        "0.weight": (16, 8), "0.bias": (16,), "3.weight": (4, 16), "3.bias": (4,),
    }  # fmt: skip
    assert all(torch.equal(t, second["ours"]["whole"][name]) and t.dtype == torch.float32 for name, t in whole.items())
    assert any((t != t.bfloat16()).any() for t in whole.values())  # gathered from the shards, not rounded on the way

"""The data-parallel wrappers against one process on the whole batch, and against DistributedDataParallel."""

import functools
import gc

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import error_of, on_ranks
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from course_lib.distributed import trace_messages
from course_lib.distributed.data_parallel.bucketed import BucketedDataParallel
from course_lib.distributed.data_parallel.naive import NaiveDataParallel
from course_lib.distributed.data_parallel.overlapped import OverlappedDataParallel
from course_lib.distributed.data_parallel.replicas import ModelMismatchError

SMALL = 600 / 2**20  # MiB: several buckets for the models here
WRAPPERS = {
    "naive": NaiveDataParallel,
    "overlapped": OverlappedDataParallel,
    "buckets": functools.partial(BucketedDataParallel, bucket_mb=SMALL),
    "one bucket": BucketedDataParallel,
}


class Awkward(nn.Module):
    """Tied, frozen, channels last; one layer that is never used and one that only some samples use."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3).to(memory_format=torch.channels_last)
        self.first = nn.Linear(4 * 36, 8)
        self.second = nn.Linear(8, 8)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.third = nn.Linear(8, 8)
        self.third.weight = self.second.weight
        self.idle = nn.Linear(8, 8)
        self.sometimes = nn.Linear(8, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, images, marked):
        x = self.first(torch.tanh(self.conv(images)).flatten(1))
        x = self.third(torch.tanh(self.frozen(torch.tanh(self.second(x)))))
        if marked.any():
            x = x + marked[:, None] * self.sometimes(x)
        return self.head(x)


STEPS, BATCH = 5, 12


def step_of_data(step):
    """A batch; marked are some of its last third: the last rank's, and only in the first of two pieces."""
    generator = torch.Generator().manual_seed(step)
    images = torch.randn(BATCH, 2, 8, 8, generator=generator)
    number = torch.arange(BATCH)
    marked = (number >= 2 * BATCH // 3) & (number % 2 == 0)
    return images, marked.float(), torch.randint(5, (BATCH,), generator=generator)


def train(how, pieces, set_to_none, finish=True, dtype=torch.float32):
    """The state after five steps. On a rank every initialisation is another; one process has rank 0's."""
    rank, ranks = (0, 1) if how == "one process" else (dist.get_rank(), dist.get_world_size())
    torch.manual_seed(7 + rank)
    model = Awkward().to(dtype)
    if how == "DDP":
        wrapped = DistributedDataParallel(model, find_unused_parameters=True)
    else:
        wrapped = model if how == "one process" else WRAPPERS[how](model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)

    def backward(batch, piece):
        images, marked, labels = (part[piece::pieces] for part in batch)
        images = images.to(dtype)
        (F.cross_entropy(wrapped(images, marked.to(dtype)), labels) / pieces).backward()

    for step in range(STEPS):
        mine = tuple(part[rank * BATCH // ranks : (rank + 1) * BATCH // ranks] for part in step_of_data(step))
        optimizer.zero_grad(set_to_none=set_to_none)
        for piece in range(pieces - 1):
            if ranks == 1:
                backward(mine, piece)
            else:
                with wrapped.no_sync():
                    backward(mine, piece)
                    if how != "DDP":
                        wrapped.finish_gradient_synchronization()  # a loop may always call it
        backward(mine, pieces - 1)
        if how in WRAPPERS and finish:
            wrapped.finish_gradient_synchronization()
        optimizer.step()
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


CASES = [(pieces, set_to_none) for pieces in (1, 2) for set_to_none in (True, False)]


def all_trajectories():
    states = {(how, *case): train(how, *case) for how in (*WRAPPERS, "DDP") for case in CASES}
    states["no sync"] = train("naive", 1, True, finish=False)
    if dist.get_world_size() == 2:
        for how in (*WRAPPERS, "DDP"):
            states["bfloat16", how] = train(how, 1, True, dtype=torch.bfloat16)
    return states


def distance(a, b):
    assert list(a) == list(b)
    return max((a[name].float() - b[name].float()).abs().max().item() for name in a)


@pytest.mark.parametrize("ranks", [2, 3])
def test_five_steps_are_those_of_one_process_on_the_whole_batch(ranks):
    results = on_ranks(all_trajectories, ranks)
    for pieces, set_to_none in CASES:
        truth = train("one process", pieces, set_to_none)
        torch.manual_seed(7)
        start = Awkward().state_dict()
        for name in ("conv.weight", "second.weight", "sometimes.weight", "head.bias"):
            assert (truth[name] - start[name]).abs().max() > 1e-3, name  # or the comparison would say nothing
        for name in ("frozen.weight", "idle.weight"):
            assert torch.equal(truth[name], start[name])
        for how in (*WRAPPERS, "DDP"):
            for rank, states in enumerate(results):
                state = states[how, pieces, set_to_none]
                assert distance(state, truth) < 1e-5, (how, pieces, set_to_none, rank)
                assert torch.equal(state["second.weight"], state["third.weight"])
                assert distance(state, results[0][how, pieces, set_to_none]) == 0
    assert distance(results[1]["no sync"], results[0]["no sync"]) > 1e-3  # the ranks go ways of their own
    if ranks == 2:
        for how in WRAPPERS:
            for states in results:
                assert distance(states["bfloat16", how], states["bfloat16", "DDP"]) == 0, how


class Fork(nn.Module):
    """Each rank uses a branch of its own; the branches are alike, so that a mix-up would not be an error."""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(3, 3, bias=False)
        self.branches = nn.ModuleList(nn.Linear(3, 3, bias=False) for _ in range(2))

    def forward(self, x):
        return self.branches[dist.get_rank()](self.trunk(x))


def on_two_ranks():
    """The results of all small experiments, from one launch."""
    with trace_messages() as trace:
        return {key: value for how in WRAPPERS for key, value in experiments(how, trace).items()} | views_and_ddp()


def statistics(wrap):
    """Batch norm's buffers after two steps, from ranks that begin and train differently."""
    torch.manual_seed(dist.get_rank())
    model = wrap(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)))
    for step in range(2):
        seed = 2 * step + dist.get_rank()
        model(torch.randn(4, 1, 5, 5, generator=torch.Generator().manual_seed(seed))).sum().backward()
        if wrap is not DistributedDataParallel:
            model.finish_gradient_synchronization()
    return model, [buffer.clone() for buffer in model.buffers()]


def experiments(how, trace):
    results, wrap, rank = {}, WRAPPERS[how], dist.get_rank()
    torch.manual_seed(0)
    fork = Fork()
    mine = torch.autograd.grad(fork(torch.ones(2, 3)).square().sum(), fork.branches[rank].weight)[0]
    parts = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(parts, mine)
    model = wrap(fork)
    model(torch.ones(2, 3)).square().sum().backward()
    model.finish_gradient_synchronization()
    results[how, "branches"] = [
        (branch.weight.grad - part / 2).abs().max().item() for branch, part in zip(fork.branches, parts, strict=True)
    ]

    layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(50)))
    model = wrap(layers)
    before = len(trace.collectives)

    def note(where):
        results[how, where] = len(trace.collectives) - before

    with model.no_sync():
        model(torch.ones(1, 4)).sum().backward()
        model.finish_gradient_synchronization()
    model.zero_grad()
    loss = model(torch.ones(1, 4)).sum()
    note("no_sync and forward")
    hook = layers[0].weight.register_hook(lambda gradient: note("when backward reaches the first layer"))
    loss.backward()
    hook.remove()
    note("backward")
    model.finish_gradient_synchronization()
    note("all")

    again = BucketedDataParallel(layers)  # wrapped again: the hooks of the first must not work on
    del model
    gc.collect()
    before = len(trace.collectives)
    again.zero_grad()
    again(torch.ones(1, 4)).sum().backward()
    again.finish_gradient_synchronization()
    note("after wrapping again")

    model, results[how, "buffers"] = statistics(wrap)
    if rank == 0:
        model.eval()(torch.ones(1, 1, 5, 5))  # alone
        model.train()(torch.ones(2, 1, 5, 5))
    return results


def views_and_ddp():
    results = {"DDP's buffers": statistics(DistributedDataParallel)[1]}
    conv = nn.Conv2d(2, 4, 3).to(memory_format=torch.channels_last)
    model = BucketedDataParallel(conv)
    places = []
    for _ in range(2):
        model.zero_grad(set_to_none=False)
        model(torch.ones(1, 2, 5, 5)).sum().backward()
        model.finish_gradient_synchronization()
        places.append([parameter.grad.data_ptr() for parameter in conv.parameters()])
    results["in place"] = places[0] == places[1]
    results["one memory"] = conv.weight.grad.untyped_storage().data_ptr() == conv.bias.grad.untyped_storage().data_ptr()
    results["strides"] = conv.weight.grad.stride() == conv.weight.stride()
    return results


def test_order_messages_buffers_and_views():
    first, second = on_ranks(on_two_ranks, 2)
    for how in WRAPPERS:
        assert max(first[how, "branches"] + second[how, "branches"]) < 1e-6, how
        assert first[how, "no_sync and forward"] == 0, how
        assert first[how, "after wrapping again"] == 1, how
        for mine, theirs, ddp in zip(
            first[how, "buffers"], second[how, "buffers"], first["DDP's buffers"], strict=True
        ):
            assert torch.equal(mine, theirs) and torch.equal(mine, ddp), how
    # 100 tensors, and one message that says which were used; 4,000 bytes, in buckets of at most 600.
    for how, counts in {
        "naive": [0, 0, 101], "overlapped": [98, 100, 101], "buckets": [7, 8, 8], "one bucket": [0, 1, 1],
    }.items():  # fmt: skip
        found = [first[how, when] for when in ("when backward reaches the first layer", "backward", "all")]
        found[0] -= how == "overlapped" and found[0] == 99  # its bias may come before its weight
        assert found == counts, how
    assert first["in place"] and first["one memory"] and first["strides"]


def mistakes():
    """The errors of what can be done wrong, as each rank sees them."""
    rank, errors = dist.get_rank(), {}

    def model_with(width=4, frozen=False, tied=False, layout=torch.contiguous_format):
        model = nn.Sequential(nn.Conv2d(2, width, 3), nn.Linear(4, 4), nn.Linear(4, 4)).to(memory_format=layout)
        if tied:
            model[2].weight = model[1].weight
        model[1].bias.requires_grad_(not frozen)
        return model

    def step(model, inputs):
        model(inputs).sum().backward()
        model.finish_gradient_synchronization()

    for how, wrap in WRAPPERS.items():
        for what, changes in {
            "shape": {"width": 4 + rank},
            "frozen": {"frozen": rank == 1},
            "tied": {"tied": rank == 1},
            "layout": {"layout": torch.channels_last if rank else torch.contiguous_format},
        }.items():
            errors[how, what] = error_of(wrap, model_with(**changes), kind=ModelMismatchError)
        twice = wrap(nn.Linear(2, 2))  # an extra backward: added up by the naive one, refused by the others
        twice(torch.ones(1, 2)).sum().backward()
        errors[how, "twice"] = error_of(twice(torch.ones(1, 2)).sum().backward, kind=RuntimeError)
        linear = nn.Linear(2, 2)
        linear.bias.requires_grad_(False)
        frozen = wrap(linear)
        linear.bias.requires_grad_(True)
        errors[how, "unfrozen"] = error_of(step, frozen, torch.ones(1, 2), kind=RuntimeError)
        sparse = wrap(nn.Embedding(3, 2, sparse=True))
        errors[how, "sparse"] = error_of(step, sparse, torch.tensor([0]), kind=TypeError)
    errors["bucket sizes"] = error_of(BucketedDataParallel, nn.Linear(2, 2), 1 + rank, kind=ModelMismatchError)
    return errors


def test_mistakes_are_named_on_every_rank_in_one_line():
    first, second = on_ranks(mistakes, 2)
    for how in WRAPPERS:
        for what, parts in {
            "shape": ["rank 0 has 0.weight float32 (4, 2, 3, 3)", "rank 1 has 0.weight float32 (5, 2, 3, 3)"],
            "frozen": ["rank 0 has 1.bias float32 (4,),", "rank 1 has 1.bias float32 (4,) frozen"],
            "tied": ["rank 0 has 2.weight float32 (4, 4)", "rank 1 has 2.bias"],
            "layout": ["rank 1 has 0.weight float32 (4, 2, 3, 3) with strides (18, 1, 6, 2)"],
        }.items():
            assert first[how, what] == second[how, what]
            for part in [*parts, "the ranks hold different models", "build and wrap the same model"]:
                assert part in first[how, what], (how, what)
        assert ("no_sync()" in first[how, "twice"]) == (how != "naive"), first[how, "twice"]
        assert "bias was unfrozen" in first[how, "unfrozen"] and "sparse=False" in first[how, "sparse"], how
    assert "BucketedDataParallel(bucket_mb=1), rank 1 has BucketedDataParallel(bucket_mb=2)" in first["bucket sizes"]


def test_mistakes_that_one_process_can_make():
    with pytest.raises(RuntimeError, match=r"NaiveDataParallel needs a process group.*launch\(\)"):
        NaiveDataParallel(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="bucket_mb must be above 0, got 0"):
        BucketedDataParallel(nn.Linear(2, 2), 0)

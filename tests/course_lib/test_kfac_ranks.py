"""K-FAC on two ranks against one rank that has the whole batch; what is sent, and who works."""

import contextlib
import copy
import itertools
import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_lib.distributed import BucketedDataParallel, launch, trace_messages
from course_lib.optim import KFAC
from course_lib.optim.kfac_distribution import assign_greedily

cloudpickle.register_pickle_by_value(sys.modules[__name__])

SETTINGS = {"damping": 0.05, "factor_decay": 0.9, "factor_update_steps": 2, "inverse_update_steps": 3}
STEPS, IMAGES = 7, 8
CASES = list(itertools.product(("eigen", "cholesky"), ("comm-opt", "mem-opt")))
CLIP = {"kl_clip": 2e-3, "lr": 0.1}


class Branches(nn.Module):
    """A convolution, three linear layers and a layer that K-FAC skips; `branch` is used by images that sum above 0."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 3, 3, stride=2), nn.GroupNorm(1, 3)
        self.middle, self.branch, self.head = nn.Linear(27, 6), nn.Linear(6, 6, bias=False), nn.Linear(6, 4)
        self.whole = True

    def forward(self, x):
        h = torch.tanh(self.middle(self.norm(self.conv(x)).flatten(1)))
        return self.head(h + self.branch(h) if self.whole else h)


def problem():
    torch.manual_seed(1)
    x = torch.randn(STEPS, IMAGES, 1, 8, 8, dtype=torch.float64)
    return Branches().double(), x, torch.randint(4, (STEPS, IMAGES))


def train(model, kfac, x, y, *, micro_batches=1, finish=None, clip=None):
    """Each step's gradients, as the optimiser sees them."""
    optimizer, history = torch.optim.SGD(model.parameters(), lr=0.1), []
    for images, labels in zip(x, y, strict=True):
        optimizer.zero_grad()
        parts = list(zip(images.chunk(micro_batches), labels.chunk(micro_batches), strict=True))
        for number, (part, targets) in enumerate(parts):
            last = number == len(parts) - 1
            with contextlib.nullcontext() if last or not hasattr(model, "no_sync") else model.no_sync():
                (nn.functional.cross_entropy(model(part), targets) / len(parts)).backward()
        if finish:
            finish()
        kfac.step()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        history.append([torch.zeros(0) if p.grad is None else p.grad.clone() for p in model.parameters()])
        optimizer.step()
    return history


def on_a_rank(model, x, y):
    """Everything that two ranks are asked, in one launch."""
    rank, answers = dist.get_rank(), {}
    mine = slice(rank * IMAGES // 2, (rank + 1) * IMAGES // 2)
    x, y = x[:, mine], y[:, mine]

    def ddp(**options):
        return DistributedDataParallel(copy.deepcopy(model), **options)

    for inverse, distribution in CASES:
        wrapped = ddp(gradient_as_bucket_view=True)
        kfac = KFAC(wrapped, **SETTINGS, **CLIP, inverse=inverse, distribution=distribution)
        with trace_messages() as trace:
            history = train(wrapped, kfac, x, y, clip=0.5)
        answers[inverse, distribution] = {
            "history": history,
            "names": list(kfac.layers),
            "messages": [(message.kind, message.nbytes) for message in trace.messages],
            "formula": kfac.message_bytes(),
            "owners": kfac.owners,
            "clip": kfac.clip_factor,
        }

    wrapped = ddp()
    answers["accumulated"] = train(wrapped, KFAC(wrapped, **SETTINGS), x, y, micro_batches=2)
    wrapped = BucketedDataParallel(copy.deepcopy(model), 1.0)
    finish = wrapped.finish_gradient_synchronization
    kfac = KFAC(wrapped, **SETTINGS)
    answers["bucketed"] = train(wrapped, kfac, x, y, finish=finish)
    assert "conv" in kfac.layers

    # Only rank 1 uses the branch; in the second step nobody.
    answers["uneven"] = {}
    for distribution in ("comm-opt", "mem-opt"):
        wrapped = ddp(find_unused_parameters=True)
        kfac = KFAC(wrapped, 0.05, factor_update_steps=1, inverse_update_steps=1, distribution=distribution)
        wrapped.module.whole = rank == 1
        history = train(wrapped, kfac, x[:1], y[:1])
        used = (kfac.layers["branch"].A.clone(), kfac.layers["branch"].updates)
        wrapped.module.whole = False
        history += train(wrapped, kfac, x[1:2], y[1:2])
        answers["uneven"][distribution] = history, *used, kfac.layers["branch"].updates, kfac.layers["head"].updates
    return answers


@pytest.fixture(scope="module")
def ranks():
    return launch(on_a_rank, 2, args=problem(), timeout=600)


def close(history, expected):
    assert len(history) == len(expected)
    for step, (mine, theirs) in enumerate(zip(history, expected, strict=True)):
        for a, b in zip(mine, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12, msg=lambda text, step=step: f"step {step}: {text}")


def alone(inverse="eigen", clip=None, **more):
    model, x, y = problem()
    kfac = KFAC(model, **SETTINGS, inverse=inverse, **more)
    return train(model, kfac, x, y, clip=clip), kfac


@pytest.mark.parametrize("inverse, distribution", CASES)
def test_two_ranks_are_one_with_the_whole_batch(ranks, inverse, distribution):
    expected, kfac = alone(inverse, clip=0.5, **CLIP)
    assert kfac.clip_factor < 1
    for answers in ranks:
        answer = answers[inverse, distribution]
        close(answer["history"], expected)
        assert answer["clip"] == pytest.approx(kfac.clip_factor)
        assert answer["names"] == ["conv", "middle", "branch", "head"]  # without DDP's "module."
    for mine, theirs in zip(*(answers[inverse, distribution]["history"] for answers in ranks), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))  # to the bit, or replicas drift


@pytest.mark.parametrize("way", ["accumulated", "bucketed"])
def test_accumulation_and_our_own_wrappers(ranks, way):
    expected, _ = alone()
    for answers in ranks:
        close(answers[way], expected)


@pytest.mark.parametrize("inverse, distribution", CASES)
def test_the_bytes_sent_are_those_of_the_formula(ranks, inverse, distribution):
    sizes = {"conv": (10, 3), "middle": (28, 6), "branch": (6, 6), "head": (7, 4)}
    triangles = 8 * (sum(n * (n + 1) // 2 for pair in sizes.values() for n in pair) + len(sizes))
    extra = 1 if inverse == "eigen" else 0  # a row of eigenvalues
    inverses = 8 * sum(n * (n + extra) for pair in sizes.values() for n in pair)
    gradients = 8 * sum(a * g for a, g in sizes.values())
    factor_updates, inverse_updates = 4, 3  # of 7 steps, every second and every third
    for answers in ranks:
        answer = answers[inverse, distribution]
        sent = {kind: 0 for kind in ("all_reduce", "broadcast")}
        for kind, nbytes in answer["messages"]:
            sent[kind] += nbytes
        broadcast = inverse_updates * inverses if distribution == "comm-opt" else STEPS * gradients
        assert sent == {"all_reduce": factor_updates * triangles, "broadcast": broadcast}
        quiet = "step" if distribution == "comm-opt" else "inverses"
        assert answer["formula"] == {"factors": triangles, "inverses": inverses, "step": gradients} | {quiet: 0}
        owned = [
            n for (name, side), rank in answer["owners"].items() if rank == 0 for n in [sizes[name]["AG".index(side)]]
        ]
        assert 0 < len(owned) < 8


def test_each_layer_is_at_home_on_one_rank_under_mem_opt(ranks):
    for distribution in ("comm-opt", "mem-opt"):
        owners = ranks[0]["eigen", distribution]["owners"]
        assert owners == ranks[1]["eigen", distribution]["owners"]
        together = all(owners[name, "A"] == owners[name, "G"] for name in ("conv", "middle", "branch", "head"))
        assert together == (distribution == "mem-opt")


def test_a_layer_that_one_rank_used_has_that_ranks_factors(ranks):
    model, x, y = problem()
    kfac = KFAC(model, 0.05)
    nn.functional.cross_entropy(model(x[0, 4:]), y[0, 4:]).backward()
    kfac.step()
    for answers in ranks:
        (history, A, after_one, after_two, head), (other, *_) = answers["uneven"].values()
        torch.testing.assert_close(A, kfac.layers["branch"].A)
        assert (after_one, after_two, head) == (1, 1, 2)
        close(other, history)
        assert history[0][-3].abs().sum() > 0 and not history[1][-3].numel()  # the branch's weight


def test_the_greedy_deal_is_within_grahams_bound():
    torch.manual_seed(0)
    for ranks in (1, 2, 3):
        for _ in range(20):
            costs = {name: int(n) ** 3 for name, n in enumerate(torch.randint(1, 12, (6,)))}
            owners = assign_greedily(costs, ranks)
            assert list(owners) == list(costs)
            longest = max(sum(costs[k] for k in costs if owners[k] == rank) for rank in range(ranks))
            best = min(
                max(sum(c for c, r in zip(costs.values(), deal, strict=True) if r == rank) for rank in range(ranks))
                for deal in itertools.product(range(ranks), repeat=len(costs))
            )
            assert longest <= (4 / 3 - 1 / (3 * ranks)) * best + 1e-9
    assert assign_greedily({"a": 1, "b": 27, "c": 8, "d": 8, "e": 8}, 2) == {"a": 1, "b": 0, "c": 1, "d": 1, "e": 1}


def test_a_group_that_comes_up_later_is_refused(monkeypatch):
    model, x, y = problem()
    kfac = KFAC(model, **SETTINGS)
    nn.functional.cross_entropy(model(x[0]), y[0]).backward()
    monkeypatch.setattr("course_lib.optim.kfac.world_size", lambda: 2)
    with pytest.raises(RuntimeError, match="after the process group is up"):
        kfac.step()


def test_on_one_rank_nothing_is_sent():
    assert KFAC(problem()[0], **SETTINGS).message_bytes() == {"factors": 0, "inverses": 0, "step": 0}

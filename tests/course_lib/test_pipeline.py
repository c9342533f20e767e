"""Pipelines against the sequential model, their order against PyTorch's schedules, the bubble against its formula."""

import itertools
import time

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import error_of, on_ranks
from torch import nn
from torch.nn import functional as F

from course_lib.distributed.pipeline import SCHEDULES, Pipeline, Work, bubble

BATCH = 12


def make_stages(count):
    torch.manual_seed(0)
    layers = [
        nn.Flatten(),
        nn.Linear(6, 8),
        nn.Tanh(),
        nn.Linear(8, 8),
        nn.Tanh(),
        nn.Linear(8, 8),
        nn.Tanh(),
        nn.Linear(8, 3),
    ]
    whole = nn.Sequential(*layers).double()
    cuts = [round(index * len(layers) / count) for index in range(count + 1)]
    return whole, [whole[start:end] for start, end in itertools.pairwise(cuts)]


def data():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(BATCH, 2, 3, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(3, (BATCH,), generator=generator)


def steps():
    """Losses and gradients of this rank's stage after two steps, for each schedule and number of micro-batches."""
    found = {}
    for schedule in SCHEDULES:
        for micro_batches in (1, 2, 3, 12):
            _, stages = make_stages(dist.get_world_size())
            pipeline = Pipeline(stages, schedule)
            losses = [pipeline.step(*data(), F.cross_entropy, micro_batches) for _ in range(2)]
            before = {name: p.grad.clone() for name, p in pipeline.stage.named_parameters()}
            losses.append(pipeline.evaluate(*data(), F.cross_entropy, micro_batches))
            for name, parameter in pipeline.stage.named_parameters():
                assert torch.equal(parameter.grad, before[name])
            found[schedule, micro_batches] = losses, before
            if micro_batches == 12:
                pipeline.step(*data(), F.cross_entropy, micro_batches)
                order = [(work.kind, work.micro_batch) for work in pipeline.timeline]
                found[schedule, "kept"] = pipeline.most_in_flight, order
    refused = [
        error_of(Pipeline, stages[:1]),
        error_of(Pipeline, stages, "fast"),
        error_of(Pipeline, [stages[0], nn.Sequential(), *stages[2:]]),
        error_of(Pipeline, [None, *stages[1:]]),
        error_of(pipeline.step, *data(), F.cross_entropy, 5),
    ]
    return found, refused


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_any_number_of_micro_batches_gives_the_sequential_gradients(ranks):
    whole, stages = make_stages(ranks)
    loss = F.cross_entropy(whole(data()[0]), data()[1])
    (2 * loss).backward()  # two steps add up
    for rank, (found, refused) in enumerate(on_ranks(steps, ranks)):
        for schedule in SCHEDULES:
            for micro_batches in (1, 2, 3, 12):
                losses, gradients = found[schedule, micro_batches]
                assert losses == pytest.approx([loss.item()] * 3, abs=1e-6)
                for name, parameter in stages[rank].named_parameters():
                    assert (gradients[name] - parameter.grad).abs().max() < 1e-12, (schedule, micro_batches, name)
        assert found["gpipe", "kept"][0] == 12
        assert found["1f1b", "kept"][0] == ranks - rank
        for schedule in SCHEDULES:
            assert found[schedule, "kept"][1] == SCHEDULES[schedule](rank, ranks, 12)
        assert refused == [
            f"1 stages for {ranks} ranks; give one stage for each rank",
            "schedule must be gpipe or 1f1b, got 'fast'",
            f"stage 1 of {ranks} has no layers; give each rank a layer, or use fewer ranks",
            f"stage 0 of {ranks} has no layers; give each rank a layer, or use fewer ranks",
            "5 micro-batches do not divide a batch of 12; choose a divisor of the batch",
        ]


def their_orders(micro_batches):
    """The order of PyTorch's own schedules on this rank."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    found = {}
    for name, schedule in (("gpipe", ScheduleGPipe), ("1f1b", Schedule1F1B)):
        _, stages = make_stages(dist.get_world_size())
        module = stages[dist.get_rank()]
        stage = PipelineStage(module, dist.get_rank(), dist.get_world_size(), torch.device("cpu"))
        order = []
        forward, backward = stage.forward_one_chunk, stage.backward_one_chunk
        stage.forward_one_chunk = lambda index, *a, f=forward, o=order, **k: (
            o.append(("forward", index)),
            f(index, *a, **k),
        )[1]
        stage.backward_one_chunk = lambda index, *a, f=backward, o=order, **k: (
            o.append(("backward", index)),
            f(index, *a, **k),
        )[1]
        running = schedule(stage, micro_batches, F.cross_entropy)
        inputs, targets = data()
        running.step(*([inputs] if stage.is_first else []), **({"target": targets} if stage.is_last else {}))
        found[name] = order
    return found


@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 4), (3, 6), (4, 4)])
def test_the_orders_are_those_of_pytorch_s_schedules(ranks, micro_batches):
    for rank, found in enumerate(on_ranks(their_orders, ranks, micro_batches)):
        for name, order in found.items():
            assert SCHEDULES[name](rank, ranks, micro_batches) == order, (name, rank)


class Sleeping(torch.autograd.Function):
    """The identity, a fixed time in each direction, whatever the processor does."""

    @staticmethod
    def forward(ctx, x):
        time.sleep(0.02)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(0.02)
        return gradient


class SleepingStage(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return Sleeping.apply(x * self.weight)


def timelines():
    pipeline = Pipeline([SleepingStage() for _ in range(dist.get_world_size())], "1f1b")
    return [(pipeline.step(torch.ones(8, 1), torch.ones(8, 1), F.mse_loss, 8), pipeline.timeline)[1] for _ in range(2)][
        1
    ]


def test_the_bubble_of_a_timeline():
    ideal = [
        [Work("forward", 0, 0.0, 1.0), Work("backward", 0, 3.0, 4.0)],
        [Work("forward", 0, 1.0, 2.0), Work("backward", 0, 2.0, 3.0)],
    ]
    assert bubble(ideal) == 0.5  # (2 - 1) / (1 + 2 - 1)
    measured = on_ranks(timelines, 3)
    assert [len(timeline) for timeline in measured] == [16] * 3
    assert bubble(measured) > 2 / 10  # (p - 1)/(m + p - 1) is its lower bound; how much above depends on the machine

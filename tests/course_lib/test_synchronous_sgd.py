"""Algorithm 1 against one process that has the whole batch, and against PyTorch's DistributedDataParallel."""

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import error_of, on_ranks
from torch import nn
from torch.nn import functional as F

from course_lib.distributed.data_parallel.synchronous_sgd import average_gradients
from course_lib.distributed.messages.message_trace import trace_messages

RANKS = 3
UNEVEN = [5, 8, 0]  # images a rank


def network(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(2, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, 8), nn.ReLU(), nn.Linear(8, 4))
    return model.to(memory_format=torch.channels_last)


def images(counts, seed=1):
    """A batch for each rank."""
    generator = torch.Generator().manual_seed(seed)
    batch = (
        torch.randn(sum(counts), 2, 8, 8, generator=generator),
        torch.randint(4, (sum(counts),), generator=generator),
    )
    return list(zip(*(part.split(counts) for part in batch), strict=True))


def gradients(model):
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


def trained(model, batches, average):
    """The weights after a step with momentum for each batch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for x, y in batches:
        optimizer.zero_grad()
        if len(x):
            F.cross_entropy(model(x), y).backward()
        average(model, len(x))
        optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def worker():
    rank, results = dist.get_rank(), {}
    results["uneven"] = trained(network(), [images(UNEVEN, step)[rank] for step in range(5)], average_gradients)

    x, y = images([4] * RANKS)[rank]
    theirs = nn.parallel.DistributedDataParallel(network())
    F.cross_entropy(theirs(x), y).backward()
    results["DDP"] = gradients(theirs)
    ours = network().to(memory_format=torch.contiguous_format)
    F.cross_entropy(ours(x), y).backward()
    with trace_messages() as trace:
        average_gradients(ours)
    results["gradient"] = gradients(ours)
    results["messages"] = [message.kind for message in trace.messages]

    partly = network()
    partly[0].weight.requires_grad_(False)
    if rank == 0:  # the others have no gradient for the last layer's weight
        partly[5].weight.grad = torch.full_like(partly[5].weight, 6.0)
    results["images"] = average_gradients(partly, samples=2 - rank)
    results["partly"] = gradients(partly)

    for samples in (0, -1):
        results[f"samples {samples}"] = error_of(average_gradients, network(), samples)
    half = network().bfloat16()
    for p in half.parameters():
        p.grad = torch.full_like(p, float(rank))
    results["bfloat16"] = average_gradients(half, samples=1001), half[0].weight.grad.unique().tolist()
    return results


@pytest.fixture(scope="module")
def ranks():
    return on_ranks(worker, RANKS)


def same(tensors, expected, tolerance=1e-6):
    return all(torch.allclose(a, b, atol=tolerance, rtol=tolerance) for a, b in zip(tensors, expected, strict=True))


def test_five_steps_are_those_of_one_process_on_the_joined_batch(ranks):
    joined = [tuple(map(torch.cat, zip(*images(UNEVEN, step), strict=True))) for step in range(5)]
    expected = trained(network(), joined, lambda model, samples: None)
    for rank in ranks:
        assert same(rank["uneven"], expected, 1e-5)
        assert all(torch.equal(a, b) for a, b in zip(rank["uneven"], ranks[0]["uneven"], strict=True))


def test_gradients_are_those_of_ddp_in_one_message(ranks):
    for rank in ranks:
        assert same(rank["gradient"], rank["DDP"])
        assert rank["messages"] == ["all_reduce"]


def test_missing_gradients_count_as_zero_and_frozen_parameters_are_left_alone(ranks):
    for rank in ranks:
        frozen, *others = rank["partly"]
        assert frozen is None and rank["images"] == 3
        assert torch.allclose(others[-2], torch.full((4, 8), 4.0))  # 6·2 images of 3
        assert all(not gradient.any() for gradient in (*others[:-2], others[-1]))


def test_a_step_without_images_is_an_error(ranks):
    assert "no rank has images" in ranks[0]["samples 0"] and "at least 0" in ranks[0]["samples -1"]


def test_half_precision_gradients_do_not_lose_count_of_the_images(ranks):
    assert ranks[0]["bfloat16"] == (3003, [1.0])

"""The average of the workers' models, on ranks of torch.distributed."""

import torch
import torch.distributed as dist
from gloo_ranks import on_ranks
from torch import nn

from course_lib.distributed.local_sgd.parameter_averaging import average_parameters
from course_lib.distributed.messages.message_trace import trace_messages


def network(seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3)).to(dtype)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.copy_(torch.rand(tensor.shape, generator=generator) * 10 + 1)
    model[1].num_batches_tracked.fill_(1 + (seed > 0))  # the mean, 5/3, is nearly 2
    return model


def averaged(dtypes):
    """For each dtype: the rank's model before and after, and the kinds of its messages."""
    rank, found = dist.get_rank(), []
    for dtype in dtypes:
        model = network(rank, dtype)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        with trace_messages() as trace:
            average_parameters(model)
        found.append((before, model.state_dict(), [message.kind for message in trace.messages]))
    return found


TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 1e-2}


def test_the_average_covers_the_buffers_and_is_one_all_reduce():
    for dtype, ranks in zip(TOLERANCE, zip(*on_ranks(averaged, 3, tuple(TOLERANCE)), strict=True), strict=True):
        before, after, messages = zip(*ranks, strict=True)
        assert messages == (["all_reduce"],) * 3
        for name, first in after[0].items():
            mean = sum(b[name].double() for b in before) / 3
            if not first.is_floating_point():
                mean = mean.round()
            assert first.dtype == before[0][name].dtype
            torch.testing.assert_close(first, mean.to(first.dtype), rtol=TOLERANCE[dtype], atol=0)
            assert all(torch.equal(first, other[name]) for other in after[1:])
        assert not torch.equal(before[0]["1.num_batches_tracked"], before[1]["1.num_batches_tracked"])

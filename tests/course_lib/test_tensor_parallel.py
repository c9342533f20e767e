"""Divided linear layers against the whole ones, forward and gradients, and against PyTorch's own."""

import copy

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import error_of, on_ranks
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from course_lib.distributed import trace_messages
from course_lib.distributed.tensor_parallel import ColumnParallelLinear, RowParallelLinear, sum_over_ranks


class MLP(nn.Module):
    def __init__(self, bias=True):
        super().__init__()
        self.up, self.down = nn.Linear(6, 12, bias), nn.Linear(12, 6, bias)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(x)))


def divided(bias, group=None):
    """The whole MLP, its parts, and what both say of one batch, in float64."""
    torch.manual_seed(0)
    whole = MLP(bias).double()
    part = MLP(bias).double()
    part.up = ColumnParallelLinear.from_linear(whole.up, group)
    part.down = RowParallelLinear.from_linear(whole.down, group)
    return whole, part


def compare(bias):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole, part = divided(bias)
    found = {}
    results = {}
    for name, model in (("whole", whole), ("part", part)):
        x = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64).requires_grad_()
        with trace_messages() as trace:
            y = model(model(x))  # two layers deep: the first gets a gradient through the second's collectives
            y.square().mean().backward()
        results[name] = (y.detach(), x.grad)
        found["messages", name] = [(message.kind, message.nbytes) for message in trace.collectives]
    (y, gradient), (other_y, other_gradient) = results["whole"], results["part"]
    found["output"] = (y - other_y).abs().max().item()
    found["input's gradient"] = (gradient - other_gradient).abs().max().item()
    expected = {
        "up.weight": whole.up.weight.grad.chunk(ranks, 0)[rank],
        "down.weight": whole.down.weight.grad.chunk(ranks, 1)[rank],
    }
    if bias:
        expected |= {"up.bias": whole.up.bias.grad.chunk(ranks)[rank], "down.bias": whole.down.bias.grad}
    for name, parameter in part.named_parameters():
        assert parameter.shape == expected[name].shape and parameter.is_contiguous()
        found[name] = (parameter.grad - expected[name]).abs().max().item()

    theirs = copy.deepcopy(divided(bias)[0])
    mesh = init_device_mesh("cpu", (ranks,))
    parallelize_module(theirs, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    x = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    theirs(theirs(x)).square().mean().backward()
    for name, parameter in theirs.named_parameters():
        mine = dict(part.named_parameters())[name]
        found["PyTorch's", name] = (parameter.grad.to_local() - mine.grad).abs().max().item()
    return found


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("bias", [True, False])
def test_parts_compute_what_the_whole_computes(ranks, bias):
    for found in on_ranks(compare, ranks, bias):
        assert found.pop(("messages", "whole")) == []
        batch = 2 * 5 * 6 * 8
        assert found.pop(("messages", "part")) == [("all_reduce", batch)] * 4  # two in forward, two in backward
        assert {key: value for key, value in found.items() if not value < 1e-12} == {}


def drawn():
    """First weights and refusals, and a layer of two ranks of four."""
    torch.manual_seed(5)
    layer = ColumnParallelLinear(4, 8)
    errors = [
        error_of(ColumnParallelLinear, 4, 6),
        error_of(RowParallelLinear, 6, 4),
        error_of(RowParallelLinear, 3, 4),
    ]
    ones = torch.ones(2)
    assert sum_over_ranks(ones).tolist() == [4, 4] and ones.tolist() == [1, 1]
    layer.load_state_dict(layer.state_dict())
    errors.append(error_of(nn.Sequential(layer).load_state_dict, {"0.weight": torch.zeros(4, 4), "0.bias": layer.bias}))
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    whole, part = divided(True, pairs[dist.get_rank() // 2])
    x = torch.randn(3, 6, generator=torch.Generator().manual_seed(dist.get_rank() // 2), dtype=torch.float64)
    return layer.weight.detach(), errors, (whole(x) - part(x)).abs().max().item(), repr(part.up)


def test_ranks_draw_parts_of_one_matrix_and_may_form_groups():
    found = on_ranks(drawn, 4)
    torch.manual_seed(5)
    assert torch.equal(torch.cat([weight for weight, *_ in found]), nn.Linear(4, 8).weight)
    for _, errors, difference, text in found:
        assert errors == [
            "out_features=6 cannot be divided among 4 ranks; choose a number of ranks that divides it",
            "in_features=6 cannot be divided among 4 ranks; choose a number of ranks that divides it",
            "in_features=3 is smaller than the mesh of 4 ranks; use at most 3",
            "0.weight: the checkpoint has the shape (4, 4), a part for 4 ranks has (2, 4); load a checkpoint of the same "
            "number of ranks, or the whole layer by from_linear",
        ]
        assert difference < 1e-12
        assert text == "ColumnParallelLinear(in_features=6, out_features=12, out_features divided)"

"""Lab 14: what the ranks of a tensor-parallel block compute, and what they send each other."""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from course_lib.exercises.comparing import equal
from course_lib.exercises.description import Exercise, Part
from course_lib.exercises.ranks.collective_broker import CollectiveBroker
from course_lib.exercises.ranks.collective_process_group import collective_group
from course_lib.exercises.ranks.watched_ranks import watched

__all__ = ["BLOCKS", "CONJUGATE", "LAYERS"]

RANKS = 3
GROUP = (0, 2)  # of the cases with a group: rank 1 is alone in another


class Counted(CollectiveBroker):
    """Counts collectives by kind, and those of each group; the sums of all-reduces, and whether ranks bring the same."""

    def __init__(self, size):
        super().__init__(size)
        self.sums, self.alike = [], False

    def combined(self, collective):
        first, *others = (collective.brought[rank] for rank in collective.members)
        self.alike = self.alike or any(all(map(torch.equal, first, theirs)) for theirs in others)
        ended = CollectiveBroker.combined(collective)
        if collective.kind == "allreduce":
            self.sums += [tensor.clone() for tensor in ended[0]]
        return ended

    def evidence(self):
        seen = super().evidence()
        calls = [(each.kind, list(each.members), each.nbytes(each.members[0])) for each in self.collectives]
        return seen | {"calls": calls, "messages": len(self.messages), "sums": self.sums, "alike": self.alike}


def members_of(case, rank):
    """The ranks that share a layer with `rank`."""
    return list(range(RANKS)) if case["what"] != "group" else list(GROUP) if rank in GROUP else [rank]


def group_of(case, rank):
    """The process group of these ranks; None for all."""
    if case["what"] != "group":
        return None
    groups = [dist.new_group(list(GROUP)), dist.new_group([n for n in range(RANKS) if n not in GROUP])]
    return groups[0 if rank in GROUP else 1]


def _close(seen, right):
    return isinstance(seen, torch.Tensor) and equal(seen, right, 1e-6)


def _gauss(random, *shape):
    return torch.from_numpy(random.normal(0, 1, shape))


def _on_ranks():
    return watched(RANKS, lambda case: Counted(RANKS))


# --- copy_to_ranks, sum_over_ranks


def _draw_conjugate(random):
    def case(what):
        shape = tuple(int(n) for n in random.integers(2, 5, 2))
        values = {name: [_gauss(random, *shape) for _ in range(RANKS)] for name in ("x", "from_f", "from_g")}
        return {"what": what, "about": f"{RANKS} ranks, {what}, tensors of shape {shape}"} | values

    return {"all": [case("all ranks"), case("all ranks")], "group": [case("group")]}


def _own_tensors(case, rank):
    return case | {name: case[name][rank] for name in ("x", "from_f", "from_g")}


def observe_conjugate(case, rank, outside, copy_to_ranks, sum_over_ranks):
    found = {}
    with collective_group(rank, RANKS, outside):
        group = group_of(case, rank)
        for name, function in (("f", copy_to_ranks), ("g", sum_over_ranks)):
            x, upstream = case["x"].clone().requires_grad_(), case[f"from_{name}"].clone()
            inside = 1 * x  # no leaf: an operation in place is possible, and wrong
            out = function(inside, group)
            before = out.detach().clone()
            out.backward(upstream)
            kept = torch.equal(inside, case["x"]) and torch.equal(upstream, case[f"from_{name}"])
            found |= {name: before, f"{name}_grad": x.grad, f"{name}_kept": kept}
    return found


def _sum(case, name, rank):
    return sum(case[name][member] for member in members_of(case, rank))


def _f(case, seen, right):
    for rank, one in enumerate(seen["ranks"]):
        if not _close(one["f"], case["x"][rank]):
            summed = _close(one["f"], _sum(case, "x", rank)) and case["what"] != "group"
            return "f sums in forward; its forward is the tensor itself" if summed else "the forward of f is not the tensor itself"
    if all(_close(one["f_grad"], _sum(case, "from_f", rank)) for rank, one in enumerate(seen["ranks"])):
        return ""
    if all(_close(one["f_grad"], case["from_f"][rank]) for rank, one in enumerate(seen["ranks"])):
        return "the backward of f passes the gradient on as it is; each rank has a part of it, and the parts have to be summed"
    if all(_close(one["f_grad"], _sum(case, "from_f", rank) / RANKS) for rank, one in enumerate(seen["ranks"])):
        return "the backward of f gives the mean; the parts of a gradient are summed"
    return "the gradient behind f is not the sum of the ranks' gradients"


def _g(case, seen, right):
    for rank, one in enumerate(seen["ranks"]):
        if not _close(one["g"], _sum(case, "x", rank)):
            own = _close(one["g"], case["x"][rank])
            return "the forward of g is the rank's own tensor; sum over the ranks" if own else "the forward of g is not the sum over the ranks"
    if all(_close(one["g_grad"], case["from_g"][rank]) for rank, one in enumerate(seen["ranks"])):
        return ""
    if all(_close(one["g_grad"], _sum(case, "from_g", rank)) for rank, one in enumerate(seen["ranks"])):
        return "the backward of g sums the gradients: they become as many times too large as there are ranks"
    return "the gradient behind g is not the gradient before it"


def _conjugate_kept(case, seen, right):
    if all(one["f_kept"] is True and one["g_kept"] is True for one in seen["ranks"]):
        return ""
    return "dist.all_reduce overwrites its tensor, and yours is the caller's: clone it first"


_NO_TENSOR = "it should return a tensor of the shape of x, through which a gradient flows"
_OTHER_GROUP = "with a group of ranks 0 and 2 it is not right: "
_TO_ALL_REDUCE = "give group=group to dist.all_reduce"


def _grouped(remedy, *judges):
    """A judge of the cases with a group, in which any fault has this remedy."""

    def judge(case, seen, right):
        return _OTHER_GROUP + remedy if any(each(case, seen, right) for each in judges) else ""

    return judge


CONJUGATE = Exercise(("copy_to_ranks", "sum_over_ranks"), _draw_conjugate, observe_conjugate, {
    "f": Part("copy_to_ranks: the tensor itself; the gradients are summed", _NO_TENSOR, cases="all", judge=_f),
    "g": Part("sum_over_ranks: the sum; the gradient as it is", _NO_TENSOR, cases="all", judge=_g),
    "kept": Part("What they are given stays as it was", _NO_TENSOR, cases="all", needs="f g", judge=_conjugate_kept),
    "group": Part("Within a group of some ranks", _OTHER_GROUP + _TO_ALL_REDUCE, cases="group", needs="f g",
        judge=_grouped(_TO_ALL_REDUCE, _f, _g)),
}, "on two ranks, with x = 1 and 2 and y = 3·f(x) on rank 0, 5·f(x) on rank 1: x.grad is 8 on both",
    share=_own_tensors, guarded="all group", **_on_ranks())  # fmt: skip

# --- ColumnParallelLinear, RowParallelLinear


def _draw_layers(random):
    def case(what, bias=True):
        inputs, outputs = (6 * int(n) for n in random.choice(3, 2, replace=False) + 1)
        return {
            "what": what, "bias": _gauss(random, outputs) if bias else None, "weight": _gauss(random, outputs, inputs),
            "x": _gauss(random, 2, 3, inputs), "upstream": _gauss(random, 2, 3, outputs),
            "about": f"{RANKS} ranks, {what}, a layer of {inputs} inputs and {outputs} outputs, {'with' if bias else 'no'} bias",
        }  # fmt: skip

    return {"all": [case("all ranks"), case("all ranks", False)], "group": [case("group")]}


def observe_layers(case, rank, outside, ColumnParallelLinear, RowParallelLinear):
    outputs, inputs = case["weight"].shape
    members, found = members_of(case, rank), {}
    place, size = members.index(rank), len(members)
    with collective_group(rank, RANKS, outside):
        group = group_of(case, rank)
        for name, layer_class in (("column", ColumnParallelLinear), ("row", RowParallelLinear)):
            linear = nn.Linear(inputs, outputs, case["bias"] is not None, dtype=torch.float64)
            with torch.no_grad():
                linear.weight.copy_(case["weight"])
                if case["bias"] is not None:
                    linear.bias.copy_(case["bias"])
            layer = layer_class(linear, group)
            x, upstream = case["x"].clone(), case["upstream"].clone()
            if name == "column":
                upstream = upstream.chunk(size, -1)[place].contiguous()
            else:
                x = x.chunk(size, -1)[place].contiguous()
            x.requires_grad_()
            out = layer(x)
            found[name] = out.detach().clone()
            out.backward(upstream)
            parameters = list(layer.parameters())
            found |= {
                f"{name}_x": x.grad, f"{name}_weight": layer.weight.grad,
                f"{name}_bias": None if case["bias"] is None else layer.bias.grad,
                f"{name}_numbers": sum(p.numel() for p in parameters),
                f"{name}_kept": sum(p.untyped_storage().nbytes() for p in parameters) // 8,
                f"{name}_own": not {p.data_ptr() for p in parameters} & {p.data_ptr() for p in linear.parameters()},
            }  # fmt: skip
    return found


def _whole(case):
    weight = case["weight"].clone().requires_grad_()
    x = case["x"].clone().requires_grad_()
    bias = None if case["bias"] is None else case["bias"].clone().requires_grad_()
    product = F.linear(x, weight)
    (product if bias is None else product + bias).backward(case["upstream"])
    return product.detach(), x.grad, weight.grad, None if bias is None else bias.grad


def _part(case, rank, tensor, dim):
    members = members_of(case, rank)
    return tensor.chunk(len(members), dim)[members.index(rank)]


def _ends(case, seen):
    return list(enumerate(seen["ranks"]))


def _column(case, seen, right):
    product, _, of_weight, of_bias = _whole(case)
    out = product if case["bias"] is None else product + case["bias"]
    if not all(_close(one["column"], _part(case, rank, out, -1)) for rank, one in _ends(case, seen)):
        return "the column-parallel layer's output on rank r is not part r of the whole layer's output features"
    if not all(_close(one["column_weight"], _part(case, rank, of_weight, 0)) for rank, one in _ends(case, seen)):
        return "the gradient of the column-parallel layer's weight is not the whole one's part"
    if of_bias is not None and not all(
        _close(one["column_bias"], _part(case, rank, of_bias, 0)) for rank, one in _ends(case, seen)
    ):
        return "the gradient of the column-parallel layer's bias is not the whole one's part"
    return ""


def _column_input(case, seen, right):
    _, of_x, _, _ = _whole(case)
    if all(_close(one["column_x"], of_x) for _, one in _ends(case, seen)):
        return ""
    parts = [
        F.linear(_part(case, rank, case["upstream"], -1), _part(case, rank, case["weight"], 0).T) for rank in range(RANKS)
    ]
    if all(_close(one["column_x"], parts[rank]) for rank, one in _ends(case, seen)):
        return "the input's gradient is this rank's part only: x has to pass through copy_to_ranks, whose backward sums"
    return "the gradient that the column-parallel layer gives its input is not the whole layer's"


def _row(case, seen, right):
    product, of_x, of_weight, _ = _whole(case)
    bias = 0 if case["bias"] is None else case["bias"]
    for rank, one in _ends(case, seen):  # how often the bias counts is another part's
        if not any(_close(one["row"], product + times * bias) for times in (0, 1, len(members_of(case, rank)))):
            own = F.linear(_part(case, rank, case["x"], -1), _part(case, rank, case["weight"], 1))
            if any(_close(one["row"], own + times * bias) for times in (0, 1)):
                return "each rank returns its own part of the sum: sum_over_ranks is missing"
            return "the row-parallel layer's output is not the whole layer's"
    if not all(_close(one["row_weight"], _part(case, rank, of_weight, 1)) for rank, one in _ends(case, seen)):
        return "the gradient of the row-parallel layer's weight is not the whole one's part"
    if not all(_close(one["row_x"], _part(case, rank, of_x, -1)) for rank, one in _ends(case, seen)):
        return "the gradient that the row-parallel layer gives its input is not the whole one's part"
    return ""


def _row_bias(case, seen, right):
    if case["bias"] is None:
        return ""
    product, _, _, of_bias = _whole(case)
    for rank, one in _ends(case, seen):
        if not _close(one["row"], product + case["bias"]):
            times = _close(one["row"], product + len(members_of(case, rank)) * case["bias"])
            return "the bias is added once by each rank; add it after the sum" if times else "the bias is not added"
        if not _close(one["row_bias"], of_bias):
            return "the gradient of the row-parallel layer's bias is not the whole one's"
    return ""


def _own_numbers(case, seen, right):
    outputs, inputs = case["weight"].shape
    for rank, one in _ends(case, seen):
        size, bias = len(members_of(case, rank)), case["bias"] is not None
        wanted = {"column": (outputs * inputs + bias * outputs) // size, "row": outputs * inputs // size + bias * outputs}
        if any(one[f"{name}_numbers"] != most for name, most in wanted.items()):
            return "the layer's parameters are not this rank's part of the weight, and the bias"
        if any(one[f"{name}_kept"] != most for name, most in wanted.items()):
            return "the parameters are views of the whole weight, which stays in memory: clone the part"
        if not all(one[f"{name}_own"] is True for name in wanted):
            return "a parameter is that of the layer that was given: clone it, so that the layer has parameters of its own"
    return ""


_NO_LAYER = "it is no nn.Module with the parameters `weight` and `bias` (None without one), or it returns no tensor"
_part_of = partial(Part, wrong=_NO_LAYER)

LAYERS = Exercise(("ColumnParallelLinear", "RowParallelLinear"), _draw_layers, observe_layers, {
    "column": _part_of("Column-parallel: some of the output features", cases="all", judge=_column),
    "column-input": _part_of("Column-parallel: the input's gradient is whole", cases="all", judge=_column_input),
    "row": _part_of("Row-parallel: the whole sum, and the gradients", cases="all", judge=_row),
    "row-bias": _part_of("Row-parallel: the bias once", cases="all", needs="row", judge=_row_bias),
    "own": _part_of("Each rank keeps its own part only", cases="all", needs="column row", judge=_own_numbers),
    "group": _part_of("Within a group of some ranks", cases="group", needs="column column-input row row-bias",
        judge=_grouped("the number and the place of the ranks are dist.get_world_size(group) and dist.get_rank(group)", _column,
            _column_input, _row, _row_bias)),
}, "with a layer of 2 inputs and 2 outputs on two ranks, print weight, output and x.grad on both, and on one process the whole layer's",
    guarded="all group", **_on_ranks())  # fmt: skip

# --- ParallelMLP, ParallelAttention


class WholeMLP(nn.Module):
    """As the notebook's MLP."""

    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class WholeAttention(nn.Module):
    """As the notebook's Attention."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


def whole_block(case):
    """The unsplit module of a case, in float64."""
    module = WholeMLP(case["width"]) if case["block"] == "mlp" else WholeAttention(case["width"], case["heads"])
    module = module.double()
    with torch.no_grad():
        for p, value in zip(module.parameters(), case["weights"], strict=True):
            p.copy_(value)
    return module


def _draw_blocks(random):
    def case(block, what):
        heads = 6
        width = heads * int(random.integers(2, 4))
        shapes = (
            [(4 * width, width), (4 * width,), (width, 4 * width), (width,)] if block == "mlp"
            else [(3 * width, width), (3 * width,), (width, width), (width,)]
        )  # fmt: skip
        return {
            "what": what, "block": block, "width": width, "heads": heads, "weights": [_gauss(random, *s) / 2 for s in shapes],
            "x": _gauss(random, 2, 4, width), "upstream": _gauss(random, 2, 4, width),
            "about": f"{block} of width {width}, {heads} heads, {what}",
        }  # fmt: skip

    return {
        "mlp": [case("mlp", "all ranks")],
        "attention": [case("attention", "all ranks")],
        "group": [case("mlp", "group"), case("attention", "group")],
    }


def observe_blocks(case, rank, outside, ParallelMLP, ParallelAttention):
    with collective_group(rank, RANKS, outside):
        group = group_of(case, rank)
        module = (ParallelMLP if case["block"] == "mlp" else ParallelAttention)(whole_block(case), group)
        x = case["x"].clone().requires_grad_()
        out = module(x)
        found = out.detach().clone()
        out.backward(case["upstream"].clone())
    parameters = list(module.parameters())
    return {
        "out": found, "x": x.grad, "numbers": sum(p.numel() for p in parameters),
        "norm": sum((p.grad**2).sum() for p in parameters if p.grad is not None and p.dim() > 1),
    }  # fmt: skip


def _same_block(case, seen, right):
    module, x = whole_block(case), case["x"].clone().requires_grad_()
    out = module(x)
    out.backward(case["upstream"])
    if not all(_close(one["out"], out.detach()) for _, one in _ends(case, seen)):
        if case["block"] == "mlp":
            return "the output is not the whole MLP's: is it column-parallel first, and row-parallel second?"
        return "the output is not the whole attention's: does each rank have the query, key and value of the same whole heads?"
    if not all(_close(one["x"], x.grad) for _, one in _ends(case, seen)):
        return "the input's gradient is not the unsplit block's"
    members = {rank: len(members_of(case, rank)) for rank in range(RANKS)}
    total, whole = 0.0, sum((p.grad**2).sum() for p in module.parameters() if p.dim() > 1)
    for rank in members_of(case, 0):
        total = total + seen["ranks"][rank]["norm"]
    if members and not _close(torch.as_tensor(total), whole):
        return "the gradients of the ranks' weights are not the parts of the whole gradient"
    return ""


def _divided(case, seen, right):
    whole = sum(w.numel() for w in case["weights"])
    last_bias = case["weights"][-1].numel()
    if all(
        one["numbers"] == (whole - last_bias) // len(members_of(case, rank)) + last_bias for rank, one in _ends(case, seen)
    ):
        return ""
    return "the ranks' parameters are not their parts: all weights and the first bias are divided, the last bias is whole"


def _two_messages(case, seen, right):
    kinds = [kind for kind, _, _ in seen["calls"]]
    if seen["messages"] or set(kinds) - {"allreduce"}:
        return "it calls something else than all-reduces; one in forward and one in backward are enough"
    if len(kinds) != 2:
        return (
            "it does not call one all-reduce in forward and one in backward: layers that read the same x share one "
            "copy_to_ranks, and between the two layers nothing is sent"
        )
    one, bias = seen["ranks"][0], case["weights"][-1]
    outputs, gradients = seen["sums"]
    whole = any(_close(outputs.view_as(out), out) for out in (one["out"], one["out"] - bias))
    if seen["alike"] or not whole or not _close(gradients.view_as(one["x"]), one["x"]):
        return "what it all-reduces are not the ranks' parts of the output, and then of the input's gradient"
    return ""


_NO_BLOCK = "it is no nn.Module that returns a tensor of the shape of x"
_block = partial(Part, wrong=_NO_BLOCK)


def _counted(case, seen):
    return f"{case['about']}: your ranks called {len(seen['calls'])} collective(s)"


BLOCKS = Exercise(("ParallelMLP", "ParallelAttention"), _draw_blocks, observe_blocks, {
    "mlp": _block("The MLP equals the unsplit one", judge=_same_block),
    "attention": _block("The attention equals the unsplit one", judge=_same_block),
    "divided": _block("Each rank has its part of the weights", cases="mlp attention", needs="mlp attention", judge=_divided),
    "messages": _block("One all-reduce per direction", cases="mlp attention", needs="mlp attention", judge=_two_messages),
    "group": _block("Within a group of some ranks", cases="group", needs="mlp attention",
        judge=_grouped("give `group` to both layers, and count its ranks", _same_block)),
}, "compare with the whole module on one process: first the output, then x.grad, and with 2 heads on 2 ranks",
    _counted, guarded="mlp attention group", **_on_ranks())  # fmt: skip

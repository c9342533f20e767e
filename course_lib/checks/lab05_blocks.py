"""Residual blocks by their formula, for the checks of lab 05: which layers there must be, and what they compute.

A block's layers may have any names and any order. What is compared is the output that the block's own weights
give in *some* arrangement of its layers, so every right block passes. Batch norm takes the batch's statistics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

__all__ = ["KINDS", "MISTAKES", "arrangements", "block_output", "layers_of", "wanted_layers"]

KINDS = ("shortcut", "basic", "bottleneck")
EXPANSION = 4

Layers = dict[str, list[Any]]
"""``convs``: (weight, bias or None) each; ``norms``: (weight, bias) each; ``others``: shapes of all other parameters."""

# The usual slips, in the order in which they are suspected; "" is the block as it should be.
MISTAKES = (
    "no shortcut", "no last ReLU", "ReLU before the addition", "ReLU before the addition alone", "no inner ReLU",
    "norm after the addition", "no norm on the shortcut", "stride in the first",
)  # fmt: skip


def layers_of(module: nn.Module) -> Layers:
    """The convolutions and batch norms of a module, as plain data."""
    convs = [m for m in module.modules() if isinstance(m, nn.Conv2d)]
    norms = [m for m in module.modules() if isinstance(m, nn.BatchNorm2d)]
    known = {id(p) for m in (*convs, *norms) for p in m.parameters(recurse=False)}

    def plain(tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else tensor.detach().clone()

    return {
        "convs": [(plain(m.weight), plain(m.bias)) for m in convs],
        "norms": [(plain(m.weight), plain(m.bias)) for m in norms],
        "others": [tuple(p.shape) for p in module.parameters() if id(p) not in known],
    }


def wanted_layers(
    kind: str, in_channels: int, channels: int, stride: int
) -> tuple[list[tuple[int, ...]], list[int], bool]:
    """Shapes of the convolutions' weights and sizes of the batch norms, the block's own first; and whether it projects."""
    out = channels * EXPANSION if kind == "bottleneck" else channels
    if kind == "basic":
        convs: list[tuple[int, ...]] = [(channels, in_channels, 3, 3), (channels, channels, 3, 3)]
        norms = [channels, channels]
    elif kind == "bottleneck":
        convs = [(channels, in_channels, 1, 1), (channels, channels, 3, 3), (out, channels, 1, 1)]
        norms = [channels, channels, out]
    else:
        convs, norms = [], []
    projects = stride != 1 or in_channels != out
    if projects:
        convs, norms = [*convs, (out, in_channels, 1, 1)], [*norms, out]
    return convs, norms, projects


def arrangements(
    layers: Layers, convs: Sequence[tuple[int, ...]], norms: Sequence[int]
) -> Iterator[tuple[list[Any], list[Any]]]:
    """Every way in which the layers fit the wanted shapes; none where there are too many or too few."""
    found_convs = [(weight, bias) for weight, bias in layers["convs"]]
    if Counter(tuple(w.shape) for w, _ in found_convs) != Counter(convs):
        return
    if Counter(len(w) for w, _ in layers["norms"]) != Counter(norms):
        return
    for some in permutations(found_convs):
        if any(tuple(w.shape) != shape for (w, _), shape in zip(some, convs, strict=True)):
            continue
        for others in permutations(layers["norms"]):
            if all(len(w) == size for (w, _), size in zip(others, norms, strict=True)):
                yield list(some), list(others)


def block_output(
    kind: str, x: torch.Tensor, convs: list[Any], norms: list[Any], stride: int, projects: bool, mistake: str = ""
) -> torch.Tensor | None:
    """What the block makes of `x` ``(B, in_channels, H, W)``, with one of `MISTAKES` or none.

    None where the mistake does not apply, or its shapes do not fit.
    """
    try:
        return _output(kind, x, convs, norms, stride, projects, mistake)
    except RuntimeError:  # two maps of different size
        return None


def _output(
    kind: str, x: torch.Tensor, convs: list[Any], norms: list[Any], stride: int, projects: bool, mistake: str
) -> torch.Tensor | None:
    def conv(x: torch.Tensor, index: int, step: int = 1) -> torch.Tensor:
        weight, bias = convs[index]
        return F.conv2d(x, weight, bias, step, weight.shape[-1] // 2)

    def norm(x: torch.Tensor, index: int) -> torch.Tensor:
        weight, bias = norms[index]
        return F.batch_norm(x, None, None, weight, bias, training=True)

    inner = (lambda t: t) if mistake == "no inner ReLU" else F.relu
    last = {"basic": 1, "bottleneck": 2, "shortcut": -1}[kind]
    way = x
    if projects:
        way = conv(x, last + 1, stride)
        way = way if mistake == "no norm on the shortcut" else norm(way, last + 1)
    elif mistake == "no norm on the shortcut":
        return None
    if kind == "shortcut":
        return way if mistake in ("", "no norm on the shortcut") else None
    if mistake == "stride in the first":
        if kind == "basic" or stride == 1:
            return None
        steps = [stride, 1, 1]
    else:
        steps = [stride, 1] if kind == "basic" else [1, stride, 1]
    out = x
    for index in range(last):
        out = inner(norm(conv(out, index, steps[index]), index))
    out = conv(out, last, steps[last])
    if mistake == "norm after the addition":
        return F.relu(norm(out + way, last))
    out = norm(out, last)
    match mistake:
        case "no shortcut":
            return F.relu(out)
        case "no last ReLU":
            return out + way
        case "ReLU before the addition":
            return F.relu(F.relu(out) + way)
        case "ReLU before the addition alone":
            return F.relu(out) + way
    return F.relu(out + way)

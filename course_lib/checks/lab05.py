"""Checks of lab 05: its blocks; `lab05_network`, `lab05_input` and `lab05_training` have the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from course_lib.checks.lab05_blocks import EXPANSION, MISTAKES, arrangements, block_output, layers_of, wanted_layers
from course_lib.checks.lab05_input import crop_flip, validation_set
from course_lib.checks.lab05_network import network
from course_lib.checks.lab05_training import recipe, transfer
from course_lib.checks.registry import CheckFailed
from course_lib.checks.run_evidence import check_run

__all__ = ["CHECKS"]

Make = Callable[..., Any]

_CASES = {"shortcut": ((6, 6, 1), (6, 10, 1), (6, 6, 2), (6, 10, 2)), "basic": ((6, 6, 1), (6, 10, 1), (6, 6, 2), (6, 10, 2)),
          "bottleneck": ((12, 3, 1), (6, 5, 1), (12, 3, 2), (6, 5, 2))}  # fmt: skip
_NAMES = {"shortcut": "make_shortcut", "basic": "BasicBlock", "bottleneck": "Bottleneck"}

_WHY = {
    "no shortcut": "The input is not added: that is a plain block, F(x) without + x",
    "no last ReLU": "The last ReLU is missing: it comes after the addition",
    "ReLU before the addition": "There is a ReLU on F(x) before the addition too: then a block can only add, never take away",
    "ReLU before the addition alone": "The ReLU is before the addition; move it after the addition",
    "no inner ReLU": "There is no ReLU between the convolutions: two linear maps in a row are one",
    "norm after the addition": "The last batch norm comes before the addition, on F(x) alone",
    "no norm on the shortcut": "The shortcut's convolution has a batch norm, and yours is not used",
    "stride in the first": "The stride belongs to the 3×3 convolution, as in torchvision; yours is in the first 1×1",
}


def shortcut(answer: Make) -> None:
    for case in _CASES["shortcut"]:
        _check_block("shortcut", answer, *case)
    print("make_shortcut: the identity where nothing changes, a 1×1 convolution with its stride and a norm elsewhere")


def basic_block(answer: Make) -> None:
    for case in _CASES["basic"]:
        _check_block("basic", answer, *case)
    print("BasicBlock: its output is the formula's, with and without a change of channels and of size")


def bottleneck(answer: Make) -> None:
    for case in _CASES["bottleneck"]:
        _check_block("bottleneck", answer, *case)
    print("Bottleneck: its output is the formula's, with 4 × channels, in four cases")


def _check_block(kind: str, answer: Make, in_channels: int, channels: int, stride: int) -> None:
    name = f"{_NAMES[kind]}({in_channels}, {channels}, {'' if kind == 'shortcut' else 'stride='}{stride})"
    torch.manual_seed(5)
    block = answer(in_channels, channels, stride)
    if not isinstance(block, nn.Module):
        raise CheckFailed(f"{name} is {_name(block)}, not a module; return an nn.Module")
    block = block.double().train()
    x = torch.randn(4, in_channels, 8, 6, dtype=torch.float64)
    before, out_channels = x.clone(), channels * (EXPANSION if kind == "bottleneck" else 1)
    try:
        y = block(x)
    except NotImplementedError:
        raise
    except RuntimeError as error:
        why = str(error).splitlines()[0]
        raise CheckFailed(
            f"{name} of a tensor {tuple(x.shape)} fails: {why}. Two maps of different shape cannot be added; the "
            "shortcut must have the channels and the stride of the block, and a 3×3 convolution padding 1"
        ) from None
    if not isinstance(y, torch.Tensor):
        raise CheckFailed(f"{name} returned {_name(y)} for a tensor; forward returns the output")
    wanted = (4, out_channels, 8 // stride, 6 // stride)
    if tuple(y.shape) != wanted:
        raise CheckFailed(
            f"{name} makes {tuple(y.shape)} of {tuple(x.shape)}, expected {wanted}. " + _why_shape(y, wanted)
        )
    if not torch.equal(x, before):
        raise CheckFailed(f"{name} changes its input: an inplace ReLU or += works on x itself. Start from conv1(x)")
    _check_layers(kind, name, block, in_channels, channels, stride)
    for norm in block.modules():  # norms that do something, so that a wrong one shows
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.uniform_(norm.bias, -0.5, 0.5)
    found, layers = block(x).detach(), layers_of(block)
    convs, norms, projects = wanted_layers(kind, in_channels, channels, stride)
    for mistake in ("", *MISTAKES):
        for some, others in arrangements(layers, convs, norms):
            value = block_output(kind, x, some, others, stride, projects, mistake)
            if value is not None and value.shape == found.shape and torch.allclose(value, found, atol=1e-8):
                if mistake:
                    raise CheckFailed(f"{name} has the right layers and shape, and other values. {_WHY[mistake]}")
                return
    formula = "ReLU(F(x) + shortcut(x))" if kind != "shortcut" else "BN(conv(x))" if projects else "x itself"
    raise CheckFailed(
        f"{name} has the right layers and shape, and other values than {formula} with its own weights. Write down the "
        "order: convolution, batch norm, ReLU, …, and what is added where"
    )


def _why_shape(y: torch.Tensor, wanted: tuple[int, ...]) -> str:
    if y.dim() == 4 and y.shape[2:] != wanted[2:]:
        return "The height or width is off: stride once, in one convolution, and padding 1 with a 3×3 kernel"
    if y.dim() == 4 and wanted[1] == EXPANSION * y.shape[1]:
        return "The last 1×1 convolution goes up to 4 × channels"
    return "Look at the number of output channels"


def _check_layers(kind: str, name: str, block: nn.Module, in_channels: int, channels: int, stride: int) -> None:
    layers = layers_of(block)
    convs, norms, projects = wanted_layers(kind, in_channels, channels, stride)
    found = Counter(tuple(weight.shape) for weight, _ in layers["convs"])
    if any(bias is not None for _, bias in layers["convs"]):
        raise CheckFailed(f"{name}: a convolution has a bias; the batch norm behind it takes it away again: bias=False")
    if found != Counter(convs):
        raise CheckFailed(
            f"{name} should have convolutions with weights {_list(Counter(convs))}, yours has {_list(found)}. "
            + _why_layers(found, Counter(convs), projects, in_channels)
        )
    sizes = Counter(len(weight) for weight, _ in layers["norms"])
    if sizes != Counter(norms):
        raise CheckFailed(
            f"{name}: a batch norm behind each of its {len(convs)} convolutions, of sizes {_list(Counter(norms))}; "
            f"yours has {_list(sizes)}"
        )
    if layers["others"]:
        raise CheckFailed(f"{name} has parameters besides convolutions and batch norms, of shapes {layers['others']}")


def _why_layers(found: Counter, wanted: Counter, projects: bool, in_channels: int) -> str:
    missing, extra = wanted - found, found - wanted
    if projects and any(shape[2:] == (1, 1) and shape[1] == in_channels for shape in missing):
        if any(shape[2:] != (1, 1) and shape[1] == in_channels for shape in extra):
            return "The shortcut's kernel is 1×1: it mixes channels and looks at no neighbour"
        return "The 1×1 convolution of the shortcut is missing"
    if not projects and not missing:
        return "Nothing has to match here: the shortcut is the identity, without parameters"
    return "Compare them with the description above the exercise"


def _list(shapes: Counter) -> str:
    return (
        ", ".join(f"{count} × {shape}" if count > 1 else f"{shape}" for shape, count in sorted(shapes.items()))
        or "none"
    )


def _name(value: Any) -> str:
    return "nothing (None): is there a return?" if value is None else f"a {type(value).__name__}"


CHECKS = {
    "shortcut": shortcut,
    "basic-block": basic_block,
    "bottleneck": bottleneck,
    "network": network,
    "crop-flip": crop_flip,
    "validation-set": validation_set,
    "recipe": recipe,
    "transfer": transfer,
    "run": lambda folder: check_run(folder, "05_resnet_hw"),
    "resnet-cifar100": lambda folder: check_run(folder, "05_resnet_hw", "resnet_cifar100"),
    "resnet-tinyimagenet": lambda folder: check_run(folder, "05_resnet_hw", "resnet_tinyimagenet"),
    "pretrained-cifar100": lambda folder: check_run(folder, "05_resnet_hw", "pretrained_cifar100"),
}

"""Checks of lab 05: blocks and network; `lab05_input` and `lab05_training` have the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from course_lib.checks.lab05_blocks import EXPANSION, MISTAKES, arrangements, block_output, layers_of, wanted_layers
from course_lib.checks.lab05_input import crop_flip, validation_set
from course_lib.checks.lab05_training import program_run, recipe, transfer
from course_lib.checks.registry import CheckFailed
from course_lib.checks.run_evidence import check_run

__all__ = ["CHECKS", "STAGES"]

Make = Callable[..., Any]

# name, channels, blocks, stride of the first, height and width for an image of 32×32
STAGES = (("conv2_x", 32, 2, 1, 32), ("conv3_x", 64, 4, 2, 16), ("conv4_x", 128, 4, 2, 8), ("conv5_x", 256, 2, 2, 4))

_CASES = {"shortcut": ((6, 6, 1), (6, 10, 1), (6, 6, 2), (6, 10, 2)), "basic": ((6, 6, 1), (6, 10, 1), (6, 6, 2), (6, 10, 2)),
          "bottleneck": ((12, 3, 1), (6, 5, 1), (12, 3, 2), (6, 5, 2))}  # fmt: skip
_NAMES = {"shortcut": "make_shortcut", "basic": "BasicBlock", "bottleneck": "Bottleneck"}

_WHY = {
    "no shortcut": "The input is not added: that is a plain block, F(x) without + x",
    "no last ReLU": "The last ReLU is missing: it comes after the addition",
    "ReLU before the addition": "There is a ReLU on F(x) before the addition too: then a block can only add, never take away",
    "ReLU before the addition alone": "The ReLU stands before the addition; it comes after it",
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
    return "Compare them with the picture"


def network(answer: Make) -> None:
    model = answer(100)
    if not isinstance(model, nn.Module):
        raise CheckFailed(f"HomeworkResNet(100) is {_name(model)}, not a module")
    for name in ("stem", *(stage[0] for stage in STAGES), "classifier"):
        if not isinstance(getattr(model, name, None), nn.Module):
            raise CheckFailed(f"the network has no part named {name}: set self.{name} in __init__")
    for size in (32, 64):
        _check_maps(model.eval(), size)
    _check_counts(model)
    _check_identity_path(model)
    _check_every_gradient(model)
    _check_dropout(answer)
    print("HomeworkResNet: maps, 3,559,556 parameters, the identity path and every parameter's gradient are right")


def _check_maps(model: nn.Module, size: int) -> None:
    maps: dict[str, tuple[int, ...]] = {}
    handles = [
        getattr(model, name).register_forward_hook(lambda module, args, out, name=name: maps.update({name: tuple(out.shape)}))
        for name in ("stem", *(stage[0] for stage in STAGES))
    ]  # fmt: skip
    x = torch.randn(2, 3, size, size)
    try:
        with torch.no_grad():
            out = model(x)
    except RuntimeError as error:
        hint = "; images of TinyImageNet are 64×64, and the pooling must still leave 256 numbers: AdaptiveMaxPool2d(1)"
        raise CheckFailed(
            f"images of {size}×{size}: {str(error).splitlines()[0]}{hint if size == 64 else ''}"
        ) from None
    finally:
        for handle in handles:
            handle.remove()
    for name, channels, _, stride, side in (("stem", 32, 0, 1, 32), *STAGES):
        wanted = (2, channels, side * size // 32, side * size // 32)
        if name not in maps:
            raise CheckFailed(f"self.{name} is never called in forward")
        if maps[name] != wanted:
            why = (
                f"its first block has stride {stride}, the others 1"
                if maps[name][1] == channels
                else "look at its channels"
            )
            raise CheckFailed(
                f"images of {size}×{size}: after {name} the map is {maps[name]}, expected {wanted}; {why}"
            )
    if tuple(out.shape) != (2, 100):
        raise CheckFailed(f"the network returns {tuple(out.shape)} for 2 images and 100 classes, expected (2, 100)")


def _check_counts(model: nn.Module) -> None:
    previous = 32
    for name, channels, blocks, stride, _ in STAGES:
        wanted = _stage_parameters(previous, channels, blocks, stride)
        found = sum(p.numel() for p in getattr(model, name).parameters())
        if found != wanted:
            conv = 9 * channels**2
            whole = any((found - wanted) % part == 0 for part in (conv, 2 * conv + 4 * channels))
            why = (
                "Is it the right number of blocks, each with its own weights?"
                if whole
                else "Look at its first block: its convolutions and its shortcut"
            )
            raise CheckFailed(f"{name} should have {wanted:,} parameters ({blocks} blocks), yours has {found:,}. {why}")
        previous = channels
    total = sum(p.numel() for p in model.parameters())
    if total != 3_559_556:
        stem = sum(p.numel() for p in model.stem.parameters())
        head = sum(p.numel() for p in model.classifier.parameters())
        raise CheckFailed(
            f"3,559,556 parameters were expected, yours has {total:,}. The stages are right; the stem has {stem:,} "
            f"(expected 928: convolution without bias, batch norm), the classifier {head:,} (expected 25,700)"
        )


def _stage_parameters(previous: int, channels: int, blocks: int, stride: int) -> int:
    convs = 9 * previous * channels + (2 * blocks - 1) * 9 * channels**2
    projection = previous * channels + 2 * channels if stride != 1 or previous != channels else 0
    return convs + 2 * 2 * blocks * channels + projection


def dead_branches(model: nn.Module, x: torch.Tensor) -> None:
    """Set to 0 what the 3×3 convolutions of the blocks feed: weight and bias of the batch norm that is called next.

    Only the shortcuts are left then. Called with an input, because the order of calls tells which norm belongs to which.
    """
    previous: list[nn.Module] = []
    inside = {id(m) for m in model.stem.modules()}

    def after(module: nn.Module, args: tuple, out: torch.Tensor) -> None:
        if (
            isinstance(module, nn.BatchNorm2d)
            and previous
            and previous[-1].kernel_size == (3, 3)
            and id(module) not in inside
        ):
            nn.init.zeros_(module.weight)
            nn.init.zeros_(module.bias)
        if isinstance(module, nn.Conv2d):
            previous.append(module)

    handles = [m.register_forward_hook(after) for m in model.modules() if isinstance(m, nn.Conv2d | nn.BatchNorm2d)]
    with torch.no_grad():
        model(x)
    for handle in handles:
        handle.remove()


def _check_identity_path(model: nn.Module) -> None:
    """With all residual branches at zero, only stem, projections, pooling and classifier are left."""
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    x = torch.randn(3, 3, 32, 32)
    dead_branches(model.eval(), x)
    shapes = {(64, 32, 1, 1): None, (128, 64, 1, 1): None, (256, 128, 1, 1): None}
    weights = {tuple(m.weight.shape): m.weight for m in model.modules() if isinstance(m, nn.Conv2d)}
    with torch.no_grad():
        found = model(x)
        y = model.stem(x)
        for shape in shapes:
            y = torch.relu(nn.functional.conv2d(y, weights[shape], stride=2) / (1 + 1e-5) ** 0.5)
        expected = model.classifier(y.amax((2, 3)))
        averaged = model.classifier(y.mean((2, 3)))
    model.load_state_dict(state)
    if torch.allclose(found, averaged, atol=1e-4):
        raise CheckFailed("the last map is averaged; the homework's pooling takes the maximum")
    if not torch.allclose(found, expected, atol=1e-4):
        raise CheckFailed(
            "with every residual branch at 0 the blocks should pass their input on (through ReLU, and through the three "
            "projections), and the logits should be the classifier's of the pooled result; yours are others. Does every "
            "block add its shortcut? Is there anything between conv5_x and the classifier besides the pooling?"
        )


def _check_every_gradient(model: nn.Module) -> None:
    model.train()
    model(torch.randn(4, 3, 32, 32)).square().sum().backward()
    dead = [name for name, p in model.named_parameters() if p.grad is None or not bool(p.grad.abs().sum() > 0)]
    model.zero_grad()
    if dead:
        raise CheckFailed(f"{len(dead)} parameters get no gradient, the first is {dead[0]}: what holds it is not used")


def _check_dropout(answer: Make) -> None:
    model, x = answer(10, dropout=0.5), torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        model.train()
        maps = model.stem(x), model.stem(x)
        zeros = (maps[0] == 0).double().mean().item()
        model.eval()
        same = torch.equal(model.stem(x), model.stem(x))
    if torch.equal(*maps):
        raise CheckFailed(
            "the stem ends with dropout, of the share `dropout`; in training two calls of it should differ"
        )
    if not same:
        raise CheckFailed("in evaluation two calls of the stem differ: use nn.Dropout, which eval() switches off")
    if not 0.65 < zeros < 0.85:
        raise CheckFailed(
            f"with dropout=0.5 about three quarters of the stem's outputs are 0 in training (ReLU zeroes half, dropout "
            f"half of the rest), yours has {zeros:.0%}: is the argument `dropout` used, after the ReLU?"
        )


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
    "run": lambda folder: check_run(folder, lab="05_resnet_hw", threshold=0.08, min_world_size=1),
    "resnet-cifar100": lambda folder: program_run(folder, "resnet_cifar100", 0.60, 12),
    "resnet-tinyimagenet": lambda folder: program_run(folder, "resnet_tinyimagenet", 0.50, 4),
    "pretrained-cifar100": lambda folder: program_run(folder, "pretrained_cifar100", 0.70, 4),
}

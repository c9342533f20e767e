"""The check of lab 05's homework network: shapes, counts, the identity path, gradients, dropout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from course_lib.checks.registry import CheckFailed

__all__ = ["STAGES", "network"]

Make = Callable[..., Any]

# name, channels, blocks, stride of the first, height and width for an image of 32×32
STAGES = (("conv2_x", 32, 2, 1, 32), ("conv3_x", 64, 4, 2, 16), ("conv4_x", 128, 4, 2, 8), ("conv5_x", 256, 2, 2, 4))


def network(answer: Make) -> None:
    model = answer(100)
    if not isinstance(model, nn.Module):
        raise CheckFailed(
            f"HomeworkResNet(100) is {'nothing' if model is None else type(model).__name__}, not a module"
        )
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
    except NotImplementedError:  # a RuntimeError too: forward is still to be written
        raise
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

    Only the shortcuts are left then. Called with an input, because the order of calls shows which norm belongs to which convolution.
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

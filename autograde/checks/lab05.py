"""Hidden checks of lab 05's blocks and network; `lab05_input` and `lab05_training` have the others."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

from course_lib.checks.lab05_blocks import EXPANSION, arrangements, block_output, wanted_layers

from ..criteria import Finding
from .compare import close, is_int, is_number, number, same_tensor
from .lab05_input import crop_flip, validation_set
from .lab05_training import recipe, transfer
from .registry import Ask, Findings, HiddenCheck, shape_of

__all__ = ["CHECKS"]

# name, channels, blocks, stride of the first, height and width for an image of 32×32
STAGES = (("conv2_x", 32, 2, 1, 32), ("conv3_x", 64, 4, 2, 16), ("conv4_x", 128, 4, 2, 8), ("conv5_x", 256, 2, 2, 4))


def blocks(ask: Ask, kind: str) -> Findings:
    """Blocks whose weights are known, on inputs drawn anew: once nothing changes, then channels, size, both."""
    random = ask.random
    narrow = [int(n) for n in random.choice([3, 4, 5, 6, 7], 2, replace=False)]
    out = EXPANSION if kind == "bottleneck" else 1
    same, other = (out * narrow[0], narrow[0]), (narrow[1] + 8, narrow[0] + 16)
    cases = [(*same, 1), (*other, 1), (*same, 2), (*other, 2)]
    given = {
        "kind": kind,
        "cases": cases,
        "inputs": [torch.from_numpy(random.normal(0, 1, (3, case[0], 8, 6))) for case in cases],
        "seeds": [int(n) for n in random.integers(1, 10**6, len(cases))],
    }
    found = ask.call("blocks", given)
    answers = found if isinstance(found, list) and len(found) == len(cases) else [None] * len(cases)
    answers = [answer if isinstance(answer, dict) else {} for answer in answers]
    judged = [_judge_block(kind, *question) for question in zip(cases, given["inputs"], answers, strict=True)]
    layers, values = [one[0] for one in judged], [one[1] for one in judged]
    missing = next((shape_of(a.get("output")) for a in answers if not isinstance(a.get("output"), torch.Tensor)), "")
    look = "print the block, put ones into x, and follow the shapes line by line; then compare with torchvision's resnet.py"
    wrong = (
        f"no output in some case: {missing}"
        if missing
        else "the output is not the formula's, with the block's own weights"
    )
    kept = all(answer.get("kept") is True for answer in answers)
    return {
        "identity": Finding(values[0], "right where nothing changes" if values[0] else
                            f"where channels and size stay: {'the input is changed' if not kept else wrong}", look),
        "channels": Finding(values[1], "right where the channels change" if values[1] else
                            f"where the channels change: {wrong}", look),
        "stride": Finding(values[2] and values[3], "right where the size changes" if values[2] and values[3] else
                          f"where the size changes: {wrong}", look),
        "layers": Finding(all(layers), "the layers are those of the block" if all(layers) else
                          "there are other layers than the block's, more, fewer, or with a bias",
                          "list the shapes of parameters() beside the picture; the identity has none"),
    }  # fmt: skip


def _judge_block(kind: str, case: tuple[int, int, int], x: torch.Tensor, answer: dict[str, Any]) -> tuple[bool, bool]:
    """Whether the layers are right, and whether the output is."""
    in_channels, channels, stride = case
    convs, norms, projects = wanted_layers(kind, in_channels, channels, stride)
    layers, output = _plain_layers(answer.get("layers")), answer.get("output")
    if layers is None:
        return False, False
    plain = all(bias is None for _, bias in layers["convs"]) and not layers["others"]
    shapes = Counter(tuple(weight.shape) for weight, _ in layers["convs"])
    sizes = Counter(len(weight) for weight, _ in layers["norms"])
    right = plain and shapes == Counter(convs) and sizes == Counter(norms)
    # Layers that are there in vain do not make the output wrong, but they cannot be told apart: they cost both.
    values = (
        block_output(kind, x, some, others, stride, projects) for some, others in arrangements(layers, convs, norms)
    )
    same = any(value is not None and same_tensor(output, value, 1e-6) for value in values)
    return right, same and answer.get("kept") is True


def _plain_layers(found: Any) -> dict[str, list[Any]] | None:
    """What the driver told of the layers; None where it is not of that form."""
    if not isinstance(found, dict) or not all(
        isinstance(found.get(name), list) for name in ("convs", "norms", "others")
    ):
        return None

    def is_pair(pair: Any, dims: int) -> bool:
        return (
            isinstance(pair, tuple | list) and len(pair) == 2
            and all(isinstance(t, torch.Tensor) and t.dtype == torch.float64 for t in pair if t is not None)
            and pair[0] is not None and pair[0].dim() == dims
        )  # fmt: skip

    if len(found["convs"]) > 6 or len(found["norms"]) > 6:  # beyond that they are not arranged
        return None
    fine = all(is_pair(c, 4) for c in found["convs"]) and all(
        is_pair(n, 1) and n[1] is not None for n in found["norms"]
    )
    return found if fine else None


def network(ask: Ask) -> Findings:
    """Maps of two sizes, counts, the closed form that is left without residual branches, gradients, dropout."""
    random = ask.random
    classes = int(random.integers(20, 150))
    images = {size: torch.from_numpy(random.normal(0, 1, (2, 3, size, size))).float() for size in (32, 64)}
    given = {
        "classes": classes,
        "stages": [stage[0] for stage in STAGES],
        "images": images,
        "seed": int(random.integers(1, 10**6)),
    }
    found = ask.call("network", given)
    answer = found if isinstance(found, dict) else {}
    maps, counts = answer.get("maps"), answer.get("counts")
    shapes = isinstance(maps, dict) and all(_right_maps(maps.get(size), size, classes) for size in (32, 64))
    wanted = {"stem": 928, "classifier": 257 * classes}
    before = 32
    for name, channels, repeated, stride, _ in STAGES:
        convs = 9 * before * channels + (2 * repeated - 1) * 9 * channels**2 + 4 * repeated * channels
        wanted[name] = convs + (before * channels + 2 * channels if stride != 1 or before != channels else 0)
        before = channels
    counted = isinstance(counts, dict) and all(is_int(counts.get(name), n) for name, n in wanted.items())
    counted = counted and is_int(answer.get("total"), sum(wanted.values()))
    used = is_int(answer.get("dead"), 0)
    identity = shapes and used and _right_identity(answer.get("identity"), images[32])
    dropout = answer.get("dropout")
    dropped = isinstance(dropout, tuple | list) and len(dropout) == 3 and all(is_number(s) for s in dropout[:2])
    dropped = dropped and dropout[2] is True and number(dropout[0]) < 0.65
    dropped = dropped and close((1 - number(dropout[1])) / max(1 - number(dropout[0]), 1e-9), 0.5, relative=0.06)
    return {
        "shapes": Finding(shapes, "every stage's map has its shape" if shapes else
                          "a stage is missing, or its map has another shape, for images of 32×32 or of 64×64",
                          "register a forward hook on each stage and print the shapes, for both sizes"),
        "parameters": Finding(counted, "every part has its number of parameters" if counted else
                              "some part has another number of parameters", "count by hand, stage by stage"),
        "identity": Finding(identity, "the identity path is open" if identity else
                            "a parameter gets no gradient" if not used else
                            "with the residual branches at 0 the logits, or the input's gradient, are not what the "
                            "shortcuts, the maximum and the classifier alone give",
                            "set the weight of every block's last batch norm to 0: each block must then pass ReLU(x) on"),
        "dropout": Finding(dropped, "the stem drops out, in training only" if dropped else
                           "the stem does not drop the share `dropout` in training, or drops in evaluation",
                           "count the zeros after the stem for dropout = 0 and 0.5, in train() and in eval()"),
    }  # fmt: skip


def _right_maps(maps: Any, size: int, classes: int) -> bool:
    if not isinstance(maps, dict) or maps.get("out") != (2, classes):
        return False
    side = size // 32
    wanted = {"stem": (2, 32, 32 * side, 32 * side)}
    wanted |= {name: (2, channels, width * side, width * side) for name, channels, _, _, width in STAGES}
    return all(type(maps.get(name)) is tuple and maps[name] == shape for name, shape in wanted.items())


def _right_identity(found: Any, images: torch.Tensor) -> bool:
    """Stem, three projections, the maximum and the classifier, from the student's weights: value and gradient."""
    if not isinstance(found, dict):
        return False
    projections, stem, linear = (found.get(name) for name in ("projections", "stem", "linear"))
    shapes = [(32, 3, 3, 3), *((2 * c, c, 1, 1) for c in (32, 64, 128))]
    tensors = [stem, *projections] if isinstance(projections, list) else []
    if [tuple(t.shape) if isinstance(t, torch.Tensor) else None for t in tensors] != shapes:
        return False
    if not isinstance(linear, list) or len(linear) != 1 or not all(isinstance(t, torch.Tensor) for t in linear[0]):
        return False
    weight, bias = (t.float() for t in linear[0])
    if weight.dim() != 2 or weight.shape[1] != 256 or bias.shape != weight.shape[:1]:
        return False
    x = images.clone().requires_grad_(True)
    # In evaluation a fresh batch norm divides by the root of 1 + eps alone.
    y = torch.relu(F.conv2d(x, stem.float(), padding=1) / (1 + 1e-5) ** 0.5)
    for projection in projections:
        y = torch.relu(F.conv2d(y, projection.float(), stride=2) / (1 + 1e-5) ** 0.5)
    logits = F.linear(y.amax((2, 3)), weight, bias)
    logits.square().sum().backward()
    scale = float(x.grad.abs().max())
    gradient = found.get("gradient")
    return (
        same_tensor(found.get("logits"), logits.detach(), 1e-4)
        and isinstance(gradient, torch.Tensor)
        and same_tensor(gradient / scale, x.grad / scale, 1e-3)
    )


_BLOCK_PARTS = {
    "identity": "Nothing changes: the input is added as it is",
    "channels": "The channels change",
    "stride": "Height and width change",
    "layers": "Its layers, and no others",
}

CHECKS = {
    "shortcut": HiddenCheck(partial(blocks, kind="shortcut"), _BLOCK_PARTS),
    "basic-block": HiddenCheck(partial(blocks, kind="basic"), _BLOCK_PARTS),
    "bottleneck": HiddenCheck(partial(blocks, kind="bottleneck"), _BLOCK_PARTS),
    "network": HiddenCheck(
        network,
        {
            "shapes": "The map after each stage",
            "parameters": "Parameters of each part",
            "identity": "The identity path, forwards and backwards",
            "dropout": "Dropout at the end of the stem",
        },
    ),
    "crop-flip": HiddenCheck(
        crop_flip,
        {
            "crops": "Each output is a crop of its own image",
            "offsets": "Offsets of each image, uniform",
            "flips": "Flips of each image",
            "generator": "The generator alone decides",
        },
    ),
    "validation-set": HiddenCheck(
        validation_set,
        {
            "classes": "Every image with its class",
            "untouched": "The files stay as they are",
            "errors": "What does not fit is named",
        },
    ),
    "recipe": HiddenCheck(
        recipe,
        {
            "groups": "Which parameters decay",
            "rise": "The factor rises",
            "fall": "The factor falls",
            "without": "No warm-up at all",
        },
    ),
    "transfer": HiddenCheck(
        transfer,
        {
            "head": "A new head on the old body",
            "rates": "Two learning rates",
            "frozen": "A frozen body",
        },
    ),
}

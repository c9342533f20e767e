"""Hidden checks of lab 05's blocks and network; `lab05_input` and `lab05_training` have the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch.nn import functional as F

from autograde.checks.compare import close, is_int, is_number, number, same_tensor, trusted
from autograde.checks.lab05_input import crop_flip, validation_set
from autograde.checks.lab05_training import recipe, transfer
from autograde.checks.registry import Ask, Findings, HiddenCheck, shape_of
from autograde.rubric.criteria import Finding
from course_lib.checks.lab05_blocks import EXPANSION, arrangements, block_output, wanted_layers

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
    """Maps of two sizes, counts, values and gradients with drawn weights, with and without branches; dropout."""
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
    right = _computed(answer.get("computed"), images[32].double(), classes, given["seed"])
    some, every = _acting(answer.get("computed"))
    # Modules that are there and compute nothing are no network: maps, counts and zeros say nothing then.
    sized, number_right = shapes, counted
    shapes, counted = shapes and some and right["stem"], counted and every
    identity = shapes and used and right["open"] and right["closed"]
    dropout = answer.get("dropout")
    dropped = isinstance(dropout, tuple | list) and len(dropout) == 3 and all(is_number(s) for s in dropout[:2])
    dropped = dropped and dropout[2] is True and number(dropout[0]) < 0.65
    dropped = (
        dropped
        and right["stem"]
        and close((1 - number(dropout[1])) / max(1 - number(dropout[0]), 1e-9), 0.5, relative=0.06)
    )
    return {
        "shapes": Finding(shapes, "every stage's map has its shape" if shapes else
                          "the maps have their shapes, but a stage does not compute them by its convolutions" if sized else
                          "a stage is missing, or its map has another shape, for images of 32×32 or of 64×64",
                          "register a forward hook on each stage and print the shapes, for both sizes"),
        "parameters": Finding(counted, "every part has its number of parameters" if counted else
                              "some convolution's weights are held, but do not act on the logits" if number_right else
                              "some part has another number of parameters", "count by hand, stage by stage"),
        "identity": Finding(identity, "the identity path is open" if identity else
                            "a parameter gets no gradient" if not used else
                            "with the residual branches at 0 the logits, or the input's gradient, are not what the "
                            "shortcuts, the maximum and the classifier alone give" if not right["closed"] else
                            "with other weights the logits, their gradient or the batch norms' statistics are not the "
                            "formula's",
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


def _computed(found: Any, images: torch.Tensor, classes: int, seed: int) -> dict[str, bool]:
    """What of the network is the formula's with drawn weights: `stem`, `open` (all of it), `closed` (no branches).

    The reference has as many blocks as the student's: a block too many or too few costs the parameters alone.
    """
    right = dict.fromkeys(("stem", "open", "closed"), False)
    units = found.get("units") if isinstance(found, dict) else None
    if not isinstance(units, list) or len(units) > 100:
        return right
    right["stem"] = same_tensor(found.get("stem"), _Reference(seed, classes).stem(images), 1e-6)
    units = [tuple(unit) if isinstance(unit, tuple | list) else () for unit in units]
    if not all(len(unit) == 2 and type(unit[0]) is str and type(unit[1]) is int for unit in units):
        return right
    blocks = {name: sum(unit[0] == name and unit[1] in range(40) for unit in units) // 2 for name, *_ in STAGES}
    if sorted(units) != sorted(_places(blocks)) or not all(blocks.values()):
        return right
    cases = found.get("cases")
    for which, name in enumerate(("open", "closed")):
        one = cases[which] if isinstance(cases, list) and len(cases) == 2 else None
        right[name] = isinstance(one, dict) and _same_case(
            one, images, _Reference(seed, classes, blocks, name == "closed")
        )
    return right


def _places(blocks: Mapping[str, int]) -> list[tuple[str, int]]:
    """Part and index of each convolution, as the driver names them."""
    way = trusted("lab05.network", "WAY")
    return [("stem", 0)] + [
        (name, index)
        for name, _, _, stride, _ in STAGES
        for index in [*range(2 * blocks[name]), *([way] if stride != 1 else [])]
    ]


def _same_case(found: dict[str, Any], images: torch.Tensor, reference: _Reference) -> bool:
    for mode in ("eval", "train"):
        reference.training = mode == "train"
        reference.units.clear()
        x = images.clone().requires_grad_(True)
        logits = reference.logits(x)
        logits.square().sum().backward()
        own = found.get(mode)
        if not isinstance(own, dict) or not _same_scaled([own.get("logits")], [logits.detach()]):
            return False
        if not _same_scaled([own.get("gradient")], [x.grad]):
            return False
    used = [reference.units[place] for place in _places(reference.blocks)]
    return _same_scaled(found.get("slopes"), [unit[0].grad.sum((1, 2, 3)) for unit in used]) and _same_scaled(
        found.get("statistics"), [t for unit in used for t in unit[3:]]
    )


def _same_scaled(found: Any, expected: list[torch.Tensor]) -> bool:
    """Whether the tensors are the expected ones, to rounding of the largest value of each."""
    if not isinstance(found, list) or len(found) != len(expected):
        return False
    scales = [max(float(tensor.abs().max()), 1e-6) for tensor in expected]
    return all(
        isinstance(a, torch.Tensor) and same_tensor(a / scale, b / scale, 1e-5)
        for a, b, scale in zip(found, expected, scales, strict=True)
    )


class _Reference:
    """The network of the exercise by its formula, with the weights that the driver draws.

    Where it is `closed`, the second batch norm of every block gives 0.
    """

    def __init__(
        self, seed: int, classes: int, blocks: Mapping[str, int] = MappingProxyType({}), closed: bool = False
    ) -> None:
        self.seed, self.classes, self.blocks, self.closed, self.training = seed, classes, blocks, closed, False
        self.units: dict[tuple[str, int], list[torch.Tensor]] = {}

    def unit(
        self, x: torch.Tensor, part: str, index: int, channels: int, size: int = 3, stride: int = 1
    ) -> torch.Tensor:
        drawn = trusted("lab05.network", "drawn_unit")(self.seed, part, index, (channels, x.shape[1], size, size))
        weight, gain, shift, mean, variance = drawn
        if self.closed and part != "stem" and size == 3 and index % 2:
            gain, shift = torch.zeros_like(gain), torch.zeros_like(shift)
        self.units[part, index] = [weight.requires_grad_(True), gain, shift, mean, variance]
        y = F.conv2d(x, weight, stride=stride, padding=size // 2)
        return F.batch_norm(y, mean, variance, gain, shift, training=self.training, momentum=1.0)

    def stem(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.unit(x, "stem", 0, 32)).detach()

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.unit(x, "stem", 0, 32))
        for name, channels, _, stride, _ in STAGES:
            for block in range(self.blocks[name]):
                step = stride if block == 0 else 1
                y = torch.relu(self.unit(x, name, 2 * block, channels, stride=step))
                way = self.unit(x, name, trusted("lab05.network", "WAY"), channels, 1, step) if step != 1 else x
                x = torch.relu(self.unit(y, name, 2 * block + 1, channels) + way)
        return F.linear(x.amax((2, 3)), *trusted("lab05.network", "drawn_classifier")(self.seed, self.classes))


def _acting(found: Any) -> tuple[bool, bool]:
    """Whether in each part some convolution acts on the logits, and whether all do."""
    acting = found.get("acting") if isinstance(found, dict) else None
    counts = [acting.get(name) for name in ("stem", *(s[0] for s in STAGES))] if isinstance(acting, dict) else [None]
    if not all(isinstance(c, tuple | list) and len(c) == 2 and all(type(n) is int for n in c) for c in counts):
        return False, False
    return all(some > 0 for _, some in counts), all(some == there > 0 for there, some in counts)


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

"""The course's own networks, into which submitted weights are loaded.

`NETWORKS` describes each network for the grader. `DRIVER` builds it in the sandbox, from `course_lib`.
A network's weights are the state of the bare model: ``conv1.weight``, not ``module.conv1.weight``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["DRIVER", "NETWORKS", "Network"]


@dataclass(frozen=True)
class Network:
    """One network."""

    # Images are normalised per channel with the training split's mean and standard deviation, as
    # `course_lib.data.batches.Batches` does it; otherwise only scaled to 0…1
    normalised: bool = True
    # The run's parameters that set its size, each a whole number: the default without a value in ``run.json``, the
    # smallest and the largest value
    numbers: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    batch: int = 250  # images, or pieces of the text, per batch
    text: bool = False  # it reads pieces of lab 14's text and predicts each next character


_WIDTH = {"width": (1, 1, 64)}
NETWORKS = {
    "wide_resnet": Network(normalised=False, numbers=_WIDTH),
    "wide_resnet_standardised": Network(numbers=_WIDTH),
    "homework_resnet": Network(batch=100),
    "small_cnn_or_resnet": Network(numbers={"depth": (0, 0, 110)}),
    "parallel_sgd_net": Network(),
    "character_transformer": Network(
        # The notebook's bounds. A model that is too large for the sandbox meets the sandbox's limits.
        numbers={"width": (64, 8, 16384), "heads": (4, 1, 256), "layers": (4, 1, 256), "context": (64, 4, 16384)},
        batch=20,
        text=True,
    ),
}

DRIVER = """
import torch


def wide_resnet(channels, classes, width):
    from course_lib.models import WideResNet
    return WideResNet((16 * width, 32 * width, 64 * width), channels, classes)


def homework_resnet(channels, classes):
    from course_lib.models import HomeworkResNet
    return HomeworkResNet(classes, channels)


def small_cnn_or_resnet(channels, classes, depth):
    from course_lib.models import SmallCNN, cifar_resnet
    if depth:
        return cifar_resnet(depth, classes, channels)
    return SmallCNN(in_channels=channels, num_classes=classes)


def parallel_sgd_net(channels, classes):
    from course_lib.models import ParallelSGDNet
    return ParallelSGDNet(classes, channels)


def character_transformer(channels, classes, **numbers):
    from course_lib.models import CharacterTransformer
    return CharacterTransformer(classes, **numbers)


COURSE_LIB = {
    "wide_resnet": wide_resnet,
    "wide_resnet_standardised": wide_resnet,
    "homework_resnet": homework_resnet,
    "small_cnn_or_resnet": small_cnn_or_resnet,
    "parallel_sgd_net": parallel_sgd_net,
    "character_transformer": character_transformer,
}


def build(student, network, given):
    if network.startswith("notebook:"):
        return student(network.partition(":")[2])()
    if network.startswith("program:"):
        return student(network.partition(":")[2])(given["classes"])
    return COURSE_LIB[network](given["channels"], given["classes"], **given["numbers"])


OTHERS = ("torchvision.models", "timm", "course_lib.models")


def borrowed(model):
    # Where the first module comes from that others wrote; empty if there is none.
    for module in model.modules():
        for kind in type(module).__mro__:
            if any(f"{kind.__module__}.".startswith(f"{other}.") for other in OTHERS):
                return f"{kind.__module__}.{kind.__name__}"[:100]
    return ""


def predict(student, given, outside):
    from safetensors.torch import load
    state = load(given["weights"])
    model = build(student, given["network"], given)
    model.load_state_dict(state)
    model = model.eval().to(memory_format=torch.channels_last)
    scale, shift = (torch.tensor(given[name]).view(1, -1, 1, 1) for name in ("scale", "shift"))
    images = given["images"].permute(0, 3, 1, 2)
    predicted = []
    with torch.no_grad():
        for part in images.split(given["batch"]):
            part = torch.addcmul(shift, part.float(), scale).contiguous(memory_format=torch.channels_last)
            predicted.append(model(part).float().argmax(1))
    if given["network"].startswith("program:"):
        return {"predicted": torch.cat(predicted), "borrowed": borrowed(model)}
    return torch.cat(predicted)


def predict_characters(student, given, outside):
    from safetensors.torch import load
    model = build(student, given["network"], given)
    model.load_state_dict(load(given["weights"]))
    model.eval()
    with torch.no_grad():
        return torch.cat([model(part).float().argmax(-1) for part in given["codes"].split(given["batch"])])
"""

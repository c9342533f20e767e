"""Trying submitted weights on held-out images.

The images are of the test split, in an order and a choice drawn anew, lightly augmented; only the images go into the
sandbox, never a label, and what comes out are class numbers, which are scored here. Weights are read as safetensors,
which hold tensors and nothing else, inside the sandbox, with bounds on what they may take. Where the network is the
course's own, no code of the student's is in the process; where a rubric takes it from the notebook
(``network = "notebook:make_model"``) the student's code is, and can answer what it likes: from the pixels alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from data_prep.errors import DataError
from data_prep.staged import read

from .evidence import Evidence, HeldOut
from .limits import Exceeded, Limits
from .quoting import quote
from .rubric import ModelEvidence
from .run_folder import EvidenceError
from .warm import WarmInterpreter

__all__ = ["NETWORKS", "augment", "check_data", "try_weights"]

MAX_WIDTH = 64

# The course's networks: what the driver builds, from which of the run's parameters, and whether the lab standardises
# its images (lab 01) or only scales them to 0…1 (lab 02).
NETWORKS = {"wide_resnet_standardised": True, "wide_resnet": False}

DRIVER = """
import torch


def predict(student, given, outside):
    from safetensors.torch import load
    state = load(given["weights"])
    name = given["network"]
    if name.startswith("notebook:"):
        model = student(name.partition(":")[2])()
    else:
        from course_lib.models import WideResNet
        width = given["width"]
        model = WideResNet((16 * width, 32 * width, 64 * width), given["channels"], given["classes"])
    model.load_state_dict(state)
    model.eval()
    images = given["images"].permute(0, 3, 1, 2).float() / 255
    if given["standardise"]:
        mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (given["mean"], given["std"]))
        images = (images - mean) / std
    images = images.contiguous(memory_format=torch.channels_last)
    model = model.to(memory_format=torch.channels_last)
    with torch.no_grad():
        return torch.cat([model(part).float().argmax(1) for part in images.split(250)])
"""


def check_data(rules: ModelEvidence) -> None:
    """See that at least one of the rubric's data sets is staged here.

    Raises
    ------
    ValueError
        None is; one line with the remedy.
    """
    problems = []
    for name in [rules.held_out] if rules.held_out else rules.datasets:
        try:
            read(name)
            return
        except DataError as error:
            problems.append(str(error))
    raise ValueError(f"submitted weights cannot be tried: {problems[0]}")


def try_weights(
    rules: ModelEvidence,
    evidence: Evidence,
    weights: bytes,
    warm: WarmInterpreter,
    random: np.random.Generator,
    limits: Limits,
    cells: list[dict[str, Any]],
    data: Mapping[str, Path],
) -> HeldOut:
    """Ask the submitted weights for classes of held-out images, and score them.

    Parameters
    ----------
    rules : ModelEvidence
    evidence : Evidence
        Its run record names the data set and the width.
    weights : bytes
        ``model.safetensors``.
    warm, limits, data
        Of the sandbox.
    random : Generator
        Chooses, orders and augments.
    cells : list of dict
        The notebook's answers, for a network that is the notebook's.

    Raises
    ------
    EvidenceError
        The weights do not fit the network, or the execution ended early; one line for the student.
    """
    record = evidence.record
    if record.data_name not in rules.datasets:
        raise EvidenceError(f"the run's data set {quote(record.data_name)} is not one of {', '.join(rules.datasets)}")
    try:
        staged = read(rules.held_out or record.data_name)
    except DataError as error:
        raise EvidenceError(
            f"the grader has no such data to try the weights on ({error}); ask your instructor"
        ) from None
    chosen = random.permutation(len(staged.arrays["test_labels"]))[: rules.images]
    images = augment(staged.arrays["test_images"][chosen], random)
    labels = np.asarray(staged.arrays["test_labels"][chosen])
    width = record.parameters.get("width", 1)
    if type(width) is not int or not 1 <= width <= MAX_WIDTH:
        raise EvidenceError(
            f"run.json: parameters.width is {quote(width)}, a whole number up to {MAX_WIDTH} was expected"
        )
    from_notebook = rules.network.startswith("notebook:")
    name = rules.network if from_notebook else rules.network.partition(":")[2]
    given = {
        "weights": weights,
        "network": name,
        "width": width,
        "channels": int(images.shape[-1]),
        "classes": len(staged.classes),
        "images": torch.from_numpy(images),
        "standardise": NETWORKS.get(name, False),
        "mean": list(map(float, staged.mean)),
        "std": list(map(float, staged.std)),
    }
    try:
        with warm.execute(limits, data=data if from_notebook else {}) as execution:
            execution.cells(cells if from_notebook else [])
            (reply,) = execution.call(DRIVER, "predict", given)
    except Exceeded as error:
        raise EvidenceError(f"the weights could not be tried: {error}") from None
    predicted = reply.get("value")
    if not isinstance(predicted, torch.Tensor) or predicted.shape != labels.shape or predicted.is_floating_point():
        error = reply.get("error") if isinstance(reply.get("error"), dict) else {}
        # PyTorch's first line only says that something is wrong; the next ones say what.
        why = quote(" ".join(str(error.get("message", "no classes came back")).split()), 160)
        raise EvidenceError(f"model.safetensors does not fit the lab's network of width {width}: {why}")
    return HeldOut(int((predicted.numpy() == labels).sum()), len(labels), staged.name, staged.provenance)


def augment(images: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Lightly changed copies: each image a little brighter or darker, with a little noise.

    Light enough that a trained network's accuracy moves by less than a percentage point, and enough that no image is
    byte for byte one of the public test set.

    Parameters
    ----------
    images : uint8 (N, H, W, C)

    Returns
    -------
    uint8 (N, H, W, C)
    """
    gain = random.uniform(0.94, 1.06, (len(images), 1, 1, 1)).astype(np.float32)
    noise = random.normal(0, 2.0, images.shape).astype(np.float32)
    return np.clip(images * gain + noise, 0, 255).round().astype(np.uint8)

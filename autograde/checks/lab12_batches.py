"""Hidden check of lab 12's batches: which images each rank gets, and what was done to each of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from autograde.checks.registry import Ask, Findings, shape_of
from autograde.rubric.criteria import Finding

__all__ = ["batches"]

RANKS, SIDE, PADDING = 3, 12, 4
_LOOK = "print the labels and the first pixels of two ranks' first batches, in two epochs"

Pass = list[tuple[torch.Tensor, torch.Tensor]]


def batches(ask: Ask) -> Findings:
    """Images whose labels number them, with the crop and without any augmentation."""
    random = ask.random
    batch_size, whole = int(random.integers(7, 12)), int(random.integers(4, 6))
    share = batch_size * whole + int(random.integers(1, batch_size))
    train, test = (
        torch.from_numpy(random.integers(30, 256, (n, 3, SIDE, SIDE)).astype("uint8"))
        for n in (RANKS * share + 1, RANKS * 20 + int(random.integers(1, RANKS)))
    )
    mean, std = (tuple(float(x) for x in random.uniform(low, high, 3)) for low, high in ((0.2, 0.6), (0.1, 0.4)))
    first, other = (int(n) for n in random.choice(50, 2, replace=False))
    seed, other_seed = (int(n) for n in random.choice(10_000, 2, replace=False))
    given = {
        "train": train, "test": test, "mean": mean, "std": std, "batch_size": batch_size, "world_size": RANKS,
        "seed": seed, "epochs": [first, other, first], "augmentation": "crop",
    }  # fmt: skip
    scale = (torch.tensor(mean).view(1, -1, 1, 1), torch.tensor(std).view(1, -1, 1, 1))
    found = [
        _read(ask.call("batches", given | changes))
        for changes in ({}, {"augmentation": "none", "epochs": [first, other]}, {"seed": other_seed, "epochs": [first]})
    ]
    if any(isinstance(one, str) for one in found):
        reason = next(one for one in found if isinstance(one, str))
        return dict.fromkeys(("shares", "augmentation", "test"), Finding(False, reason, _LOOK))
    cropped, plain, reseeded = found
    return {
        "shares": _shares(cropped, plain, reseeded, batch_size, whole, train, scale),
        "augmentation": _augmented(cropped, train, scale),
        "test": _test(cropped, test, scale),
    }


def _read(found: Any) -> list[dict[str, Any]] | str:
    """By rank the passes over its batches; or why there are none."""
    parts = found.get("ranks") if isinstance(found, dict) else None
    wrong = "should return a pair of batches of images and labels"
    if not isinstance(parts, list) or len(parts) != RANKS:
        returned = found.get("returned") if isinstance(found, dict) else found
        return f"{wrong}, it returned {shape_of(returned)}"
    try:
        return [{"epochs": [_pass(one) for one in part["epochs"]], "test": _pass(part["test"])} for part in parts]
    except (KeyError, TypeError, ValueError):
        return wrong


def _pass(batches: Any) -> Pass:
    found = []
    for images, labels in batches:
        if (
            images.shape != (len(labels), 3, SIDE, SIDE)
            or labels.dtype != torch.int64
            or not images.is_floating_point()
        ):
            raise ValueError
        found.append((images, labels))
    return found


def _whole(one: Pass) -> tuple[torch.Tensor, torch.Tensor]:
    if not one:
        return torch.zeros(0, 3, SIDE, SIDE), torch.zeros(0, dtype=torch.int64)
    return torch.cat([images for images, _ in one]), torch.cat([labels for _, labels in one])


def _pixels(images: torch.Tensor, scale: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """0…255, as stored, if `images` are normalised; else something else."""
    return (images * scale[1] + scale[0]) * 255


def _is(images: torch.Tensor, stored: torch.Tensor) -> bool:
    return bool(((images - stored.float()).abs() < 0.1).all())


def _shares(cropped: Any, plain: Any, reseeded: Any, size: int, whole: int, train: torch.Tensor, scale: Any) -> Finding:
    orders = [[_whole(one)[1].tolist() for one in rank["epochs"]] for rank in cropped]
    for epoch in range(3):
        seen = [label for rank in orders for label in rank[epoch]]
        if len(set(seen)) < len(seen):
            return Finding(False, "ranks train on the same images, or one of them on an image twice", _LOOK)
    if any(len(labels) != size for rank in cropped for one in rank["epochs"] for _, labels in one):
        return Finding(False, "training batches do not all have the size asked for", _LOOK)
    if any(len(one) != whole for rank in cropped for one in rank["epochs"]):
        return Finding(False, "a rank does not have all full batches of its share of the images", _LOOK)
    if any(rank[0] == rank[1] for rank in orders) or any(rank[0] == sorted(rank[0]) for rank in orders):
        return Finding(False, "the training images do not come in a new order in each epoch", _LOOK)
    if any(rank[0] != rank[2] for rank in orders):
        return Finding(False, "the same epoch has two orders: a run could not be repeated", _LOOK)
    if all(_whole(new["epochs"][0])[1].tolist() == rank[0] for new, rank in zip(reseeded, orders, strict=True)):
        return Finding(False, "another seed gives the same order", _LOOK)
    for rank in plain:
        images, labels = _whole(rank["epochs"][0])
        if not _is(_pixels(images, scale), train[labels]):
            return Finding(False, "without augmentation, training images are not those stored, normalised", _LOOK)
    return Finding(True, "ranks share the images, in a new order each epoch, normalised")


def _augmented(cropped: Any, train: torch.Tensor, scale: Any) -> Finding:
    look = "show eight images of one batch before and after, and the same eight in the next epoch"
    chosen: list[list[dict[int, int]]] = []  # by rank and epoch: an image's crop
    for rank in cropped:
        chosen.append([])
        for one in rank["epochs"]:
            images, labels = _whole(one)
            if _is(_pixels(images, scale), train[labels]):
                return Finding(False, "training images come as stored", look)
            crops = [_crop(image, train[label]) for image, label in zip(_pixels(images, scale), labels, strict=True)]
            if None in crops:
                return Finding(False, "an image is no crop of the padded one, nor its mirror", look)
            chosen[-1].append(dict(zip(labels.tolist(), crops, strict=True)))
            for _, part in one:
                if len({chosen[-1][-1][int(label)] for label in part}) == 1:
                    return Finding(
                        False, "all images of a batch are cropped alike: parameters belong to a sample", look
                    )
    crops = [crop for rank in chosen for crop in rank[0].values()]
    flips = sum(crop % 2 for crop in crops) / len(crops)
    if len({crop // 2 for crop in crops}) < 15 or not 0.2 < flips < 0.8:
        return Finding(False, "crops are not spread over all places, or not about half of the images mirrored", look)
    for epochs in chosen:
        both = epochs[0].keys() & epochs[1].keys()
        if len(both) > 5 and all(epochs[0][label] == epochs[1][label] for label in both):
            return Finding(False, "an image is cropped alike in two epochs", look)
        if epochs[0] != epochs[2]:
            return Finding(False, "the same epoch twice gives different crops: a run could not be repeated", look)
    return Finding(True, "each image has its own crop and flip, new in each epoch")


def _crop(image: torch.Tensor, stored: torch.Tensor) -> int | None:
    """Twice the place of the crop, plus 1 where it is mirrored; None for what is no crop. `stored` has no black pixel."""
    padded = np.pad(stored.numpy().astype(np.float32), ((0, 0), (PADDING,) * 2, (PADDING,) * 2))
    middle, rest = SIDE // 2, 2 * PADDING + 1
    for flip, candidate in enumerate((image.numpy(), image.numpy()[:, :, ::-1])):
        first = np.abs(padded[0, middle : middle + rest, middle : middle + rest] - candidate[0, middle, middle]) < 0.1
        for top, left in zip(*first.nonzero(), strict=True):
            if (np.abs(padded[:, top : top + SIDE, left : left + SIDE] - candidate) < 0.1).all():
                return 2 * (rest * int(top) + int(left)) + flip
    return None


def _test(cropped: Any, test: torch.Tensor, scale: Any) -> Finding:
    look = "print how many test images each rank has, and compare one with the stored image"
    seen = []
    for rank in cropped:
        images, labels = _whole(rank["test"])
        seen += labels.tolist()
        if not _is(_pixels(images, scale), test[labels]):
            return Finding(False, "test images are not those stored, normalised: they are never augmented", look)
    if sorted(seen) != list(range(len(test))):
        reason = "some test images are seen by no rank" if len(set(seen)) < len(test) else "ranks test the same images"
        return Finding(False, reason, look)
    return Finding(True, "every test image is seen once, as it is")

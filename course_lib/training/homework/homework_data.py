"""The images of a homework program: some of the training images are kept for validation, the test images for the end."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from course_lib.data.batches import ImageData, Split

__all__ = ["HomeworkData", "split_for_homework"]

VALIDATION_SHARE = 10  # one training image of so many is kept for validation
SPLIT_SEED = 0  # the same images for everybody, on every rank


@dataclass(frozen=True)
class HomeworkData:
    """A staged data set in memory, with a validation split.

    Attributes
    ----------
    train, validation, test : Split
        Images ``uint8 (N, C, H, W)`` and labels ``int64 (N,)``. Choose learning rates and epochs by `validation`. Use
        `test` once, after the last epoch.
    classes : tuple of str
        Names of the classes; the label is the index.
    mean, std : tuple of float
        Of the training images, per channel, in 0…1.
    name : str
    """

    train: Split
    validation: Split
    test: Split
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    name: str


def split_for_homework(data: ImageData) -> HomeworkData:
    """Keep one training image in ten for validation: drawn once, so that a set sorted by class loses no class.

    Raises
    ------
    ValueError
        There are fewer than ten training images.
    """
    count = len(data.train) // VALIDATION_SHARE
    if count == 0:
        raise ValueError(
            f"{len(data.train)} training images: at least {VALIDATION_SHARE} are needed for a validation split"
        )
    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(SPLIT_SEED))
    validation, train = order[:count].sort().values, order[count:].sort().values
    return HomeworkData(
        data.train.part(train), data.train.part(validation), data.test, data.classes, data.mean, data.std, data.name
    )

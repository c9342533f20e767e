"""Progressive resizing: the first epochs train on smaller images, which cost less."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional as F

__all__ = ["ProgressiveResize"]


class ProgressiveResize:
    """Batches whose images are scaled down in the first epochs.

    A convolution's work grows with the image's area: at 24×24 a step costs 56 % of one at 32×32. The first epochs, with
    their high learning rate, learn coarse features that survive the scaling; the last ones see full images, as the test
    does (progressive resizing: Howard's ImageNet in 18 minutes, 2018; Tan & Le, EfficientNetV2, 2021). A network whose
    last pooling takes the whole map, as `HomeworkResNet`, takes any size.

    Parameters
    ----------
    batches : iterable of (images ``(B, C, H, W)``, labels)
        With ``set_epoch``.
    small_epochs : int
        Epochs with small images; 0 for none.
    small_size : int
        Their height and width in pixels.
    """

    def __init__(self, batches: Any, small_epochs: int, small_size: int) -> None:
        self.batches, self.small_epochs, self.small_size = batches, small_epochs, small_size
        self.epoch = 0

    def set_epoch(self, epoch: int, order: int | None = None) -> None:
        """Choose the epoch, counted from 0; `order`, where given, is the epoch whose order of images is used."""
        self.epoch = epoch
        self.batches.set_epoch(epoch if order is None else order)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        if self.epoch >= self.small_epochs:
            yield from self.batches
            return
        size = (self.small_size, self.small_size)
        for images, labels in self.batches:
            # antialias averages over the pixels that become one, as a camera with fewer pixels would
            yield F.interpolate(images, size=size, mode="bilinear", antialias=True), labels

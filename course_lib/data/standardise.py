"""Images as a network wants them, for `PackedDataset`: a transform of one image."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

__all__ = ["Standardise"]


class Standardise:
    """A PIL image → ``float32 (C, H, W)`` of mean 0 and standard deviation 1: torchvision's ToTensor and Normalize.

    A class, not a function within another: a `DataLoader` pickles it to its worker processes.

    Parameters
    ----------
    mean, std : sequence of float
        Per channel, in 0…1.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self.mean = torch.tensor(mean).view(-1, 1, 1)
        self.std = torch.tensor(std).view(-1, 1, 1)

    def __call__(self, image: Any) -> torch.Tensor:
        pixels = torch.from_numpy(np.array(image))
        pixels = pixels.unsqueeze(0) if pixels.dim() == 2 else pixels.permute(2, 0, 1)
        return (pixels / 255 - self.mean) / self.std

"""The network of the parallel SGD lab: two convolutions, three poolings, three linear layers, for MNIST."""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["ParallelSGDNet"]


class ParallelSGDNet(nn.Module):
    """The parallel SGD lab's network for parallel SGD.

    Parameters
    ----------
    num_classes : int
    in_channels : int
        1 for MNIST and FashionMNIST.
    dropout : float
        Share that is dropped between the second and the third pooling; that lab's program takes 0.4.

    Notes
    -----
    Input ``(batch, in_channels, 28, 28)``, or 32×32, to which that lab enlarges the images: either way the last map
    has 32 channels of 2×2 (28→24→12→8→4→2 and 32→28→14→10→5→2), so the weights are the same. Output: logits
    ``(batch, num_classes)``, to be given to the cross-entropy; that lab applies the log-softmax in the network and takes
    the negative log-likelihood, which is the same number.

    It has 213,194 parameters, all of them trained, and no buffers. As in that lab nothing bends between the
    second linear layer and the output, so these two together are one linear map.
    """

    def __init__(self, num_classes: int = 10, in_channels: int = 1, dropout: float = 0.4) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(in_channels, 16, kernel_size=5),
            nn.MaxPool2d(2),
            nn.ReLU(inplace=True),
            nn.Conv2d(16, 32, kernel_size=5),
            nn.MaxPool2d(2),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(
            nn.Linear(32 * 2 * 2, 512),
            nn.ReLU(inplace=True),
            nn.Linear(512, 256),
            nn.Linear(256, num_classes),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(x).flatten(1))

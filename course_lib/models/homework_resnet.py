"""The homework's residual network for CIFAR-100 and TinyImageNet (the HW4 slides)."""

from __future__ import annotations

import torch
from torch import nn

from course_lib.models.residual_blocks import BasicBlock

__all__ = ["HomeworkResNet"]

STAGES = ((32, 2, 1), (64, 4, 2), (128, 4, 2), (256, 2, 2))  # channels, blocks, stride of the first: conv2_x to conv5_x


class HomeworkResNet(nn.Module):
    """A 3×3 convolution, four stages of basic blocks, max pooling, one linear layer.

    Parameters
    ----------
    num_classes : int
        100 for CIFAR-100, 200 for TinyImageNet.
    in_channels : int
    dropout : float
        Share of channels' values that the dropout before the first block drops.

    Notes
    -----
    Input ``(B, in_channels, 32, 32)`` goes through maps of 32×32×32, 32×32×32, 64×16×16, 128×8×8 and 256×4×4; input of
    64×64 (TinyImageNet) through maps twice as high and wide. The pooling takes the whole last map (the homework leaves
    its size open), so that the linear layer has 256 inputs in both cases.
    """

    def __init__(self, num_classes: int = 100, in_channels: int = 3, dropout: float = 0.1) -> None:
        super().__init__()
        channels = STAGES[0][0]
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, channels, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
        )
        stages = []
        for width, blocks, stride in STAGES:
            stages.append(
                nn.Sequential(
                    BasicBlock(channels, width, stride), *(BasicBlock(width, width) for _ in range(blocks - 1))
                )
            )
            channels = width
        self.conv2_x, self.conv3_x, self.conv4_x, self.conv5_x = stages
        self.pool = nn.AdaptiveMaxPool2d(1)
        self.classifier = nn.Linear(channels, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv3_x(self.conv2_x(self.stem(x)))
        x = self.conv5_x(self.conv4_x(x))
        return self.classifier(self.pool(x).flatten(1))

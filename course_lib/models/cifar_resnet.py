"""Residual networks of depth 6n + 2 for CIFAR (He et al. 2016, section 4.2)."""

from __future__ import annotations

import torch
from torch import nn

from course_lib.models.residual_blocks import BasicBlock

__all__ = ["CifarResNet", "cifar_resnet"]


class ZeroPadded(nn.Module):
    """The paper's option A: every other pixel, and zeros for the channels that are new. It has no parameters."""

    def __init__(self, new_channels: int, stride: int) -> None:
        super().__init__()
        self.new_channels, self.stride = new_channels, stride

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = x[:, :, :: self.stride, :: self.stride]
        return nn.functional.pad(kept, (0, 0, 0, 0, self.new_channels // 2, self.new_channels - self.new_channels // 2))


class CifarResNet(nn.Module):
    """Three stages of n basic blocks with 16, 32 and 64 channels, averaged at the end.

    Input ``(B, in_channels, 32, 32)``, output logits ``(B, num_classes)``; the last map is 64×8×8. See `cifar_resnet`.
    """

    def __init__(self, blocks: int, num_classes: int, in_channels: int, residual: bool) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, 16, kernel_size=3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True)
        )
        stages, channels = [], 16
        for width in (16, 32, 64):
            first = BasicBlock(
                channels,
                width,
                stride=width // channels,
                shortcut=ZeroPadded(width - channels, 2) if width != channels else None,
                residual=residual,
            )
            stages.append(
                nn.Sequential(first, *(BasicBlock(width, width, residual=residual) for _ in range(blocks - 1)))
            )
            channels = width
        self.stage1, self.stage2, self.stage3 = stages
        self.average = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(channels, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stage3(self.stage2(self.stage1(self.stem(x))))
        return self.classifier(self.average(x).flatten(1))


def cifar_resnet(depth: int, num_classes: int = 10, in_channels: int = 3, residual: bool = True) -> CifarResNet:
    """ResNet-20, 32, 44, 56, 110… for CIFAR, or the plain network of that depth.

    Parameters
    ----------
    depth : int
        Layers with weights, 6n + 2: 20 has 269,722 parameters with 10 classes, 32 has 464,154, 56 has 853,018.
    residual : bool
        False: without shortcuts. It has as many parameters, since the shortcuts have none (option A).

    Raises
    ------
    ValueError
        No such depth.
    """
    if depth < 8 or (depth - 2) % 6:
        raise ValueError(f"depth must be 6n + 2 (8, 14, 20, 32, 44, 56, 110…), got {depth}")
    return CifarResNet((depth - 2) // 6, num_classes, in_channels, residual)

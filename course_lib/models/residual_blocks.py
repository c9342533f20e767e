"""The two building blocks of residual networks (He et al. 2016, figure 5; the HW4 slides)."""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["BasicBlock", "Bottleneck", "projection"]


def projection(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    """The shortcut where something does not match: a 1×1 convolution for the channels, its stride for height and width.

    Where both match it is the identity.
    """
    if stride == 1 and in_channels == out_channels:
        return nn.Identity()
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, kernel_size=1, stride=stride, bias=False), nn.BatchNorm2d(out_channels)
    )


class BasicBlock(nn.Module):
    """Two 3×3 convolutions, each with batch norm; the input is added before the last ReLU.

    ``(B, in_channels, H, W)`` becomes ``(B, channels, H/stride, W/stride)``.

    Parameters
    ----------
    in_channels, channels : int
    stride : int
        Of the first convolution, and of the shortcut.
    shortcut : nn.Module, optional
        By default `projection`.
    residual : bool
        False leaves the shortcut out: a *plain* network, for comparison.
    """

    expansion = 1

    def __init__(
        self,
        in_channels: int,
        channels: int,
        stride: int = 1,
        shortcut: nn.Module | None = None,
        residual: bool = True,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = (shortcut or projection(in_channels, channels, stride)) if residual else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.relu(out if self.downsample is None else out + self.downsample(x))


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions: down to `channels`, across, and up to four times as many.

    ``(B, in_channels, H, W)`` becomes ``(B, 4·channels, H/stride, W/stride)``. The stride is the 3×3 convolution's, as
    in torchvision (the paper has it in the first 1×1).
    """

    expansion = 4

    def __init__(self, in_channels: int, channels: int, stride: int = 1, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        out_channels = channels * self.expansion
        self.conv1 = nn.Conv2d(in_channels, channels, kernel_size=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, out_channels, kernel_size=1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = shortcut or projection(in_channels, out_channels, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        return self.relu(self.bn3(self.conv3(out)) + self.downsample(x))

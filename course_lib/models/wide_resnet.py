"""The wide residual network of the multi-GPU tutorial."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from course_lib.models.sparse_dropout import SparseDropout

__all__ = ["WideResNet"]


def conv_bn_relu(in_channels: int, out_channels: int) -> nn.Sequential:
    """3×3 convolution without bias, batch norm, ReLU; keeps height and width."""
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
    )


class ResidualBlock(nn.Module):
    """Two convolutions around a dropout of 0.01, added to the input.

    A stage's first block projects its shortcut by a 1×1 convolution *with* bias, whether or not the number of
    channels changes, as in the multi-GPU tutorial. There is no ReLU after the addition.
    """

    def __init__(self, in_channels: int, out_channels: int, project: bool) -> None:
        super().__init__()
        self.shortcut = nn.Conv2d(in_channels, out_channels, kernel_size=1) if project else nn.Identity()
        self.layer1 = conv_bn_relu(in_channels, out_channels)
        self.dropout = SparseDropout(p=0.01)
        self.layer2 = conv_bn_relu(out_channels, out_channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer2(self.dropout(self.layer1(x))) + self.shortcut(x)


class WideResNet(nn.Module):
    """Three stages of two residual blocks, max-pooled between, averaged at the end.

    Parameters
    ----------
    widths : three ints
        Channels of the three stages. The multi-GPU tutorial uses (160, 320, 640), which is width factor
        10; (16, 32, 64) is width factor 1 and trains at about 2,000 images/s on two cores.
    in_channels : int
        1 for FashionMNIST and MNIST, 3 for CIFAR.
    num_classes : int

    Notes
    -----
    Input ``(batch, in_channels, height, width)``, output logits ``(batch, num_classes)``. The last pooling
    averages whatever is left, so that 28×28 (the multi-GPU tutorial's 7×7 map) and 32×32 both fit; of the latter's 8×8 map
    the tutorial's ``AvgPool2d(7)`` would drop the last row and column.
    """

    def __init__(
        self,
        widths: Sequence[int] = (160, 320, 640),
        in_channels: int = 1,
        num_classes: int = 10,
    ) -> None:
        super().__init__()
        if len(widths) != 3 or any(width < 1 for width in widths):
            raise ValueError(f"widths must be three positive channel counts, got {tuple(widths)}")
        stem = 16
        first, second, third = widths
        self.stem = conv_bn_relu(in_channels, stem)
        self.stage1 = nn.Sequential(ResidualBlock(stem, first, True), ResidualBlock(first, first, False))
        self.stage2 = nn.Sequential(ResidualBlock(first, second, True), ResidualBlock(second, second, False))
        self.stage3 = nn.Sequential(ResidualBlock(second, third, True), ResidualBlock(third, third, False))
        self.pool = nn.MaxPool2d(2)
        self.average = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(third, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.stage1(self.stem(x)))
        x = self.pool(self.stage2(x))
        x = self.average(self.stage3(x))
        return self.classifier(x.flatten(1))

    def with_blocks_by(self, run: Callable[[list[nn.Module], torch.Tensor], torch.Tensor]) -> WideResNet:
        """This network, whose modules up to the last block are run by `run(modules, images)` from now on."""
        body = [self.stem, *self.stage1, self.pool, *self.stage2, self.pool, *self.stage3]
        self.forward = lambda images: self.classifier(self.average(run(body, images)).flatten(1))
        return self

"""ResNet50V2 and ResNet152V2 as Keras builds them (the UPC article; He et al. 2016, “Identity Mappings”)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

__all__ = ["ResNetV2", "keras_parameter_count", "resnet50v2", "resnet152v2"]


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1.001e-5, momentum=0.01)  # Keras calls this momentum 0.99


class PreactBottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions, each behind a batch norm and ReLU, added to a shortcut.

    The shortcut is a 1×1 convolution of the *activated* input (`project`), every `stride`-th pixel of the input, or the
    input. Only the last convolution and the projection have a bias: no batch norm follows them.
    """

    def __init__(self, in_channels: int, width: int, stride: int = 1, project: bool = False) -> None:
        super().__init__()
        self.preact = _norm(in_channels)
        self.shortcut = nn.Conv2d(in_channels, 4 * width, 1, stride) if project else nn.MaxPool2d(1, stride)
        self.conv1 = nn.Conv2d(in_channels, width, 1, bias=False)
        self.norm1 = _norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.norm2 = _norm(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1)
        self.project = project

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        activated = F.relu(self.preact(x))
        shortcut = self.shortcut(activated if self.project else x)
        y = F.relu(self.norm1(self.conv1(activated)))
        y = F.relu(self.norm2(self.conv2(y)))
        return self.conv3(y) + shortcut


class ResNetV2(nn.Module):
    """Four stacks of bottleneck blocks with 64, 128, 256 and 512 channels inside, averaged at the end.

    A stack's *last* block halves height and width (the last stack's does not), which is where Keras puts the stride; its
    first block projects the shortcut.

    Parameters
    ----------
    blocks : four ints
        Blocks a stack, at least two each.
    num_classes : int
    in_channels : int
    image_size : int, optional
        Images of another size are scaled to it by bilinear interpolation in the forward pass, so that what is loaded and
        moved stays small. Without it images stay as they are.

    Notes
    -----
    Input ``(B, in_channels, H, W)`` with H and W at least 32 (after scaling), output logits ``(B, num_classes)``; the last
    map is ⌈H/32⌉ × ⌈W/32⌉ of 2,048 channels. Weights start as in Keras: Glorot's uniform distribution, biases 0.

    Raises
    ------
    ValueError
        Not four stacks of two blocks, or an image size below 32.
    """

    def __init__(
        self, blocks: Sequence[int], num_classes: int = 1000, in_channels: int = 3, image_size: int | None = None
    ) -> None:
        super().__init__()
        if len(blocks) != 4 or min(blocks) < 2:
            raise ValueError(f"blocks must be four numbers of at least 2, got {tuple(blocks)}")
        if image_size is not None and image_size < 32:
            raise ValueError(f"image_size must be at least 32 (the network halves it five times), got {image_size}")
        self.image_size = image_size
        self.stem = nn.Conv2d(in_channels, 64, 7, 2, padding=3)
        stacks, channels = [], 64
        for number, (width, count) in enumerate(zip((64, 128, 256, 512), blocks, strict=True)):
            between = [PreactBottleneck(4 * width, width) for _ in range(count - 2)]
            last = PreactBottleneck(4 * width, width, stride=2 if number < 3 else 1)
            stacks.append(nn.Sequential(PreactBottleneck(channels, width, project=True), *between, last))
            channels = 4 * width
        self.stacks = nn.Sequential(*stacks)
        self.norm = _norm(channels)
        self.classifier = nn.Linear(channels, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.image_size is not None and x.shape[-2:] != (self.image_size, self.image_size):
            x = F.interpolate(x, size=(self.image_size, self.image_size), mode="bilinear")
        # Padded with zeros, as Keras does: no ReLU comes before, so a zero may be the largest.
        x = F.pad(self.stem(x), (1, 1, 1, 1))
        x = self.stacks(F.max_pool2d(x, 3, 2))
        x = F.relu(self.norm(x))
        return self.classifier(x.mean((2, 3)))


def resnet50v2(num_classes: int = 1000, in_channels: int = 3, image_size: int | None = None) -> ResNetV2:
    """Keras's ResNet50V2; arguments as for `ResNetV2`. 25,613,800 parameters as Keras counts 1,000 classes."""
    return ResNetV2((3, 4, 6, 3), num_classes, in_channels, image_size)


def resnet152v2(num_classes: int = 1000, in_channels: int = 3, image_size: int | None = None) -> ResNetV2:
    """Keras's ResNet152V2; arguments as for `ResNetV2`. 60,380,648 parameters as Keras counts 1,000 classes."""
    return ResNetV2((3, 8, 36, 3), num_classes, in_channels, image_size)


def keras_parameter_count(model: nn.Module) -> int:
    """Parameters as Keras counts them: batch norm's running means and variances, which are not trained, included."""
    running = sum(b.numel() for name, b in model.named_buffers() if name.endswith(("running_mean", "running_var")))
    return sum(p.numel() for p in model.parameters()) + running

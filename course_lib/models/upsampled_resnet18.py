"""torchvision's ResNet-18 for small images: they are scaled up on the device, and the head is new."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from course_lib.system.torchvision_import import import_torchvision

__all__ = ["upsampled_resnet18"]


def upsampled_resnet18(num_classes: int = 100, image_size: int = 224) -> nn.Module:
    """ResNet-18 (He et al. 2016; torchvision's, with its parameter names) with a head for `num_classes`.

    Input ``(B, 3, H, W)`` of any size is scaled to `image_size`² by bilinear interpolation in the forward pass: what is
    loaded, augmented and moved to the device stays small. Its first layers halve height and width five times, to 7×7 at
    224; a 32×32 image would end as 1×1.

    Parameters
    ----------
    num_classes : int
    image_size : int
        At least 32.

    Raises
    ------
    ValueError
        A smaller image size.
    """
    if image_size < 32:
        raise ValueError(f"image_size must be at least 32 (the network halves it five times), got {image_size}")
    import_torchvision()
    from torchvision.models.resnet import BasicBlock, ResNet

    class UpsampledResNet18(ResNet):
        def __init__(self) -> None:
            super().__init__(BasicBlock, [2, 2, 2, 2], num_classes=num_classes)
            self.image_size = image_size

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            size = (self.image_size, self.image_size)
            if x.shape[-2:] != size:
                x = F.interpolate(x, size=size, mode="bilinear", antialias=False)
            return super().forward(x)

    return UpsampledResNet18()

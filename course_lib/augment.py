"""Augmentation of whole batches on the device, with parameters drawn for every sample.

torchvision's transforms, the batched ones of version 2 included, draw one set of parameters a call: given a batch, they
move all its images alike, which is another and weaker augmentation. Here a batch is one call, and its samples differ.

An augmentation is called as ``augment(images, generator)``: images ``float32 (B, C, H, W)`` in 0…1, before they are
normalised, and a `torch.Generator` on the same device, which alone decides the parameters. The result has the images'
shape, device and memory format; the images themselves are left as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import pi

import torch
from torch.nn import functional as F

__all__ = ["AffineAndJitter", "AffineAndJitterParameters", "CropAndFlip"]

_LUMA = (0.2989, 0.587, 0.114)  # torchvision's; ITU-R 601-2


@dataclass(frozen=True)
class CropAndFlip:
    """A random crop out of the image with a black border, and a horizontal flip of every second image.

    The distribution is that of torchvision's ``RandomCrop(side, padding)`` and ``RandomHorizontalFlip()`` applied to
    every sample.

    Parameters
    ----------
    padding : int
        Pixels on each side; the offset is uniform over 0…2·padding in either direction.

    Raises
    ------
    ValueError
        A negative padding.
    """

    padding: int = 4

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise ValueError(f"padding must be at least 0, got {self.padding}")

    def __call__(self, images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        count, channels, height, width = images.shape
        sample = torch.arange(count, device=images.device)
        top, left = torch.randint(2 * self.padding + 1, (2, count), generator=generator, device=images.device)
        flip = torch.randint(2, (count, 1, 1, 1), generator=generator, device=images.device).bool()
        padded = F.pad(images, (self.padding,) * 4)
        # Every crop there is, as a view (B, top, left, ...): indexing then copies whole rows of the chosen ones.
        if images.is_contiguous(memory_format=torch.channels_last):
            rows = padded.permute(0, 2, 3, 1).flatten(2)
            crops = rows.unfold(1, height, 1).unfold(2, width * channels, channels)
            cropped = crops[sample, top, left].unflatten(2, (width, channels)).permute(0, 3, 1, 2)
        else:
            crops = padded.unfold(2, height, 1).unfold(3, width, 1).permute(0, 2, 3, 1, 4, 5)
            cropped = crops[sample, top, left]
        return torch.where(flip, cropped.flip(3), cropped)


@dataclass(frozen=True)
class AffineAndJitterParameters:
    """What was drawn for each of B samples.

    Attributes
    ----------
    flip : bool (B,)
    angle, shear : float32 (B,)
        In degrees, as torchvision's ``rotate`` and ``affine`` take them: counter-clockwise, and along x.
    scale : float32 (B,)
    factors : float32 (3, B)
        Of brightness, contrast and saturation.
    order : int64 (3, B)
        Which of these three comes first, second and third.
    """

    flip: torch.Tensor
    angle: torch.Tensor
    shear: torch.Tensor
    scale: torch.Tensor
    factors: torch.Tensor
    order: torch.Tensor


@dataclass(frozen=True)
class AffineAndJitter:
    degrees: float = 10.0
    shear: float = 10.0
    scale: tuple[float, float] = (0.8, 1.2)
    brightness: float = 0.2
    contrast: float = 0.2
    saturation: float = 0.2

    def __call__(self, images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return self.apply(images, self.draw(len(images), generator))

    def draw(self, count: int, generator: torch.Generator) -> AffineAndJitterParameters:
        """Draw the parameters of `count` samples, on the generator's device."""
        uniform = torch.rand((10, count), generator=generator, device=generator.device)
        low, high = self.scale
        widths = torch.tensor([self.brightness, self.contrast, self.saturation], device=generator.device)
        return AffineAndJitterParameters(
            flip=uniform[0] < 0.5,
            angle=(2 * uniform[1] - 1) * self.degrees,
            shear=(2 * uniform[2] - 1) * self.shear,
            scale=low + uniform[3] * (high - low),
            factors=1 + (2 * uniform[4:7] - 1) * widths[:, None],
            order=uniform[7:].argsort(0),
        )

    def apply(self, images: torch.Tensor, parameters: AffineAndJitterParameters) -> torch.Tensor:
        """The images, transformed by given parameters."""
        return _jittered(_warped(images, parameters), parameters)


def _warped(images: torch.Tensor, parameters: AffineAndJitterParameters) -> torch.Tensor:
    """Flipped, rotated, then sheared and scaled, each by nearest neighbour; what comes from outside is black."""
    count, channels, height, width = images.shape
    size = torch.tensor([width, height], dtype=torch.float32, device=images.device).view(2, 1)
    columns = torch.arange(width, device=images.device).repeat(height)
    rows = torch.arange(height, device=images.device).repeat_interleave(width)
    centres = torch.stack([columns, rows]) + 0.5 - size / 2
    angle, shear = parameters.angle * (pi / 180), parameters.shear * (pi / 180)
    zero, one = torch.zeros_like(angle), torch.ones_like(angle)
    # From each output pixel to the input's: the inverse maps, last transformation first.
    unsheared = torch.stack([one, shear.tan(), zero, one]).div(parameters.scale).T.reshape(count, 2, 2)
    unrotated = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()]).T.reshape(count, 2, 2)
    source = torch.baddbmm(size / 2, unsheared, centres.expand(count, -1, -1)).floor_()
    inside = ((source >= 0) & (source < size)).all(1)
    source = torch.baddbmm(size / 2, unrotated, source.add_(0.5 - size / 2)).floor_()
    inside &= ((source >= 0) & (source < size)).all(1)
    x, y = source.clamp_(min=0).minimum(size - 1).unbind(1)
    x = torch.where(parameters.flip[:, None], width - 1 - x, x)
    pixel = torch.add(x, y, alpha=width).long()
    if images.is_contiguous(memory_format=torch.channels_last):
        pixel += torch.arange(count, device=images.device)[:, None] * (height * width)
        rows = images.permute(0, 2, 3, 1).reshape(-1, channels)
        out = rows.index_select(0, pixel.view(-1)).view(count, height, width, channels).permute(0, 3, 1, 2)
    else:
        out = images.flatten(2).gather(2, pixel[:, None].expand(-1, channels, -1)).view(images.shape)
    return out.mul_(inside.view(count, 1, height, width))


def _jittered(images: torch.Tensor, parameters: AffineAndJitterParameters) -> torch.Tensor:
    """Each adjustment blends the image with black, with its mean luma, or with its luma; then clamps to 0…1."""
    channels = images.shape[1]
    for which in parameters.order:
        factor = parameters.factors.gather(0, which[None]).view(-1, 1, 1, 1)
        luma = sum(w * images[:, c : c + 1] for c, w in enumerate(_LUMA)) if channels == 3 else images
        mean = luma.mean((2, 3), keepdim=True)
        which = which.view(-1, 1, 1, 1)
        other = luma * ((1 - factor) * (which == 2)) + mean * ((1 - factor) * (which == 1))
        images = torch.addcmul(other, images, factor).clamp_(0, 1)
    return images

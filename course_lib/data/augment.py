"""Augmentation of whole batches on the device, with parameters drawn for every sample.

torchvision's transforms, the batched ones of version 2 included, draw one set of parameters a call: given a batch, they
move all its images alike, which is another and weaker augmentation. Here a batch is one call, and its samples differ.

An augmentation is called as ``augment(images, generator)``: images ``float32 (B, C, H, W)`` in 0…1, before they are
normalised, and a `torch.Generator` on the same device, which alone decides the parameters. The result has the images'
shape, device and memory format; the images themselves are left as they are.
"""

from dataclasses import dataclass
from math import pi

import torch
from torch.nn import functional as F

__all__ = ["AffineAndJitter", "AffineAndJitterParameters", "CropAndFlip"]

_LUMA = (0.2989, 0.587, 0.114)  # torchvision's; ITU-R 601-2
_FAR = 1e6  # pixels


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
        flip = torch.randint(2, (count, 1), generator=generator, device=images.device).bool()
        padded = F.pad(images, (self.padding,) * 4)
        # Every crop there is, as a view (B, top, left, ...): indexing then copies whole rows of the chosen ones.
        if images.is_contiguous(memory_format=torch.channels_last):
            rows = padded.permute(0, 2, 3, 1).flatten(2)
            crops = rows.unfold(1, height, 1).unfold(2, width * channels, channels)
            cropped = crops[sample, top, left].unflatten(2, (width, channels))
            return _mirrored(cropped, flip, 2).permute(0, 3, 1, 2)
        crops = padded.unfold(2, height, 1).unfold(3, width, 1).permute(0, 2, 3, 1, 4, 5)
        return _mirrored(crops[sample, top, left], flip, 3)


def _mirrored(images: torch.Tensor, flip: torch.Tensor, axis: int) -> torch.Tensor:
    return torch.where(flip, images.flip(axis).flatten(1), images.flatten(1)).view_as(images)


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
    """A flip, a rotation, a scaling with a shear, and changes of brightness, contrast and saturation.

    The distribution is that of torchvision's transforms applied to every sample, the pixels up to the rounding that
    8-bit images undergo between them::

        RandomHorizontalFlip(), RandomRotation(degrees), RandomAffine(0, shear=shear, scale=scale),
        ColorJitter(brightness, contrast, saturation)

    As in torchvision by default, both warps take the nearest pixel, outside the image is black, and the
    three changes of colour come in random order. Images of one channel have no saturation to change.

    Parameters
    ----------
    degrees, shear : float
        The angles are uniform over ±degrees and ±shear; the shear is along x.
    scale : pair of float
        Uniform between these.
    brightness, contrast, saturation : float
        The factors are uniform over 1 ± these.

    Raises
    ------
    ValueError
        A negative range, a scale that is not positive, a shear of 90° or more, a factor that could be negative; or, in a
        call, images that have neither one nor three channels.

    Notes
    -----
    Kornia does the same by ``AugmentationSequential``, except that all samples of a batch share one order of the colour
    changes. ``benchmarks/input_pipeline.py`` measures both, and torchvision on PIL images.
    """

    degrees: float = 10.0
    shear: float = 10.0
    scale: tuple[float, float] = (0.8, 1.2)
    brightness: float = 0.2
    contrast: float = 0.2
    saturation: float = 0.2

    def __post_init__(self) -> None:
        if self.degrees < 0 or not 0 <= self.shear < 90:
            raise ValueError(f"degrees must be at least 0 and shear in 0…90, got {self.degrees} and {self.shear}")
        if not 0 < self.scale[0] <= self.scale[1]:
            raise ValueError(f"scale must be a positive range, got {self.scale}")
        for name in ("brightness", "contrast", "saturation"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be in 0…1, got {getattr(self, name)}")

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
        """The images, transformed by given parameters, which `draw` otherwise draws."""
        if images.shape[1] not in (1, 3):
            raise ValueError(f"images must have 1 or 3 channels, got {tuple(images.shape)}")
        channels_last = images.is_contiguous(memory_format=torch.channels_last)
        images = _jittered(_warped(images.contiguous(), parameters), parameters)
        return images.contiguous(memory_format=torch.channels_last) if channels_last else images


def _warped(images: torch.Tensor, parameters: AffineAndJitterParameters) -> torch.Tensor:
    """Flipped, rotated, then scaled and sheared, each to the nearest pixel; what comes from outside is black.

    The pixels of the intermediate image are found but never copied: the two nearest-pixel maps are composed, and the
    images are sampled once.
    """
    height, width = images.shape[2:]
    x, y = (torch.arange(side, device=images.device) + (1 - side) / 2 for side in (width, height))  # from the centre
    angle, shear = ((degrees * (pi / 180)).view(-1, 1, 1) for degrees in (parameters.angle, parameters.shear))
    scale, mirror = parameters.scale.view(-1, 1, 1), 1 - 2 * parameters.flip.float().view(-1, 1, 1)
    y = y.view(-1, 1)
    x = _to_pixel(x / scale + shear.tan() / scale * y, width)  # (B, H, W)
    y = _to_pixel(y / scale, height)  # (B, H, 1)
    across = (x * (mirror * angle.cos())).sub_(y * (mirror * angle.sin()))
    down = (x * angle.sin()).add_(y * angle.cos())
    grid = torch.stack((across.mul_(2 / width), down.mul_(2 / height)), dim=-1)
    return F.grid_sample(images, grid, mode="nearest", padding_mode="zeros", align_corners=False)


def _to_pixel(position: torch.Tensor, side: int) -> torch.Tensor:
    """The centre of the pixel that holds a position, both from the image's centre, in place.

    One outside the image goes so far off that no rotation brings it back.
    """
    index = position.add_(side / 2).floor_()
    return index.add_(index - index.clamp(0, side - 1), alpha=_FAR).add_((1 - side) / 2)


def _jittered(images: torch.Tensor, parameters: AffineAndJitterParameters) -> torch.Tensor:
    """Each adjustment blends the image with black, with its mean luma, or with its luma; then clamps to 0…1."""
    luma_weights = torch.tensor(_LUMA if images.shape[1] == 3 else (1.0,), device=images.device)
    for step in parameters.order:
        factor = parameters.factors.gather(0, step[None]).view(-1, 1, 1, 1)
        luma = (luma_weights @ images.flatten(2)).view(-1, 1, *images.shape[2:])
        mean = luma.mean((2, 3), keepdim=True)
        is_contrast, is_saturation = ((step == which).view(-1, 1, 1, 1) for which in (1, 2))
        other = luma.mul_((1 - factor) * is_saturation).add_(mean * (1 - factor) * is_contrast)
        images = torch.addcmul(other, images, factor).clamp_(0, 1)
    return images

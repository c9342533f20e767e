"""The batched augmentations against torchvision's per-sample ones: pixels for given parameters, and what is drawn."""

import itertools
import math

import numpy as np
import pytest
import torch
from PIL import Image

from course_lib.data.augment import AffineAndJitter, AffineAndJitterParameters, CropAndFlip
from course_lib.system.torchvision_import import import_torchvision

import_torchvision()
from torchvision import transforms as T  # noqa: E402
from torchvision.transforms import functional as TF  # noqa: E402

each_augmentation = pytest.mark.parametrize("augment", [CropAndFlip(), AffineAndJitter()], ids=["crop", "affine"])
BRIGHTNESS, CONTRAST, SATURATION = range(3)
CHANCE = torch.Generator().manual_seed(5)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def noise(count, channels=3, side=32, smooth=False):
    """8-bit images in 0…1; smooth ones for what depends on a pixel's neighbours."""
    square = 8 if smooth else 1
    pixels = torch.randint(0, 256, (count, channels, side // square, side // square), generator=CHANCE)
    return pixels.float().repeat_interleave(square, 2).repeat_interleave(square, 3) / 255


def given(count, flip=0, angle=0.0, shear=0.0, scale=1.0, factors=(1.0, 1.0, 1.0), order=(0, 1, 2)):
    return AffineAndJitterParameters(
        flip=torch.full((count,), bool(flip)),
        angle=torch.full((count,), angle),
        shear=torch.full((count,), shear),
        scale=torch.full((count,), scale),
        factors=torch.tensor(factors).view(3, 1).repeat(1, count),
        order=torch.tensor(order).view(3, 1).repeat(1, count),
    )


def as_pil(image):
    pixels = (image * 255).round().byte().permute(1, 2, 0).numpy()
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)


def distance(first, second):
    """Kolmogorov's and Smirnov's, of two samples."""
    both = np.concatenate([first, second])
    below = [np.searchsorted(np.sort(sample), both, side="right") / len(sample) for sample in (first, second)]
    return abs(below[0] - below[1]).max()


@each_augmentation
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format], ids=["NHWC", "NCHW"])
@pytest.mark.parametrize("channels, height, width", [(3, 32, 32), (1, 28, 28), (3, 64, 64), (3, 24, 40)])
def test_shape_layout_and_range_are_kept_and_the_images_left_alone(augment, layout, channels, height, width):
    images = torch.rand(6, channels, height, width, generator=CHANCE).contiguous(memory_format=layout)
    before = images.clone()
    out = augment(images, generator())
    assert torch.equal(images, before) and out.data_ptr() != images.data_ptr()
    assert out.shape == images.shape and out.dtype == torch.float32 and out.is_contiguous(memory_format=layout)
    assert out.min() >= 0 and out.max() <= 1
    assert torch.equal(out, augment(images.contiguous(), generator()))  # the layout changes no pixel


@each_augmentation
def test_samples_differ_seeds_differ_and_a_seed_repeats(augment):
    images = noise(1).repeat(64, 1, 1, 1)
    out = augment(images, generator(1))
    distinct = len({image.numpy().tobytes() for image in out})
    assert distinct > 40  # of 64: 162 crops there are, and as good as never twice the same warp
    assert torch.equal(out, augment(images, generator(1)))
    assert not torch.equal(out, augment(images, generator(2)))
    same = generator(1)
    assert not torch.equal(augment(images, same), augment(images, same))  # the next batch is another


def test_every_crop_is_torchvisions_and_all_are_drawn_alike():
    padding, count = 4, 81 * 2 * 60
    image = noise(1, side=16)
    out = CropAndFlip(padding)(image.repeat(count, 1, 1, 1), generator(3))
    bordered = TF.pad(image[0], padding)
    crops = {
        (TF.hflip(crop) if flip else crop).contiguous().numpy().tobytes(): (top, left, flip)
        for top, left, flip in itertools.product(range(9), range(9), range(2))
        for crop in [TF.crop(bordered, top, left, 16, 16)]
    }
    assert len(crops) == 162
    drawn = np.array([crops[found.contiguous().numpy().tobytes()] for found in out])
    counts = np.bincount(drawn @ [18, 2, 1], minlength=162)
    assert ((counts - 60) ** 2 / 60).sum() < 161 + 4 * math.sqrt(2 * 161)  # χ², 161 degrees of freedom


def test_no_padding_only_flips():
    image = noise(1)[0]
    for out in CropAndFlip(0)(image.repeat(20, 1, 1, 1), generator()):
        assert torch.equal(out, image) or torch.equal(out, TF.hflip(image))


@pytest.mark.parametrize("side, channels", [(32, 3), (64, 3), (28, 1)])
@pytest.mark.parametrize(
    "flip, angle, shear, scale",
    [(1, 0.0, 0.0, 1.0), (0, 7.3, 0.0, 1.0), (0, 0.0, 9.1, 1.0), (0, 0.0, 0.0, 0.83), (0, 0.0, 0.0, 1.17),
     (1, -8.6, -6.2, 0.9), (1, 3.7, 8.8, 1.13), (0, -95.0, 30.0, 0.7)],
)  # fmt: skip
def test_the_warp_is_torchvisions_pixel_for_pixel(side, channels, flip, angle, shear, scale):
    # Pillow's nearest neighbour works in 1/65536 of a pixel, so that a few pixels of 1,000 may fall to a neighbour.
    images = noise(4, channels, side)
    out = AffineAndJitter().apply(images, given(4, flip, angle, shear, scale))
    for image, found in zip(images, out, strict=True):
        step = TF.hflip(as_pil(image)) if flip else as_pil(image)
        step = TF.affine(TF.rotate(step, angle), 0.0, [0, 0], scale, [shear, 0.0])
        same = (TF.to_tensor(step) - found).abs().amax(0) < 1e-6
        assert same.float().mean() > 0.995, f"{(~same).sum()} pixels of {same.numel()}"


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_colours_are_torchvisions_in_any_order(channels, order):
    adjust = {BRIGHTNESS: TF.adjust_brightness, CONTRAST: TF.adjust_contrast, SATURATION: TF.adjust_saturation}
    images = noise(3, channels)
    for factors in ((1.2, 1.0, 1.0), (1.0, 0.8, 1.0), (1.0, 1.0, 1.2), (0.83, 1.2, 0.8), (1.19, 0.85, 1.15)):
        out = AffineAndJitter().apply(images, given(3, factors=factors, order=order))
        for image, found in zip(images, out, strict=True):
            exact, pil = image, as_pil(image)
            for which in order:
                exact, pil = (adjust[which](step, factors[which]) for step in (exact, pil))
            assert (found - exact).abs().max() < 1e-5
            assert (found - TF.to_tensor(pil)).abs().max() < 3.5 / 255  # rounded three times


def test_every_sample_has_its_own_order_and_factors():
    augment, images = AffineAndJitter(), noise(6)
    parts = [
        given(1, k % 2, 2.0 * k, -1.0 * k, 1 + k / 20, (0.8 + k / 15, 1.2 - k / 15, 1.1), order)
        for k, order in enumerate(itertools.permutations(range(3)))
    ]
    together = AffineAndJitterParameters(
        **{name: torch.cat([getattr(part, name) for part in parts], dim=-1) for name in vars(parts[0])}
    )
    for k, (image, found) in enumerate(zip(images, augment.apply(images, together), strict=True)):
        assert torch.allclose(found, augment.apply(image[None], parts[k])[0], atol=1e-6), k


def test_parameters_are_drawn_as_torchvision_draws_them():
    count, others = 20_000, 3_000
    augment = AffineAndJitter(degrees=10, shear=7, scale=(0.8, 1.3), brightness=0.2, contrast=0.1, saturation=0.3)
    drawn = augment.draw(count, generator(11))
    torch.manual_seed(12)
    affine = T.RandomAffine(0, shear=7, scale=(0.8, 1.3))
    jitter = T.ColorJitter(0.2, 0.1, 0.3)
    names, rows = ("angle", "scale", "shear", "brightness", "contrast", "saturation"), []
    for _ in range(others):
        angle = T.RandomRotation.get_params([-10, 10])
        _, _, scale, (shear, _) = T.RandomAffine.get_params(affine.degrees, None, affine.scale, affine.shear, [32, 32])
        _, *factors, _ = T.ColorJitter.get_params(jitter.brightness, jitter.contrast, jitter.saturation, None)
        rows.append((angle, scale, shear, *factors))
    ours = dict(zip(names, (drawn.angle, drawn.scale, drawn.shear, *drawn.factors), strict=True))
    for name, values in zip(names, zip(*rows, strict=True), strict=True):
        limit = 1.95 * math.sqrt((count + others) / (count * others))  # one in a thousand
        assert distance(ours[name].numpy(), np.array(values)) < limit, name
    everything = torch.stack([*ours.values(), drawn.flip.float(), *drawn.order[:2].float()])
    together = torch.corrcoef(everything)
    together[-1, -2] = together[-2, -1] = 0  # first and second of an order exclude each other
    assert (together - torch.eye(len(everything))).abs().max() < 4.5 / math.sqrt(count)  # drawn independently
    assert abs(drawn.flip.float().mean() - 0.5) < 4 * 0.5 / math.sqrt(count)
    kinds, counts = drawn.order.unique(dim=1, return_counts=True)
    assert sorted(map(tuple, kinds.T.tolist())) == list(itertools.permutations(range(3)))
    assert (counts / count - 1 / 6).abs().max() < 4 * math.sqrt(5 / 36 / count)


def test_moments_of_the_pixels_are_those_of_torchvisions_pipeline():
    image, count = noise(1, smooth=True), 3_000
    ours = AffineAndJitter()(image.repeat(count, 1, 1, 1), generator(4))
    torch.manual_seed(4)
    warps = [T.RandomHorizontalFlip(), T.RandomRotation(10), T.RandomAffine(0, shear=10, scale=(0.8, 1.2))]
    pipeline = T.Compose([*warps, T.ColorJitter(0.2, 0.2, 0.2), T.ToTensor()])
    picture = as_pil(image[0])
    theirs = torch.stack([pipeline(picture) for _ in range(count // 4)])
    error = (ours.var(0) / len(ours) + theirs.var(0) / len(theirs)).sqrt().clamp(min=1e-3)
    apart = (ours.mean(0) - theirs.mean(0)).abs() / error
    assert apart.max() < 5.5 and (apart**2).mean() < 1.6  # 3,072 pixels, which hang together
    assert abs(ours.std(0).mean() / theirs.std(0).mean() - 1) < 0.03


@pytest.mark.parametrize(
    "wrong, word",
    [
        (lambda: CropAndFlip(-1), "padding"),
        (lambda: AffineAndJitter(degrees=-1), "degrees"),
        (lambda: AffineAndJitter(shear=90), "shear"),
        (lambda: AffineAndJitter(scale=(1.2, 0.8)), "scale"),
        (lambda: AffineAndJitter(scale=(0.0, 1.0)), "scale"),
        (lambda: AffineAndJitter(contrast=1.5), "contrast"),
        (lambda: AffineAndJitter()(torch.zeros(2, 4, 8, 8), generator()), "1 or 3 channels"),
    ],
)
def test_bad_arguments_are_one_line(wrong, word):
    with pytest.raises(ValueError) as raised:
        wrong()
    assert word in str(raised.value) and "\n" not in str(raised.value)

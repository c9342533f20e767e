"""Staged data sets → batches.

Two roads lead from a packed set to a training loop. `PackedDataset` is a plain `torch.utils.data.Dataset`, to
be used with `DataLoader` and `DistributedSampler`: the usual way, which the labs teach. `Batches`
cuts batches out of one resident array, which is what such small images deserve: no worker processes, no
per-sample Python, one indexing operation a batch.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from data_prep.staged import read

__all__ = [
    "Augmentation",
    "Batches",
    "ImageData",
    "PackedDataset",
    "Split",
    "endless",
    "fits",
    "load",
    "on_device",
    "random_batch",
]

Augmentation = Callable[[torch.Tensor, torch.Generator], torch.Tensor]
"""``augment(images, generator)``, images ``float32 (B, C, H, W)`` in 0…1: see `course_lib.data.augment`."""

SUBSET_SEED = 0  # train_samples = n means the same n images for everybody


@dataclass(frozen=True)
class Split:
    """Images ``uint8 (N, C, H, W)``, stored channels last, and labels ``int64 (N,)``."""

    images: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, indices: Sequence[int]) -> "Split":
        """The images with these numbers, in this order: those of a `torch.utils.data.Subset`, for example."""
        return Split(self.images[indices], self.labels[indices])

    def hold_out(self, share: int = 6) -> "tuple[Split, Split]":
        """Images to train on, and the last one of `share` equal parts to validate on. Both are views, not copies."""
        cut = len(self) * (share - 1) // share
        return Split(self.images[:cut], self.labels[:cut]), Split(self.images[cut:], self.labels[cut:])


@dataclass(frozen=True)
class ImageData:
    """A staged data set in memory. ``mean`` and ``std`` are the training split's, per channel, in 0…1."""

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    provenance: str
    source: str

    @property
    def channels(self) -> int:
        return self.train.images.shape[1]

    def describe(self) -> dict[str, Any]:
        """What ``run.json`` says of the data, so that no number appears without its provenance."""
        named = {name: getattr(self, name) for name in ("name", "provenance", "source")}
        return named | {"train_samples": len(self.train), "test_samples": len(self.test)}

    def __str__(self) -> str:
        height, width = self.train.images.shape[2:]
        return (
            f"{self.name}: {len(self.train):,} training and {len(self.test):,} test images, "
            f"{self.channels}×{height}×{width}, {len(self.classes)} classes; {self.provenance}, from {self.source}"
        )


def load(name: str, root: str | None = None, train_samples: int = 0, test_samples: int = 0) -> ImageData:
    """Read a staged data set.

    Parameters
    ----------
    name : str
        ``fashion-mnist``, ``fashion-mnist-small`` (ships with the project), ``mnist``… ``cifar10-synthetic``,
        ``cifar100-synthetic`` and ``tiny-imagenet-synthetic`` are small made-up sets that need no staging.
    root : str, optional
        The data root; by default as `data_prep.root.data_root` finds it.
    train_samples, test_samples : int
        Use only so many images of a split, the same ones on every machine and rank; 0 = all.

    Raises
    ------
    data_prep.staged.NotStaged
        With the command that stages the set.
    ValueError
        More samples asked for than there are.
    """
    staged = read(name, root)
    train, test = _split(staged, "train", train_samples), _split(staged, "test", test_samples)
    described = tuple(staged.classes), tuple(staged.mean), tuple(staged.std)
    return ImageData(staged.name, train, test, *described, staged.provenance, staged.source)


def _split(staged: Any, split: str, samples: int) -> Split:
    images, labels = staged.arrays[f"{split}_images"], staged.arrays[f"{split}_labels"]
    if not 0 <= samples <= len(labels):
        raise ValueError(f"{split}_samples = {samples}, but {staged.name} has {len(labels)} such images (0 = all)")
    if samples:
        chosen = np.random.default_rng(SUBSET_SEED).permutation(len(labels))[:samples]
        images, labels = images[np.sort(chosen)], labels[np.sort(chosen)]
    # A copy: the file is mapped read-only, and a tensor over it could be written to.
    tensor = torch.from_numpy(np.array(images)).permute(0, 3, 1, 2)
    return Split(tensor, torch.from_numpy(np.array(labels)).long())


class PackedDataset(Dataset):
    """A split as a `torch.utils.data.Dataset`, like torchvision's: item i is ``(image, label)``.

    Without a transform the image is a ``float32 (C, H, W)`` tensor in 0…1 (what ToTensor gives); a
    transform receives the PIL image.
    """

    def __init__(self, split: Split, transform: Callable[[Any], Any] | None = None) -> None:
        self.split = split
        self.transform = transform

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image, label = self.split.images[index], int(self.split.labels[index])
        if self.transform is None:
            return image.float() / 255, label
        from PIL import Image

        pixels = image.permute(1, 2, 0).numpy()
        return self.transform(Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)), label


class Batches:
    """Batches of one rank's share of a split, normalised, on the device.

    Each epoch's order is that of ``DistributedSampler(shuffle, seed, drop_last)``: one permutation
    drawn from ``seed + epoch``, dealt to the ranks in turn.

    Parameters
    ----------
    batch_size : int
        Per rank.
    device : torch.device or str
        The whole split is kept there if it `fits`. Otherwise it stays in the host's memory, and each batch is cut there and
        moved while the device may be at work on the one before.
    mean, std : sequence of float
        Per channel, in 0…1.
    shuffle : bool
        True for training: images in a new order each epoch, and only full batches, the same number on every
        rank. False for evaluation: every image once, whatever the number of ranks.
    augment : callable, optional
        ``augment(images, generator)`` of the images in 0…1, before they are normalised; see `course_lib.data.augment`. The
        generator is on the device and seeded from seed, epoch and rank: a run can be repeated, ranks differ, and a run
        that resumes at an epoch continues as if it had not stopped.

    Yields
    ------
    images : float32 ``(B, C, H, W)``, channels last; labels : int64 ``(B,)``

    Raises
    ------
    ValueError
        A rank's share is smaller than one batch; an augmentation without shuffle, which is evaluation.
    """

    def __init__(
        self,
        split: Split,
        batch_size: int,
        device: torch.device | str = "cpu",
        *,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        shuffle: bool = False,
        augment: Augmentation | None = None,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.split, self.batch_size, self.device = split, batch_size, torch.device(device)
        self.shuffle, self.seed, self.rank, self.world_size = shuffle, seed, rank, world_size
        self.augment, self.epoch = augment, 0
        if augment is not None and not shuffle:
            raise ValueError("augment is for training: give it with shuffle=True")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        share = len(split) // world_size
        if shuffle and share < batch_size:
            raise ValueError(
                f"batch_size {batch_size} per rank × {world_size} ranks exceeds the {len(split)} training images; "
                "use a smaller batch_size or more train_samples"
            )
        self.images = split.images.to(self.device) if fits(split.images, self.device) else split.images
        self.labels = split.labels.to(self.device)
        top = 255 if augment is None else 1  # of the pixels that are normalised
        scale = torch.tensor([1 / (top * s) for s in std], device=self.device)
        shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=self.device)
        self.scale, self.shift = scale.view(1, -1, 1, 1), shift.view(1, -1, 1, 1)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order comes next, as `DistributedSampler.set_epoch` does."""
        self.epoch = epoch

    @property
    def samples(self) -> int:
        """Images that one pass over these batches yields on this rank."""
        if self.shuffle:
            return len(self) * self.batch_size
        return len(range(self.rank, len(self.split), self.world_size))

    def __len__(self) -> int:
        if self.shuffle:
            return len(self.split) // self.world_size // self.batch_size
        return -(-self.samples // self.batch_size)

    def _order(self) -> torch.Tensor:
        if not self.shuffle:
            return torch.arange(len(self.split))[self.rank :: self.world_size]
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        shared = torch.randperm(len(self.split), generator=generator)
        share = len(self.split) // self.world_size
        return shared[: share * self.world_size][self.rank :: self.world_size]

    def _generator(self) -> torch.Generator:
        """Of the augmentation's parameters; another stream than that of the order."""
        entropy = np.random.SeedSequence([self.seed % 2**64, self.epoch, self.rank])
        return torch.Generator(self.labels.device).manual_seed(int(entropy.generate_state(1, np.uint64)[0]))

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        order = self._order().to(self.images.device)
        generator = None if self.augment is None else self._generator()
        for start in range(0, len(self) * self.batch_size, self.batch_size):
            chosen = order[start : start + self.batch_size]
            pixels = self._cut(chosen).to(torch.float32)
            if self.augment is not None:
                pixels = self.augment(pixels / 255, generator)
            yield torch.addcmul(self.shift, pixels, self.scale), self.labels[chosen.to(self.device)]

    def _cut(self, chosen: torch.Tensor) -> torch.Tensor:
        images = self.images[chosen]
        if images.device.type == self.device.type:
            return images
        # From pinned memory the copy is asynchronous, and the allocator does not give the memory away before its end.
        return images.pin_memory().to(self.device, non_blocking=True)


def fits(images: torch.Tensor, device: torch.device) -> bool:
    """Whether images may stay on a device: on a GPU, in half of the memory that is free, the rest being the training's."""
    return device.type != "cuda" or images.nbytes <= torch.cuda.mem_get_info(device)[0] // 2


def on_device(loader: Any, device: torch.device | str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of a `DataLoader`, moved to the device, images channels last."""
    for images, labels in loader:
        images = images.to(device, memory_format=torch.channels_last, non_blocking=True)
        yield images, labels.to(device, non_blocking=True)


def endless(loader: Any, device: torch.device | str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches `on_device`, epoch after epoch without an end."""
    while True:
        yield from on_device(loader, device)


def random_batch(data: ImageData, size: int, device: torch.device | str) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch of noise for measurements: images ``float32 (size, C, H, W)`` as in `data`, channels last, and labels."""
    images = torch.randn(size, *data.train.images.shape[1:], device=device)
    labels = torch.randint(len(data.classes), (size,), device=device)
    return images.contiguous(memory_format=torch.channels_last), labels

"""The training task, the same for every strategy: network, images, number of samples."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass

from torch import nn

from course_lib.data.batches import ImageData, Split, load
from course_lib.models import ParallelSGDNet, SmallCNN

__all__ = ["NETWORKS", "Task"]

NETWORKS: dict[str, Callable[[ImageData], nn.Module]] = {
    "parallel_sgd_net": lambda data: ParallelSGDNet(len(data.classes), data.channels),
    "small_cnn": lambda data: SmallCNN(in_channels=data.channels, num_classes=len(data.classes)),
    "logistic_regression": lambda data: nn.Sequential(
        nn.Flatten(), nn.Linear(data.train.images[0].numel(), len(data.classes))
    ),
}


@dataclass(frozen=True)
class Task:
    """A training that every strategy makes with the same images, the same network and the same number of samples.

    Parameters
    ----------
    dataset : str
        A staged data set (`course_lib.data.batches.load`).
    workers : int
        Processes that compute gradients, one thread each. The single process trains alone, on one thread, on as many
        samples as all workers together.
    epochs : int
        Times that each training image is used, by all workers together.
    batch_size : int
        Images in one gradient, whatever the strategy.
    lr : float
        Learning rate for the gradient of one batch. Synchronous SGD averages the gradients of N workers and takes N
        times the rate (linear scaling). Parallel and local SGD average weights, with this rate on each worker, so a
        gradient moves their average by lr / N.
    train_samples, test_samples : int
        Images for training and evaluation; 0: all. Training images are cut to whole batches of all workers, so that
        every strategy trains on the same number.
    network : {"parallel_sgd_net", "small_cnn", "logistic_regression"}
        The parallel SGD lab's network, with dropout; labs 03 and 04's small one, with batch norm; or a single linear
        layer, whose loss is convex. All strategies start from the same weights for the same seed.
    points : int
        Points of a learning curve, evenly spaced in samples.
    average_every : int
        Steps between two averages of local SGD.

    Raises
    ------
    ValueError
        A number below 1, a network that is none of these, or fewer images than one batch of all workers (from
        `images` and `data`).
    """

    dataset: str = "fashion-mnist"
    workers: int = 2
    epochs: int = 4
    batch_size: int = 32
    lr: float = 0.1
    train_samples: int = 0
    test_samples: int = 0
    network: str = "parallel_sgd_net"
    points: int = 16
    average_every: int = 16

    def __post_init__(self) -> None:
        for name in ("workers", "epochs", "batch_size", "points", "average_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.network not in NETWORKS:
            raise ValueError(f"network = {self.network!r}: there are {', '.join(NETWORKS)}")

    def data(self) -> ImageData:
        """The images, training images cut to whole batches of all workers."""
        data = load(self.dataset, train_samples=self.train_samples, test_samples=self.test_samples)
        images = self._whole(len(data.train))
        train = Split(data.train.images[:images], data.train.labels[:images])
        return ImageData(**{**vars(data), "train": train})

    def _whole(self, images: int) -> int:
        together = self.workers * self.batch_size
        if images < together:
            raise ValueError(
                f"{images} training images are fewer than one batch of {self.batch_size} for each of {self.workers} "
                "workers; take more train_samples or a smaller batch_size"
            )
        return images // together * together

    def model(self, data: ImageData) -> nn.Module:
        """A fresh network; seed PyTorch first."""
        return NETWORKS[self.network](data)

    def digest(self) -> str:
        """A short name that is the same for equal tasks and different for others."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:10]

"""The recorded training of labs whose subject is something else: lab 02's network, on every rank of a launch."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from course_lib.data.batches import Batches, load
from course_lib.distributed.launching.rank import rank_device
from course_lib.models import WideResNet
from course_lib.runs.records import RunFolder
from course_lib.training.loop import EarlyStopping, fit, warmup_then_decay
from course_lib.training.precision import accelerate_model

__all__ = ["train_wide_network"]


def train_wide_network(
    run: RunFolder,
    dataset: str,
    train_samples: int,
    batch_size: int,
    lr: float,
    momentum: float,
    epochs: int,
    warmup_epochs: float,
    width: int,
    seed: int,
    target_accuracy: float,
    patience: int,
) -> bool:
    """Train a `WideResNet` with SGD under `DistributedDataParallel`, and record it in a started run folder.

    The learning rate rises over the first epochs and falls linearly to 0 afterwards. The last sixth of the training images
    validates. `launch` calls this on every rank.

    Parameters
    ----------
    train_samples : int
        Images over all ranks together, validation included; 0 means all.
    batch_size : int
        Images per step and per rank.
    lr : float
        The highest learning rate, for the batch of all ranks together: nothing is scaled here.
    momentum : float
        Of Nesterov's variant; 0 for plain SGD.
    epochs, warmup_epochs : int, float
        At most so many epochs in all; the first ones, in which the learning rate rises.
    width : int
        Of the network: stages of 16, 32 and 64 channels, times `width`.
    target_accuracy, patience : float, int
        As for `EarlyStopping`.

    Returns
    -------
    bool
        Whether the target ended the training.

    Raises
    ------
    ValueError
        A rank's share of the images is smaller than one batch.
    TrainingDivergedError
        The loss of an epoch is not finite.
    """
    rank, size, device = dist.get_rank(), dist.get_world_size(), rank_device()
    torch.manual_seed(seed + rank)  # DDP sends rank 0's weights; dropout differs from rank to rank
    data = load(dataset, train_samples=train_samples)
    training, validation = data.train.hold_out()
    share = {"mean": data.mean, "std": data.std, "rank": rank, "world_size": size}
    batches = Batches(training, batch_size, device, shuffle=True, seed=seed, **share)
    network = WideResNet((16 * width, 32 * width, 64 * width), data.channels, len(data.classes))
    model = accelerate_model(network, device)
    if size > 1:
        model = nn.parallel.DistributedDataParallel(model)
    sgd = torch.optim.SGD(model.parameters(), lr, momentum, nesterov=momentum > 0)
    steps = epochs * len(batches)
    schedule = warmup_then_decay(sgd, steps, min(steps - 1, round(warmup_epochs * len(batches))))
    history = fit(
        model,
        batches,
        Batches(validation, 500, device, **share),
        sgd,
        epochs=epochs,
        scheduler=schedule,
        early_stopping=EarlyStopping(target_accuracy, patience),
        run=run,
    )
    return history.stopped_early

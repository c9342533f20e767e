"""The training loop of the labs: a step, an epoch, an evaluation, and `fit` around them.

It runs the same on one process and on many. When a process group is up, the throughput is summed over
ranks, the epoch lasts as long as the slowest rank's, and the metrics are averaged over all images.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from course_lib.live_view.listener import Listeners, TrainingListener, default_callbacks
from course_lib.optim.schedules import warmup_then_decay
from course_lib.runs.records import EpochRecord, RunFolder, raise_if_diverged
from course_lib.training.checkpoint import Checkpoint
from course_lib.training.early_stopping import EarlyStopping
from course_lib.training.reduced_metrics import over_ranks, share_buffers

__all__ = ["EarlyStopping", "History", "evaluate", "fit", "train_epoch", "train_step", "warmup_then_decay"]

Batch = tuple[torch.Tensor, torch.Tensor]
Step = Callable[..., torch.Tensor]


def train_step(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    optimizer: torch.optim.Optimizer,
    loss_fn: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor]:
    """One update of the weights; returns the batch's loss (0-dim) and its logits ``(B, classes)``, detached."""
    logits = model(images)
    loss = loss_fn(logits, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach(), logits.detach()


def train_epoch(
    model: nn.Module,
    batches: Iterable[Batch],
    optimizer: torch.optim.Optimizer,
    loss_fn: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    *,
    scheduler: Any = None,
    step: Step = train_step,
    callbacks: Sequence[TrainingListener] = (),
) -> torch.Tensor:
    """Train on every batch once.

    Parameters
    ----------
    scheduler : torch.optim.lr_scheduler.LRScheduler, optional
        Advanced after every step (a per-iteration schedule).
    step : callable
        `train_step` or one with its signature.
    callbacks : sequence of TrainingListener
        They receive each batch (``batch_done``).

    Returns
    -------
    Tensor ``(3,)``, float64, on the device
        Sum of the losses, correct predictions, images. Summed on the device: fetching a number after each step
        would make the GPU wait for Python.
    """
    model.train()
    totals = None
    for images, labels in batches:
        loss, logits = step(model, images, labels, optimizer, loss_fn)
        totals = _add(totals, loss, logits, labels)
        if scheduler is not None:
            scheduler.step()
        for callback in callbacks:
            callback.batch_done(len(labels))
    if totals is None:
        raise ValueError("no batches to train on: the data set is smaller than one batch")
    return totals


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterable[Batch],
    loss_fn: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> tuple[float, float, float]:
    """Loss and accuracy on batches, without training.

    Give it the bare module, not one wrapped in DistributedDataParallel: the wrapped forward broadcasts
    buffers and waits for ranks that may not come.

    Returns
    -------
    loss_sum, correct, images : float
        Sum of the images' losses, correct predictions, images. Sums add over batches and ranks; means do not.
    """
    model.eval()
    totals = None
    for images, labels in batches:
        logits = model(images)
        totals = _add(totals, loss_fn(logits, labels), logits, labels)
    if totals is None:
        raise ValueError("no batches to evaluate on")
    return tuple(totals.tolist())


def _add(totals: torch.Tensor | None, loss: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    count = len(labels)
    correct = (logits.argmax(1) == labels).sum()
    batch = torch.stack([loss.double() * count, correct.double(), correct.new_tensor(count).double()])
    return batch if totals is None else totals.add_(batch)


@dataclass
class History:
    """What `fit` returns: a record per epoch, and whether the target ended it."""

    epochs: list[EpochRecord]
    stopped_early: bool
    epoch_times: list[float]  # seconds of training per epoch, the slowest rank's

    @property
    def best_accuracy(self) -> float:
        return max(record.val_accuracy for record in self.epochs)

    @property
    def final_accuracy(self) -> float:
        return self.epochs[-1].val_accuracy

    def curve(self) -> dict[str, list[float]]:
        """Columns of the learning curve, first point (0 s, accuracy 0), for plotting."""
        return {
            "epoch": [0, *(record.epoch for record in self.epochs)],
            "time": [0.0, *(record.time for record in self.epochs)],
            "val_accuracy": [0.0, *(record.val_accuracy for record in self.epochs)],
        }


def fit(
    model: nn.Module,
    train_batches: Any,
    test_batches: Any,
    optimizer: torch.optim.Optimizer,
    *,
    epochs: int,
    loss_fn: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
    scheduler: Any = None,
    early_stopping: EarlyStopping | None = None,
    run: RunFolder | None = None,
    checkpoint: Checkpoint | None = None,
    step: Step = train_step,
    evaluation: Callable[..., Sequence[float]] = evaluate,
    quiet: bool = False,
    callbacks: Sequence[TrainingListener] | None = None,
) -> History:
    """Train for `epochs` epochs, validating after each.

    With a process group up, every rank calls it with its own shard of the batches.

    Parameters
    ----------
    model : nn.Module
        Bare, or wrapped in DistributedDataParallel (or any wrapper that has ``.module``).
    train_batches, test_batches
        Iterables of ``(images, labels)`` already on the model's device; ``set_epoch`` is called where there is one.
    scheduler : optional
        Stepped once per iteration.
    run : RunFolder, optional
        A started run folder; rank 0 writes the learning curve after each epoch and the weights at the end.
    checkpoint : Checkpoint, optional
        Rank 0 saves the training's state to it after each epoch. If it exists already, training resumes from it, and ends
        with the weights and the curve that it would have had without the interruption.
    step, evaluation : callable
        Drop-in replacements for `train_step` and `evaluate` (the labs put the student's here).
    quiet : bool
        Print nothing. Else, without a `run`, each epoch is one printed line.
    callbacks : sequence of TrainingListener, optional
        They receive each batch and epoch. By default the run's, or `course_lib.live_view.listener.default_callbacks`: a bar
        and curves below a notebook's cell, nothing elsewhere.

    Returns
    -------
    History
        The same on every rank.

    Raises
    ------
    CheckpointError
        The checkpoint does not fit this training, or not all ranks see the same one.
    TrainingDivergedError
        The loss of an epoch of a recorded training (one with a `run`) is not finite.
    """
    loss_fn = loss_fn or nn.CrossEntropyLoss()
    bare = getattr(model, "module", model)
    device = next(bare.parameters()).device
    distributed = dist.is_initialized()
    writes = run is not None and (not distributed or dist.get_rank() == 0)
    records, epoch_times = [], []
    if checkpoint is not None:
        records, epoch_times = checkpoint.restore_on_every_rank(bare, optimizer, scheduler)
    if writes and records:
        run.restore(records, epoch_times)
    stopped_early = False
    for record in records:
        stopped_early = early_stopping is not None and early_stopping.update(record.val_accuracy)
    if writes and stopped_early:
        run.early_stop(len(records))
    cumulative = records[-1].time if records else 0.0
    if callbacks is None and run is not None:
        callbacks = run.callbacks
    listeners = Listeners(default_callbacks() if callbacks is None else callbacks)
    if writes:
        run.report_to(listeners)
    with listeners.hear(epochs, records):
        for epoch in range(len(records) + 1, 0 if stopped_early else epochs + 1):
            if checkpoint is not None:
                checkpoint.seed_epoch(epoch)
            for batches in (train_batches, getattr(train_batches, "sampler", None)):
                if hasattr(batches, "set_epoch"):
                    batches.set_epoch(epoch - 1)
            lr = optimizer.param_groups[0]["lr"]
            listeners.epoch_began(epoch, len(train_batches) if hasattr(train_batches, "__len__") else None)
            _synchronize(device)
            start = time.perf_counter()
            totals = train_epoch(
                model, train_batches, optimizer, loss_fn, scheduler=scheduler, step=step, callbacks=[listeners]
            )
            trained = totals.tolist()  # waits for the device
            elapsed = time.perf_counter() - start
            if distributed:
                share_buffers(bare)
            validated = evaluation(bare, test_batches, loss_fn)
            epoch_time, throughput, trained, validated = over_ranks(elapsed, trained, validated, device)
            cumulative += epoch_time
            epoch_times.append(epoch_time)
            record = EpochRecord(
                epoch=epoch,
                time=cumulative,
                images_per_sec=throughput,
                train_loss=trained[0] / trained[2],
                train_accuracy=trained[1] / trained[2],
                val_loss=validated[0] / validated[2],
                val_accuracy=validated[1] / validated[2],
                lr=lr,
            )
            records.append(record)
            stopped_early = early_stopping is not None and early_stopping.update(record.val_accuracy)
            if writes:
                run.append(record, epoch_time)
                if stopped_early:
                    run.early_stop(epoch)
            else:
                if run is None and not quiet and (not distributed or dist.get_rank() == 0):
                    listeners.line(
                        f"epoch {epoch:2d}  {cumulative:6.1f} s  {throughput:7.0f} images/s  train {record.train_accuracy:.3f}"
                        f"  validation {record.val_accuracy:.3f}"
                    )
                listeners.epoch_done(record)
            if run is not None:
                raise_if_diverged(record)  # on the ranks that do not write; on rank 0 `append` has raised
            if checkpoint is not None and (not distributed or dist.get_rank() == 0):
                checkpoint.save(bare, optimizer, scheduler, records, epoch_times)
            if stopped_early:
                break
    if writes:
        run.save_model(bare)
    return History(records, stopped_early, epoch_times)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

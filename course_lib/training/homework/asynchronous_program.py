"""Train a hand-in program with a parameter server: rank 0 serves, the others compute gradients."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from course_lib.data.batches import Batches, ImageData
from course_lib.distributed import rank_device
from course_lib.distributed.parameter_server import ParameterServerWorker, Update, serve
from course_lib.runs.records import EpochRecord, RunFolder
from course_lib.system.hardware import machine_line
from course_lib.training.checkpoint import Checkpoint
from course_lib.training.homework.recipe import Recipe, one_cycle_recipe
from course_lib.training.homework.train_program import (
    TEST_BATCH,
    already_finished,
    finish,
    joined_ranks,
    open_run,
    training_batches,
)
from course_lib.training.loop import evaluate
from course_lib.training.precision import accelerate_model

__all__ = ["train_asynchronously"]


def train_asynchronously(
    name: str,
    options: Namespace,
    values: Mapping[str, Any],
    make_model: Callable[[ImageData], nn.Module],
    make_recipe: Callable[[nn.Module, Mapping[str, Any], int, int], Recipe] = one_cycle_recipe,
    *,
    lab: str,
    more: Mapping[str, Any] | None = None,
) -> Path | None:
    """Train as the options say by asynchronous SGD; the result is the run folder, as of `train_program`.

    An epoch is as many updates as the training set has batches, whichever worker they come from; the schedule counts
    updates. After each epoch the server evaluates and saves a checkpoint. The workers wait meanwhile, and this time is
    not counted. A worker that is in the middle of a gradient finishes it, so each evaluation gives every worker up to one
    gradient outside the measured time. A training that is started again resumes from the server's last epoch. It takes
    as many updates as without the interruption, to other weights, because the order of the gradients is left to chance.

    Parameters and errors are those of `train_program`; `ValueError` where there is no rank for a worker.
    """
    with joined_ranks() as (rank, ranks):
        if ranks < 2:
            raise ValueError(
                "1 rank: asynchronous SGD needs a server and at least one worker; --ranks 3, torchrun --nproc-per-node=3, "
                "or RANKS_PER_NODE=3 for the job scripts"
            )
        if ranks == 2 and rank == 0:
            print(f"{name}: 1 worker: this is plain SGD; asynchronous SGD needs at least two (--ranks 3)", flush=True)
        folder, checkpoint, data = open_run(name, options, values, lab, more)
        updates_per_epoch = len(data.train) // values["batch_size"]
        if updates_per_epoch == 0:
            raise ValueError(f"batch_size {values['batch_size']} exceeds the {len(data.train)} training images")
        if already_finished(folder, checkpoint, ranks, options.restart, rank):
            return Path(folder.path) if rank == 0 else None
        torch.manual_seed(values["seed"])
        model = accelerate_model(make_model(data), rank_device())
        recipe = make_recipe(model, values, updates_per_epoch, values["batch_size"])
        if rank == 0:
            return _serve(name, folder, checkpoint, data, model, recipe, values, updates_per_epoch)
        _work(data, model, recipe.loss_fn, values, updates_per_epoch)
        return None


def _work(
    data: ImageData, model: nn.Module, loss_fn: nn.Module, values: Mapping[str, Any], updates_per_epoch: int
) -> None:
    """Send gradients until the server says stop. The epoch follows from the server's version."""
    index, workers = dist.get_rank() - 1, dist.get_world_size() - 1
    batches = training_batches(data, values, index, workers)
    worker = ParameterServerWorker(model)
    torch.manual_seed(values["seed"] * workers + index + 1)  # dropout differs from worker to worker
    model.train()
    epoch, passes = -1, 0
    while worker.active:
        now = worker.versions[0] // updates_per_epoch
        epoch, passes = now, passes + 1 if now == epoch else 0
        # A worker that finishes its shard before the epoch ends starts it again, in an order that no epoch has.
        batches.set_epoch(epoch, order=epoch + passes * values["epochs"])
        for images, labels in batches:
            logits = model(images)
            loss = loss_fn(logits, labels)
            model.zero_grad()
            loss.backward()
            correct = int((logits.argmax(1) == labels).sum())
            worker.exchange(samples=len(labels), correct=correct, loss_sum=loss.item() * len(labels))
            if not worker.active or worker.versions[0] // updates_per_epoch != epoch:
                break
    worker.finish()


def _serve(
    name: str,
    folder: RunFolder,
    checkpoint: Checkpoint,
    data: ImageData,
    model: nn.Module,
    recipe: Recipe,
    values: Mapping[str, Any],
    updates_per_epoch: int,
) -> Path:
    """Serve until all epochs are done; write the run folder."""
    device = rank_device()
    test_batches = Batches(data.test, TEST_BATCH, device, mean=data.mean, std=data.std)
    resumes = checkpoint.exists()
    run = folder.start(dist.get_world_size(), dist.get_backend(), device.type, resume=resumes)
    print(f"{name}: {data}\nrank 0 serves {dist.get_world_size() - 1} worker(s) on {machine_line()}", flush=True)
    records, epoch_times = checkpoint.restore(model, recipe.optimizer, recipe.scheduler)
    if records:
        run.restore(records, epoch_times)
        print(f"continuing from {checkpoint.path}", flush=True)
    earlier = records[-1].time if records else 0.0
    epoch: list[Update] = []
    staleness: list[int] = []
    rate = recipe.optimizer.param_groups[0]["lr"]

    def count(update: Update) -> None:
        nonlocal rate
        epoch.append(update)
        staleness.append(update.staleness)
        if update.version % updates_per_epoch:
            return
        images = sum(one.samples for one in epoch)
        before = records[-1].time if records else 0.0
        seconds = earlier + update.seconds - before
        loss_sum, correct, tested = evaluate(model, test_batches, recipe.loss_fn)
        records.append(
            EpochRecord(
                epoch=len(records) + 1,
                time=earlier + update.seconds,
                images_per_sec=images / seconds,
                train_loss=sum(one.loss_sum for one in epoch) / images,
                train_accuracy=sum(one.correct for one in epoch) / images,
                val_loss=loss_sum / tested,
                val_accuracy=correct / tested,
                lr=rate,
            )
        )
        epoch_times.append(seconds)
        run.append(records[-1], seconds)
        checkpoint.save(model, recipe.optimizer, recipe.scheduler, records, epoch_times)
        rate = recipe.optimizer.param_groups[0]["lr"]
        epoch.clear()

    serve(
        model,
        recipe.optimizer,
        scheduler=recipe.scheduler,
        updates=values["epochs"] * updates_per_epoch,
        version=len(records) * updates_per_epoch,
        on_update=count,
    )
    run.save_model(model)
    mean = f"{sum(staleness) / len(staleness):.2f}" if staleness else "unknown"
    since = " since the restart" if resumes else ""
    return finish(run, checkpoint, records[-1].val_accuracy, values["epochs"], f", mean staleness {mean}{since}")

"""From a hand-in program's options to its run folder, with a parameter server: rank 0 serves, the others train."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from course_lib.data import batches as course_data
from course_lib.data.augment import CropAndFlip
from course_lib.data.batches import Batches, ImageData
from course_lib.distributed import rank_device
from course_lib.distributed.parameter_server import ParameterServerWorker, Update, serve
from course_lib.runs.records import EpochRecord, RunFolder
from course_lib.system.hardware import machine_line
from course_lib.training.checkpoint import Checkpoint
from course_lib.training.homework.progressive_resize import ProgressiveResize
from course_lib.training.homework.recipe import Recipe, one_cycle_recipe
from course_lib.training.homework.train_program import TEST_BATCH, already_stands, joined_ranks
from course_lib.training.loop import evaluate
from course_lib.training.precision import accelerate_model

__all__ = ["train_asynchronously"]


def train_asynchronously(
    name: str,
    options: Namespace,
    given: Mapping[str, Any],
    make_model: Callable[[ImageData], nn.Module],
    make_recipe: Callable[[nn.Module, Mapping[str, Any], int, int], Recipe] = one_cycle_recipe,
    *,
    lab: str,
    more: Mapping[str, Any] | None = None,
) -> Path | None:
    """Train as the options say by asynchronous SGD; the run folder is the result, as of `train_program`.

    An epoch is as many updates as the training set has batches, whichever worker they come from; the schedule goes by
    updates. After each epoch the server evaluates and keeps a checkpoint, while the workers wait (their time stands
    still). A worker in the middle of a gradient goes on with it meanwhile, so each evaluation gives every worker up to
    one gradient for nothing. A training that is started again goes on from the server's last epoch. It takes the same number of updates as
    without the interruption, to other weights: in which order gradients arrive is nobody's choice.

    Parameters and errors are those of `train_program`; `ValueError` where there is no rank for a worker.
    """
    with joined_ranks() as (rank, ranks):
        if ranks < 2:
            raise ValueError(
                "1 rank: asynchronous SGD needs a server and at least one worker; --ranks 3, torchrun --nproc-per-node=3, "
                "or RANKS_PER_NODE=3 for the job scripts"
            )
        if ranks == 2 and rank == 0:
            print(f"{name}: 1 worker: this is plain SGD; asynchronous SGD begins with two (--ranks 3)", flush=True)
        folder = RunFolder(str(options.output_dir), lab, given, {}, {"program": name, **(more or {})})
        checkpoint = Checkpoint(Path(folder.path) / "checkpoint.safetensors", seed=given["seed"])
        data = course_data.load(given["dataset"], options.root, given["train_samples"], given["test_samples"])
        folder.data = data.describe()
        updates_per_epoch = len(data.train) // given["batch_size"]
        if updates_per_epoch == 0:
            raise ValueError(f"batch_size {given['batch_size']} exceeds the {len(data.train)} training images")
        if already_stands(folder, checkpoint, ranks, options.restart, rank):
            return Path(folder.path) if rank == 0 else None
        torch.manual_seed(given["seed"])
        model = accelerate_model(make_model(data), rank_device())
        recipe = make_recipe(model, given, updates_per_epoch, given["batch_size"])
        if rank == 0:
            return _serve(name, folder, checkpoint, data, model, recipe, given, updates_per_epoch)
        _work(data, model, recipe.loss_fn, given, updates_per_epoch)
        return None


def _work(
    data: ImageData, model: nn.Module, loss_fn: nn.Module, given: Mapping[str, Any], updates_per_epoch: int
) -> None:
    """Send gradients until the server says stop. The server's version tells which epoch it is."""
    share, shares = dist.get_rank() - 1, dist.get_world_size() - 1
    batches = ProgressiveResize(
        Batches(
            data.train, given["batch_size"], rank_device(), mean=data.mean, std=data.std, shuffle=True,
            seed=given["seed"], augment=CropAndFlip(given["padding"]), rank=share, world_size=shares,
        ),
        given.get("small_epochs", 0),
        given.get("small_size", 0),
    )  # fmt: skip
    worker = ParameterServerWorker(model)
    torch.manual_seed(given["seed"] * shares + share + 1)  # dropout differs from worker to worker
    model.train()
    epoch, passes = -1, 0
    while worker.active:
        now = worker.versions[0] // updates_per_epoch
        epoch, passes = now, passes + 1 if now == epoch else 0
        # A worker that is through with its share before the epoch ends goes through it in an order that no epoch has.
        batches.set_epoch(epoch, order=epoch + passes * given["epochs"])
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
    given: Mapping[str, Any],
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
        print(f"going on from {checkpoint.path}", flush=True)
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
        updates=given["epochs"] * updates_per_epoch,
        version=len(records) * updates_per_epoch,
        on_update=count,
    )
    run.save_model(model)
    run.finish(stopped_early=False)
    checkpoint.remove()
    mean = f"{sum(staleness) / len(staleness):.2f}" if staleness else "unknown"
    since = " since the restart" if resumes else ""
    print(
        f"done: test accuracy {records[-1].val_accuracy:.2%} after {given['epochs']} epochs, mean staleness {mean}{since}; "
        f"{folder.path}",
        flush=True,
    )
    return Path(folder.path)

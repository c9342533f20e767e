"""Train a hand-in program: join the process group, resume from a checkpoint, train, write the run folder."""

from __future__ import annotations

import contextlib
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_lib.data import batches as course_data
from course_lib.data.augment import CropAndFlip
from course_lib.data.batches import Batches, ImageData
from course_lib.distributed import default_backend, leave_process_group, rank_device, threads_per_rank, world_size
from course_lib.distributed.data_parallel.synchronous_sgd import synchronise_initial_state
from course_lib.distributed.parameter_server import ParameterServerError
from course_lib.runs.records import RunFolder, TrainingDivergedError, differences
from course_lib.system.hardware import machine_line
from course_lib.training.checkpoint import Checkpoint, CheckpointError
from course_lib.training.homework.program_ranks import ProgramError
from course_lib.training.homework.progressive_resize import ProgressiveResize
from course_lib.training.homework.recipe import Recipe, one_cycle_recipe
from course_lib.training.loop import Step, fit, train_step
from course_lib.training.precision import accelerate_model
from data_prep.errors import DataError

__all__ = [
    "KNOWN_ERRORS", "RunMismatchError", "already_finished", "exit_in_one_line", "finish", "joined_ranks", "open_run",
    "train_program", "training_batches",
]  # fmt: skip

LAB = "05_resnet_hw"
TEST_BATCH = 500
GROUP_TIMEOUT = timedelta(minutes=10)  # how long a rank waits for another, which may have died with its node


class RunMismatchError(RuntimeError):
    """The run folder holds an interrupted run with other options."""


KNOWN_ERRORS = (
    TrainingDivergedError,
    DataError, CheckpointError, RunMismatchError, ParameterServerError, ProgramError, ValueError, OSError,
)  # fmt: skip


def train_program(
    name: str,
    options: Namespace,
    values: Mapping[str, Any],
    make_model: Callable[[ImageData], nn.Module],
    make_recipe: Callable[[nn.Module, Mapping[str, Any], int, int], Recipe] = one_cycle_recipe,
    *,
    lab: str = LAB,
    step: Step | None = None,
    more: Mapping[str, Any] | None = None,
) -> Path | None:
    """Train as the options say; the result is the run folder, with curve, weights, transcript and ``run.json``.

    It joins the process group where `torchrun` started it. An interrupted run of the same options is resumed, a finished
    run is left alone; with ``--restart`` both are trained anew.

    Parameters
    ----------
    name : str
        The program's, for ``run.json``.
    options : Namespace
        As parsed: ``output_dir``, ``root``, ``restart`` and what `values` has.
    values : mapping
        The options that make the run what it is (`check_options`).
    make_model : callable
        ``make_model(data)``, the same on every rank.
    make_recipe : callable
        ``make_recipe(model, values, steps_per_epoch, images_per_step)``.
    lab : str
        The lab that the program belongs to, for ``run.json``.
    step : callable, optional
        A `course_lib.training.loop.train_step` that averages the gradients over the ranks itself, in any order in memory;
        without it the model is wrapped in DistributedDataParallel.
    more : mapping, optional
        Further entries of ``run.json``: where the network's code or its first weights come from.

    Returns
    -------
    Path or None
        The run folder on rank 0, None on the others.

    Raises
    ------
    RunMismatchError
        The folder holds an interrupted run with other options.
    ValueError
        A `step` that averages over ranks, and one rank.
    """
    with joined_ranks() as (rank, ranks):
        if step is not None and ranks < 2:
            raise ValueError(
                "1 rank: synchronous SGD needs at least two; --ranks 2, torchrun --nproc-per-node=2, or RANKS_PER_NODE=2 "
                "for the job scripts"
            )
        folder, checkpoint, data = open_run(name, options, values, lab, more)
        if already_finished(folder, checkpoint, ranks, options.restart, rank):
            return Path(folder.path) if rank == 0 else None
        device = rank_device()
        torch.manual_seed(values["seed"])
        model = accelerate_model(make_model(data), device)
        train_batches = training_batches(data, values, rank, ranks)
        test_batches = Batches(data.test, TEST_BATCH, device, mean=data.mean, std=data.std, rank=rank, world_size=ranks)
        recipe = make_recipe(model, values, len(train_batches), values["batch_size"] * ranks)
        resumes = checkpoint.exists()
        _barrier(ranks)  # rank 0 writes nothing before all have looked for the checkpoint
        run = None
        if rank == 0:
            run = folder.start(ranks, dist.get_backend() if ranks > 1 else None, device.type, resume=resumes)
            print(f"{name}: {data}\n{ranks} rank(s) on {machine_line()}", flush=True)
            if resumes:
                print(f"continuing from {checkpoint.path}", flush=True)
        if step is not None:
            synchronise_initial_state(model)
            recipe.optimizer.register_step_pre_hook(lambda *_: _lay_out_gradients(model))
        wrapped = DistributedDataParallel(model) if step is None and ranks > 1 else model
        history = fit(
            wrapped,
            train_batches,
            test_batches,
            recipe.optimizer,
            epochs=values["epochs"],
            loss_fn=recipe.loss_fn,
            scheduler=recipe.scheduler,
            run=run,
            checkpoint=checkpoint,
            step=step or train_step,
        )
        return finish(run, checkpoint, history.final_accuracy, values["epochs"]) if rank == 0 else None


def open_run(
    name: str, options: Namespace, values: Mapping[str, Any], lab: str, more: Mapping[str, Any] | None
) -> tuple[RunFolder, Checkpoint, ImageData]:
    """A program's run folder, the checkpoint in it, and its data; parameters as of `train_program`."""
    data = course_data.load(values["dataset"], options.root, values["train_samples"], values["test_samples"])
    folder = RunFolder(str(options.output_dir), lab, values, data.describe(), {"program": name, **(more or {})})
    return folder, Checkpoint(Path(folder.path) / "checkpoint.safetensors", seed=values["seed"]), data


def training_batches(data: ImageData, values: Mapping[str, Any], rank: int, ranks: int) -> ProgressiveResize:
    """A rank's training batches on its device, augmented, smaller in the first epochs where `values` say so."""
    batches = Batches(
        data.train, values["batch_size"], rank_device(), mean=data.mean, std=data.std, shuffle=True,
        seed=values["seed"], augment=CropAndFlip(values["padding"]), rank=rank, world_size=ranks,
    )  # fmt: skip
    return ProgressiveResize(batches, values.get("small_epochs", 0), values.get("small_size", 0))


def finish(run: RunFolder, checkpoint: Checkpoint, accuracy: float, epochs: int, more: str = "") -> Path:
    """Publish a run that is complete, remove its checkpoint, and print the result; returns the run folder."""
    run.finish(stopped_early=False)
    checkpoint.remove()
    print(f"done: test accuracy {accuracy:.2%} after {epochs} epochs{more}; {run.path}", flush=True)
    return Path(run.path)


@torch.no_grad()
def _lay_out_gradients(model: nn.Module) -> None:
    """Give every gradient its parameter's order in memory."""
    for p in model.parameters():
        # A fused kernel goes by memory: a contiguous gradient of a channels-last weight would be added in the wrong places.
        if p.grad is not None and p.grad.stride() != p.stride():
            p.grad = torch.empty_like(p).copy_(p.grad)


def already_finished(folder: RunFolder, checkpoint: Checkpoint, ranks: int, restart: bool, rank: int) -> bool:
    """Whether the folder holds this very run, finished; decides what happens to an interrupted one."""
    now = folder.identity(ranks)
    if rank == 0:
        folder.publish_if_complete()  # a run that was killed in its last moment needs no further training
    _barrier(ranks)
    finished, unfinished = folder.finished_run(), folder.unfinished_run()
    _barrier(ranks)  # all have read before rank 0 removes anything
    if restart:
        if rank == 0:
            checkpoint.remove()
    elif unfinished is not None and checkpoint.exists():
        if other := differences(unfinished, now):
            raise RunMismatchError(
                f"{folder.path} holds an interrupted run with {', '.join(other)}; give its options to continue it, "
                "another --output-dir, or --restart to start again"
            )
    elif finished is not None and not differences(finished, now):
        if rank == 0:
            checkpoint.remove()  # where the kill came after its last epoch
            print(f"{folder.path} holds this run, finished at {finished['ended']}; --restart runs it again", flush=True)
        return True
    elif rank == 0:
        checkpoint.remove()  # it belongs to no run that is known
    _barrier(ranks)
    return False


def _barrier(ranks: int) -> None:
    if ranks > 1:
        dist.barrier()


@contextlib.contextmanager
def joined_ranks() -> Iterator[tuple[int, int]]:
    """This rank and the number of ranks, with the process group up where `torchrun` has started several.

    Where the process group is up already it joins nothing: a program that trains twice keeps one process group.
    """
    if dist.is_initialized() or not dist.is_torchelastic_launched():
        yield (dist.get_rank(), world_size()) if dist.is_initialized() else (0, 1)
        return
    device = rank_device()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(default_backend(_local_ranks()), timeout=GROUP_TIMEOUT)
    torch.set_num_threads(threads_per_rank(_local_ranks()))
    try:
        yield dist.get_rank(), world_size()
    finally:
        leave_process_group()


def _local_ranks() -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", 1))


@contextlib.contextmanager
def exit_in_one_line(name: str) -> Iterator[None]:
    """Turn an error that the caller can correct into one line on stderr and exit code 1."""
    try:
        yield
    except KNOWN_ERRORS as error:
        print(f"{name}.py: error: {error}", file=sys.stderr, flush=True)
        sys.exit(1)
    except KeyboardInterrupt:
        print(f"{name}.py: stopped; give the same command again to continue", file=sys.stderr, flush=True)
        sys.exit(130)

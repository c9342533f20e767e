"""From a hand-in program's options to its run folder, on one rank or many, with an end in sight after a kill."""

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

__all__ = ["KNOWN_ERRORS", "RunMismatchError", "already_stands", "exit_in_one_line", "joined_ranks", "train_program"]

LAB = "05_resnet_hw"
TEST_BATCH = 500
GROUP_TIMEOUT = timedelta(minutes=10)  # that a rank waits for another, which may have died with its node


class RunMismatchError(RuntimeError):
    """An interrupted run with other options lies where this one wants to write."""


KNOWN_ERRORS = (
    TrainingDivergedError,
    DataError, CheckpointError, RunMismatchError, ParameterServerError, ProgramError, ValueError, OSError,
)  # fmt: skip


def train_program(
    name: str,
    options: Namespace,
    given: Mapping[str, Any],
    make_model: Callable[[ImageData], nn.Module],
    make_recipe: Callable[[nn.Module, Mapping[str, Any], int, int], Recipe] = one_cycle_recipe,
    *,
    lab: str = LAB,
    step: Step | None = None,
    more: Mapping[str, Any] | None = None,
) -> Path | None:
    """Train as the options say; the run folder, with curve, weights, transcript and ``run.json``, is the result.

    It joins the process group where `torchrun` started it. What an interrupted run of the same options left is gone on
    from; a finished run is left alone. Both are trained anew with ``--restart``.

    Parameters
    ----------
    name : str
        The program's, for ``run.json``.
    options : Namespace
        As parsed: ``output_dir``, ``root``, ``restart`` and what `given` has.
    given : mapping
        The options that make the run what it is (`check_options`).
    make_model : callable
        ``make_model(data)``, the same on every rank.
    make_recipe : callable
        ``make_recipe(model, given, steps_per_epoch, images_per_step)``.
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
        folder = RunFolder(str(options.output_dir), lab, given, {}, {"program": name, **(more or {})})
        checkpoint = Checkpoint(Path(folder.path) / "checkpoint.safetensors", seed=given["seed"])
        data = course_data.load(given["dataset"], options.root, given["train_samples"], given["test_samples"])
        folder.data = data.describe()
        if already_stands(folder, checkpoint, ranks, options.restart, rank):
            return Path(folder.path) if rank == 0 else None
        device = rank_device()
        torch.manual_seed(given["seed"])
        model = accelerate_model(make_model(data), device)
        common = {"mean": data.mean, "std": data.std, "rank": rank, "world_size": ranks}
        train_batches = ProgressiveResize(
            Batches(
                data.train, given["batch_size"], device, shuffle=True, seed=given["seed"],
                augment=CropAndFlip(given["padding"]), **common,
            ),
            given.get("small_epochs", 0),
            given.get("small_size", 0),
        )  # fmt: skip
        test_batches = Batches(data.test, TEST_BATCH, device, **common)
        recipe = make_recipe(model, given, len(train_batches), given["batch_size"] * ranks)
        resumes = checkpoint.exists()
        if ranks > 1:
            dist.barrier()  # nobody begins, and rank 0 writes nothing, before all have looked for the checkpoint
        run = None
        if rank == 0:
            run = folder.start(ranks, dist.get_backend() if ranks > 1 else None, device.type, resume=resumes)
            print(f"{name}: {data}\n{ranks} rank(s) on {machine_line()}", flush=True)
            if resumes:
                print(f"going on from {checkpoint.path}", flush=True)
        if step is not None:
            synchronise_initial_state(model)
            recipe.optimizer.register_step_pre_hook(lambda *_: _lay_out_gradients(model))
        wrapped = DistributedDataParallel(model) if step is None and ranks > 1 else model
        history = fit(
            wrapped,
            train_batches,
            test_batches,
            recipe.optimizer,
            epochs=given["epochs"],
            loss_fn=recipe.loss_fn,
            scheduler=recipe.scheduler,
            run=run,
            checkpoint=checkpoint,
            step=step or train_step,
        )
        if rank != 0:
            return None
        run.finish(history.stopped_early)
        checkpoint.remove()
        print(
            f"done: test accuracy {history.final_accuracy:.2%} after {given['epochs']} epochs; {folder.path}",
            flush=True,
        )
        return Path(folder.path)


@torch.no_grad()
def _lay_out_gradients(model: nn.Module) -> None:
    """Give every gradient its parameter's order in memory."""
    for p in model.parameters():
        # A fused kernel goes by memory: a contiguous gradient of a channels-last weight would be added in the wrong places.
        if p.grad is not None and p.grad.stride() != p.stride():
            p.grad = torch.empty_like(p).copy_(p.grad)


def already_stands(folder: RunFolder, checkpoint: Checkpoint, ranks: int, restart: bool, rank: int) -> bool:
    """Whether the folder holds this very run, finished; settles what happens to an interrupted one."""
    now = folder.identity(ranks)
    if rank == 0:
        folder.publish_if_complete()  # a run that was killed in its last moment needs no other training
    if ranks > 1:
        dist.barrier()
    finished, unfinished = folder.finished_run(), folder.unfinished_run()
    if ranks > 1:
        dist.barrier()  # all have read before rank 0 removes anything
    if restart:
        if rank == 0:
            checkpoint.remove()
    elif unfinished is not None and checkpoint.exists():
        other = differences(unfinished, now)
        if other:
            raise RunMismatchError(
                f"{folder.path} holds an interrupted run with {', '.join(other)}; give its options to go on with it, "
                "another --output-dir, or --restart to train anew"
            )
    elif finished is not None and not differences(finished, now):
        if rank == 0:
            checkpoint.remove()  # where the kill came after its last epoch
            print(
                f"{folder.path} holds this run, finished at {finished['ended']}; --restart trains it anew", flush=True
            )
        return True
    elif rank == 0:
        checkpoint.remove()  # of nobody's: what it belongs to is not known
    if ranks > 1:
        dist.barrier()
    return False


@contextlib.contextmanager
def joined_ranks() -> Iterator[tuple[int, int]]:
    """This rank and the number of ranks, with the process group up where `torchrun` has started several.

    Inside of itself it joins nothing: a program that trains twice keeps one process group.
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
    """Turn what can be mended by the caller into one line on stderr and exit code 1."""
    try:
        yield
    except KNOWN_ERRORS as error:
        print(f"{name}.py: error: {error}", file=sys.stderr, flush=True)
        sys.exit(1)
    except KeyboardInterrupt:
        print(f"{name}.py: stopped; give the same command again to go on", file=sys.stderr, flush=True)
        sys.exit(130)

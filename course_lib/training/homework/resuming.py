"""What a homework program finds in its run folder: nothing, its finished run, or one that was interrupted."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

from course_lib.data import batches as course_data
from course_lib.data.batches import ImageData
from course_lib.runs.records import RunFolder, differences
from course_lib.training.checkpoint import Checkpoint

__all__ = ["RunMismatchError", "already_finished", "open_run"]


class RunMismatchError(RuntimeError):
    """The run folder holds a run with other options, interrupted or finished."""


def open_run(
    name: str, options: Namespace, values: Mapping[str, Any], lab: str, more: Mapping[str, Any] | None
) -> tuple[RunFolder, Checkpoint, ImageData]:
    """A program's run folder, the checkpoint in it, and its data; parameters as of `HomeworkRun.main`."""
    data = course_data.load(values["dataset"], options.root, values["train_samples"], values["test_samples"])
    folder = RunFolder(str(options.output_dir), lab, values, data.describe(), {"program": name, **(more or {})})
    return folder, Checkpoint(Path(folder.path) / "checkpoint.safetensors", seed=values["seed"]), data


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
    elif finished is not None:
        if other := differences(finished, now):
            raise RunMismatchError(
                f"{folder.path} holds a finished run with {', '.join(other)}; another --output-dir keeps it, "
                "--restart replaces it"
            )
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

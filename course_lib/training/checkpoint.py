"""A training's state in one file, so that a job that its wall time ends can resume after its last epoch.

The file is safetensors: tensors as they are, everything else as JSON in its header. Nothing is unpickled on the way
back. It is replaced whole after every epoch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as safetensors_bytes
from torch import nn

from course_lib.runs.records import EpochRecord
from course_lib.system.atomic import write_atomically

__all__ = ["Checkpoint", "CheckpointError"]

_FORMAT = "1"
_TENSOR, _ITEMS = "__tensor__", "__items__"


class CheckpointError(RuntimeError):
    """A checkpoint from which no training can resume; one line: which, why, what to do."""


class Checkpoint:
    """A file for a training's state: model, optimiser, schedule and the epochs so far.

    Parameters
    ----------
    path : str or Path
        ``….safetensors``; its folder must exist when something is saved. On several nodes all of them must see the file.
    seed : int
        For dropout: `course_lib.training.loop.fit` reseeds every rank at each epoch from seed, epoch and rank, so that a
        resumed training draws what an uninterrupted one draws.
    """

    def __init__(self, path: str | Path, seed: int = 0) -> None:
        self.path, self.seed = Path(path), seed

    def exists(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return self.path.is_file()

    def save(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: Any,
        records: list[EpochRecord],
        epoch_times: list[float],
    ) -> None:
        """Replace the file by the state after ``records[-1]``. One rank does it, the others must not."""
        tensors: dict[str, torch.Tensor] = {}
        state = {
            "model": _pack(model.state_dict(), tensors),
            "optimizer": _pack(optimizer.state_dict(), tensors),
            "scheduler": None if scheduler is None else _pack(scheduler.state_dict(), tensors),
            "records": [asdict(record) for record in records],
            "epoch_times": epoch_times,
        }
        header = {"format": _FORMAT, "state": json.dumps(state)}
        write_atomically(self.path, safetensors_bytes(tensors, metadata=header))

    def restore(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any
    ) -> tuple[list[EpochRecord], list[float]]:
        """Load the file into model, optimiser and schedule; every rank does it.

        Returns
        -------
        records, epoch_times
            Of the epochs that are done; empty where there is no checkpoint.

        Raises
        ------
        CheckpointError
            The file is no checkpoint, or one of another model, optimiser or schedule.
        """
        if not self.exists():
            return [], []
        try:
            with safe_open(self.path, framework="pt") as file:
                header = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (safe_open is no mapping)
            if header.get("format") != _FORMAT:
                raise CheckpointError(f"{self.path} is not a checkpoint of this version; remove it to start again")
            state = json.loads(header["state"])
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            raise CheckpointError(
                f"{self.path} cannot be read ({' '.join(str(error).split())}); remove it to start again"
            ) from None
        try:
            model.load_state_dict(_unpack(state["model"], tensors))
            optimizer.load_state_dict(_unpack(state["optimizer"], tensors))
            _lay_out_as_parameters(optimizer)
            if (scheduler is None) != (state["scheduler"] is None):
                raise ValueError("only one of the two trainings has a schedule")
            if scheduler is not None:
                scheduler.load_state_dict(_unpack(state["scheduler"], tensors))
        except (RuntimeError, ValueError, KeyError) as error:
            raise CheckpointError(
                f"{self.path} does not fit this training ({_reason(error)}); "
                "continue with the program that wrote it, or remove it to start again"
            ) from None
        records = [EpochRecord(**record) for record in state["records"]]
        return records, [float(seconds) for seconds in state["epoch_times"]]

    def restore_on_every_rank(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any
    ) -> tuple[list[EpochRecord], list[float]]:
        """`restore`, called by all ranks of a process group; they check that all resume from the same epoch.

        Raises
        ------
        CheckpointError
            As `restore`; and on every rank if not all have restored the same number of epochs.
        """
        records, epoch_times = self.restore(model, optimizer, scheduler)
        if dist.is_initialized():
            self._check_same_epoch(len(records), next(model.parameters()).device)
        return records, epoch_times

    def seed_epoch(self, epoch: int) -> None:
        """Reseed this rank for `epoch` (1…), so that a resumed training draws what an uninterrupted one draws."""
        rank = dist.get_rank() if dist.is_initialized() else 0
        seed = (self.seed * 1_000_003 + epoch) * 1_000_003 + rank
        torch.manual_seed(seed % 2**63)  # manual_seed takes 64 bits

    def contents(self) -> dict[str, tuple[int, int]]:
        """For model, optimiser and schedule: the number of tensors in the file, and their bytes."""
        with safe_open(self.path, framework="pt") as file:
            state = json.loads(file.metadata()["state"])
            sizes = {
                part: [file.get_tensor(name).nbytes for name in _names(state[part])]
                for part in ("model", "optimizer", "scheduler")
            }
        return {part: (len(each), sum(each)) for part, each in sizes.items()}

    def remove(self) -> None:
        """Delete the file, once the training is complete, and temporary files that a kill during `save` has left."""
        self.path.unlink(missing_ok=True)
        for left in self.path.parent.glob(f".{self.path.name}.*"):
            left.unlink(missing_ok=True)

    def _check_same_epoch(self, done: int, device: torch.device) -> None:
        fewest_and_most = torch.tensor([-done, done], device=device)
        dist.all_reduce(fewest_and_most, op=dist.ReduceOp.MAX)
        fewest, most = -fewest_and_most[0].item(), fewest_and_most[1].item()
        if fewest != most:
            raise CheckpointError(
                f"{self.path} holds {most} epochs for some ranks and {fewest} for others; "
                "it must be in a folder that all nodes see"
            )


def _reason(error: Exception) -> str:
    """The first line that names something: PyTorch's own first line ends in a colon, and the names follow."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = next((line for line in lines if not line.endswith(":")), type(error).__name__)
    return named if len(named) <= 200 else f"{named[:200]}…"


def _lay_out_as_parameters(optimizer: torch.optim.Optimizer) -> None:
    """Give the optimiser's tensors their parameters' memory format: files have none, and fused kernels index memory."""
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _pack(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """`value` as JSON; each tensor goes to `tensors` and leaves its name."""
    if isinstance(value, torch.Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().contiguous().clone()  # safetensors refuses tensors that share memory
        return {_TENSOR: name}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: _pack(item, tensors) for key, item in value.items()}
        return {_ITEMS: [[key, _pack(item, tensors)] for key, item in value.items()]}  # JSON's keys are strings
    if isinstance(value, list | tuple):
        return [_pack(item, tensors) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise CheckpointError(f"a checkpoint cannot hold {type(value).__name__}: keep it out of the optimiser's state")


def _unpack(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(value, dict):
        if _TENSOR in value:
            return tensors[value[_TENSOR]]
        if _ITEMS in value:
            return {key: _unpack(item, tensors) for key, item in value[_ITEMS]}
        return {key: _unpack(item, tensors) for key, item in value.items()}
    if isinstance(value, list):
        return [_unpack(item, tensors) for item in value]
    return value


def _names(value: Any) -> list[str]:
    """Names of the tensors that `_pack` took out of a value."""
    if isinstance(value, dict):
        if _TENSOR in value:
            return [value[_TENSOR]]
        value = list(value.values())
    return [name for item in value for name in _names(item)] if isinstance(value, list) else []

"""Which backend supports which operation on which device: measured here, beside the table of the HW4 slides."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist

from course_lib.distributed.launching.errors import LaunchTimeoutError, RankFailedError
from course_lib.distributed.launching.launch import launch

__all__ = ["SLIDES", "measured_support", "support_table"]

RANKS = 2
TIMEOUT = 20.0  # seconds, for all operations of a backend

# The HW4 slides' table (PyTorch 0.3 and 1.0): backend and device → its operations, in the order of `_OPERATIONS`.
SLIDES: Mapping[tuple[str, str], str] = {
    ("gloo", "CPU"): "✓✓✓✓✓✓✓✓✓",
    ("gloo", "GPU"): "XX✓✓XXXXX",
    ("mpi", "CPU"): "✓✓✓✓✓✓✓✓✓",
    ("mpi", "GPU"): "?????????",
    ("nccl", "CPU"): "XXXXXXXXX",
    ("nccl", "GPU"): "XX✓✓✓✓XX✓",
}


def _send(mine: torch.Tensor, rank: int) -> torch.Tensor:
    other = torch.zeros_like(mine)
    if rank == 0:
        dist.send(mine, 1)
        return mine
    dist.recv(other, 0)
    return other


def _all_gather(mine: torch.Tensor, rank: int) -> torch.Tensor:
    places = [torch.zeros_like(mine) for _ in range(RANKS)]
    dist.all_gather(places, mine)
    return torch.cat(places)


def _gather(mine: torch.Tensor, rank: int) -> torch.Tensor:
    places = [torch.zeros_like(mine) for _ in range(RANKS)] if rank == 0 else None
    dist.gather(mine, places, 0)
    return torch.cat(places) if places else mine


def _scatter(mine: torch.Tensor, rank: int) -> torch.Tensor:
    dealt = torch.zeros_like(mine)
    dist.scatter(dealt, [mine, mine + 5] if rank == 0 else None, 0)
    return dealt


def _reduce_scatter(mine: torch.Tensor, rank: int) -> torch.Tensor:
    output = torch.zeros_like(mine)
    dist.reduce_scatter(output, [mine, mine + 5])
    return output


def _all_to_all(mine: torch.Tensor, rank: int) -> torch.Tensor:
    output = torch.zeros(RANKS, device=mine.device)
    dist.all_to_all_single(output, torch.cat([mine, mine + 5]))
    return output


def _in_place(function: Callable[..., Any], *arguments: Any) -> Callable[[torch.Tensor, int], torch.Tensor]:
    def run(mine: torch.Tensor, rank: int) -> torch.Tensor:
        function(mine, *arguments)
        return mine

    return run


def _barrier(mine: torch.Tensor, rank: int) -> torch.Tensor:
    dist.barrier()
    return mine


# Name → (function of [1.] on rank 0 and [2.] on rank 1, result on rank 0, result on rank 1). The first nine are the HW4
# slides', where send and recv are two rows.
_OPERATIONS: dict[str, tuple[Callable[[torch.Tensor, int], torch.Tensor], list[float], list[float] | None]] = {
    "send": (_send, [1], [1]),
    "recv": (_send, [1], [1]),
    "broadcast": (_in_place(dist.broadcast, 0), [1], [1]),
    "all_reduce": (_in_place(dist.all_reduce), [3], [3]),
    "reduce": (_in_place(dist.reduce, 0), [3], None),  # undefined on rank 1
    "all_gather": (_all_gather, [1, 2], [1, 2]),
    "gather": (_gather, [1, 2], [2]),
    "scatter": (_scatter, [1], [6]),
    "barrier": (_barrier, [1], [2]),
    "reduce_scatter": (_reduce_scatter, [3], [13]),
    "all_to_all": (_all_to_all, [1, 2], [6, 7]),
}


def _try_operations(device: str, names: list[str]) -> list[str]:
    """On each rank: the result of each operation, "✓" or one line."""
    rank = dist.get_rank()
    place = torch.device("cpu") if device == "CPU" else torch.device("cuda", rank % torch.cuda.device_count())
    results = []
    for name in names:
        run, *expected = _OPERATIONS[name]
        try:
            result = run(torch.tensor([rank + 1.0], device=place), rank).tolist()
            right = expected[rank] is None or result == expected[rank]
            results.append("✓" if right else f"X wrong values: {result}")
        except (RuntimeError, NotImplementedError, ValueError) as error:
            results.append("X " + str(error).strip().splitlines()[0][:80])
    return results


def measured_support(backend: str, device: str) -> dict[str, str]:
    """Try every operation on two ranks of this machine.

    Parameters
    ----------
    backend : {"gloo", "mpi", "nccl"}
    device : {"CPU", "GPU"}

    Returns
    -------
    dict of str to str
        Operation → ``✓`` (it ran, with the right values), ``X`` and the reason, or ``–`` and what is missing here.
    """
    names = list(_OPERATIONS)
    if missing := _missing(backend, device):
        return dict.fromkeys(names, f"– {missing}")
    results = _launched(backend, device, names)
    if results is None:  # one of them took the ranks down: one at a time
        results = [(_launched(backend, device, [name]) or ["X it hangs, or ends the rank"])[0] for name in names]
    return dict(zip(names, results, strict=True))


def _launched(backend: str, device: str, names: list[str]) -> list[str] | None:
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            first, second = launch(_try_operations, RANKS, (device, names), timeout=TIMEOUT, backend=backend, threads=1)
        except (RankFailedError, LaunchTimeoutError):
            return None
    return [a if a != "✓" else b for a, b in zip(first, second, strict=True)]


def _missing(backend: str, device: str) -> str:
    """Why this machine cannot run it; empty if it can."""
    if backend == "mpi":
        return "" if dist.is_mpi_available() else "PyTorch built without MPI"
    if backend == "nccl" and not dist.is_nccl_available():
        return "PyTorch built without NCCL"
    if (device == "GPU" or backend == "nccl") and not torch.cuda.is_available():
        return "no GPU"
    if backend == "nccl" and torch.cuda.device_count() < RANKS:
        return "NCCL wants a GPU for each rank"
    return ""


def support_table() -> pd.DataFrame:
    """The HW4 slides' table and this machine's, side by side: a row for each operation.

    Returns
    -------
    pandas.DataFrame
        Columns (backend, device, "slides" or "here"); ``✓`` yes, ``X`` no, ``?`` left open, ``–`` not available here.
    """
    columns = {}
    for (backend, device), marks in SLIDES.items():
        measured = measured_support(backend, device)
        columns[backend, device, "slides"] = [*marks, *[""] * (len(measured) - len(marks))]
        columns[backend, device, "here"] = [text[0] for text in measured.values()]
    return pd.DataFrame(columns, index=list(_OPERATIONS))

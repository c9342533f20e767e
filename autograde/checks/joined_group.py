"""How a script for torchrun joins its process group on machines with GPUs: hidden check of lab 12."""

from __future__ import annotations

from typing import Any

from autograde.checks.registry import Ask
from autograde.rubric.criteria import Finding

__all__ = ["joined_wrongly"]

RANKS = 2


def joined_wrongly(ask: Ask, found: list[Any], given: list[dict[str, Any]]) -> Finding | None:
    """What is wrong with the backend or the GPU that the script chose; None where nothing is.

    `found` is what the script did on a node with a GPU for each rank; here it runs once more, on one with a single GPU.
    """
    look = "print the backend and torch.cuda.current_device() on each rank, on a node with one GPU and on one with two"
    shared = ask.call("script", [{**one, "gpus": 1} for one in given])
    if any(backend == "nccl" for one in shared for backend, _ in _joined(one)):
        return Finding(False, "where two ranks share a GPU the script takes NCCL, which refuses that", look)
    for rank, one in enumerate(found):
        for backend, gpu in _joined(one)[:1]:
            if backend != "nccl":
                return Finding(False, "where each rank has a GPU of its own the script does not take NCCL", look)
            if gpu != rank:
                return Finding(
                    False, f"local rank {rank} joined the group while GPU {gpu} was its current device", look
                )
    return None


def _joined(one: Any) -> list[tuple[Any, Any]]:
    joined = one.get("joined") if isinstance(one, dict) else None
    return (
        [tuple(pair) for pair in joined if isinstance(pair, list) and len(pair) == 2]
        if isinstance(joined, list)
        else []
    )

"""Check that all ranks make the same call, before a collective that would otherwise hang, or mix up memory.

Each rank writes a line into the group's store (the call, shape, dtype, root) and reads the others' lines.
``TORCH_DISTRIBUTED_DEBUG=DETAIL`` does the same for the backend's own collectives; ours consist of messages, which it
cannot see.
"""

from __future__ import annotations

import json
from datetime import timedelta

import torch
import torch.distributed as dist

__all__ = ["CollectiveMismatchError", "check_agreement"]

TIMEOUT = 10.0  # seconds


class CollectiveMismatchError(RuntimeError):
    """Ranks of a group called different collectives, or the same one with different arguments."""


def check_agreement(call: str, tensor: torch.Tensor, timeout: float = TIMEOUT, **facts: object) -> None:
    """Raise on every rank unless all ranks of the default group call this with equal arguments.

    It costs five short exchanges with the store, some hundred microseconds on one machine.

    Parameters
    ----------
    call : str
        The collective's name.
    tensor : torch.Tensor
        Its shape and dtype must agree.
    timeout : float
        Seconds to wait for the other ranks.
    **facts
        Other arguments that must agree, such as ``src=0``.

    Raises
    ------
    CollectiveMismatchError
        Shows the ranks' calls, or the ranks that made no call.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    if size == 1:
        return
    store = dist.distributed_c10d._get_default_group().get_group_store()
    number = store.add(f"calls of {rank}", 1)
    mine = [call, list(tensor.shape), str(tensor.dtype).removeprefix("torch."), facts]
    store.set(_key(number, rank), json.dumps(mine))
    keys = [_key(number, peer) for peer in range(size)]
    try:
        store.wait(keys, timedelta(seconds=timeout))
    except dist.DistStoreError:
        absent = [peer for peer, key in enumerate(keys) if not store.check([key])]
        raise CollectiveMismatchError(
            f"rank {rank} is in {_shown(mine)}, and rank {', '.join(map(str, absent))} called nothing within {timeout:g} s: "
            "a collective is called by all ranks or by none; for ranks that are only late, pass check=False, which waits"
        ) from None
    calls = [json.loads(value) for value in store.multi_get(keys)]
    # All ranks are here, so all have read the previous call's lines.
    store.delete_key(_key(number - 1, rank))
    if different := [peer for peer, other in enumerate(calls) if other != calls[0]]:
        raise CollectiveMismatchError(
            f"the ranks do not make the same call: rank 0 is in {_shown(calls[0])}, "
            f"rank {different[0]} in {_shown(calls[different[0]])}"
        )


def _key(number: int, rank: int) -> str:
    return f"call {number} of rank {rank}"


def _shown(call: list) -> str:
    name, shape, dtype, facts = call
    rest = "".join(f", {key}={value}" for key, value in facts.items())
    return f"{name}({dtype} of shape {tuple(shape)}{rest})"

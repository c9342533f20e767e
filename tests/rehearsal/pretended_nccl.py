"""NCCL for pretended GPUs: Gloo carries the messages, and what NCCL refuses is refused.

The group has NCCL's device map, so PyTorch itself refuses tensors of the host ("No backend type associated with device
type cpu"). Refused here: two ranks on one GPU, which NCCL notices at the first collective, and receiving from any rank.
"""

from __future__ import annotations

import socket

import pretended_gpu
import torch
import torch.distributed as dist
from pretended_gpu import DeviceTensor, state, values_of
from torch.distributed import distributed_c10d
from torch.utils._pytree import tree_flatten, tree_map

__all__ = ["install"]

_alive: list[ProcessGroupNCCL] = []
POINT_TO_POINT = ("send", "recv_", "recv_any_source_")


class ProcessGroupNCCL(dist.ProcessGroupGloo):
    """Gloo's backend under NCCL's name; knows which rank has used which GPU."""

    class Options:
        _timeout = None

    def __init__(self, store, rank: int, size: int, options: Options) -> None:
        super().__init__(store, rank, size, timeout=options._timeout)
        self.store, self.gpu_of_all = store, None
        _alive.append(self)  # C++ alone would keep a plain ProcessGroupGloo
        # The same messages for tensors of the host: what a DeviceTensor holds.
        self.carrier = dist.ProcessGroup(store, rank, size)
        self.carrier._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        self.carrier._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, self)

    def check_gpus(self, index: int) -> None:
        """Before the first collective: raise where two ranks bring the same GPU."""
        if self.gpu_of_all is None:
            self.store.set(f"gpu of {self.rank()}", f"{socket.gethostname()} {index}")
            self.gpu_of_all = [self.store.get(f"gpu of {rank}") for rank in range(self.size())]
        for rank, gpu in enumerate(self.gpu_of_all):
            if rank != self.rank() and gpu == self.gpu_of_all[self.rank()]:
                raise dist.DistBackendError(
                    f"NCCL error: invalid usage. Duplicate GPU detected : rank {self.rank()} and rank {rank} both on CUDA "
                    f"device {index}; each rank needs torch.cuda.set_device(local_rank) and a GPU of its own"
                )


def install() -> None:
    """Make ``init_process_group("nccl")`` work in this process."""
    distributed_c10d._NCCL_AVAILABLE = True
    distributed_c10d.ProcessGroupNCCL = dist.ProcessGroupNCCL = ProcessGroupNCCL
    torch.cuda.nccl.version = lambda: (2, 27, 0)
    torch._C._get_accelerator = lambda check=None: torch.device("lazy", state.current)  # where barrier puts its tensor
    pretended_gpu.state.collective = _collective


def _collective(func, args, kwargs):
    """Run an operator of c10d whose tensors, or some of them, are on the device."""
    flat, _ = tree_flatten((args, kwargs))
    tensors = [value for value in flat if isinstance(value, torch.Tensor)]
    devices = {str(tensor.device) for tensor in tensors}
    if len(devices) > 1:
        raise RuntimeError(f"{func}: all tensors must be on one device, found {' and '.join(sorted(devices))}")
    group = next(
        dist.ProcessGroup.unbox(value) for value in flat if isinstance(value, torch.ScriptObject) and _is_group(value)
    )
    backend = group._get_backend(torch.device("cuda"))
    name = func._schema.name.removeprefix("c10d::")
    if isinstance(backend, ProcessGroupNCCL):
        if name == "recv_any_source_":
            raise RuntimeError("Backend nccl does not support recvAnysource")
        if name not in POINT_TO_POINT:
            backend.check_gpus(tensors[0].index_)
        carrier = backend.carrier.boxed()
    elif name in POINT_TO_POINT:
        raise RuntimeError(f"ProcessGroupGloo: {name} takes tensors of the host only, got {tensors[0].device}")
    else:
        carrier = group.boxed()
    tensor_of = {id(tensor.values_): tensor for tensor in tensors if isinstance(tensor, DeviceTensor)}

    def sent(value):
        return carrier if isinstance(value, torch.ScriptObject) and _is_group(value) else values_of(value)

    if name == "_allgather_base_":  # Gloo cuts along the first dimension, NCCL as memory
        output, _, *others = args
        return output, func(values_of(output).view(-1), *tree_map(sent, [args[1].flatten(), *others]), **kwargs)[1]
    result = func(*tree_map(sent, args), **tree_map(sent, kwargs))
    return tree_map(lambda value: tensor_of.get(id(value), value), result)


def _is_group(value: torch.ScriptObject) -> bool:
    return value._type().qualified_name().endswith("ProcessGroup")

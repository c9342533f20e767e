"""Send a worker and its arguments to other processes of this machine; tensors in shared memory stay shared.

`launch` copies what it sends. Here a tensor on which ``share_memory_()`` was called arrives as the same memory. On
Linux, PyTorch's shared memory has no name once it is mapped, so nothing is left of it when its processes have ended,
killed or not. A process opens it through the owner's file descriptor.
"""

from __future__ import annotations

import fcntl
import io
import os
import sys
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import reduce_storage

from course_lib.distributed.launching.launch_folder import _Pickler

__all__ = ["FileLock", "pack_shared", "share_memory"]


def share_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Move the tensor into shared memory, as ``share_memory_()`` does, and return it.

    Raises
    ------
    MemoryError
        It does not fit; by default a container has a /dev/shm of 64 MB.
    """
    try:
        return tensor.share_memory_()
    except RuntimeError as error:
        raise MemoryError(
            f"cannot get {tensor.numel() * tensor.element_size() / 1e6:.0f} MB of shared memory ({error}); enlarge "
            "/dev/shm (docker run --shm-size=2g), or use fewer samples"
        ) from error


def pack_shared(value: Any) -> bytes:
    """Pickle by cloudpickle, shared tensors by reference. Unpickle with ``pickle.loads`` while this process lives.

    Raises
    ------
    TypeError
        Something in `value` cannot be pickled.
    """
    packed = io.BytesIO()
    try:
        _SharingPickler(packed).dump(value)
    except Exception as error:
        raise TypeError(
            f"the worker or its arguments cannot be sent to another process ({error}); "
            "open files, locks, generators and running processes belong inside the worker"
        ) from error
    return packed.getvalue()


class _SharingPickler(_Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor) and obj.numel() and obj.device.type == "cpu" and obj.is_shared():
            if isinstance(obj, nn.Parameter):
                return nn.Parameter, (obj.data, obj.requires_grad)
            return _tensor, (_Memory(obj.untyped_storage()), obj.dtype, obj.storage_offset(), obj.size(), obj.stride())
        return super().reducer_override(obj)


class _Memory:
    """A shared storage, to be pickled by reference."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.storage = storage

    def __reduce__(self) -> Any:
        if sys.platform != "linux":
            return reduce_storage(self.storage)
        descriptor, size = self.storage._share_fd_cpu_()
        return _map, (f"/proc/{os.getpid()}/fd/{descriptor}", size)


def _map(path: str, size: int) -> torch.UntypedStorage:
    return torch.from_file(path, shared=True, size=size, dtype=torch.uint8).untyped_storage()


def _tensor(
    storage: torch.UntypedStorage, dtype: torch.dtype, offset: int, size: torch.Size, stride: tuple[int, ...]
) -> torch.Tensor:
    return torch.empty(0, dtype=dtype).set_(storage, offset, size, stride)


class FileLock:
    """A lock between processes, as a context manager: one process at a time in the block.

    It is the system's lock on an open file, which is released when the process dies. It is pickled as its path; each
    process opens the file itself. It does not lock between threads of one process.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._file: Any = None

    def __reduce__(self) -> Any:
        return type(self), (self.path,)

    def __enter__(self) -> FileLock:
        if self._file is None:
            self._file = open(self.path, "rb")
        fcntl.flock(self._file, fcntl.LOCK_EX)
        return self

    def __exit__(self, *exc_info: object) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)

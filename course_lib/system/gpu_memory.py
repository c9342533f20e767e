"""The memory of the training device: how much is free, and what to do where it is full."""

import contextlib
from collections.abc import Callable, Iterable, Iterator

import psutil
import torch

__all__ = ["DeviceMemoryError", "free_memory", "memory_advice", "peak_bytes", "until_full"]

REMEDY = (
    "`nvidia-smi` shows which processes hold it: shut down the kernels of other notebooks, restart this one, or take "
    "another GPU (CUDA_VISIBLE_DEVICES=1). Else take a smaller batch_size or width"
)


class DeviceMemoryError(MemoryError):
    """The device's memory is full. One line that says what to do."""


def free_memory(device: torch.device | str) -> int:
    """Bytes that are free: on a GPU for all processes, else this machine's available memory."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return psutil.virtual_memory().available


def peak_bytes(work: Callable[[], object]) -> int:
    """The most bytes that `work()` allocates on the current GPU, on top of what is allocated before it."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    return torch.cuda.max_memory_allocated() - before


def until_full(measure: Callable[[int], float], sizes: Iterable[int]) -> dict[int, float]:
    """`measure(size)` by size, in the order of `sizes`, up to the first that does not fit into the GPU's memory."""
    found: dict[int, float] = {}
    for size in sizes:
        try:
            found[size] = measure(size)
        except torch.OutOfMemoryError:
            print(f"size {size} does not fit into the GPU's memory: the measurement ends here")
            break
    return found


@contextlib.contextmanager
def memory_advice(device: torch.device | str) -> Iterator[None]:
    """Raise `DeviceMemoryError` where the block runs out of the GPU's memory; other errors pass.

    A GPU that is full already refuses the context itself, by another error than an allocation that does not fit.
    """
    try:
        yield
    except RuntimeError as error:  # torch.OutOfMemoryError is one
        if not isinstance(error, torch.OutOfMemoryError) and "out of memory" not in str(error).lower():
            raise
        raise DeviceMemoryError(f"the memory of {device} is full. {REMEDY}") from None

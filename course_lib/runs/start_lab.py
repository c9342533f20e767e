"""``lab start``: a lab in the student's folder, ready to be filled in. Existing files are never overwritten."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from course_lib.runs.labs import UnknownLabError, match_lab
from course_lib.runs.release_copy import SOURCES, release_everything
from course_lib.system.atomic import write_atomically

__all__ = ["start_labs"]


def start_labs(
    names: Sequence[str],
    output: str | Path = ".",
    every: bool = False,
    scripts_only: bool = False,
    log: Callable[[str], None] = print,
) -> None:
    """Put copies of labs, and the cluster's scripts, into a folder.

    Parameters
    ----------
    names : sequence of str
        ``1``, ``01`` or ``01_single_gpu``.
    output : path
        The folder; made where it is missing.
    every : bool
        All labs, except those that are there already.
    log : callable
        Called with a line for each thing that was made.

    Raises
    ------
    click.UsageError
        No lab or an unknown one; a lab that is there already, or a folder that cannot be written. Nothing was changed.
    """
    folder = Path(output)
    with _copies() as copies:
        known = sorted(path.parent.name for path in copies.glob("*/profiles.yaml"))
        if bool(names) + every + scripts_only != 1:
            raise click.UsageError(f"name a lab, as in lab start 01, or --all; there are {', '.join(known)}")
        try:
            wanted = dict.fromkeys(match_lab(name.rstrip("/"), known) for name in names)
        except UnknownLabError as error:
            raise click.UsageError(str(error)) from None
        if every:
            wanted = dict.fromkeys(name for name in known if not _taken(folder, name))
        for name in wanted:
            if there := _taken(folder, name):
                remedy = f"for a new copy choose another folder: lab start {name[:2]} -o DIR"
                raise click.UsageError(f"{there} is there already and was left as it is; {remedy}")
        try:
            for name in wanted:
                _put(copies / name, folder / name)
                log(f"{folder / name / name}.ipynb")
            added = _add_scripts(copies / "deploy", folder / "deploy", log)
            if scripts_only and not added:
                log(f"{folder / 'deploy'}: all job scripts are there already")
            for name in ("nbgrader_config.py", SOURCES):
                if not (folder / name).exists():
                    write_atomically(folder / name, (copies / name).read_bytes())
        except OSError as error:
            why = f"{folder} cannot be written ({error.strerror or error})"
            raise click.UsageError(f"{why}; choose another folder by -o DIR") from None


@contextmanager
def _copies() -> Iterator[Path]:
    """The folder of release copies: the installed one, or one that is made from a checkout's sources."""
    installed = Path(__file__).resolve().parents[1] / "release_copies"
    if installed.is_dir():
        yield installed
        return
    with tempfile.TemporaryDirectory(prefix="lab-start-") as made:
        release_everything(Path(__file__).resolve().parents[2], Path(made) / "copies")
        yield Path(made) / "copies"


def _taken(folder: Path, name: str) -> Path | None:
    """The existing file or folder of the lab's name; or the notebook, where `folder` is the lab's own."""
    return next((path for path in (folder / name, folder / f"{name}.ipynb") if os.path.lexists(path)), None)


def _put(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    # Copy to a temporary name and rename: an interrupted copy must not look like a lab.
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
        whole = Path(scratch) / target.name
        whole.mkdir()
        for path in source.iterdir():
            if path.is_file():  # pip compiles an installed lab's programs into a folder beside them
                shutil.copyfile(path, whole / path.name)  # without the mode: an installed file may be read-only
        whole.rename(target)


def _add_scripts(source: Path, target: Path, log: Callable[[str], None]) -> bool:
    """Copy the scripts that are missing; True if there were any."""
    added = False
    for path in sorted(source.glob("*/*")):
        copy = target / path.relative_to(source)
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(copy, path.read_bytes())
            added = True
        elif copy.read_bytes() != path.read_bytes():
            log(f"{copy} differs from the course's and was left as it is")
    if added:
        log(f"{target}: job scripts for Slurm and PBS")
    return added

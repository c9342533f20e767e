"""A sweep on disk: its description, and the outcome of each trial.

::

    DIR/sweep.json                              lab, profile, axes, fixed parameters, repeats
    DIR/2ranks-128bs-0.1lr-0.9m-5w/seed-0/      a run folder, the executed notebook, output.log
                                   …/point.json its outcome; written last
    DIR/results.csv  DIR/summary.csv  DIR/summary.md  DIR/*.png  DIR/*.svg

A trial is done when its ``point.json`` says so. There is no other state: whatever is killed, the next call can continue.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from filelock import FileLock, Timeout

from course_lib.runs.execute_notebook import is_disk_full
from course_lib.runs.sweep.grid import side_by_side
from course_lib.runs.sweep.trials import Trial
from course_lib.system.atomic import write_atomically

__all__ = ["DiskFullError", "Outcome", "SweepFolder", "SweepFolderError", "read_outcome"]

RECORD = "point.json"


class SweepFolderError(ValueError):
    """The folder cannot be used; one line with the remedy."""


class DiskFullError(RuntimeError):
    """The disk is full; one line. What is done stays."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"no space left in {folder}; what is done stays: make room and give the same command")


@dataclass(frozen=True)
class Outcome:
    """The outcome of a trial.

    ``status`` is ``done`` or ``failed``; ``seconds`` is from its start to its end; ``cores`` those it could use;
    ``notebook`` is the digest of what was executed.
    """

    status: str
    lab: str
    profile: str
    parameters: Mapping[str, Any]
    seconds: float
    started: str
    attempts: int = 1
    error: str = ""
    traceback: str = ""
    executor: str = "local"
    cores: int = 0
    notebook: str = ""
    machine: str = ""


def read_outcome(folder: Path) -> Outcome | None:
    """The outcome in a trial's folder; None where there is no readable one."""
    try:
        record = json.loads((folder / RECORD).read_text())
        return Outcome(**record)
    except (OSError, ValueError, TypeError):
        return None


def write_outcome(folder: Path, outcome: Outcome) -> None:
    """Write ``point.json``, whole or not at all."""
    write_atomically(folder / RECORD, json.dumps(asdict(outcome), indent=1) + "\n")


@dataclass
class SweepFolder:
    """The folder of one sweep."""

    path: Path
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    def check(self, mine: Mapping[str, Any]) -> None:
        """Raise `SweepFolderError` unless the folder is, or can become, that of the sweep `mine` describes.

        A folder of the same lab, profile and fixed parameters, whose axes and all their values are in `mine`, is this
        sweep's: more values or repeats extend it.
        """
        if self.path.exists() and not self.path.is_dir():
            raise SweepFolderError(f"{self.path} is a file; choose a folder by -o DIR")
        # A sweep that was killed while it wrote its first file has left that under a temporary name.
        others = [path.name for path in self.path.glob("*") if not path.name.startswith((".lock", ".sweep.json."))]
        if others and not (self.path / "sweep.json").exists():
            raise SweepFolderError(f"{self.path} holds {others[0]} and is no sweep's; choose another by -o DIR")
        self._compare(mine)

    @contextmanager
    def hold(self, mine: Mapping[str, Any]) -> Iterator[None]:
        """Hold the folder for the sweep `mine` (what ``sweep.json`` holds), or refuse as `check` does.

        Raises
        ------
        SweepFolderError
            Another sweep's, not a sweep's, in use, or not writable.
        DiskFullError
        """
        try:
            self.check(mine)
            self.path.mkdir(parents=True, exist_ok=True)
            with FileLock(self.path / ".lock").acquire(timeout=0):
                self._compare(mine)
                write_atomically(self.path / "sweep.json", json.dumps(mine, indent=1) + "\n")
                yield
        except Timeout:
            raise SweepFolderError(f"another sweep is writing to {self.path}; wait for it or choose -o DIR") from None
        except OSError as error:
            if error.filename is None and error.errno is None:
                raise
            if is_disk_full(error):
                raise DiskFullError(self.path) from None
            raise SweepFolderError(
                f"{self.path} cannot be written ({error.strerror}); what is done stays; repair that or choose -o DIR"
            ) from None

    def _compare(self, mine: Mapping[str, Any]) -> None:
        try:
            theirs = json.loads((self.path / "sweep.json").read_text())
        except FileNotFoundError:
            return
        except ValueError:
            raise SweepFolderError(f"{self.path / 'sweep.json'} is unreadable; choose another by -o DIR") from None

        def refuse(what: str, remedy: str = "") -> NoReturn:
            raise SweepFolderError(f"{self.path} holds {what}; {remedy}choose another folder by -o DIR")

        for name, text in (("lab", "of lab"), ("profile", "with profile"), ("fixed", "with -p"), ("seed", "from seed")):
            if theirs.get(name) != mine[name]:
                refuse(f"another sweep, {text} {_show(theirs.get(name))} (this one: {_show(mine[name])})")
        axes = theirs.get("axes", {})
        if set(axes) != set(mine["axes"]):
            refuse(f"another sweep, over {', '.join(axes)}")
        if theirs.get("zipped", False) != mine.get("zipped", False):
            refuse("another sweep, whose axes are combined in another way (--zip, or trials from a file)")
        now = _varied(mine)
        if missing := [each for each in _varied(theirs) if each not in now]:
            what = ", ".join(f"{name} = {value}" for name, value in missing[0].items())
            refuse(f"a sweep that has {what} too", "add it (done trials are not run again) or ")
        if theirs.get("repeats", 1) > mine["repeats"]:
            refuse(f"a sweep with --repeat {theirs['repeats']}", "repeat as often or ")

    def read(self, trials: Sequence[Trial]) -> None:
        """Read the outcomes of these trials."""
        outcomes = {trial.folder: read_outcome(self.path / trial.folder) for trial in trials}
        self.outcomes = {folder: outcome for folder, outcome in outcomes.items() if outcome is not None}


def _varied(description: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a folder's next sweep must have: each value of an axis, or, if the axes are zipped, each combination."""
    axes = description.get("axes", {})
    if description.get("zipped"):
        return side_by_side(**axes)
    return [{name: value} for name, values in axes.items() for value in values]


def _show(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {item}" for name, item in value.items()) or "nothing"
    return str(value)

"""Rubrics: one TOML file per lab that says what its exercises and its run evidence are worth, and how it is graded."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from .criteria import KINDS, NEEDS_MODEL

__all__ = [
    "RUBRICS",
    "Criterion",
    "Execution",
    "Exercise",
    "ModelEvidence",
    "Rerun",
    "Rubric",
    "RubricError",
    "find_rubric",
    "load_rubric",
    "rubric_names",
]

RUBRICS = Path(__file__).parent / "rubrics"
_COMMON = ("id", "kind", "points", "description")
_LAB = re.compile(r"[0-9]{2}_[a-z0-9_]+")

T = TypeVar("T")
Fail = Callable[[str], "RubricError"]


class RubricError(ValueError):
    """A rubric that cannot be used, or none for the lab asked for; one line."""


@dataclass(frozen=True)
class Criterion:
    """One line of a rubric; `settings` are those of its kind (see `autograde.criteria.KINDS`)."""

    id: str
    kind: str
    points: float
    description: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Exercise:
    """An exercise's grade cell, the hidden check that scores it, and the points of each of that check's parts."""

    cell: str
    check: str
    points: Mapping[str, float]

    @property
    def max_points(self) -> float:
        """What the cell is worth."""
        return sum(self.points.values())


@dataclass(frozen=True)
class Execution:
    """How answers are executed for the hidden checks.

    Attributes
    ----------
    run : tuple of str
        Ids of the lab's own code cells that the answers lean on (imports, helpers). They run as the lab has them.
    parameters : mapping
        Values for the notebook's parameters cell.
    data : tuple of str
        Staged data sets that the sandbox shows.
    seconds, memory_gib : float
        Limits on one exercise, all of its ranks together.
    """

    run: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    data: tuple[str, ...] = ()
    seconds: float = 60.0
    memory_gib: float = 4.0


@dataclass(frozen=True)
class ModelEvidence:
    """How the submitted weights are tried on held-out images.

    Attributes
    ----------
    network : str
        ``course_lib:NAME`` (see `autograde.networks`), which needs no code of the student's, or ``notebook:FUNCTION``,
        a function of the notebook without arguments, called in the sandbox.
    datasets : tuple of str
        Those that a run may have used; the images are of the test split of the one that ``run.json`` names.
    images : int
        How many of them are asked, drawn and ordered by chance.
    tolerance : float
        How far the accuracy on them may lie from the learning curve's last one.
    held_out : str
        A staged set of the same kind of images that students have never seen, whose test split is used instead.
    """

    network: str
    datasets: tuple[str, ...]
    images: int
    tolerance: float
    held_out: str = ""


@dataclass(frozen=True)
class Rerun:
    """The budget of a grading run: parameters of the notebook, and seconds, data and memory for all of it."""

    parameters: Mapping[str, Any]
    seconds: float
    memory_gib: float = 8.0
    data: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rubric:
    """How a lab is graded.

    Attributes
    ----------
    lab, title : str
    mode : str
        ``evidence``: the run is judged from the submitted run folder. ``rerun``: from one that the grader's own run of
        the submitted notebook wrote.
    cell : str
        grade_id of the notebook cell that carries the run evidence's points.
    max_points : float
        Of the run evidence.
    criteria : tuple of Criterion
        Of the run evidence.
    exercises : tuple of Exercise
    execution : Execution
    model : ModelEvidence or None
    rerun : Rerun or None
    digest : str
        SHA-256 of the file.
    """

    lab: str
    title: str
    mode: str
    cell: str
    max_points: float
    criteria: tuple[Criterion, ...]
    exercises: tuple[Exercise, ...] = ()
    execution: Execution = field(default_factory=Execution)
    model: ModelEvidence | None = None
    rerun: Rerun | None = None
    digest: str = ""

    @property
    def total(self) -> float:
        """Points of the run evidence and the exercises together; answers in words are not the grader's."""
        return self.max_points + sum(exercise.max_points for exercise in self.exercises)

    @property
    def threshold(self) -> float | None:
        """The final accuracy asked for, else the best, else None."""
        by_kind = {criterion.kind: criterion.settings.get("threshold") for criterion in self.criteria}
        return by_kind.get("final_accuracy", by_kind.get("best_accuracy"))


def rubric_names(folder: Path = RUBRICS) -> list[str]:
    """The labs that have a rubric, in order."""
    return sorted(path.stem for path in folder.glob("*.toml"))


def find_rubric(lab: str, folder: Path = RUBRICS) -> Rubric:
    """The rubric of a lab.

    Parameters
    ----------
    lab : str
        ``1``, ``01`` or ``01_single_gpu``.
    folder : Path
        Where the rubrics lie.

    Raises
    ------
    RubricError
        No such rubric, or one that cannot be used.
    """
    names = rubric_names(folder)
    if re.fullmatch(r"[0-9]{1,2}", lab, re.ASCII):
        found = [name for name in names if name.split("_")[0] == lab.zfill(2)]
    else:
        found = [name for name in names if name == lab]
    if len(found) != 1:
        raise RubricError(f"no rubric for lab {lab!a}; there are {', '.join(names) or 'none'}")
    return load_rubric(folder / f"{found[0]}.toml")


def load_rubric(path: Path) -> Rubric:
    """Read and check a rubric.

    Raises
    ------
    RubricError
        Names the file, the place in it and what was expected.
    """
    try:
        text = path.read_text(encoding="utf-8")
        whole = tomllib.loads(text)
    except OSError as error:
        raise RubricError(f"rubric {path} cannot be read ({error.strerror})") from None
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError
        raise RubricError(f"rubric {path} is not TOML: {error}") from None

    def fail(what: str) -> RubricError:
        return RubricError(f"rubric {path}: {what}")

    allowed = {
        "lab", "title", "mode", "cell", "max_points", "criterion", "exercise", "execution", "model", "rerun",
    }  # fmt: skip
    if unknown := set(whole) - allowed:
        raise fail(f"unknown key {sorted(unknown)[0]!r}; known are {', '.join(sorted(allowed))}")
    for name in ("lab", "title", "mode", "cell"):
        if not isinstance(whole.get(name), str) or not whole[name]:
            raise fail(f"{name} must be a string")
    if not _LAB.fullmatch(whole["lab"]) or whole["lab"] != path.stem:
        raise fail(f"lab is {whole['lab']!r}, expected the file's own name, {path.stem!r}")
    if whole["mode"] not in ("evidence", "rerun"):
        raise fail(f"mode is {whole['mode']!r}, expected 'evidence' or 'rerun'")
    if (whole["mode"] == "rerun") != ("rerun" in whole):
        raise fail("mode 'rerun' and a table [rerun] with its budget go together")
    if not _is_points(whole.get("max_points")):
        raise fail("max_points must be a number of at least 0")

    criteria = tuple(_criterion(entry, n, fail) for n, entry in enumerate(_tables(whole, "criterion", fail), start=1))
    if not criteria:
        raise fail("at least one [[criterion]] is needed")
    if twice := _twice(criterion.id for criterion in criteria):
        raise fail(f"id {twice!r} is there twice")
    total = sum(criterion.points for criterion in criteria)
    if abs(total - whole["max_points"]) > 1e-9:
        raise fail(f"the criteria add up to {total:g} points, max_points is {whole['max_points']:g}")
    exercises = tuple(_exercise(entry, n, fail) for n, entry in enumerate(_tables(whole, "exercise", fail), start=1))
    if twice := _twice([whole["cell"], *(exercise.cell for exercise in exercises)]):
        raise fail(f"cell {twice!r} is there twice")
    model = _table(ModelEvidence, whole, "model", fail)
    if model is None and any(criterion.kind in NEEDS_MODEL for criterion in criteria):
        raise fail("a criterion of the submitted weights needs a table [model]")
    return Rubric(
        lab=whole["lab"],
        title=whole["title"],
        mode=whole["mode"],
        cell=whole["cell"],
        max_points=float(whole["max_points"]),
        criteria=criteria,
        exercises=exercises,
        execution=_table(Execution, whole, "execution", fail) or Execution(),
        model=model,
        rerun=_table(Rerun, whole, "rerun", fail),
        digest=hashlib.sha256(text.encode()).hexdigest(),
    )


def _tables(whole: Mapping[str, Any], name: str, fail: Fail) -> list[dict[str, Any]]:
    entries = whole.get(name, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise fail(f"{name} must be tables, [[{name}]]")
    return entries


def _twice(names: Iterable[str]) -> str | None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    return min(repeated, default=None)


# What a table's entry must be, by the type that its dataclass declares.
_EXPECTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "str": (lambda v: isinstance(v, str) and v != "", "a string"),
    "int": (lambda v: isinstance(v, int) and not isinstance(v, bool) and v > 0, "a whole number above 0"),
    "float": (lambda v: _is_points(v) and v > 0, "a number above 0"),
    "tuple[str, ...]": (lambda v: isinstance(v, list) and all(isinstance(e, str) for e in v), "a list of strings"),
    "Mapping[str, Any]": (lambda v: isinstance(v, dict), "a table"),
}


def _table(kind: type[T], whole: Mapping[str, Any], name: str, fail: Fail) -> T | None:
    if name not in whole:
        return None
    entries = whole[name]
    if not isinstance(entries, dict):
        raise fail(f"{name} must be a table, [{name}]")
    known = {entry.name: entry for entry in fields(kind)}
    if unknown := set(entries) - set(known):
        raise fail(f"[{name}] has no entry {sorted(unknown)[0]!r}; known are {', '.join(known)}")
    values = {}
    for key, entry in known.items():
        test, wanted = _EXPECTED[entry.type]
        if key in entries:
            if not test(entries[key]):
                raise fail(f"[{name}] {key} must be {wanted}")
            values[key] = tuple(entries[key]) if isinstance(entries[key], list) else entries[key]
        elif entry.default is MISSING and entry.default_factory is MISSING:
            raise fail(f"[{name}] needs {key}, {wanted}")
    return kind(**values)


def _exercise(entry: dict[str, Any], number: int, fail: Fail) -> Exercise:
    for key in ("cell", "check"):
        if not isinstance(entry.get(key), str) or not entry[key]:
            raise fail(f"exercise {number}: {key} must be a string")
    points = entry.get("points")
    if not isinstance(points, dict) or not points or not all(_is_points(value) for value in points.values()):
        raise fail(f"exercise {entry['cell']!r}: points must be a table of the check's parts and their points")
    if unknown := set(entry) - {"cell", "check", "points"}:
        raise fail(f"exercise {entry['cell']!r}: unknown key {sorted(unknown)[0]!r}; known are cell, check, points")
    return Exercise(entry["cell"], entry["check"], {part: float(value) for part, value in points.items()})


def _criterion(entry: dict[str, Any], number: int, fail: Fail) -> Criterion:
    name = entry.get("id")
    if not isinstance(name, str) or not name:
        raise fail(f"criterion {number}: id is missing")
    if entry.get("kind") not in KINDS:
        raise fail(f"criterion {name!r}: unknown kind {entry.get('kind')!r}; known are {', '.join(KINDS)}")
    if not _is_points(entry.get("points")):
        raise fail(f"criterion {name!r}: points must be a number of at least 0")
    if not isinstance(entry.get("description"), str) or not entry["description"]:
        raise fail(f"criterion {name!r}: description is missing")
    expected = KINDS[entry["kind"]].settings
    settings = {key: value for key, value in entry.items() if key not in _COMMON}
    if unknown := set(settings) - set(expected):
        raise fail(f"criterion {name!r}: kind {entry['kind']} has no setting {sorted(unknown)[0]!r}")
    for key, (test, wanted) in expected.items():
        if key not in settings or not test(settings[key]):
            raise fail(f"criterion {name!r}: {key} must be {wanted}")
    return Criterion(name, entry["kind"], float(entry["points"]), entry["description"], settings)


def _is_points(value: Any) -> bool:
    # A comparison that NaN fails, too.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf")

"""Rubrics: one TOML file per lab, with the points of its exercises and its run evidence, and how it is graded."""

from __future__ import annotations

import difflib
import hashlib
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from autograde.rubric.form import (
    Criterion,
    Execution,
    Exercise,
    Leaderboard,
    ModelEvidence,
    Points,
    Rerun,
    Rubric,
    RunEvidence,
    Text,
)
from course_lib.runs.run_evidence.course import course_criteria
from course_lib.runs.run_evidence.criteria import KINDS, NEEDS_MODEL

__all__ = [
    "RUBRICS",
    "Criterion",
    "Execution",
    "Exercise",
    "ModelEvidence",
    "Rerun",
    "Rubric",
    "RubricError",
    "RunEvidence",
    "find_rubric",
    "load_rubric",
    "rubric_names",
]

RUBRICS = Path(__file__).resolve().parents[1] / "rubrics"
# Of a run, its folder and its program: one component of a path, and never "." or "..".
_Name = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z")]

# msgspec names the types of JSON.
_WORDS = (
    ("`object`", "`table`"),
    ("`array`", "`list`"),
    ("Object missing", "The table lacks the"),
    ("Object", "The table"),
)

T = TypeVar("T")
Fail = Callable[[str], "RubricError"]


class _CriterionTable(Struct, kw_only=True):
    """``[[criterion]]`` without the settings of its kind."""

    id: Text
    kind: str
    points: Points
    description: Text


class _RunTable(Struct, forbid_unknown_fields=True, kw_only=True):
    """``[[run]]``: the run folder of a program."""

    id: _Name
    cell: Text
    max_points: Points
    folder: _Name | None = None
    program: _Name | None = None
    model: ModelEvidence | None = None
    criterion: list[dict[str, Any]] = []


class _File(Struct, forbid_unknown_fields=True, kw_only=True):
    """The whole file. Its top level has the entries of the notebook's own run, where the lab has one."""

    lab: Annotated[str, Meta(pattern=r"\A[0-9]{2}_[a-z0-9_]+\Z")]
    title: Text
    mode: Literal["evidence", "rerun"]
    cell: Text | None = None
    max_points: Points | None = None
    model: ModelEvidence | None = None
    criterion: list[dict[str, Any]] = []
    execution: Execution = Execution()
    exercises: dict[str, Any] = {}
    rerun: Rerun | None = None
    leaderboard: Leaderboard | None = None
    run: list[dict[str, Any]] = []


class RubricError(ValueError):
    """A rubric cannot be used, or the lab has none. The message is one line."""


def rubric_names(folder: Path = RUBRICS) -> list[str]:
    """The labs that have a rubric, in order."""
    return sorted(path.stem for path in folder.glob("*.toml"))


def find_rubric(lab: str, folder: Path = RUBRICS) -> Rubric:
    """The rubric of a lab.

    Parameters
    ----------
    lab : str
        ``1``, ``01`` or ``01_single_gpu``.

    Raises `RubricError`: no such rubric, or one that cannot be used.
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
    """Read and check a rubric. Raises `RubricError`: names the file, the place in it and what was expected."""
    try:
        text = path.read_text(encoding="utf-8")
        whole = tomllib.loads(text)
    except OSError as error:
        raise RubricError(f"rubric {path} cannot be read ({error.strerror})") from None
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError
        raise RubricError(f"rubric {path} is not TOML: {error}") from None

    def fail(what: str) -> RubricError:
        return RubricError(f"rubric {path}: {what}")

    file = _read(whole, _File, fail)
    if file.lab != path.stem:
        raise fail(f"lab is {file.lab!r}, expected the file's own name, {path.stem!r}")
    if (file.mode == "rerun") != (file.rerun is not None):
        raise fail("mode 'rerun' and a table [rerun] with its budget go together")
    if file.mode == "rerun" and file.run:
        raise fail("[[run]] needs mode 'evidence': the grader runs the notebook again, and no program")

    runs = _runs(file, whole, fail)
    if file.leaderboard is not None and file.model is None:
        raise fail("[leaderboard] needs [model]: it ranks what the grader measures of the weights")
    exercises = tuple(_exercise(file.lab, name, points, fail) for name, points in file.exercises.items())
    if twice := _twice([*(run.cell for run in runs), *(exercise.cell for exercise in exercises)]):
        raise fail(f"cell {twice!r} is there twice")
    return Rubric(
        lab=file.lab,
        title=file.title,
        mode=file.mode,
        runs=runs,
        exercises=exercises,
        execution=file.execution,
        rerun=file.rerun,
        leaderboard=file.leaderboard,
        digest=hashlib.sha256((text + repr(runs)).encode()).hexdigest(),  # criteria may be of another file
    )


def _read(table: Any, kind: type[T], fail: Fail, where: str = "") -> T:
    """Convert a table of the file; `where` is its place."""
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        what, _, place = " ".join(str(error).split()).partition(" - at `$")
        for json_words, toml_words in _WORDS:
            what = what.replace(json_words, toml_words)
        place = f"{where}{place.rstrip('`')}".lstrip(".")
        raise fail(f"{f'{place}: ' if place else ''}{what}; docs/grading.md has the format") from None


def _runs(file: _File, whole: Mapping[str, Any], fail: Fail) -> tuple[RunEvidence, ...]:
    found = []
    # The top level is a run of its own, in run/; it may be left out where there are others.
    own = {name: whole[name] for name in ("cell", "max_points", "criterion", "model") if name in whole}
    if own or not file.run:
        found.append(_run(_read({"id": "own"} | own, _RunTable, fail), "", course_criteria(file.lab), fail))
    for number, entry in enumerate(file.run):
        name = entry.get("id")
        run = _read(entry, _RunTable, fail, f"run {name!a}" if isinstance(name, str) else f"run[{number}]")

        def fail_here(what: str, run: str = run.id) -> RubricError:
            return fail(f"run {run!r}: {what}")

        found.append(_run(run, run.id, course_criteria(file.lab, run.id), fail_here))
    for key in ("id", "folder"):
        if twice := _twice(getattr(run, key) for run in found):
            raise fail(f"run {key} {twice!r} is there twice")
    return tuple(found)


def _run(table: _RunTable, name: str, course: list[dict[str, Any]], fail: Fail) -> RunEvidence:
    criteria = tuple(_criterion(each, n, fail) for n, each in enumerate(table.criterion or course))
    if not criteria:
        raise fail("at least one [[criterion]] is needed")
    if twice := _twice(criterion.id for criterion in criteria):
        raise fail(f"id {twice!r} is there twice")
    total = sum(criterion.points for criterion in criteria)
    if abs(total - table.max_points) > 1e-9:
        raise fail(f"the criteria add up to {total:g} points, max_points is {table.max_points:g}")
    if table.model is None and any(criterion.kind in NEEDS_MODEL for criterion in criteria):
        raise fail("a criterion of the submitted weights needs a table [model]")
    folder = table.folder or name
    return RunEvidence(table.cell, table.max_points, criteria, table.model, name, folder, table.program or "")


def _exercise(lab: str, name: str, points: Any, fail: Fail) -> Exercise:
    parts = _read(points, Annotated[dict[str, Points], Meta(min_length=1)], fail, f"exercises.{name}")
    return Exercise(f"check-{name}", f"lab{lab[:2]}.{name}", parts)


def _twice(names: Iterable[str]) -> str | None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    return min(repeated, default=None)


def _criterion(entry: dict[str, Any], number: int, fail: Fail) -> Criterion:
    table = _read(entry, _CriterionTable, fail, f"criterion[{number}]")
    if table.kind not in KINDS:
        raise fail(f"criterion {table.id!r}: unknown kind {_nearest([table.kind], KINDS)}")
    kind = KINDS[table.kind]
    settings = {key: value for key, value in entry.items() if key not in _CriterionTable.__struct_fields__}
    allowed = {**kind.settings, **kind.optional}
    if unknown := set(settings) - set(allowed):
        raise fail(f"criterion {table.id!r}: kind {table.kind} has no setting {_nearest(unknown, allowed)}")
    for key, (test, wanted) in allowed.items():
        if key not in settings and key in kind.optional:
            continue
        if key not in settings or not test(settings[key]):
            raise fail(f"criterion {table.id!r}: {key} must be {wanted}")
    return Criterion(table.id, table.kind, table.points, table.description, settings)


def _nearest(unknown: Iterable[str], known: Iterable[str]) -> str:
    """The first unknown name, the known one that it resembles, and all the known ones."""
    name, known = min(unknown), list(known)
    near = difflib.get_close_matches(name, known, n=1)
    return f"{name!r}{f' (did you mean {near[0]!r}?)' if near else ''}; known are {', '.join(known) or 'none'}"

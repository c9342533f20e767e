"""Rubrics: one TOML file per lab, with the points of its exercises and its run evidence, and how it is graded."""

from __future__ import annotations

import difflib
import hashlib
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from autograde.rubric.criteria import KINDS, NEEDS_MODEL
from autograde.rubric.form import Criterion, Execution, Exercise, ModelEvidence, Rerun, Rubric, RunEvidence
from course_lib.runs.run_evidence.course import course_criteria

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
_COMMON = ("id", "kind", "points", "description")
_LAB = re.compile(r"[0-9]{2}_[a-z0-9_]+")
_VISIBLE_CHECKS = "course_lib.checks.lab*"  # of all labs: they know answers
_RUN_KEYS = ("id", "folder", "program", "cell", "max_points", "model", "criterion")
# Of a run, its folder and its program: one component of a path, and never "." or "..".
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)

T = TypeVar("T")
Fail = Callable[[str], "RubricError"]


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
    folder : Path
        Of the rubrics.

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
        "lab", "title", "mode", "cell", "max_points", "criterion", "execution", "exercises", "model", "rerun", "run",
    }  # fmt: skip
    if unknown := set(whole) - allowed:
        raise fail(f"unknown key {_nearest(unknown, allowed)}")
    for name in ("lab", "title", "mode"):
        if not isinstance(whole.get(name), str) or not whole[name]:
            raise fail(f"{name} must be a string")
    if not _LAB.fullmatch(whole["lab"]) or whole["lab"] != path.stem:
        raise fail(f"lab is {whole['lab']!r}, expected the file's own name, {path.stem!r}")
    if whole["mode"] not in ("evidence", "rerun"):
        raise fail(f"mode is {whole['mode']!r}, expected 'evidence' or 'rerun'")
    if (whole["mode"] == "rerun") != ("rerun" in whole):
        raise fail("mode 'rerun' and a table [rerun] with its budget go together")
    if whole["mode"] == "rerun" and "run" in whole:
        raise fail("[[run]] needs mode 'evidence': the grader runs the notebook again, and no program")

    runs = _runs(whole, fail)
    exercises = _exercises(whole, fail)
    execution = _table(Execution, whole, "execution", fail) or Execution()
    if twice := _twice([*(run.cell for run in runs), *(exercise.cell for exercise in exercises)]):
        raise fail(f"cell {twice!r} is there twice")
    return Rubric(
        lab=whole["lab"],
        title=whole["title"],
        mode=whole["mode"],
        runs=runs,
        exercises=exercises,
        execution=replace(execution, withheld=(_VISIBLE_CHECKS, *execution.withheld)),
        rerun=_table(Rerun, whole, "rerun", fail),
        digest=hashlib.sha256((text + repr(runs)).encode()).hexdigest(),  # criteria may be of another file
    )


def _runs(whole: Mapping[str, Any], fail: Fail) -> tuple[RunEvidence, ...]:
    found = []
    tables = _tables(whole, "run", fail)
    # The top level is a run of its own, in run/; it may be left out where there are others.
    if not tables or any(name in whole for name in ("cell", "max_points", "criterion", "model")):
        found.append(_run(whole, {}, course_criteria(whole["lab"]), fail))
    for number, entry in enumerate(tables, start=1):
        if not isinstance(entry.get("id"), str) or not _NAME.fullmatch(entry["id"]):
            raise fail(f"run {number}: id must be a name of letters, digits, _ and -")
        names = {"id": entry["id"], "folder": entry.get("folder", entry["id"])}
        if "program" in entry:
            names["program"] = entry["program"]

        def fail_here(what: str, run: str = entry["id"]) -> RubricError:
            return fail(f"run {run!r}: {what}")

        for key, name in names.items():
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise fail_here(f"{key} is {name!r}, a plain name of letters, digits, _ and - was expected")
        if unknown := set(entry) - set(_RUN_KEYS):
            raise fail_here(f"unknown key {_nearest(unknown, _RUN_KEYS)}")
        found.append(_run(entry, names, course_criteria(whole["lab"], entry["id"]), fail_here))
    for key in ("id", "folder"):
        if twice := _twice(getattr(run, key) for run in found):
            raise fail(f"run {key} {twice!r} is there twice")
    return tuple(found)


def _run(entry: Mapping[str, Any], names: Mapping[str, str], course: list[dict[str, Any]], fail: Fail) -> RunEvidence:
    if not isinstance(entry.get("cell"), str) or not entry["cell"]:
        raise fail("cell must be a string")
    if not _is_points(entry.get("max_points")):
        raise fail("max_points must be a number of at least 0")
    tables = _tables(entry, "criterion", fail) or course
    criteria = tuple(_criterion(each, n, fail) for n, each in enumerate(tables, start=1))
    if not criteria:
        raise fail("at least one [[criterion]] is needed")
    if twice := _twice(criterion.id for criterion in criteria):
        raise fail(f"id {twice!r} is there twice")
    total = sum(criterion.points for criterion in criteria)
    if abs(total - entry["max_points"]) > 1e-9:
        raise fail(f"the criteria add up to {total:g} points, max_points is {entry['max_points']:g}")
    model = _table(ModelEvidence, entry, "model", fail)
    if model is None and any(criterion.kind in NEEDS_MODEL for criterion in criteria):
        raise fail("a criterion of the submitted weights needs a table [model]")
    return RunEvidence(entry["cell"], float(entry["max_points"]), criteria, model, **names)


def _tables(whole: Mapping[str, Any], name: str, fail: Fail) -> list[dict[str, Any]]:
    entries = whole.get(name, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise fail(f"{name} must be tables, [[{name}]]")
    return entries


def _twice(names: Iterable[str]) -> str | None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    return min(repeated, default=None)


# The type that a table's entry must have, by the type in its dataclass.
_EXPECTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "str": (lambda v: isinstance(v, str) and v != "", "a string"),
    "int": (lambda v: isinstance(v, int) and not isinstance(v, bool) and v > 0, "a whole number above 0"),
    "float": (lambda v: _is_points(v) and v > 0, "a number above 0"),
    "float | None": (lambda v: _is_points(v) and v > 0, "a number above 0"),
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
        raise fail(f"[{name}] has no entry {_nearest(unknown, known)}")
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


def _exercises(whole: Mapping[str, Any], fail: Fail) -> tuple[Exercise, ...]:
    entries = whole.get("exercises", {})
    if not isinstance(entries, dict):
        raise fail("exercises must be a table, [exercises]")
    found = []
    for name, points in entries.items():
        if not isinstance(points, dict) or not points or not all(_is_points(value) for value in points.values()):
            raise fail(f"[exercises] {name} must be a table of the check's parts and their points")
        check = f"lab{whole['lab'][:2]}.{name}"
        found.append(Exercise(f"check-{name}", check, {part: float(value) for part, value in points.items()}))
    return tuple(found)


def _criterion(entry: dict[str, Any], number: int, fail: Fail) -> Criterion:
    name = entry.get("id")
    if not isinstance(name, str) or not name:
        raise fail(f"criterion {number}: id is missing")
    if entry.get("kind") not in KINDS:
        raise fail(f"criterion {name!r}: unknown kind {_nearest([str(entry.get('kind'))], KINDS)}")
    if not _is_points(entry.get("points")):
        raise fail(f"criterion {name!r}: points must be a number of at least 0")
    if not isinstance(entry.get("description"), str) or not entry["description"]:
        raise fail(f"criterion {name!r}: description is missing")
    kind = KINDS[entry["kind"]]
    settings = {key: value for key, value in entry.items() if key not in _COMMON}
    allowed = {**kind.settings, **kind.optional}
    if unknown := set(settings) - set(allowed):
        raise fail(f"criterion {name!r}: kind {entry['kind']} has no setting {_nearest(unknown, allowed)}")
    for key, (test, wanted) in allowed.items():
        if key not in settings and key in kind.optional:
            continue
        if key not in settings or not test(settings[key]):
            raise fail(f"criterion {name!r}: {key} must be {wanted}")
    return Criterion(name, entry["kind"], float(entry["points"]), entry["description"], settings)


def _nearest(unknown: Iterable[str], known: Iterable[str]) -> str:
    """The first unknown name, the known one that it resembles, and all the known ones."""
    name, known = min(unknown), list(known)
    near = difflib.get_close_matches(name, known, n=1)
    return f"{name!r}{f' (did you mean {near[0]!r}?)' if near else ''}; known are {', '.join(known) or 'none'}"


def _is_points(value: Any) -> bool:
    # A comparison that NaN fails, too.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf")

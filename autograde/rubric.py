"""Rubrics: one TOML file per lab that says what its run evidence is worth."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .criteria import KINDS

__all__ = ["Criterion", "Rubric", "RubricError", "find_rubric", "load_rubric"]

RUBRICS = Path(__file__).parent / "rubrics"
_COMMON = ("id", "kind", "points", "description")
_LAB = re.compile(r"[0-9]{2}_[a-z0-9_]+")


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
class Rubric:
    """What a lab's evidence is worth; `cell` is the grade_id of the notebook cell that carries the points."""

    lab: str
    title: str
    mode: str
    cell: str
    max_points: float
    criteria: tuple[Criterion, ...]

    @property
    def threshold(self) -> float | None:
        """The final accuracy asked for, else the best, else None."""
        by_kind = {criterion.kind: criterion.settings.get("threshold") for criterion in self.criteria}
        return by_kind.get("final_accuracy", by_kind.get("best_accuracy"))


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
    names = sorted(path.stem for path in folder.glob("*.toml"))
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
        whole = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RubricError(f"rubric {path} cannot be read ({error.strerror})") from None
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError
        raise RubricError(f"rubric {path} is not TOML: {error}") from None

    def fail(what: str) -> RubricError:
        return RubricError(f"rubric {path}: {what}")

    allowed = {"lab", "title", "mode", "cell", "max_points", "criterion"}
    if unknown := set(whole) - allowed:
        raise fail(f"unknown key {sorted(unknown)[0]!r}; known are {', '.join(sorted(allowed))}")
    for name in ("lab", "title", "mode", "cell"):
        if not isinstance(whole.get(name), str) or not whole[name]:
            raise fail(f"{name} must be a string")
    if not _LAB.fullmatch(whole["lab"]) or whole["lab"] != path.stem:
        raise fail(f"lab is {whole['lab']!r}, expected the file's own name, {path.stem!r}")
    if whole["mode"] != "evidence":
        raise fail(f"mode is {whole['mode']!r}, expected 'evidence'")
    if not _is_points(whole.get("max_points")):
        raise fail("max_points must be a number of at least 0")
    entries = whole.get("criterion")
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise fail("at least one [[criterion]] is needed")

    criteria = tuple(_criterion(entry, number, fail) for number, entry in enumerate(entries, start=1))
    ids = [criterion.id for criterion in criteria]
    if twice := {name for name in ids if ids.count(name) > 1}:
        raise fail(f"id {sorted(twice)[0]!r} is there twice")
    total = sum(criterion.points for criterion in criteria)
    if abs(total - whole["max_points"]) > 1e-9:
        raise fail(f"the criteria add up to {total:g} points, max_points is {whole['max_points']:g}")
    return Rubric(whole["lab"], whole["title"], whole["mode"], whole["cell"], float(whole["max_points"]), criteria)


def _criterion(entry: dict[str, Any], number: int, fail: Any) -> Criterion:
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

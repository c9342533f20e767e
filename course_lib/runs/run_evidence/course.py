"""The course's own criteria for a lab's runs, from ``labs/LAB.toml`` beside this file.

A line is a criterion: its kind, and its points or a table with the points and the kind's settings. Criteria at the top
level are for the notebook's own run. Criteria in a table ``[ID]`` are for the run of the program ID. ``datasets`` names the
data sets on which an accuracy counts. The descriptions, the same for all labs, are in `criteria.KINDS`.
"""

import tomllib
from pathlib import Path
from typing import Any

from course_lib.runs.run_evidence.criteria import KINDS

__all__ = ["course_criteria", "full_name", "known_labs", "programs_of"]

LABS = Path(__file__).with_name("labs")


def known_labs() -> list[str]:
    """``lab01``…: the labs whose run has criteria."""
    return [f"lab{path.stem[:2]}" for path in sorted(LABS.glob("[0-9][0-9]_*.toml"))]


def full_name(lab: str) -> str:
    """``01_single_gpu``, of ``lab01``; `KeyError` for a lab whose run has no criteria."""
    names = [path.stem for path in LABS.glob(f"{lab.removeprefix('lab')}_*.toml")]
    if not names:
        raise KeyError(f"{lab} has no criteria of a run")
    return names[0]


def programs_of(lab: str) -> list[str]:
    """Names of the programs whose runs have criteria, of a lab's full name."""
    return [name for name, entry in _criteria_of(lab).items() if isinstance(entry, dict) and "points" not in entry]


def _criteria_of(lab: str) -> dict[str, Any]:
    path = LABS / f"{lab}.toml"
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


_SETTINGS = {"run_record": {"provenance": ["official", "copy"]}}
_IDS = {"held_out_accuracy": "held-out"}


def course_criteria(lab: str, run: str = "") -> list[dict[str, Any]]:
    """The ``[[criterion]]`` tables of a run, as a rubric would list them; empty where the course has none.

    Parameters
    ----------
    lab : str
        The lab's full name, ``01_single_gpu``.
    run : str
        The id of a program's run; empty for the notebook's own.
    """
    whole = _criteria_of(lab)
    entries = dict(whole.get(run, {}) if run else whole)
    datasets = entries.pop("datasets", None)
    tables = {kind: entry if isinstance(entry, dict) else {"points": entry} for kind, entry in entries.items()}
    # A table without points is a program's.
    return [_criterion(kind, table, run, datasets) for kind, table in tables.items() if "points" in table]


def _criterion(kind: str, entry: dict[str, Any], run: str, datasets: list[str] | None) -> dict[str, Any]:
    words = {"run": f"{run}.py" if run else "this lab", "threshold": entry.get("threshold", 0.0)}
    common = {
        "id": _IDS.get(kind, kind.replace("_", "-")),
        "kind": kind,
        "description": KINDS[kind].description.format(**words) if kind in KINDS else kind,
    }
    if datasets and kind in KINDS and "datasets" in KINDS[kind].optional:
        common["datasets"] = datasets
    return common | _SETTINGS.get(kind, {}) | entry

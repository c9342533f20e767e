"""The course's own criteria of a lab's runs, from ``LAB.toml`` beside this file."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

__all__ = ["course_criteria", "full_name"]


def full_name(lab: str) -> str:
    """``01_single_gpu``, of ``lab01``; `KeyError` for a lab whose run has no criteria."""
    names = [path.stem for path in Path(__file__).parent.glob(f"{lab.removeprefix('lab')}_*.toml")]
    if not names:
        raise KeyError(f"{lab} has no criteria of a run")
    return names[0]


def course_criteria(lab: str, run: str = "") -> list[dict[str, Any]]:
    """The ``[[criterion]]`` tables of a run, as a rubric would list them; empty where the course has none.

    Parameters
    ----------
    lab : str
        The lab's full name, ``01_single_gpu``.
    run : str
        The id of a program's run; empty for the notebook's own.
    """
    path = Path(__file__).with_name(f"{lab}.toml")
    if not path.is_file():
        return []
    whole = tomllib.loads(path.read_text(encoding="utf-8"))
    tables = [whole] if not run else [table for table in whole.get("run", []) if table["id"] == run]
    return [criterion for table in tables for criterion in table.get("criterion", [])]

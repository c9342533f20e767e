"""Finding descriptions and answers by a lab's name; the files in this folder are the list."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path

from course_lib.exercises.description import Answers, Exercise

__all__ = ["answers_of", "exercises_of", "known_labs"]

HERE = Path(__file__).parent


def known_labs() -> list[str]:
    """Labs whose exercises are described here: ``lab09``…"""
    return sorted(path.stem for path in (HERE / "labs").glob("lab[0-9][0-9].py"))


def exercises_of(lab: str) -> Mapping[str, Exercise]:
    """A lab's exercises by their names; empty for a lab that is not described here."""
    if lab not in known_labs():
        return {}
    return importlib.import_module(f"course_lib.exercises.labs.{lab}").EXERCISES


def answers_of(lab: str) -> Mapping[str, Answers] | None:
    """A lab's answers by the exercises' names; None in a student's installation, which has none."""
    if not (HERE / "answers" / f"{lab}.py").is_file():
        return None
    return importlib.import_module(f"course_lib.exercises.answers.{lab}").ANSWERS

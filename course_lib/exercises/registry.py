"""Finding descriptions and answers by a lab's name; the files in this folder are the list."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from course_lib.exercises.description import Answers, Exercise

__all__ = ["answers_of", "exercises_of", "known_labs"]

HERE = Path(__file__).parent


def known_labs() -> tuple[str, ...]:
    """Labs whose exercises are described here: ``lab09``…"""
    return _modules("labs")


def exercises_of(lab: str) -> Mapping[str, Exercise]:
    """A lab's exercises by their names; empty for a lab that is not described here."""
    if lab not in known_labs():
        return {}
    return importlib.import_module(f"course_lib.exercises.labs.{lab}").EXERCISES


def answers_of(lab: str) -> Mapping[str, Answers] | None:
    """A lab's answers by the exercises' names; None in a student's installation, which has none.

    A lab without a module of answers is judged without a reference, and its judges name the mistakes.
    """
    if not (known := _modules("answers")):
        return None
    if lab not in known:
        return {name: Answers() for name in exercises_of(lab)}
    return importlib.import_module(f"course_lib.exercises.answers.{lab}").ANSWERS


@cache
def _modules(folder: str) -> tuple[str, ...]:
    """The modules ``labNN`` of a folder, in order; a lab of several modules is a package."""
    names = (module.name for module in pkgutil.iter_modules([str(HERE / folder)]))
    return tuple(sorted(name for name in names if re.fullmatch("lab[0-9]{2}", name)))

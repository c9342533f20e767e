"""Exercises: one description each, for the visible check, the hidden check and the tests.

A description (`labNN.py`) says which cases are drawn, how an answer is observed on a case, and which parts earn points.
The right functions, and the known mistakes by name, are in `answers/labNN.py`. A student's wheel has no `answers`; it
has what they compute on the visible check's cases (`expected/labNN.pt.gz`). A sandbox shows nothing of this package: the
grader sends the source of `observe` alone. docs/exercises.md shows how one is written.
"""

from course_lib.exercises.description import Answers, Exercise, Finding, Mistake, Part
from course_lib.exercises.registry import answers_of, exercises_of, known_labs

__all__ = ["Answers", "Exercise", "Finding", "Mistake", "Part", "answers_of", "exercises_of", "known_labs"]

"""Lab 12's answers. Nothing of it has a single right answer: it is judged without a reference, and the judges name the mistakes."""

from course_lib.exercises.description import Answers

__all__ = ["ANSWERS"]

ANSWERS = {name: Answers() for name in ("recipe", "same", "program")}

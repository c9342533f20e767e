"""Lab 09's processes wait for others for less time: those of a wrong answer never come."""

from course_lib.exercises.comparing import plain
from course_lib.exercises.labs.lab09 import program


def observe(exercise, case, functions):
    """In place of `own_process._observe`: it sets the time in the process that `launch` started."""
    program.PATIENCE = 1.5
    return plain(exercise.observe(case, *functions))

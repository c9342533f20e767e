"""Lab 00: TODO: its exercises in one line."""

from __future__ import annotations

from course_lib.exercises.description import Exercise, Part

__all__ = ["EXERCISES"]


def _draw_schedules(random):
    def case(which):
        steps = 2 * int(random.integers(5, 50)) + 1  # odd: half-way, a rise and a fall have the same value
        step = int(random.integers(1, steps)) if which is None else which * steps
        return step, steps, round(float(random.uniform(0.01, 0.5)), 3)

    return {"between": [case(None) for _ in range(4)], "ends": [case(0), case(1)]}


def observe_rate(case, learning_rate):  # only this runs in the process of the student's code
    return learning_rate(*case)


schedule = Exercise(
    ("learning_rate",),
    _draw_schedules,
    observe_rate,
    {
        "between": Part("A step in between", "the learning rate does not fall by the same amount in each step"),
        "ends": Part("The first step, and the one after the last", "the learning rate begins or ends elsewhere"),
    },
    "print the learning rates of a training of four steps",
    "step {0} of {1}, base_lr = {2}",
)

EXERCISES = {"schedule": schedule}

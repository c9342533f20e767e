"""Lab 00's answers, right and wrong."""

from __future__ import annotations

from course_lib.exercises.description import Answers, Mistake

__all__ = ["ANSWERS"]

ANSWERS = {
    "schedule": Answers(
        (lambda step, steps, base_lr: base_lr * (1 - step / steps),),
        {
            "rises": Mistake(
                "the learning rate rises from 0; it should fall to 0",
                lambda step, steps, base_lr: base_lr * step / steps,
            ),
        },
    ),
}

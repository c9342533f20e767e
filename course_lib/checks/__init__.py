"""The visible checks: `check("lab01.train-step", train_step)` answers like a tutor.

A check returns nothing and prints one line when the answer is right; otherwise it raises `CheckFailed`, which
says what was expected, what came, and the likeliest reason. They compare behaviour with PyTorch, so any
correct answer passes, however it is written.
"""

from course_lib.checks.registry import check
from course_lib.live_view.check_failed import CheckFailed

__all__ = ["CheckFailed", "check"]

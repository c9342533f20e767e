"""The training loop, and whole trainings that labs compare or hand in."""

from course_lib.training.loop import *  # noqa: F403
from course_lib.training.loop import __all__ as __all__

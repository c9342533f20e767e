"""Models and measures of speed."""

from course_lib.metrics.speed import *  # noqa: F403
from course_lib.metrics.speed import __all__ as __all__

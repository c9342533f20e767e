"""Staged data sets → batches, and what is done to them on the way."""

from course_lib.data.batches import *  # noqa: F403
from course_lib.data.batches import __all__ as __all__

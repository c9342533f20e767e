"""The figures of the labs: those of several labs are named here, those of one lab in a module of their own."""

from course_lib.plots.curves import *  # noqa: F403
from course_lib.plots.curves import __all__ as __all__
from course_lib.plots.style import show as show

"""Sweeps: grids of parameters, in a notebook (`run_grid`) and of whole notebooks (``lab sweep``)."""

from course_lib.sweep.grid import grid, parse_axis
from course_lib.sweep.run_grid import run_grid

__all__ = ["grid", "parse_axis", "run_grid"]

"""Sweeps: grids of parameters of whole notebooks (``lab sweep``); in a notebook, `course_lib.training.run_grid`."""

from course_lib.runs.sweep.grid import grid, parse_axis

__all__ = ["grid", "parse_axis"]

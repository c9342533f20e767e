"""``python -m data_prep``: the `lab data` command alone."""

from data_prep.cli import data

data(prog_name="python -m data_prep")

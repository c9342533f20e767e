"""The shortest of several runs, and on several ranks the slowest one's time."""

import sys
import time

import cloudpickle
import pytest
import torch.distributed as dist

from course_lib.distributed import launch
from course_lib.metrics.least_seconds import least_seconds

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def naps(*seconds):
    """Work that takes another time in each run."""
    left = iter(seconds)
    return lambda: time.sleep(next(left))


def test_the_shortest_run_counts():
    assert 0.02 <= least_seconds(naps(0.4, 0.02, 0.4), 3) < 0.4


def test_by_default_there_are_two_runs():
    work = naps(0.0, 0.0)
    least_seconds(work)
    with pytest.raises(StopIteration):
        work()


def on_this_rank():
    mine = naps(0.3, 0.01) if dist.get_rank() else naps(0.01, 0.3)
    return least_seconds(mine)


def test_a_run_lasts_until_the_slowest_rank_is_ready():
    """On each rank one of both runs is short; for both ranks together neither is."""
    assert all(seconds >= 0.29 for seconds in launch(on_this_rank, 2, timeout=100, backend="gloo"))


def test_no_run_at_all_is_refused():
    with pytest.raises(ValueError, match="at least 1"):
        least_seconds(naps(), 0)

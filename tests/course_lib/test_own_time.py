"""The time limit on ranks' own work: against a pretended machine, and with real ranks that wait or compute for ever."""

import os
import time

import pytest
import torch
import torch.distributed as dist
from gloo_ranks import on_ranks

from course_lib.distributed import LaunchTimeoutError
from course_lib.distributed.launching.own_time import LONGEST, OwnTime, processor_seconds

LIMIT = 12.0


def lasts(share_of, ranks=3, until=1000.0):
    """Seconds for which ranks may run that get, at each moment, this share of a processor."""
    now, used = 0.0, [0.0] * ranks
    limit = OwnTime(LIMIT, clock=lambda: now, used=used.__getitem__)
    while not limit.over(range(ranks)) and now < until:
        now += 0.25
        used = [before + 0.25 * share_of(rank, now) for rank, before in enumerate(used)]
        limit._used = used.__getitem__
    return now


def test_ranks_that_wait_for_a_processor_are_no_deadlock():
    needs = 3.0  # seconds of each rank
    for share in (1.0, 0.1, 0.02):  # 0.02: a hundred programs on two processors
        assert lasts(lambda rank, now, share=share: share, until=needs / share) == needs / share


def test_a_deadlock_is_named_after_the_limit_however_busy_the_machine_is():
    for begin in (0.5, 5.0, 40.0):  # how long the ranks compute at a tenth of a processor before all wait
        assert lasts(lambda rank, now, begin=begin: 0.1 * (now <= begin)) == pytest.approx(begin + LIMIT, abs=1.0)
    assert lasts(lambda rank, now: 0.0) == LIMIT + 0.25
    assert lasts(lambda rank, now: 0.002) == LIMIT + 0.25  # loops that sleep and look


def test_a_loop_without_end_is_named_by_its_processor_time():
    assert lasts(lambda rank, now: float(rank == 1)) == LIMIT + 0.25
    assert lasts(lambda rank, now: 0.2 * (rank == 1)) == pytest.approx(5 * LIMIT, abs=2)
    assert lasts(lambda rank, now: 0.01) == LONGEST * LIMIT + 0.25


def test_processor_time_is_that_of_the_system():
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    assert processor_seconds(os.getpid()) == pytest.approx(sum(os.times()[:2]), abs=0.05)
    assert processor_seconds(2**22 + 1) == 0.0  # there is no such process


def waits():
    dist.recv(torch.empty(1), src=1 - dist.get_rank())  # which nobody sends


def computes():
    while dist.get_rank() == 0:
        pass


@pytest.mark.parametrize(
    ("worker", "where", "other"), [(waits, "recv", "recv"), (computes, "computes", "has finished")]
)
def test_ranks_that_never_end(worker, where, other):
    for _ in range(4):  # until both answered in time, however busy the machine is
        with pytest.raises(LaunchTimeoutError) as raised:
            on_ranks(worker, 2, timeout=2.0, own_time=True)
        if "did not answer" not in "".join(raised.value.positions.values()):
            break
    assert where in raised.value.positions[0] and other in raised.value.positions[1]
    assert raised.value.timeout >= 2.0

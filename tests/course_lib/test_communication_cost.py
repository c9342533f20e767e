"""The α–β model: predictions and their errors are the published formulas."""

import math

import pytest

from course_lib.metrics.communication_cost import ALL_REDUCE_COSTS, Link, all_reduce_seconds, bus_bandwidth


@pytest.mark.parametrize(
    "algorithm, messages, share",
    [("ring", 14, 14 / 8), ("tree", 6, 6), ("parameter server", 14, 14), ("recursive halving and doubling", 6, 14 / 8)],
)
def test_predictions_for_eight_ranks(algorithm, messages, share):
    link = Link(20e-6, 1e-9, (1e-12, 1e-22, 0.0))
    seconds, error = all_reduce_seconds(link, algorithm, 4e6, 8)
    assert seconds == pytest.approx(messages * 20e-6 + share * 4e6 * 1e-9)
    assert error == pytest.approx(math.hypot(messages * 1e-6, share * 4e6 * 1e-11))
    assert all_reduce_seconds(link, algorithm, 4e6, 1) == (0, 0)


def test_errors_of_latency_and_bandwidth_that_go_together():
    assert Link(0, 0, (4.0, 9.0, -3.0)).seconds_error(1, 1) == pytest.approx(math.sqrt(4 + 9 - 6))
    assert Link(0, 0, (1.0, 1.0, -1.0)).seconds_error(2, 2) == 0


def test_what_wins_when():
    link = Link(50e-6, 1 / 1e9)

    def best(nbytes, ranks):
        ways = ("ring", "tree", "parameter server")
        return min(ways, key=lambda name: all_reduce_seconds(link, name, nbytes, ranks)[0])

    assert best(100e6, 64) == "ring"  # large tensors: bandwidth
    assert best(1e3, 2048) == "tree"  # small ones on many ranks: latency
    ring = [all_reduce_seconds(Link(0, 1e-9), "ring", 1e6, n)[0] for n in (8, 2048)]
    assert ring[0] < ring[1] < 2e-3  # never more than twice the tensor


def test_an_unknown_algorithm_and_no_ranks():
    with pytest.raises(ValueError, match="no algorithm 'star'; there are parameter server"):
        all_reduce_seconds(Link(0, 1e-9), "star", 1, 2)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        all_reduce_seconds(Link(0, 1e-9), "ring", 1, 0)


def test_bus_bandwidth_of_an_ideal_ring_is_the_links():
    for ranks in (2, 3, 64):
        seconds = Link(0, 1 / 3e9).seconds(*ALL_REDUCE_COSTS["ring"](1e8, ranks))
        assert bus_bandwidth(1e8, seconds, ranks) == pytest.approx(3e9)
    assert bus_bandwidth(1e8, 1.0, 1) == 0

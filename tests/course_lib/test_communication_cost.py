"""Costs of an all-reduce are the published formulas."""

import pytest

from course_lib.metrics.communication_cost import ALL_REDUCE_COSTS, bus_bandwidth


@pytest.mark.parametrize(
    "algorithm, messages, share",
    [("ring", 14, 14 / 8), ("tree", 6, 6), ("parameter server", 14, 14), ("recursive halving and doubling", 6, 14 / 8)],
)
def test_the_longest_chain_on_eight_ranks(algorithm, messages, share):
    assert ALL_REDUCE_COSTS[algorithm](4e6, 8) == (messages, pytest.approx(share * 4e6))
    assert ALL_REDUCE_COSTS[algorithm](4e6, 1) == (0, 0)


def test_what_wins_when():
    def best(nbytes, ranks):
        costs = {way: ALL_REDUCE_COSTS[way](nbytes, ranks) for way in ("ring", "tree", "parameter server")}
        return min(costs, key=lambda way: 50e-6 * costs[way][0] + 1e-9 * costs[way][1])

    assert best(100e6, 64) == "ring"  # large tensors: bandwidth
    assert best(1e3, 2048) == "tree"  # small ones on many ranks: latency
    few, many = (ALL_REDUCE_COSTS["ring"](1e6, ranks)[1] for ranks in (8, 2048))
    assert few < many < 2e6  # never more than twice the tensor


def test_bus_bandwidth_of_an_ideal_ring_is_the_links():
    for ranks in (2, 3, 64):
        seconds = ALL_REDUCE_COSTS["ring"](1e8, ranks)[1] / 3e9
        assert bus_bandwidth(1e8, seconds, ranks) == pytest.approx(3e9)
    assert bus_bandwidth(1e8, 1.0, 1) == 0

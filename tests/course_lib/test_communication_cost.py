"""The α–β model: fits recover what made the data, errors cover it, predictions are the published formulas."""

import math

import numpy as np
import pytest

from course_lib.metrics.communication_cost import ALL_REDUCE_COSTS, Link, all_reduce_seconds, bus_bandwidth, fit_link

SIZES = [2.0**k for k in range(3, 25)]


def test_a_fit_without_noise_is_exact():
    link = fit_link(SIZES, [30e-6 + n / 2e9 for n in SIZES])
    assert link.alpha == pytest.approx(30e-6, rel=1e-9) and link.bandwidth == pytest.approx(2e9, rel=1e-9)
    assert link.alpha_error < 1e-12 and link.beta_error < 1e-17


def test_the_errors_are_as_large_as_the_fits_are_off():
    random = np.random.default_rng(0)
    off = []
    for _ in range(300):
        times = [(30e-6 + n / 2e9) * (1 + 0.03 * random.standard_normal()) for n in SIZES]
        link = fit_link(SIZES, times)
        chain = (14, 14e6)
        off.append(
            [
                (link.alpha - 30e-6) / link.alpha_error,
                (link.beta - 0.5e-9) / link.beta_error,
                (link.seconds(*chain) - (14 * 30e-6 + 7e-3)) / link.seconds_error(*chain),
            ]
        )
    # Standard errors: off by their own size, no more and no less.
    assert np.std(off, axis=0) == pytest.approx([1, 1, 1], abs=0.2)
    assert np.abs(np.mean(off, axis=0)).max() < 0.35


def test_one_time_that_was_disturbed_does_not_move_the_line():
    times = [30e-6 + n / 2e9 for n in SIZES]
    times[4] *= 30
    link = fit_link(SIZES, times)
    assert link.alpha == pytest.approx(30e-6, rel=0.2) and link.beta == pytest.approx(0.5e-9, rel=0.2)


def test_neither_latency_nor_bandwidth_is_negative():
    falling = fit_link([1e3, 1e6], [2e-3, 1e-3])
    assert falling.beta == 0 and falling.bandwidth == math.inf and 1e-3 <= falling.alpha <= 2e-3
    steep = fit_link([1e6, 2e6], [1e-3, 3e-3])
    assert steep.alpha == 0 and 1e-9 <= steep.beta <= 1.5e-9
    assert steep.alpha_error == 0 and steep.beta_error > 0


@pytest.mark.parametrize(
    "sizes, times, words",
    [
        ([1, 2], [1.0], "one time for each size"),
        ([4, 4], [1.0, 1.1], "two different sizes"),
        ([1, 2], [1.0, 0.0], "above 0"),
        ([1, 2], [1.0, math.nan], "above 0"),
        ([], [], "two different sizes"),
    ],
)
def test_data_that_fit_nothing(sizes, times, words):
    with pytest.raises(ValueError, match=words):
        fit_link(sizes, times)


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

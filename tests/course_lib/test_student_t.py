"""The limits are those of the printed tables of Student's t."""

import math

import pytest

from course_lib.metrics.student_t import t_limit

TABLE = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 10: 2.228, 30: 2.042, 120: 1.980, 1_000_000: 1.960}


@pytest.mark.parametrize("degrees, limit", TABLE.items())
def test_the_limit_of_a_two_sided_test_at_five_percent(degrees, limit):
    assert t_limit(degrees) == pytest.approx(limit, abs=0.0006)


def test_another_level_and_degrees_between_two_whole_ones():
    assert t_limit(4, 0.01) == pytest.approx(4.604, abs=0.001)
    assert t_limit(1, 0.5) == pytest.approx(1.0, abs=1e-4)
    assert t_limit(5) < t_limit(4.5) < t_limit(4)


@pytest.mark.parametrize("degrees, level", [(0.5, 0.05), (math.nan, 0.05), (math.inf, 0.05), (4, 0.0), (4, 1.0)])
def test_what_is_no_degree_or_level_is_refused(degrees, level):
    with pytest.raises(ValueError, match="must be"):
        t_limit(degrees, level)

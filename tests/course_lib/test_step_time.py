"""The two models of a step's duration against exact ones, and the parts of a step against their order of size."""

import gzip
import json
import time

import pytest
from torch.profiler import profile, record_function

from course_lib.metrics.step_time import fit_step_time, part_seconds, save_trace

SIZES = [4, 8, 16, 32, 64, 128]


def test_a_device_that_adds_both_costs_is_found_exactly():
    a, b = 0.010, 0.0006
    exact = {size: size / (a + b * size) for size in SIZES}
    fit = fit_step_time(exact, 8, 64)
    assert (fit.a, fit.b) == pytest.approx((a, b))
    assert fit.models()["a + bB"] == pytest.approx(exact)
    first, *lines = str(fit).splitlines()
    assert "a = 10.0 ms" in first and "1/b = 1,667 images/s" in first and "9a/b = 150" in first
    assert len(lines) == len(SIZES) and all("a + bB   +0%" in line or "a + bB   -0%" in line for line in lines)


def test_a_device_that_overlaps_them_is_found_exactly():
    exact = {size: size / max(0.010, 0.0006 * size) for size in SIZES}
    assert fit_step_time(exact, 8, 64).models()["max(a, bB)"] == pytest.approx(exact)


def test_a_line_needs_two_batch_sizes():
    with pytest.raises(ValueError, match="two batch sizes"):
        fit_step_time({8: 1.0}, 8, 8)


def test_a_part_s_time_is_the_median_of_its_events(tmp_path):
    with profile() as recorded:
        for seconds in (0.2, 0.01, 0.01):  # one step of three was disturbed
            with record_function("wait"):
                time.sleep(seconds)
    assert 0.01 <= part_seconds(recorded, ["wait"])["wait"] < 0.2
    path = save_trace(recorded, tmp_path / "new")
    assert "wait" in {event.get("name") for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]}

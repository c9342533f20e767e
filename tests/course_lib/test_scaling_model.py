"""The step's model: closed forms, a fit that recovers what made the data, errors that cover it."""

import math

import numpy as np
import pytest

from course_lib.metrics.published_runs import IMAGENET_EPOCHS, IMAGENET_IMAGES, PUBLISHED_RUNS
from course_lib.metrics.scaling_model import Measurement, StepModel, fit_step_model, torus_cost

TRUE = dict(overhead=2e-3, per_image=80e-6, alpha=300e-6, beta=0.5e-9)
POINTS = [(n, b, size) for n in (1, 2, 4) for b in (16, 64, 256) for size in (1.4e5, 4e6)]


def by_hand(n, b, size):
    step = TRUE["overhead"] + TRUE["per_image"] * b if b else 0.0
    return step + (2 * (n - 1) * TRUE["alpha"] + 2 * (n - 1) / n * size * TRUE["beta"] if n > 1 else 0.0)


def measured(points=POINTS, noise=lambda: 0.0):
    return [Measurement(n, b, size, by_hand(n, b, size) * (1 + noise())) for n, b, size in points]


def test_a_fit_without_noise_is_exact_and_predicts():
    model = fit_step_model(measured())
    for name, value in TRUE.items():
        assert getattr(model, name) == pytest.approx(value, rel=1e-6)
        assert model.errors[name] < 1e-6 * value
    assert model.seconds(2048, 32, 1e8) == pytest.approx(by_hand(2048, 32, 1e8), rel=1e-6)
    assert model.seconds(1, 32, 1e8) == pytest.approx(2e-3 + 32 * 80e-6)
    assert model.seconds(8, 0, 1e6) == pytest.approx(by_hand(8, 0, 1e6))
    middle, low, high = model.throughput(8, 32, 1e6)
    assert low <= middle <= high and middle == pytest.approx(8 * 32 / by_hand(8, 32, 1e6), rel=1e-6)


def test_alone_all_reduces_tell_of_the_link_and_not_of_the_step():
    bare = [(2, 0, size) for size in (1e3, 1e5, 1e7)]
    model = fit_step_model(measured([(1, 16, 1e5), (1, 64, 1e5), *bare]))
    assert [getattr(model, name) for name in TRUE] == pytest.approx(list(TRUE.values()))


def test_the_errors_are_as_large_as_the_fit_is_off():
    random = np.random.default_rng(0)
    off = []
    for _ in range(300):
        model = fit_step_model(measured(noise=lambda: 0.02 * random.standard_normal()))
        found = [(getattr(model, name) - value) / model.errors[name] for name, value in TRUE.items()]
        there = model.seconds(2048, 64, 1.4e5)
        found.append((there - by_hand(2048, 64, 1.4e5)) / model.seconds_error(2048, 64, 1.4e5))
        off.append(found)
    assert np.std(off, axis=0) == pytest.approx([1] * 5, abs=0.25)
    assert np.abs(np.mean(off, axis=0)).max() < 0.3


def test_the_band_is_two_errors_of_the_time_and_never_infinite():
    covariance = [[0.0] * 4 for _ in range(4)]
    covariance[0][0] = 1e-6
    model = StepModel(10e-3, 0.0, 0.0, 0.0, tuple(map(tuple, covariance)))
    assert model.seconds_error(1, 5, 0) == pytest.approx(1e-3)
    assert model.throughput(1, 5, 0) == pytest.approx((5 / 10e-3, 5 / 12e-3, 5 / 8e-3))
    wide = StepModel(1e-4, 0.0, 0.0, 0.0, tuple(map(tuple, covariance)))
    assert wide.throughput(1, 5, 0)[2] == pytest.approx(5 / 1e-6)


def test_no_parameter_is_negative():
    points = measured()
    points = [Measurement(m.ranks, m.batch, m.nbytes, m.seconds - 1.9e-3 * (m.ranks == 1)) for m in points]
    steep = [Measurement(m.ranks, m.batch, m.nbytes, m.seconds**1.3) for m in points]
    model = fit_step_model(steep)
    values = [getattr(model, name) for name in TRUE]
    assert min(values) == 0 and max(values) > 0
    gone = values.index(0)
    assert model.covariance[gone] == (0, 0, 0, 0) and all(row[gone] == 0 for row in model.covariance)
    assert all(math.isfinite(error) for error in model.errors.values())

    def residual(four):
        return sum((StepModel(*four).seconds(m.ranks, m.batch, m.nbytes) / m.seconds - 1) ** 2 for m in steep)

    # Oracle: of all fits with some of the four left out, the best that has none below zero.
    matrix = np.array(
        [[StepModel(*unit).seconds(m.ranks, m.batch, m.nbytes) / m.seconds for unit in np.eye(4)] for m in steep]
    )
    best = math.inf
    for some in range(1, 16):
        kept = [i for i in range(4) if some >> i & 1]
        scale = np.linalg.norm(matrix[:, kept], axis=0)
        found = np.linalg.lstsq(matrix[:, kept] / scale, np.ones(len(steep)), rcond=None)[0] / scale
        if (found >= 0).all():
            four = np.zeros(4)
            four[kept] = found
            best = min(best, residual(four))
    assert residual(values) == pytest.approx(best)


@pytest.mark.parametrize(
    "points",
    [
        [],
        [(1, 16, 1e5), (1, 64, 1e5)],  # nothing is sent
        [(2, 16, 1e5), (2, 64, 1e5), (1, 16, 1e5), (1, 64, 1e5)],  # one size: α and β are one number
        [(1, 16, 1e5), (2, 16, 1e5), (2, 16, 1e6)],  # one batch
    ],
)
def test_times_that_do_not_tell_the_parameters_apart(points):
    with pytest.raises(ValueError, match="do not determine"):
        fit_step_model(measured(points))


def test_times_and_questions_that_make_no_sense():
    with pytest.raises(ValueError, match="above 0"):
        fit_step_model([*measured(), Measurement(1, 1, 1, 0.0)])
    for arguments in ((0, 1, 1), (1, -1, 1), (1, 1, -1)):
        with pytest.raises(ValueError, match="ranks must be"):
            StepModel(1, 1, 1, 1).seconds(*arguments)
    with pytest.raises(ValueError, match="no way 'star'"):
        StepModel(1, 1, 1, 1).seconds(2, 1, 1, "star")


def torus_by_messages(n, rows, columns):
    """What a rank sends: a reduce-scatter and an all-gather in its row, a ring all-reduce of its part in its column."""
    sent = [n / rows] * (rows - 1) + [n / rows / columns] * (2 * (columns - 1)) + [n / rows] * (rows - 1)
    return len(sent), sum(sent)


@pytest.mark.parametrize("ranks, rows", [(4, 2), (12, 3), (16, 4), (7, 1), (2048, 32), (1, 1)])
def test_the_torus_sends_as_few_bytes_as_a_ring_in_fewer_messages(ranks, rows):
    messages, sent = torus_cost(1000.0, ranks)
    assert (messages, sent) == (torus_by_messages(1000.0, rows, ranks // rows)[0], pytest.approx(torus_by_messages(1000.0, rows, ranks // rows)[1]))  # fmt: skip
    assert sent == pytest.approx(2 * (ranks - 1) / ranks * 1000)
    assert messages <= 2 * (ranks - 1)


def test_the_published_runs_are_the_slides_and_count_tpu_chips_not_cores():
    found = [(run.chips, run.kind, round(run.seconds, 1)) for run in PUBLISHED_RUNS]
    assert found == [
        (2048, "KNL", 1200),
        (2048, "P40", 396),
        (2176, "V100", 224),
        (1024, "TPUv3", 132),
        (1024, "TPUv3", 67.1),  # 2,048 cores: Kumar et al. 2019 "scale to 1024 TPU chips"
    ]
    sony = PUBLISHED_RUNS[2]
    assert sony.images_per_sec_per_chip == pytest.approx(IMAGENET_EPOCHS * IMAGENET_IMAGES / 224 / 2176) == pytest.approx(240, abs=1)  # fmt: skip

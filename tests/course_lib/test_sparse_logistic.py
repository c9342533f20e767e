"""Sparse logistic regression: its data, its update, and what processes make of it together."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from course_lib.training.sparse_logistic import (
    SparseData,
    dense_update,
    evaluate_sparse,
    make_sparse_data,
    sparse_update,
    train_sparse,
    train_sparse_serial,
)

FEATURES = 1000


def batch_of(samples=6, active=5):
    generator = torch.Generator().manual_seed(1)
    indices = torch.randint(FEATURES, (samples, active), generator=generator)
    indices[0, :2] = 7  # twice in one sample
    indices[1, 0] = 7  # and in another
    weights = torch.randn(FEATURES, generator=generator, dtype=torch.float64)
    return weights, indices, torch.randint(2, (samples,), generator=generator).double()


def gradient_by_autograd(weights, indices, labels):
    """Of the summed loss, through the dense matrix of the samples."""
    rows = torch.zeros(len(labels), FEATURES, dtype=torch.float64)
    rows.index_put_((torch.arange(len(labels))[:, None].expand_as(indices), indices), torch.ones(()).double(), True)
    weights = weights.clone().requires_grad_()
    F.binary_cross_entropy_with_logits(rows @ weights, labels, reduction="sum").backward()
    return weights.grad


@pytest.mark.parametrize("update", [sparse_update, dense_update])
def test_an_update_is_the_gradient_step_of_the_dense_problem(update):
    weights, indices, labels = batch_of()
    kept = weights.clone()
    moved = update(weights, indices, labels, 0.3)
    assert torch.equal(weights, kept)
    if update is sparse_update:
        moved = torch.zeros_like(weights).index_add_(0, *moved)
    assert (moved + 0.3 * gradient_by_autograd(weights, indices, labels)).abs().max() < 1e-12


def test_a_sparse_update_reads_and_writes_its_features_only():
    weights, indices, labels = batch_of()
    others = torch.ones(FEATURES, dtype=torch.bool)
    others[indices] = False
    weights[others] = torch.nan
    coordinates, amounts = sparse_update(weights, indices, labels, 0.3)
    assert not amounts.isnan().any() and not others[coordinates].any()


def test_the_data_are_the_same_everywhere_and_as_skewed_as_asked():
    data = make_sparse_data(3000, 2**10, 8, words=50_000, seed=4)
    again = make_sparse_data(3000, 2**10, 8, words=50_000, seed=4)
    assert torch.equal(data.indices, again.indices) and torch.equal(data.labels, again.labels)
    assert not torch.equal(data.indices, make_sparse_data(3000, 2**10, 8, words=50_000, seed=5).indices)
    assert data.indices.shape == (3000, 8) and len(data) == 3000
    assert data.indices.min() >= 0 and data.indices.max() < 2**10 and set(data.labels.tolist()) == {0.0, 1.0}
    even = make_sparse_data(3000, 2**10, 8, words=50_000, skew=0.0).indices.flatten().bincount(minlength=2**10)
    # Words fall on features by Poisson's law, and draws on words: variance/mean = 1 + draws/words.
    assert even.double().var() / even.double().mean() == pytest.approx(1 + 24_000 / 50_000, rel=0.1)
    # Balls in bins: features that some word is hashed to.
    words = make_sparse_data(40_000, 2**14, 8, words=20_000, skew=0.0)
    expected = 2**14 * (1 - (1 - 2**-14) ** 20_000)
    assert len(words.indices.unique()) == pytest.approx(expected, rel=0.02)
    most = make_sparse_data(3000, 2**10, 8, words=50_000, skew=0.9).indices.flatten().bincount().max()
    # P(word 0) = 50,000^−0.1 = 0.339 of 24,000
    assert abs(most / 24_000 - 50_000**-0.1) < 0.02
    train, test = data.split(500)
    assert (len(train), len(test)) == (2500, 500) and torch.equal(test.indices, data.indices[2500:])
    with pytest.raises(ValueError, match="skew must be in 0 ≤ skew < 1, got 1"):
        make_sparse_data(10, skew=1)


def test_evaluation_agrees_with_the_definition():
    weights, indices, labels = batch_of()
    margins = weights.numpy()[indices.numpy()].sum(1)
    signs = 2 * labels.numpy() - 1
    loss, accuracy = evaluate_sparse(weights, SparseData(indices, labels, FEATURES))
    assert loss == pytest.approx(np.log1p(np.exp(-signs * margins)).mean())
    assert accuracy == ((margins > 0) == (labels.numpy() == 1)).mean()


def test_processes_learn_together_what_one_learns_and_a_lock_loses_nothing():
    train, test = make_sparse_data(30_000, 2**14, words=20_000).split(5000)
    options = {"epochs": 2, "batch_size": 32, "count_lost": True}
    serial = train_sparse_serial(train, **options)
    chance = max(test.labels.mean().item(), 1 - test.labels.mean().item())
    reached = evaluate_sparse(serial.weights, test)[1]
    assert reached > chance + 0.15
    assert serial.samples == [50_000] and serial.lost.added > 1 and serial.lost.fraction < 1e-12
    one = train_sparse(train, 1, timeout=600, **options)
    assert (one.weights - serial.weights).abs().max() < 1e-12
    for locked in (False, True):
        run = train_sparse(train, 2, locked=locked, timeout=600, **options)
        assert run.samples == [25_000, 25_000] and run.seconds > 0 and run.processor_seconds > 0
        assert abs(evaluate_sparse(run.weights, test)[1] - reached) < 0.02
        if locked:
            assert run.lost.fraction < 1e-12
    dense = train_sparse_serial(train, **{**options, "epochs": 1}, dense=True)
    once = train_sparse_serial(train, **{**options, "epochs": 1})
    assert (dense.weights - once.weights).abs().max() < 1e-12
    with pytest.raises(ValueError, match="9 processes cannot share 8 samples"):
        train_sparse(make_sparse_data(8, 16, 2), 9)
    for epochs, batch_size in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match=f"at least 1, got {epochs} and {batch_size}"):
            train_sparse_serial(make_sparse_data(8, 16, 2), epochs=epochs, batch_size=batch_size)

"""The early-stopping rule, as the grader and as `fit` have it, against the multi-GPU tutorial's training loop."""

import random

import pytest
import torch

from course_lib.runs.run_evidence.early_stopping import stopping_epoch
from course_lib.training import EarlyStopping


def tutorial(accuracies, target, patience):
    """The document's own lines, with its training replaced by a given sequence."""
    val_accuracy = []
    for epoch, accuracy in enumerate(accuracies):
        val_accuracy.append(accuracy)
        if len(val_accuracy) >= patience and all(acc >= target for acc in val_accuracy[-patience:]):
            return epoch + 1
    return None


def by_fit(accuracies, target, patience):
    rule = EarlyStopping(target, patience)
    return next((epoch for epoch, accuracy in enumerate(accuracies, start=1) if rule.update(accuracy)), None)


@pytest.mark.parametrize("rule", [stopping_epoch, by_fit])
def test_the_rule_equals_the_document_s_loop(rule):
    rng = random.Random(0)
    stops = 0
    for _ in range(3000):
        target, patience = rng.choice([0.5, 0.8, 0.85]), rng.randint(1, 4)
        # on a coarse grid, so that an accuracy often is the target exactly
        accuracies = [
            rng.choice([target - 0.01, target, target + 0.01, rng.random()]) for _ in range(rng.randint(1, 12))
        ]
        expected = tutorial(accuracies, target, patience)
        assert rule(accuracies, target, patience) == expected
        stops += expected is not None
    assert 500 < stops < 2900  # both outcomes were tried


def test_a_float32_accuracy_reaches_its_target_as_it_does_in_the_lab():
    for target in (0.7, 0.85, 0.6, 0.9):
        accuracy = torch.tensor(target)  # float32
        assert bool(accuracy >= target)
        assert stopping_epoch([accuracy.item()], target, 1) == 1


def test_just_below_the_target_is_below():
    assert stopping_epoch([0.8499, 0.8499], 0.85, 1) is None

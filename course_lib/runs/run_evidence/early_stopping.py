"""The multi-GPU tutorial's early-stopping rule, as a function of the accuracies alone.

``len(val_accuracy) >= patience and all(acc >= target for acc in val_accuracy[-patience:])``, checked after every epoch.
"""

from collections.abc import Sequence

__all__ = ["FLOAT32_SLACK", "reaches", "stopping_epoch"]

# The lab compares float32 tensors: 0.7 is 0.69999999 in float32, and to PyTorch that is >= 0.7. The number in the CSV
# must pass, too. A test set would need a million images for two accuracies to be this close.
FLOAT32_SLACK = 1e-6


def reaches(accuracy: float, target: float) -> bool:
    """Whether an accuracy reaches a target, to float32's precision."""
    return accuracy >= target - FLOAT32_SLACK


def stopping_epoch(accuracies: Sequence[float], target: float, patience: int) -> int | None:
    """The epoch after which training stops.

    Parameters
    ----------
    accuracies : sequence of float
        Validation accuracy of epochs 1, 2, ...
    target : float
        ``target_accuracy``.
    patience : int
        Epochs in a row that must reach it; at least 1.

    Returns
    -------
    int or None
        1-based; None where the rule never holds.
    """
    in_a_row = 0
    for epoch, accuracy in enumerate(accuracies, start=1):
        in_a_row = in_a_row + 1 if reaches(accuracy, target) else 0
        if in_a_row >= patience:
            return epoch
    return None

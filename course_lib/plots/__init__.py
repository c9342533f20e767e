"""The figures of the labs."""

from course_lib.plots.curves import (
    COLOURS,
    accuracy_against_batch,
    batch_throughput,
    epoch_times,
    final_accuracies,
    learning_curves,
    scaling,
    statistics_batch,
    step_times,
)

__all__ = [
    "COLOURS",
    "accuracy_against_batch",
    "batch_throughput",
    "epoch_times",
    "final_accuracies",
    "learning_curves",
    "scaling",
    "statistics_batch",
    "step_times",
]

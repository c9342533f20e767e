"""What a notebook's parameters may be, checked before anything long begins."""

from __future__ import annotations

import math
from typing import Any

import torch

from course_lib.hardware import available_cores

__all__ = ["ParameterError", "check_parameters"]


class ParameterError(ValueError):
    """A parameter that cannot work, in one line: which, why, and what would."""


# name → (type, lowest, highest, what it is)
RULES: dict[str, tuple[type, float, float, str]] = {
    "num_gpus": (int, 1, 4096, "ranks"),
    "epochs": (int, 1, 10_000, "epochs"),
    "batch_size": (int, 1, 1_000_000, "images a rank"),
    "base_lr": (float, 1e-12, 1e6, "learning rate"),
    "momentum": (float, 0, 0.9999, "momentum"),
    "warmup_epochs": (float, 0, 10_000, "epochs"),
    "target_accuracy": (float, 0, 1, "accuracy in 0…1"),
    "patience": (int, 1, 10_000, "epochs"),
    "width": (int, 1, 64, "width factor"),
    "weight_decay": (float, 0, 1, "weight decay"),
    "label_smoothing": (float, 0, 0.9999, "share of the target"),
    "dropout": (float, 0, 0.9999, "share that is dropped"),
    "padding": (int, 0, 32, "pixels"),
    "small_epochs": (int, 0, 10_000, "epochs"),
    "small_size": (int, 8, 1024, "pixels"),
    "image_size": (int, 32, 224, "pixels"),
    "pretrain_epochs": (int, 1, 10_000, "epochs"),
    "body_lr_factor": (float, 0, 1, "share of the head's learning rate"),
    "test_samples": (int, 0, 10**9, "images; 0 = all"),
    "train_samples": (int, 0, 10**9, "images; 0 = all"),
    "study_samples": (int, 0, 10**9, "images; 0 = all"),
    "study_epochs": (int, 1, 10_000, "epochs"),
    "repeats": (int, 1, 1000, "seeds"),
    "deepest": (int, 8, 1202, "layers, 6n + 2"),
    "loader_steps": (int, 2, 100_000, "steps"),
    "transfer_samples": (int, 0, 10**9, "images; 0 = all"),
    "transfer_epochs": (int, 1, 10_000, "epochs"),
    "tune_epochs": (int, 1, 10_000, "epochs"),
    "study_test": (int, 1, 10**9, "images"),
    "study_lr": (float, 1e-12, 1e6, "learning rate"),
    "most_workers": (int, 2, 64, "workers"),
    "largest_batch": (int, 16, 1_000_000, "images"),
    "picture_ranks": (int, 2, 16, "ranks of the pictures"),
    "largest_mib": (float, 0.001, 4096, "MiB"),
    "rounds": (int, 1, 10_000, "measurements"),
    "baseline_samples": (int, 0, 10**9, "images; 0 = all"),
    "baseline_epochs": (int, 2, 10_000, "epochs, of which the first is left out"),
    "baseline_batch": (int, 1, 1_000_000, "images"),
    "held_out_batch": (int, 1, 1_000_000, "images a rank"),
    "ballast_mib": (float, 0.001, 4096, "MiB"),
    "framework_samples": (int, 64, 10**9, "images"),
    "measure_seconds": (float, 0.001, 3600, "seconds"),
    "processes": (int, 1, 1024, "processes"),
    "increments": (int, 1, 10**9, "increments"),
    "sparse_samples": (int, 2000, 10**8, "texts"),
    "study_target": (float, 0, 1, "accuracy in 0…1"),
    "average_every": (int, 0, 10**9, "steps; 0 = once, at the end"),
    "async_momentum": (float, 0, 0.9999, "momentum"),
    "difference_steps": (int, 1, 1_000_000, "steps"),
    "staleness_updates": (int, 1, 10_000_000, "updates"),
    "straggler_updates": (int, 2, 10_000_000, "updates"),
    "straggler_ms": (float, 0, 60_000, "milliseconds"),
    "depth": (int, 0, 1202, "layers, 6n + 2; 0 = the small network"),
    "damping": (float, 1e-12, 1e6, "damping"),
    "kl_clip": (float, 1e-12, 1e6, "bound on a step's change"),
    "factor_interval": (int, 1, 10**9, "steps"),
    "inverse_interval": (int, 1, 10**9, "steps"),
    "study_batch": (int, 1, 1_000_000, "images"),
    "study_interval": (int, 1, 10**9, "steps"),
    "study_kfac_lr": (float, 1e-12, 1e6, "learning rate"),
    "smallest_batch": (int, 1, 1_000_000, "images"),
    "most_ranks": (int, 1, 4096, "ranks"),
    "own_steps": (int, 5, 1_000_000, "steps"),
    "ranks": (int, 1, 4096, "ranks"),
    "seed": (int, 0, 2**31 - 1, "seed"),
}


def check_parameters(**parameters: Any) -> None:
    """Raise `ParameterError` for the first parameter that cannot work; unknown names pass.

    On a machine with GPUs, ``num_gpus`` may not exceed them. On one without, a rank is a CPU process; more
    ranks than cores work, slowly, and `launch` says so.
    """
    for name, value in parameters.items():
        if name not in RULES:
            continue
        kind, lowest, highest, meaning = RULES[name]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or (kind is int and value != int(value)):
            expected = "a whole number" if kind is int else "a number"
            raise ParameterError(f"{name} = {value!r}: {expected} is needed ({meaning})")
        if not lowest <= value <= highest:
            raise ParameterError(f"{name} = {value}: must lie in {lowest:g}…{highest:g} ({meaning})")
    wanted = parameters.get("num_gpus", 1)
    if wanted <= 1:  # asking the driver takes its time, and a sweep has many points
        return
    present = torch.cuda.device_count()
    if present and wanted > present:
        raise ParameterError(
            f"num_gpus = {wanted}: this machine has {present}; ask for at most that, or for a bigger allocation"
        )
    if not present and wanted > 8 * available_cores():
        raise ParameterError(
            f"num_gpus = {wanted}: without GPUs each rank is a process, and {available_cores()} cores carry at most "
            f"{8 * available_cores()}"
        )

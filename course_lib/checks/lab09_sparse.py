"""Lab 09's check of the sparse update: its values, repeated features, and how much memory it touches."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from course_lib.checks.registry import CheckFailed

__all__ = ["pages_touched", "sparse"]

LR = 0.3
LARGE = 2**21  # features of the problem whose memory is watched: 16 MiB


def sparse(answer: Callable[..., Any]) -> None:
    generator = torch.Generator().manual_seed(3)
    weights = torch.randn(60, generator=generator, dtype=torch.float64)
    apart = torch.randperm(60, generator=generator)[:12].view(4, 3)  # no feature twice
    labels = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    _same(answer, weights, apart, labels, "4 samples with 3 features each, none twice")
    between = torch.tensor([[3, 17, 40], [3, 8, 40], [50, 3, 9], [1, 2, 5]])
    _same(answer, weights, between, labels, "4 samples, three of which share feature 3")
    within = torch.tensor([[7, 7, 30], [11, 12, 13]])
    _same(answer, weights, within, labels[:2], "2 samples, the first with feature 7 twice (its value there is 2)")
    _untouched(answer)
    touched = pages_touched(answer)
    if touched is not None and touched[0] > touched[1]:
        raise CheckFailed(
            f"right, but the update reads or writes {touched[0]:,} memory pages for {touched[1]} that hold its features: it goes "
            "over all weights. Read weights[indices] only, and write with index_add_, so that nobody else's numbers are written back"
        )
    print("sparse_step: right where features repeat, and it touches the memory of its own features only")


def _step(weights: torch.Tensor, indices: torch.Tensor, labels: torch.Tensor, lr: float = LR) -> torch.Tensor:
    """The definition, sample by sample, in plain Python."""
    after = weights.clone()
    for features, label in zip(indices.tolist(), labels.tolist(), strict=True):
        margin = sum(weights[feature].item() for feature in features)
        for feature in features:
            after[feature] -= lr * (1 / (1 + math.exp(-margin)) - label)
    return after


def _same(
    answer: Callable[..., Any], weights: torch.Tensor, indices: torch.Tensor, labels: torch.Tensor, told: str
) -> None:
    mine, given = weights.clone(), indices.clone()
    returned = answer(mine, given, labels.clone(), LR)
    right = _step(weights, indices, labels)
    if not torch.equal(given, indices):
        raise CheckFailed(f"{told}: the indices were changed; they are the data, which the next epoch needs")
    if torch.allclose(mine, right, rtol=0, atol=1e-9):
        return
    if torch.equal(mine, weights):
        new = isinstance(returned, torch.Tensor) and returned.shape == weights.shape
        raise CheckFailed(
            f"{told}: the weights did not change. "
            + ("You returned new ones: change those that were given, in place" if new else "Change them in place")
        )
    raise CheckFailed(f"{told}: {_why(mine, weights, indices, labels, right)}")


def _why(
    found: torch.Tensor, before: torch.Tensor, indices: torch.Tensor, labels: torch.Tensor, right: torch.Tensor
) -> str:
    step, wanted = found - before, right - before
    flat = indices.reshape(-1)
    margins = before[indices].sum(1)

    def moved(errors: torch.Tensor) -> torch.Tensor:
        amounts = (-LR * errors).repeat_interleave(indices.shape[1])
        return torch.zeros_like(before).index_add_(0, flat, amounts)

    last = before.clone()
    last[flat] += (-LR * (margins.sigmoid() - labels)).repeat_interleave(indices.shape[1])
    in_turn = before.clone()
    for features, label in zip(indices, labels, strict=True):
        in_turn = _step(in_turn, features[None], label[None])
    reasons = {
        "repeated features got only one of their updates. weights[indices] += … reads them all first and writes one of the sums: "
        "a lost update inside one process; use index_add_": last - before,
        "it goes up: subtract lr · (σ(margin) − label)": -wanted,
        "the learning rate is missing": wanted / LR,
        "that is the mean over the batch; the samples' updates are added": wanted / len(labels),
        "the margin must go through the sigmoid": moved(margins - labels),
        "labels are 0 and 1, not −1 and 1": moved(margins.sigmoid() - (2 * labels - 1)),
        "the label is missing": moved(margins.sigmoid()),
        "later samples saw the earlier ones' updates: take all margins from the weights as they were": in_turn - before,
    }
    for reason, value in reasons.items():
        if torch.allclose(step, value, rtol=0, atol=1e-9):
            return reason
    place = int((found - right).abs().argmax())
    return f"weight {place} should move by {wanted[place]:.5f}, yours moves by {step[place]:.5f}: −lr · (σ(margin) − label) for each time that a sample has the feature"


def _untouched(answer: Callable[..., Any]) -> None:
    """Weights that are no number where the batch has no feature: whoever computes with them is found out."""
    weights = torch.full((40,), math.nan, dtype=torch.float64)
    indices, labels = torch.tensor([[4, 9], [9, 30]]), torch.tensor([1.0, 0.0], dtype=torch.float64)
    weights[indices] = 0.5
    mine = weights.clone()
    answer(mine, indices.clone(), labels, LR)
    if not torch.allclose(mine[indices], _step(weights, indices, labels)[indices], rtol=0, atol=1e-9):
        raise CheckFailed(
            "weights of features that no sample has enter the result: 0 · w is computed for all of them. The margin of a sample is "
            "the sum of its own weights, weights[indices].sum(1)"
        )


def pages_touched(answer: Callable[..., Any]) -> tuple[int, int] | None:
    """Memory pages that one update of a large model reads or writes, and how many it needs at most.

    The weights lie in a file with holes, mapped to memory: the system gives a page to each place that is touched, and
    counts them. None where it does not.
    """
    folder = "/dev/shm" if os.path.isdir("/dev/shm") and os.access("/dev/shm", os.W_OK) else None
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        path = Path(file.name)
        file.truncate(8 * LARGE)
        weights = torch.from_file(str(path), shared=True, size=LARGE, dtype=torch.float64)
        page = os.sysconf("SC_PAGE_SIZE")
        before = path.stat().st_blocks
        weights[LARGE // 2] = 1.0
        used = path.stat().st_blocks - before
        if not 0 < 512 * used <= 4 * page:
            return None
        generator = torch.Generator().manual_seed(4)
        indices = torch.randint(LARGE, (4, 5), generator=generator)
        before = path.stat().st_blocks
        answer(weights, indices, torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64), LR)
        return math.ceil(512 * (path.stat().st_blocks - before) / page), 2 * indices.numel()

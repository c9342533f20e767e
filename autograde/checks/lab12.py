"""Hidden checks of lab 12: metrics and report; the others have files of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autograde.checks.compare import close, number
from autograde.checks.lab12_batches import batches
from autograde.checks.lab12_early_stop import early_stop
from autograde.checks.lab12_optimizer import optimizer, schedule
from autograde.checks.lab12_script import script
from autograde.checks.lab12_worker import worker
from autograde.checks.lab12_wrap import wrap
from autograde.checks.registry import Ask, Findings, HiddenCheck, shape_of
from autograde.rubric.criteria import Finding

__all__ = ["CHECKS"]

RANKS = 3
SECONDS = 20.0  # ranks that wait for each other wait for ever; nothing here takes two seconds


def metrics(ask: Ask) -> Findings:
    """Shares of very different sizes; rank 0 is neither the slowest nor the fastest."""
    random = ask.random
    images = [int(n) for n in random.permutation([400, 1500, 5000]) + random.integers(0, 300, RANKS)]
    tested = [int(n) for n in random.permutation([40, 200, 900]) + random.integers(0, 30, RANKS)]
    seconds = [float(s) for s in random.uniform([3, 6, 1], [4, 9, 2])]
    trained, validated = (
        [[float(random.uniform(0.2, 2.5) * n), int(n * share), n] for n, share in zip(counts, shares, strict=True)]
        for counts, shares in (
            (images, random.permutation([0.3, 0.6, 0.9])),
            (tested, random.permutation([0.2, 0.55, 0.8])),
        )
    )
    given = [{"trained": t, "validated": v, "seconds": s} for t, v, s in zip(trained, validated, seconds, strict=True)]
    raw = ask.call("metrics", given)
    found = [one if isinstance(one, tuple | list) and len(one) == 6 else None for one in raw]
    look = "take two ranks and write the six numbers down by hand"
    if found[0] is None:
        wrong = Finding(False, f"should return six numbers, it returned {shape_of(raw[0])}", look)
        return dict.fromkeys(("throughput", "training", "validation", "everywhere"), wrong)
    (loss, correct, count), (val_loss, val_correct, val_count) = (
        [sum(row[i] for row in rows) for i in range(3)] for rows in (trained, validated)
    )
    right = [
        count / max(seconds),
        max(seconds),
        loss / count,
        correct / count,
        val_loss / val_count,
        val_correct / val_count,
    ]
    own = [images[0] / seconds[0], seconds[0], *(row[0][i] / row[0][2] for row in (trained, validated) for i in (0, 1))]
    mean = [sum(n / s for n, s in zip(images, seconds, strict=True)), sum(seconds) / RANKS,
            *(sum(row[i] / row[2] for row in rows) / RANKS for rows in (trained, validated) for i in (0, 1))]  # fmt: skip

    def finding(which: slice, what: str) -> Finding:
        if all(close(a, b, 2e-5) for a, b in zip(found[0][which], right[which], strict=True)):
            return Finding(True, f"the {what} are those of the whole job")
        for values, why in ((own, "a rank's own"), (mean, "means, or sums, of what the ranks have each for itself")):
            if any(close(a, b, 2e-5) for a, b in zip(found[0][which], values[which], strict=True)):
                return Finding(False, f"the {what} are not those of the whole job: they are {why}", look)
        return Finding(False, f"the {what} are wrong", look)

    parts = {
        "throughput": finding(slice(0, 2), "images per second and the seconds"),
        "training": finding(slice(2, 4), "training loss and accuracy"),
        "validation": finding(slice(4, 6), "validation loss and accuracy"),
    }
    return parts | {"everywhere": _everywhere(found, any(part.passed for part in parts.values()))}


def _everywhere(found: Sequence[Sequence[Any] | None], reduced: bool) -> Finding:
    """Every rank has rank 0's numbers; `reduced`: one of them at least is the whole job's."""
    look = "print what every rank returns"
    if not reduced:
        return Finding(False, "rank 0 has no number of the whole job, so no rank has", look)
    own = [
        one is not None and all(close(a, number(b), 2e-5) for a, b in zip(one, found[0], strict=True)) for one in found
    ]
    if all(own):
        return Finding(True, "every rank has the same numbers")
    return Finding(False, f"rank {own.index(False)} does not have rank 0's numbers", look)


EPOCH_LINE = (  # the multi-GPU tutorial's
    "Epoch = {:2d}: Cumulative Time = {:5.3f}, Epoch Time = {:5.3f}, Images/sec = {}, "
    "Training Accuracy = {:5.3f}, Validation Loss = {:5.3f}, Validation Accuracy = {:5.3f}"
)


def report(ask: Ask) -> Findings:
    """Epochs with and without a stop; what goes through `assessment_print` on each of two ranks."""
    random = ask.random
    told = [
        (
            int(random.integers(1, 40)),
            *(float(x) for x in random.uniform(1, 500, 3)),
            *(float(x) for x in random.uniform(0, 1, 3)),
            stopped,
        )
        for stopped in (False, True, False, True)
    ]
    found = ask.call("report", [told, told])
    lines = [one if isinstance(one, list) and len(one) == len(told) else [[]] * len(told) for one in found]
    look = "run report on two ranks and read assessment.out"
    silent = [not any(rank) for rank in lines]
    alone = bool(lines[0]) and not silent[0] and silent[1]
    told_alone = "rank 0 reports, and no other"
    if not alone:
        told_alone = "rank 0 reports nothing" if silent[0] else "other ranks report too"
    epochs = all(one[:1] == [EPOCH_LINE.format(*values[:-1])] for one, values in zip(lines[0], told, strict=True))
    wanted = [[f"Early stopping after epoch {values[0]}"] * values[-1] for values in told]
    stops = all(one[1:] == stop for one, stop in zip(lines[0], wanted, strict=True)) and not silent[0]
    return {
        "alone": Finding(alone, told_alone, look),
        "format": Finding(epochs, "in the multi-GPU tutorial's format" if epochs else "the epoch's line is not in the multi-GPU tutorial's format", look),
        "stop": Finding(stops, "the second line stands where training stops" if stops else
                        "there should be a second line where training stops, and only there", look),
    }  # fmt: skip


CHECKS = {
    "batches": HiddenCheck(
        batches,
        {
            "shares": "Ranks share the training images, anew in each epoch",
            "augmentation": "Each image has its own crop and flip",
            "test": "Every test image once, as it is",
        },
    ),
    "wrap": HiddenCheck(
        wrap,
        {
            "weights": "All ranks start from rank 0's weights",
            "gradients": "Gradients are averaged over the ranks",
            "sync": "Batch norm is synchronised when asked, and only then",
        },
        ranks=2,
        seconds=SECONDS,
    ),
    "optimizer": HiddenCheck(
        optimizer,
        {
            "sgd": "SGD with Nesterov momentum",
            "novograd": "NovoGrad with its settings",
            "decay": "Weight decay on weights alone",
            "names": "Unknown names are refused",
        },
    ),
    "schedule": HiddenCheck(
        schedule,
        {"warmup": "The rise", "decay": "The fall to 0", "edges": "No warm-up, one step of it, beyond the end"},
    ),
    "metrics": HiddenCheck(
        metrics,
        {
            "throughput": "Images per second and seconds of the whole job",
            "training": "Training loss and accuracy over all ranks' images",
            "validation": "Validation loss and accuracy over all ranks' images",
            "everywhere": "The same numbers on every rank",
        },
        ranks=RANKS,
        seconds=SECONDS,
    ),
    "early-stop": HiddenCheck(
        early_stop,
        {"rule": "Decides by the last epochs", "edges": "Equal counts; a short history does not stop"},
    ),
    "report": HiddenCheck(
        report,
        {"alone": "Rank 0 reports, alone", "format": "The epoch's line", "stop": "The line of an early stop"},
        ranks=2,
        seconds=SECONDS,
    ),
    "worker": HiddenCheck(
        worker,
        {
            "order": "A new order of images in each epoch",
            "training": "Trains the wrapped model on every batch, by the schedule",
            "accuracy": "Every rank has the accuracy that the weights have",
            "report": "Reports the whole job's numbers once an epoch",
            "stop": "Stops by the rule, and says so",
        },
        ranks=2,
        seconds=45.0,
    ),
    "script": HiddenCheck(
        script,
        {
            "worker": "Runs the worker on every rank, in a process group",
            "run": "Gives the worker the run folder, and finishes it",
            "leaves": "Leaves the process group",
        },
        ranks=2,
        process_group=False,
        seconds=SECONDS,
    ),
}

"""Checks of lab 12, the assessment. Those that need ranks start two, by `launch`."""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import os
import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from course_lib.checks.lab12_optimizer import optimizer, schedule
from course_lib.checks.lab12_ranks import early_stop, on_two_ranks, wrap
from course_lib.checks.registry import CheckFailed
from course_lib.checks.run_evidence import check_run
from course_lib.checks.script_on_gpus import check_on_gpus
from course_lib.checks.torchrun_failure import torchrun_failure
from course_lib.data.batches import ImageData, Split

__all__ = ["CHECKS"]

SIDE, BATCH = 8, 8  # side and number of the images, which differ enough to be recognised after a crop
MEAN, STD = (0.3, 0.5, 0.6), (0.2, 0.25, 0.3)


def _images(count: int, seed: int) -> Split:
    """Each image has its number in its label, and a pattern that survives a crop."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(40, 256, (count, 3, SIDE, SIDE), generator=generator, dtype=torch.uint8)
    return Split(pixels.contiguous(memory_format=torch.channels_last), torch.arange(count))


def _epochs(batches: Any, epochs: tuple[int, ...]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    found = []
    for epoch in epochs:
        if hasattr(batches, "set_epoch"):
            batches.set_epoch(epoch)
        parts = list(batches)
        found.append((torch.cat([images for images, _ in parts]), torch.cat([labels for _, labels in parts])))
    return found


def batches(answer: Callable[..., Any]) -> None:
    data = ImageData("probe", _images(66, 1), _images(25, 2), ("class",) * 66, MEAN, STD, "synthetic", "a check")
    trained, tested = [], []
    for rank in range(2):
        result = answer(data, BATCH, torch.device("cpu"), rank, 2, 5, "crop")
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise CheckFailed(f"make_batches returns the pair (train_batches, test_batches); yours returned {result!r}")
        trained.append(_epochs(result[0], (0, 1, 0)))
        tested.append(_epochs(result[1], (0,))[0])
        if len(result[0]) != 4:
            raise CheckFailed(
                f"66 images on 2 ranks in batches of 8 are 4 full batches per rank, yours has {len(result[0])}: "
                "batch_size is per rank, Batches needs world_size, and training is shuffled"
            )
    _check_shares([epochs[0][1] for epochs in trained])
    if torch.equal(trained[0][0][1], trained[0][1][1]):
        raise CheckFailed("epochs 0 and 1 have the same order: training batches need shuffle=True")
    seen = torch.cat([labels for _, labels in tested]).tolist()
    if sorted(seen) != list(range(25)):
        raise CheckFailed(
            f"the ranks together should test 25 images once; they tested {len(seen)}, {len(set(seen))} different ones. "
            "Give the test batches rank and world_size too, and no shuffle"
        )
    for what, (images, labels), split in (
        ("test", tested[0], data.test),
        ("training", _plain(answer, data), data.train),
    ):
        if not torch.allclose(images, _normalised(split.images[labels]), atol=1e-4):
            raise CheckFailed(
                f"the {what} images{'' if what == 'test' else ' with augmentation none'} are not (pixel/255 − mean)/std "
                "of those stored: pass mean=data.mean and std=data.std" + (
                    "; the test images are never augmented" if what == "test" else ""))  # fmt: skip
    _check_crops(trained, data)
    print("make_batches: two ranks share the images, each training image is shifted and flipped by itself")


def _plain(answer: Callable[..., Any], data: ImageData) -> tuple[torch.Tensor, torch.Tensor]:
    return _epochs(answer(data, BATCH, torch.device("cpu"), 0, 2, 5, "none")[0], (0,))[0]


def _normalised(pixels: torch.Tensor) -> torch.Tensor:
    return (pixels.float() / 255 - torch.tensor(MEAN).view(1, -1, 1, 1)) / torch.tensor(STD).view(1, -1, 1, 1)


def _check_shares(labels: list[torch.Tensor]) -> None:
    mine, others = (set(part.tolist()) for part in labels)
    if mine & others:
        raise CheckFailed(
            f"both ranks train on {len(mine & others)} of the same images: give Batches rank and world_size, and every "
            "rank the same seed"
        )


def _check_crops(trained: list[Any], data: ImageData) -> None:
    images, labels = trained[0][0]
    if torch.allclose(images, _normalised(data.train.images[labels]), atol=1e-4):
        raise CheckFailed('with augmentation "crop" the images come as stored: augment=AUGMENTATIONS[augmentation]')
    black = _normalised(torch.zeros(1, 3, 1, 1)).view(-1)[0]
    # Rows that are black from end to end, above (positive) or below: how far the image was shifted.
    dark = (images[:, 0] - black).abs().amax(2) < 1e-3
    shifts = [int(row[: SIDE // 2].sum()) - int(row[SIDE // 2 :].sum()) for row in dark]
    if all(len(set(shifts[start : start + BATCH])) == 1 for start in range(0, len(shifts), BATCH)):
        raise CheckFailed(
            f"all {BATCH} images of a batch are shifted down by the same number of rows: the parameters were drawn once a "
            "batch. AUGMENTATIONS draws them for every sample"
        )
    again, anew = trained[0][2][0], trained[0][1]
    if not torch.equal(images, again):
        raise CheckFailed(
            "epoch 0 twice gives different images: draw from Batches' generator, or a run cannot be repeated"
        )
    both = [int((label == labels).nonzero()[0]) for label in anew[1] if (label == labels).any()]
    same = [torch.equal(images[i], anew[0][int((anew[1] == labels[i]).nonzero()[0])]) for i in both]
    if same and all(same):
        raise CheckFailed("in epoch 1 every image is shifted as in epoch 0: the augmentation must be drawn anew")


def _try_metrics(reduce_epoch: Callable[..., Any]) -> Any:
    rank = dist.get_rank()
    trained, validated = ([500.0, 400, 1000], [450.0, 90, 600])[rank], ([50.0, 90, 100], [40.0, 6, 20])[rank]
    return reduce_epoch(trained, validated, [2.0, 4.0][rank], torch.device("cpu"))


_NUMBERS = (
    ("images per second", 400.0, {650.0: "1000/2 + 600/4 adds rates over different times", 500.0: "it is rank 0's own"}),
    ("seconds", 4.0, {6.0: "the ranks train at the same time; do not add (ReduceOp.MAX)", 2.0: "it is rank 0's own", 3.0: "it is the mean"}),
    ("training loss", 950 / 1600, {0.5: "it is rank 0's own", 0.625: "it is the mean of the ranks' means", 950.0: "divide by the images"}),
    ("training accuracy", 490 / 1600, {0.4: "it is rank 0's own, as in the multi-GPU tutorial", 0.275: "it is the mean of the ranks' accuracies"}),
    ("validation loss", 0.75, {0.5: "it is rank 0's own", 1.25: "it is the mean of the ranks' means", 90.0: "divide by the images"}),
    ("validation accuracy", 0.8, {0.9: "it is rank 0's own", 0.6: "(90 % + 30 %)/2 is the mean of the ranks' accuracies; 96 of 120 are right"}),
)  # fmt: skip


def metrics(answer: Callable[..., Any]) -> None:
    given = "rank 0 trained (500, 400, 1000) in 2 s and validated (50, 90, 100), rank 1 (450, 90, 600) in 4 s and (40, 6, 20)"
    for rank, result in enumerate(on_two_ranks(_try_metrics, answer)):
        if not isinstance(result, tuple | list) or len(result) != 6:
            raise CheckFailed(f"return six numbers, in the docstring's order; rank {rank} returned {result!r}")
        for value, (what, wanted, mistakes) in zip(result, _NUMBERS, strict=True):
            found = float(value)
            if math.isclose(found, wanted, rel_tol=1e-5):
                continue
            why = next((why for wrong, why in mistakes.items() if math.isclose(found, wrong, rel_tol=1e-5)), "")
            raise CheckFailed(
                f"{given}. The {what} should be {wanted:g}, rank {rank} says {found:g}" + (f": {why}" if why else "")
            )
    print("reduce_epoch: 1,600 images in the slowest rank's 4 s, 96 of 120 right, on both ranks")


def _try_report(report: Callable[..., Any], folder: str, given: tuple[Any, ...]) -> tuple[list[str] | None, str]:
    path = Path(folder) / f"rank{dist.get_rank()}.out"
    os.environ["ASSESSMENT_OUT"] = str(path)
    dist.barrier()  # nothing else here waits for the other rank, and one must not leave while the other still connects
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        report(*given)
    return path.read_text().splitlines() if path.exists() else None, printed.getvalue()


def report(answer: Callable[..., Any]) -> None:
    line = ("Epoch =  7: Cumulative Time = 84.127, Epoch Time = 12.018, Images/sec = 4160.5, Training Accuracy = 0.801, "
            "Validation Loss = 0.432, Validation Accuracy = 0.850")  # fmt: skip
    for stopped in (False, True):
        given = (7, 84.1268, 12.0181, 4160.5, 0.80149, 0.43151, 0.8503, stopped)
        with tempfile.TemporaryDirectory() as folder:
            (first, printed), (second, _) = on_two_ranks(_try_report, answer, folder, given)
        if second:
            raise CheckFailed(
                "rank 1 reported too: the transcript would hold every epoch once per rank. Ask for rank 0"
            )
        if not first:
            why = (
                "what it printed did not go through assessment_print, which writes the transcript"
                if printed
                else "it reported nothing"
            )
            raise CheckFailed(f"on rank 0: {why}")
        wanted = [line] + ["Early stopping after epoch 7"] * stopped
        if first != wanted:
            missing = stopped and first == wanted[:1]
            why = (
                "the second line, STOP_LINE, is missing"
                if missing
                else f"the transcript should hold\n  {wanted}\nit holds\n  {first}"
            )
            raise CheckFailed(f"stopped = {stopped}: {why}")
    print("report: rank 0 alone, in the multi-GPU tutorial's format")


def worker(answer: Callable[..., Any], args: argparse.Namespace | None = None) -> None:
    if args is None:
        raise CheckFailed("give the check small arguments: check('lab12.worker', worker, args=tiny)")
    with tempfile.TemporaryDirectory() as folder:
        (first, lines), (second, other) = on_two_ranks(_try_worker, answer, folder, args)
    for rank, result in enumerate((first, second)):
        if not isinstance(result, dict) or {"accuracies", "fingerprint", "time", "rate"} - set(result):
            raise CheckFailed(f"the worker's last lines are given: it returns a dict; rank {rank} returned {result!r}")
    if len(first["accuracies"]) != args.epochs:
        raise CheckFailed(
            f"{args.epochs} epochs were asked for, yours recorded {len(first['accuracies'])} accuracies: append the "
            "epoch's validation accuracy once per epoch"
        )
    if first["accuracies"] != second["accuracies"]:
        raise CheckFailed(
            f"the ranks disagree about the accuracy ({first['accuracies']} and {second['accuracies']}): append what "
            "reduce_epoch returned"
        )
    if first["fingerprint"] != second["fingerprint"]:
        raise CheckFailed("after training the ranks' weights differ: train `model`, not model.module")
    epochs = [text for text in lines if text.startswith("Epoch = ")]
    if other or len(epochs) != args.epochs:
        raise CheckFailed(
            f"the transcript should hold {args.epochs} epochs, from rank 0; it holds {len(epochs) + len(other)}: call report once per epoch"
        )
    total = float(re.search(r"Cumulative Time = ([\d.]+)", epochs[-1])[1])
    parts = sum(float(re.search(r"Epoch Time = ([\d.]+)", text)[1]) for text in epochs)
    if not math.isclose(total, parts, abs_tol=0.002 * args.epochs) or not math.isclose(
        total, first["time"], abs_tol=0.002
    ):
        raise CheckFailed(
            f"the cumulative time is the sum of the epochs' times, {parts:.3f} s; the last line says {total:.3f} s"
        )
    print(f"worker: two ranks, equal weights, equal accuracies, {args.epochs} epochs in the transcript")


def _try_worker(answer: Callable[..., Any], folder: str, args: argparse.Namespace) -> tuple[Any, list[str]]:
    path = Path(folder) / f"rank{dist.get_rank()}.out"
    os.environ["ASSESSMENT_OUT"] = str(path)
    with contextlib.redirect_stdout(io.StringIO()):
        result = answer(args)
    return result, path.read_text().splitlines() if path.exists() else []


def script(done: subprocess.CompletedProcess, folder: Path | None = None, script: str | None = None) -> None:
    if "NotImplementedError" in done.stdout:
        raise CheckFailed("assessment.py still has a blank: the script's own, or one in your functions")
    if "has not been initialized" in done.stdout:
        raise CheckFailed(
            "something asked for the rank before there was a process group: dist.init_process_group comes first"
        )
    if done.returncode != 0:
        raise CheckFailed(torchrun_failure(done))
    if "Epoch =  1:" not in done.stdout:
        raise CheckFailed("torchrun ended well, but no epoch was reported: does the script call worker(args, run)?")
    if folder is not None and not (Path(folder) / "run.json").exists():
        where = "unfinished" if (Path(folder) / "unfinished").exists() else "empty"
        raise CheckFailed(f'the run folder is {where}: rank 0 ends its run by run.finish(result["stopped"])')
    if script is not None:
        check_on_gpus(script)
    print("assessment.py: torchrun ran an epoch, left a complete run folder, and ended with exit code 0")


CHECKS = {
    "batches": batches,
    "wrap": wrap,
    "optimizer": optimizer,
    "schedule": schedule,
    "metrics": metrics,
    "early-stop": early_stop,
    "report": report,
    "worker": worker,
    "script": script,
    "run": lambda folder: check_run(folder, "12_assessment"),
}

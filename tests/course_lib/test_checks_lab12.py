"""Lab 12's visible checks: the reference passes, and typical mistakes are told apart."""

import inspect
import subprocess
import sys
from pathlib import Path

import cloudpickle
import nbformat
import pytest
import torch
from notebook_answers import answers

from course_lib.checks import CheckFailed, check

cloudpickle.register_pickle_by_value(sys.modules[__name__])

REFERENCE = answers("12_assessment")
REFERENCE["AUGMENTATIONS"] = {
    "crop": REFERENCE["CropAndFlip"](4), "affine": REFERENCE["AffineAndJitter"](), "none": None,
}  # fmt: skip
REFERENCE["EPOCH_LINE"] = (
    "Epoch = {:2d}: Cumulative Time = {:5.3f}, Epoch Time = {:5.3f}, Images/sec = {}, "
    "Training Accuracy = {:5.3f}, Validation Loss = {:5.3f}, Validation Accuracy = {:5.3f}"
)
REFERENCE["STOP_LINE"] = "Early stopping after epoch {}"
NAMES = {
    "batches": "make_batches", "wrap": "wrap", "optimizer": "make_optimizer", "schedule": "make_schedule",
    "metrics": "reduce_epoch", "early-stop": "should_stop", "report": "report",
}  # fmt: skip


@pytest.mark.parametrize("exercise", NAMES)
def test_the_reference_passes_and_says_so(exercise, capsys):
    assert check(f"lab12.{exercise}", REFERENCE[NAMES[exercise]]) is None
    told = capsys.readouterr()
    assert told.out.count("\n") == 1


def edited(exercise, *edits):
    """The reference with pieces of its text replaced: old, new, old, new…"""
    text = inspect.getsource(REFERENCE[NAMES[exercise]])
    for old, new in zip(edits[::2], edits[1::2], strict=True):
        assert old in text, f"{exercise} has no {old!r}"
        text = text.replace(old, new)
    namespace = dict(REFERENCE)
    exec(text, namespace)
    return namespace[NAMES[exercise]]


def refused(exercise, answer, *words):
    with pytest.raises(CheckFailed) as raised:
        check(f"lab12.{exercise}", answer)
    assert all(word in str(raised.value) for word in words), str(raised.value)


class AlikeCrop:
    """torchvision's mistake: one shift for the whole batch."""

    def __call__(self, images, generator):
        top = int(torch.randint(9, (), generator=generator))
        return torch.nn.functional.pad(images, (4,) * 4)[:, :, top : top + images.shape[2], 4 : 4 + images.shape[3]]


class UnseededCrop:
    def __call__(self, images, generator):
        return REFERENCE["CropAndFlip"](4)(images, torch.Generator().manual_seed(torch.seed()))


class SameCrop:
    """Every pass alike: the shift hangs on the image alone."""

    def __call__(self, images, generator):
        shifts = (images.sum((1, 2, 3)) * 1000).long() % 5
        return torch.stack(
            [
                image.roll(int(s), 1).index_fill(1, torch.arange(int(s)), 0.0)
                for image, s in zip(images, shifts, strict=True)
            ]
        )


WRONG = {
    "one loader": ("batches", "return train_batches, Batches(data.test, 500, device, **shares)", "return train_batches", "pair"),
    "ranks alike": ("batches", "rank=rank, world_size=world_size", "rank=0, world_size=1", "full batches per rank"),
    "seed of each rank": ("batches", "seed=seed", "seed=seed + 100 * rank", "same images"),
    "not shuffled": ("batches", "shuffle=True, seed=seed, augment=AUGMENTATIONS[augmentation]", "seed=seed", "training is shuffled"),
    "test on one rank": ("batches", "device, **shares)\n", "device, mean=data.mean, std=data.std)\n", "25 images once"),
    "not normalised": ("batches", "mean=data.mean, std=data.std", "mean=(0.0,) * 3, std=(1.0,) * 3", "not (pixel/255"),
    "never augmented": ("batches", "AUGMENTATIONS[augmentation]", "None", "come as stored"),
    "biases decay": ("optimizer", '"weight_decay": 0.0', '"weight_decay": weight_decay', "biases"),
    "no decay": ("optimizer", '"weight_decay": weight_decay}', '"weight_decay": 0.0}', "no weight decay"),
    "no nesterov": ("optimizer", ", nesterov=momentum > 0", "", "Nesterov"),
    "default betas": ("optimizer", "betas=(momentum, 0.98), ", "", "default 0.95"),
    "no averaging": ("optimizer", ", grad_averaging=True", "", "grad_averaging"),
    "biases forgotten": ("optimizer", "parameter.ndim <= 1]", "parameter.ndim < 1]", "never be trained"),
    "any name": ("optimizer", 'raise ValueError(f"optimizer {name!r}: sgd or novograd")', "return torch.optim.Adam(groups)", "ValueError"),
    "warm-up from 0": ("schedule", "0.1 + 0.9 * step", "step", "0.1 + 0.9"),
    "no warm-up": ("schedule", "0.1 + 0.9 * step / warmup_steps", "1.0", "begins at 0.1"),
    "no decay of the rate": ("schedule", "max(0.0, (total_steps - step) / (total_steps - warmup_steps))", "1.0", "(T − i)/(T − w)"),
    "decay from the start": ("schedule", "/ (total_steps - warmup_steps)", "/ total_steps", "(T − i)/(T − w)"),
    "negative beyond the end": ("schedule", "max(0.0, (total_steps - step) / (total_steps - warmup_steps))",
                                "(total_steps - step) / (total_steps - warmup_steps)", "stay at 0"),
    "not reduced": ("metrics", "dist.all_reduce(sums)", "pass", "images per second"),
    "own time": ("metrics", "dist.all_reduce(slowest, op=dist.ReduceOp.MAX)", "pass", "images per second"),
    "times added": ("metrics", ", op=dist.ReduceOp.MAX", "", "images per second"),
    "own training accuracy": ("metrics", "correct / images,", "trained[1] / trained[2],", "the multi-GPU tutorial"),
    "mean of accuracies": ("metrics", "val_correct / val_images\n", "(lambda t: (dist.all_reduce(t), t.item() / 2)[1])(torch.tensor(validated[1] / validated[2]))\n",
                           "mean of the ranks' accuracies"),
    "five numbers": ("metrics", "images / epoch_time, epoch_time,", "images / epoch_time,", "six numbers"),
    "reduced on rank 0": ("metrics", "dist.all_reduce(sums)", "dist.reduce(sums, 0)", "rank 1 says"),
    "every rank": ("report", "dist.get_rank() == 0", "True", "rank 1 reported too"),
    "no rank": ("report", "dist.get_rank() == 0", "False", "reported nothing"),
    "printed": ("report", "assessment_print(", "print(", "did not go through assessment_print"),
    "no stop line": ("report", "if stopped", "if False", "second line"),
    "epoch from 0": ("report", "EPOCH_LINE.format(epoch,", "EPOCH_LINE.format(epoch - 1,", "the transcript should hold"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes_are_told(mistake):
    exercise, *edits, word = WRONG[mistake]
    refused(exercise, edited(exercise, *edits), word)


@pytest.mark.parametrize(
    "crop, word", [(AlikeCrop, "drawn once a batch"), (UnseededCrop, "cannot be repeated"), (SameCrop, "drawn anew")]
)
def test_augmentations_that_are_not_drawn_for_each_sample_and_epoch(crop, word, monkeypatch):
    monkeypatch.setitem(REFERENCE["AUGMENTATIONS"], "crop", crop())
    refused("batches", REFERENCE["make_batches"], word)


def test_a_blank_is_said():
    def blank(*given):
        raise NotImplementedError

    for exercise in ("batches", "optimizer", "schedule"):
        refused(exercise, blank, "not answered yet")


# Worker

TINY = ["--dataset", "cifar10-synthetic", "--train-samples", "64", "--test-samples", "40", "--epochs", "2", "--batch-size", "16",
        "--base-lr", "0.02", "--warmup-epochs", "0.5", "--target-accuracy", "1"]  # fmt: skip


def test_the_reference_worker_passes(capfd):
    from course_lib.checks import lab12

    args = reference_arguments(TINY)
    lab12.worker(REFERENCE["worker"], args=args)
    assert "equal weights, equal accuracies, 2 epochs" in capfd.readouterr().out


def reference_arguments(words):
    """`parse_arguments` is given in the notebook, in a cell that is no exercise."""
    path = Path(__file__).resolve().parents[2] / "labs" / "12_assessment" / "12_assessment.ipynb"
    cell = next(cell for cell in nbformat.read(path, as_version=4).cells if cell.id == "arguments")
    namespace = dict(REFERENCE)
    exec(cell.source, namespace)
    return namespace["parse_arguments"](words)


def test_the_tutorial_s_defaults():
    args = vars(reference_arguments([]))
    document = {
        "batch_size": 256,
        "epochs": 40,
        "base_lr": 0.15,
        "target_accuracy": 0.85,
        "patience": 2,
        "momentum": 0.9,
        "warmup_epochs": 5,
    }
    assert {name: args[name] for name in document} == document and args["sync_batchnorm"]


# Script and run


def finished(output="Epoch =  1: Cumulative Time", code=0):
    return subprocess.CompletedProcess([], code, stdout=output)


def test_scripts(tmp_path, capsys):
    (tmp_path / "run.json").write_text("{}")
    check("lab12.script", finished(), folder=tmp_path)
    assert "complete run folder" in capsys.readouterr().out
    for done, folder, word in (
        (finished("NotImplementedError", 1), tmp_path, "blank"),
        (finished("ValueError: Default process group has not been initialized", 1), tmp_path, "init_process_group"),
        (finished("RuntimeError: boom", 1), tmp_path, "boom"),
        (finished("nothing"), tmp_path, "no epoch was reported"),
        (finished(), tmp_path / "other", "empty"),
    ):
        with pytest.raises(CheckFailed, match=word):
            check("lab12.script", done, folder=folder)


JOIN = """
import os, torch, torch.distributed as dist
from course_lib.distributed import leave_process_group
from steps import open_run, parse_arguments, worker
local_rank, own_gpu = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
if own_gpu:
    torch.cuda.set_device(local_rank)
dist.init_process_group("nccl" if own_gpu else "gloo")
result = worker(parse_arguments(), open_run(None))
leave_process_group()
"""


def test_a_script_joins_as_each_machine_needs_it(tmp_path, capsys):
    (tmp_path / "run.json").write_text("{}")
    check("lab12.script", finished(), folder=tmp_path, script=JOIN)
    assert "exit code 0" in capsys.readouterr().out
    for old, new, words in (
        ('"nccl" if own_gpu', '"nccl" if torch.cuda.is_available()', "refuses two ranks on one GPU"),
        ("    torch.cuda.set_device(local_rank)", "    pass", "GPU 0 as its current device"),
        ('"nccl" if own_gpu else "gloo"', '"gloo"', "takes gloo"),
    ):
        with pytest.raises(CheckFailed, match=words):
            check("lab12.script", finished(), folder=tmp_path, script=JOIN.replace(old, new))
    assert not torch.distributed.is_initialized() and not torch.cuda.is_available()

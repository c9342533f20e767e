"""The hand-in programs' command line."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from course_lib.runs.parameters import ParameterError, Rule, check_values

__all__ = ["check_options", "program_options"]

_NOT_THE_RUN = ("output_dir", "root", "restart", "ranks")  # where and how it runs; run.json has other entries for that

_OPTIONS: dict[str, tuple[type, str, str]] = {  # type, rule (see course_lib.runs.parameters), meaning
    "dataset": (str, "{data}", "staged data set (`lab data list`)"),
    "epochs": (int, "[1, 10000]", "passes over the training images"),
    "batch_size": (int, "[1, 1000000]", "images per rank and step"),
    "base_lr": (float, "(0.0, 1e6]", "highest learning rate of the schedule for 128 images per step; scale it linearly with "
                       "batch size × ranks"),
    "momentum": (float, "[0.0, 1.0)", "Nesterov momentum of SGD"),
    "weight_decay": (float, "[0.0, 1.0]", "of the weights; biases and batch norm have none"),
    "label_smoothing": (float, "[0.0, 1.0)", "share of the target that is spread over all classes"),
    "warmup_epochs": (float, "[0.0, 10000]", "epochs in which the learning rate rises"),
    "dropout": (float, "[0.0, 1.0)", "dropout after the first convolution"),
    "padding": (int, "[0, 32]", "pixels of black border for the random crop"),
    "image_size": (int, "[32, 224]", "height and width that images are scaled up to, in pixels"),
    "body_lr_factor": (float, "[0.0, 1.0]", "learning rate of the pre-trained layers, as a share of the head's"),
    "train_samples": (int, "[0, inf)", "training images to use; 0 = all"),
    "test_samples": (int, "[0, inf)", "test images to use; 0 = all"),
    "ranks": (int, "[1, 4096]", "processes to start here, one of them the server where there is one; under torchrun its number of processes counts"),
    "seed": (int, "[0, 2147483647]", "of the data order, the initialisation and the augmentation"),
}  # fmt: skip


def program_options(
    name: str, description: str, *, meanings: Mapping[str, str] | None = None, **defaults: Any
) -> argparse.ArgumentParser:
    """A parser with one option for each keyword, and those that every program has.

    Parameters
    ----------
    name : str
        The program's: the run folder is ``runs/NAME`` unless ``--output-dir`` says otherwise.
    description : str
        For ``--help``.
    meanings : mapping, optional
        What an option means where this program's differs from the others'.
    **defaults
        Options and their defaults, out of those this module knows (``epochs=30`` gives ``--epochs``).
    """
    parser = argparse.ArgumentParser(
        prog=f"{name}.py",
        description=description,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        epilog=f"Several ranks: torchrun --standalone --nproc-per-node=N {name}.py … "
        "The state is kept after every epoch: give the same command again to continue after an interruption.",
    )
    for option, default in {**defaults, "train_samples": 0, "test_samples": 0, "seed": 0}.items():
        kind, _, meaning = _OPTIONS[option]
        meaning = (meanings or {}).get(option, meaning)
        parser.add_argument("--" + option.replace("_", "-"), type=kind, default=default, help=meaning)
    parser.add_argument("--output-dir", type=Path, default=Path("runs") / name, help="the run folder")
    parser.add_argument("--root", default=None, help="data root; without it $LAB_DATA, else as `lab doctor` says")
    parser.add_argument("--restart", action="store_true", help="start again, even after a finished or interrupted run")
    return parser


def check_options(parser: argparse.ArgumentParser, options: argparse.Namespace) -> dict[str, Any]:
    """The options that make the run what it is, as ``run.json`` keeps them; exits with code 2 where one cannot work."""
    values = {name: value for name, value in vars(options).items() if name not in _NOT_THE_RUN}
    try:
        check_values(values, {name: Rule(rule) for name, (_, rule, _) in _OPTIONS.items()})
    except ParameterError as error:
        name, _, why = str(error).partition(" ")
        parser.exit(2, f"{parser.prog}: error: --{name.replace('_', '-')} {why}\n")
    return values

"""A lab of three hand-in programs: its rubric, its notebook, and a run that one of them really trained."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import nbformat
import torch
from fake_runs import LAB, source_notebook
from nbformat.v4 import new_code_cell

from course_lib.data.batches import Batches, load
from course_lib.models import WideResNet
from course_lib.runs.records import RunFolder
from course_lib.training.loop import fit

PROGRAMS = ("alpha", "beta", "gamma")
DATA = "cifar10-synthetic"
HEAD = f"""
lab = "{LAB}"
title = "Three programs"
mode = "evidence"
"""
RUN = """
[[run]]
id = "NAME"
program = "NAME"
cell = "run-NAME"
max_points = 10

[run.model]
network = "course_lib:wide_resnet_standardised"
datasets = ["cifar10-synthetic"]
images = 400
tolerance = 0.05
seconds = 40

[[run.criterion]]
id = "run-record"
kind = "run_record"
points = 2
description = "run.json tells of a finished run"
provenance = ["synthetic"]

[[run.criterion]]
id = "time"
kind = "time_budget"
points = 3
description = "At most an hour of training"
seconds = 3600

[[run.criterion]]
id = "held-out"
kind = "held_out_accuracy"
points = 5
description = "The submitted weights reach 0.3"
threshold = 0.3
"""
RUBRIC = HEAD + "".join(RUN.replace("NAME", name) for name in PROGRAMS)


def notebook_of_three() -> nbformat.NotebookNode:
    """The tiny lab with a grade cell for each program in place of the one for its own run."""
    notebook = source_notebook()
    last = notebook.cells.pop()
    for name in PROGRAMS:
        settings = {"nbgrader": last.metadata.nbgrader | {"grade_id": f"run-{name}", "points": 10}}
        notebook.cells.append(new_code_cell(f"print('{name}')", id=f"run-{name}", metadata=settings))
    return notebook


def write_rubric(folder: Path, text: str = RUBRIC) -> Path:
    """The rubric's file, in a folder of rubrics."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{LAB}.toml"
    path.write_text(text)
    return path


@cache
def trained_run(program: str = "alpha") -> Path:
    """A run folder as a program writes it after some seconds of training; made once."""
    torch.manual_seed(0)
    data = load(DATA, train_samples=800)
    folder = Path(mkdtemp(prefix="lab-trained-")) / program
    run = RunFolder(str(folder), LAB, {"epochs": 2, "width": 1}, data.describe(), {"program": program})
    run.start(world_size=1, backend=None, device="cpu")
    model = WideResNet((16, 32, 64), data.channels, len(data.classes)).to(memory_format=torch.channels_last)
    common = {"mean": data.mean, "std": data.std}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a busy machine is slow on two
    fit(
        model,
        Batches(data.train, 40, shuffle=True, **common),
        Batches(data.test, 250, **common),
        optimizer,
        epochs=2,
        run=run,
    )
    torch.set_num_threads(threads)
    run.finish(stopped_early=False)
    return folder


def hand_in_run(submission: Path, program: str, where: str = "run") -> Path:
    """Hand in the trained run as a program's."""
    folder = submission / where / program
    shutil.copytree(trained_run(), folder)
    record = folder / "run.json"
    record.write_text(record.read_text().replace('"program": "alpha"', f'"program": "{program}"'))
    return folder

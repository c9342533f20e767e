"""`make demo`: the whole loop once, on real data. Stage → labs 01 and 02 → grade → report.

Everything lands in runs/demo/, so that a real course in course/ is left alone.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent
DEMO = ROOT / "runs" / "demo"
COURSE = DEMO / "course"
NEXT = (
    "make jupyter                              # JupyterLab: fill in lab 01, check by check",
    ".venv/bin/lab sweep 03 --profile smoke -g num_gpus=1,2 --dry-run   # the runs of a sweep; without --dry-run it runs",
    ".venv/bin/lab doctor                      # what this machine can do: cores, GPUs, data, sandbox",
)
# The laptop profile with short measurements: these show what a lab prints, and nobody reads them as results. Three epochs
# of 8,000 images reach 85 %; a processor without bfloat16 spends ten times as long on each step of lab 01 that emulates it.
LABS = {
    "01_single_gpu": {
        "num_gpus": 1,
        "epochs": 3,
        "train_samples": 8000,
        "validation_images": 1000,
        "measure_seconds": 0.02,
        "largest_batch": 64,
    },
    "02_ddp": {"num_gpus": 2, "epochs": 3, "train_samples": 8000, "scaling_steps": 5, "syncbn_steps": 50},
}
# With the 5,000 images that ship with the project an epoch is short, and it takes more of them.
SMALL = {"train_samples": 0, "epochs": 14}

started = time.monotonic()


def say(text: str) -> None:
    """A step's headline, with the seconds since the start."""
    print(f"\n── {time.monotonic() - started:4.0f} s ── {text}", flush=True)


def stage() -> tuple[str, dict[str, int]]:
    """Stage FashionMNIST wherever it can be had; else fall back on the shipped subset, and say so."""
    from data_prep.errors import DataError
    from data_prep.staging import fetch

    say("stage FashionMNIST")
    try:
        return fetch("fashion-mnist", report=print).name, {}
    except DataError as error:
        print(error)
        print("continuing with the 5,000 + 1,000 real images that ship with the project (fashion-mnist-small)")
        return "fashion-mnist-small", SMALL


def run(lab: str, dataset: str, parameters: dict[str, int]) -> Path:
    """Run a lab headlessly at the laptop profile; its printed output appears as it comes."""
    from course_lib.runs.run_lab import run_lab

    say(f"run lab {lab} on {dataset}, {parameters['num_gpus']} rank(s)")
    return run_lab(
        str(ROOT / "labs" / lab), profile="laptop", parameters={"dataset": dataset, **parameters}, output=DEMO / lab
    )


def submit(lab: str, run_folder: Path) -> None:
    """Hand in two submissions: the reference with its run folder, and the release notebook as it came."""
    from autograde.gradebook.scores import ensure_assignment, nbgrader_settings
    from autograde.rubric.schema import find_rubric

    ensure_assignment(nbgrader_settings(COURSE), find_rubric(lab))
    reference, unsolved = (COURSE / "submitted" / student / lab for student in ("reference", "unsolved"))
    for folder in (reference, unsolved):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    shutil.copy(run_folder / f"{lab}.ipynb", reference)
    shutil.copytree(run_folder, reference / "run", ignore=shutil.ignore_patterns("*.ipynb", ".*", "unfinished"))
    shutil.copy(COURSE / "release" / lab / f"{lab}.ipynb", unsolved)


def main() -> int:
    """Run the demo; returns the exit code."""
    from autograde.batch.grade_lab import grade_lab
    from autograde.reports.report import write_report
    from autograde.sandbox.bubblewrap import missing_sandbox
    from course_lib.runs.records import read_learning_curve

    dataset, parameters = stage()
    folders = {lab: run(lab, dataset, {**own, **parameters}) for lab, own in LABS.items()}

    say("grade the reference and an unsolved submission")
    COURSE.mkdir(parents=True, exist_ok=True)
    as_expected = True
    if missing := missing_sandbox():
        print(missing.partition(";")[0])
        print("the demo's submissions are the course's own, so it grades without one; a real course should not")
    for lab, folder in folders.items():
        submit(lab, folder)
        best = read_learning_curve(folder / "learning_curve.csv")["val_accuracy"].max()
        print(f"{lab}: best validation accuracy {best:.1%} on {dataset}")
        for verdict in grade_lab(lab, COURSE, sandboxed=not missing):
            print(f"{lab}: {verdict.student} {verdict.score:g} of {verdict.max_score:g}")
            wanted = verdict.max_score if verdict.student == "reference" else 0
            as_expected &= verdict.score == wanted
    report = write_report(list(folders), COURSE, DEMO / "report.html")
    say("done")
    if not as_expected:
        print("the reference should have full marks and the unsolved submission none: see the report")
    print(f"the report: {report}")
    print("Three things to try next:", *NEXT, sep="\n  ")
    return 0 if as_expected else 1


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    try:
        sys.exit(main())
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("\nstopped; staged data is kept, and the next `make demo` runs the labs from their beginning")
        sys.exit(130)

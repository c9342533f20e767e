"""The result of grading one student's submission of a lab, and where it is kept."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from course_lib.system.atomic import write_atomically

__all__ = ["FLAGS", "CriterionResult", "Flag", "RunSummary", "Verdict", "load_verdict", "verdict_lock", "verdict_path"]

# Beside nbgrader's own folders, of which each holds what one of its steps made.
FOLDER = "autograded_evidence"


# What an instructor should look at, in the order of their weight. A flag is no grade: points come from criteria.
FLAGS = {
    "unsandboxed": "graded without the sandbox",
    "tampered": "cells that nbgrader locks were changed",
    "forged": "evidence that contradicts itself",
    "escape": "tried what the sandbox forbids",
    "limit": "ended at a limit (time, memory, processes, output)",
    "crash": "raised an error or ended its process",
    "missing": "files or answers are missing",
    "copy": "shares evidence or answers with another student, lab or run, or with the library",
    "grader": "the grader itself failed on it",
}


@dataclass(frozen=True)
class Flag:
    """Something an instructor should look at: `kind` is one of `FLAGS`, `detail` one line."""

    kind: str
    detail: str


@dataclass(frozen=True)
class CriterionResult:
    """One criterion's outcome. `reason` and `remedy` are one line each, for the student.

    `cell` is the grade_id of the notebook cell that the points belong to; `kind` is a kind of run evidence, or the id
    of the hidden check that the criterion is a part of.
    """

    cell: str
    id: str
    kind: str
    description: str
    passed: bool
    points: float
    max_points: float
    reason: str
    remedy: str = ""


@dataclass(frozen=True)
class RunSummary:
    """A run in figures, for the report; None is a figure that could not be read.

    `id` is the rubric's, empty for the notebook's own run; `weights` is the SHA-256 of the weights handed in.
    `curve` is a list of ``[epoch, seconds, validation accuracy]``, the row of zeros included where the file has it.
    `held_out_accuracy` is the grader's own measurement of the submitted weights, `held_out_images` on how many images; of a text, characters.
    `work_seconds` is the processor time of the grader's own run of the notebook, `step_seconds` that of one reference step
    on that machine just before (with a GPU: seconds by the grader's clock); both are None in evidence mode.
    """

    id: str = ""
    weights: str | None = None
    curve: list[list[float]] = field(default_factory=list)
    epochs: int | None = None
    seconds: float | None = None
    best_accuracy: float | None = None
    final_accuracy: float | None = None
    world_size: int | None = None
    device: str | None = None
    data_name: str | None = None
    data_provenance: str | None = None
    data_source: str | None = None
    held_out_accuracy: float | None = None
    held_out_images: int | None = None
    work_seconds: float | None = None
    step_seconds: float | None = None


@dataclass(frozen=True)
class Verdict:
    """The result of one student's submission of a lab, without the written answers."""

    lab: str
    title: str
    student: str
    graded_at: str  # ISO 8601, UTC
    results: tuple[CriterionResult, ...]  # in the rubric's order; those of one cell are together
    runs: tuple[RunSummary, ...]
    flags: tuple[Flag, ...] = ()
    # The sandbox of the student's code: ``bubblewrap``, ``apptainer``, ``none``; empty if nothing was executed
    sandbox: str = ""
    # Of ``submission``, ``rubric``, ``criteria`` (the rubric without its points) and ``grader``. If all are the same,
    # grading again gives the same; if only ``rubric`` differs, other points are all that has changed.
    digests: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    unanswered: tuple[str, ...] = ()  # answer cells that still hold the starter's text

    @property
    def score(self) -> float:
        """Points earned."""
        return sum(result.points for result in self.results)

    @property
    def max_score(self) -> float:
        """The highest possible points."""
        return sum(result.max_points for result in self.results)

    @property
    def cells(self) -> dict[str, tuple[CriterionResult, ...]]:
        """The results by the cell that they belong to."""
        names = dict.fromkeys(result.cell for result in self.results)
        return {name: tuple(result for result in self.results if result.cell == name) for name in names}

    def comment(self, cell: str) -> str:
        """The reasons for one cell's points as plain text, for nbgrader's gradebook and the student's feedback.

        Every line is indented by four spaces: the feedback page runs comments through Markdown, which lets raw HTML
        through, and an indented block is the one form whose contents it escapes.
        """
        results = self.cells[cell]
        score, most = sum(result.points for result in results), sum(result.max_points for result in results)
        lines = [f"{score:g} of {most:g} points"]
        if self.sandbox == "none":
            lines.append("graded without the sandbox")
        for line, remedy in self.reasons(cell):
            lines.append(line)
            if remedy:
                lines.append(f"       how to look at it: {remedy}")
        return "\n".join("    " + " ".join(line.splitlines()) for line in lines)

    def reasons(self, cell: str) -> list[tuple[str, str]]:
        """The reasons for one cell's points, each with its remedy or nothing; one that all criteria share comes once."""
        results = self.cells[cell]
        common = {(result.passed, result.reason) for result in results}
        if len(results) > 1 and len(common) == 1 and not results[0].passed:
            most, remedies = sum(result.max_points for result in results), {result.remedy for result in results}
            line = f"FAILED 0/{most:g} all {len(results)} criteria: {results[0].reason}"
            return [(line, remedies.pop() if len(remedies) == 1 else "")]
        return [
            (
                f"{'passed' if each.passed else 'FAILED'} {each.points:g}/{each.max_points:g} {each.description}: "
                f"{each.reason}",
                "" if each.passed else each.remedy,
            )
            for each in results
        ]

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready mapping, with the scores written out for other readers."""
        return asdict(self) | {"score": self.score, "max_score": self.max_score}

    def save(self, course: Path) -> Path:
        """Write ``course/autograded_evidence/STUDENT/LAB/verdict.json``, whole or not at all.

        Raises `OSError` if the folder cannot be written.
        """
        path = verdict_path(course, self.student, self.lab)
        path.parent.mkdir(parents=True, exist_ok=True)
        # allow_nan=False: a verdict with NaN is a defect of ours, better found here than by a reader.
        text = json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n"
        write_atomically(path, text)
        return path


@contextmanager
def verdict_lock(course: Path, student: str, lab: str) -> Iterator[None]:
    """Wait until no other process collects, grades or records this submission, and keep others out meanwhile.

    A batch and ``lab serve`` may run at the same time. Without the lock the verdict of an earlier submission could
    replace that of a later one. The kernel releases it when the process ends.
    """
    folder = verdict_path(course, student, lab).parent
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def verdict_path(course: Path, student: str, lab: str) -> Path:
    """Where a student's verdict on a lab is kept."""
    return Path(course) / FOLDER / student / lab / "verdict.json"


def load_verdict(path: Path) -> Verdict:
    """Read a verdict. Raises `ValueError` if the file is no verdict; one line that names it and the remedy."""
    try:
        return msgspec.convert(json.loads(path.read_text(encoding="utf-8")), Verdict)
    except (OSError, ValueError) as error:
        what = type(error).__name__
        raise ValueError(f"{path} is no verdict ({what}); grade the lab again with `lab grade`") from None

"""A rubric's contents. msgspec reads the tables of the file into these types and checks their values."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from msgspec import Meta, Struct

Text = Annotated[str, Meta(min_length=1)]
Points = Annotated[float, Meta(ge=0, le=1e6)]
Count = Annotated[int, Meta(ge=1)]
Positive = Annotated[float, Meta(gt=0, le=1e12)]
Fraction = Annotated[float, Meta(gt=0, le=1)]

__all__ = [
    "Baseline",
    "Criterion",
    "Execution",
    "Exercise",
    "Leaderboard",
    "ModelEvidence",
    "Rerun",
    "Rubric",
    "RunEvidence",
]


@dataclass(frozen=True)
class Criterion:
    """One line of a rubric; `settings` are those of its kind (see `course_lib.runs.run_evidence.criteria.KINDS`)."""

    id: str
    kind: str
    points: float
    description: str
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class Exercise:
    """An exercise's grade cell, the hidden check that scores it, and the points of each of that check's parts."""

    cell: str
    check: str
    points: Mapping[str, float]

    @property
    def max_points(self) -> float:
        """The cell's points."""
        return sum(self.points.values())


class Execution(Struct, frozen=True, forbid_unknown_fields=True):
    """How answers are executed for the hidden checks."""

    # Ids of the lab's own code cells that the answers need (imports, helpers). They run in the lab's version.
    run: tuple[str, ...] = ()
    parameters: dict[str, Any] = {}
    data: tuple[str, ...] = ()  # staged data sets that the sandbox shows
    # Modules of the course's library that are hidden from answers, because they solve an exercise:
    # ``course_lib.MODULE`` (see `autograde.sandbox.withheld`)
    withheld: tuple[str, ...] = ()
    # Limits on one exercise, all of its ranks together
    seconds: Positive = 60.0
    memory_gib: Positive = 4.0


class ModelEvidence(Struct, frozen=True, forbid_unknown_fields=True):
    """How the submitted weights are tested on held-out images."""

    # ``course_lib:NAME`` (see `autograde.grading.networks`), which needs no code of the student's, or
    # ``notebook:FUNCTION``, a function of the notebook without arguments, or ``program:FUNCTION``, a function of the
    # run's own program, which is handed in beside the notebook, of the number of classes. Both are called in the
    # sandbox.
    network: Text
    # The sets that a run may use. The images are from the test split of the set in ``run.json``.
    datasets: tuple[str, ...]
    images: Count  # the number of held-out images, in random choice and order; of a text, of characters
    tolerance: Positive  # the largest difference between the accuracy on them and the learning curve's last one
    # A staged set of the same kind of images that students have never seen, whose test split is used instead
    held_out: str = ""
    # Limits of the test; None: those of `Execution`
    seconds: Positive | None = None
    memory_gib: Positive | None = None


@dataclass(frozen=True)
class RunEvidence:
    """One run folder that is handed in: its place, the cell that carries its points, and how it is judged."""

    cell: str
    max_points: float
    criteria: tuple[Criterion, ...]
    model: ModelEvidence | None = None
    id: str = ""  # the run's name if there are several; empty for the notebook's own, at the rubric's top level
    folder: str = ""  # a plain name below ``run/``; empty: ``run/`` itself
    program: str = ""  # the value of ``program`` that ``run.json`` must have; empty: any

    @property
    def name(self) -> str:
        """Its name in messages: the id, or ``the notebook's run``."""
        return self.id or "the notebook's run"

    @property
    def writer(self) -> str:
        """The program file that writes the folder, for messages; empty for the notebook."""
        return f"{self.program}.py" if self.program else self.id

    @property
    def threshold(self) -> float | None:
        """The threshold of the final accuracy, else of the best, else of the weights', else None."""
        by_kind = {criterion.kind: criterion.settings.get("threshold") for criterion in self.criteria}
        kinds = ("final_accuracy", "best_accuracy", "held_out_accuracy")
        return next((by_kind[kind] for kind in kinds if kind in by_kind), None)


class Rerun(Struct, frozen=True, forbid_unknown_fields=True):
    """The budget of a grading run: parameters of the notebook, and seconds, memory, data and a GPU for all of it."""

    parameters: dict[str, Any]
    seconds: Positive
    memory_gib: Positive = 8.0
    data: tuple[str, ...] = ()
    gpu: bool = False  # whether the sandbox has a GPU, one that no other submission has meanwhile


class Baseline(Struct, frozen=True, forbid_unknown_fields=True):
    """A row of the leaderboard that is no student's; its work in reference steps, where that is known."""

    name: Text
    accuracy: Fraction
    steps: Positive | None = None


class Leaderboard(Struct, frozen=True, forbid_unknown_fields=True):
    """The accuracy to which work is counted, and the rows to compare with."""

    target: Fraction
    in_a_row: Count = 1  # epochs that must reach the target
    baselines: tuple[Baseline, ...] = ()


@dataclass(frozen=True)
class Rubric:
    """How a lab is graded."""

    lab: str
    title: str
    # ``evidence``: runs are judged from the submitted run folders. ``rerun``: the notebook's, and there is no other,
    # from the folder that the grader's own run of the submitted notebook wrote.
    mode: str
    runs: tuple[RunEvidence, ...]  # the notebook's own first, where it has one
    exercises: tuple[Exercise, ...] = ()
    execution: Execution = field(default_factory=Execution)
    rerun: Rerun | None = None
    leaderboard: Leaderboard | None = None  # ``lab leaderboard`` ranks labs that have one
    digest: str = ""

    @property
    def cells(self) -> dict[str, float]:
        """Each cell that the grader scores, and its points: exercises first, then the runs."""
        exercises = {exercise.cell: exercise.max_points for exercise in self.exercises}
        return exercises | {run.cell: run.max_points for run in self.runs}

    @property
    def points(self) -> dict[tuple[str, str], float]:
        """(cell, criterion or part of a check) → its points, in the order of a verdict's results."""
        parts = {(each.cell, part): points for each in self.exercises for part, points in each.points.items()}
        return parts | {(run.cell, each.id): each.points for run in self.runs for each in run.criteria}

    @property
    def criteria_digest(self) -> str:
        """SHA-256 of all but points and leaderboard: if it is the same, the same submission meets the same criteria."""
        exercises = tuple(replace(each, points=dict.fromkeys(each.points, 0)) for each in self.exercises)
        runs = tuple(
            replace(run, max_points=0, criteria=tuple(replace(each, points=0) for each in run.criteria))
            for run in self.runs
        )
        unweighted = replace(self, exercises=exercises, runs=runs, leaderboard=None, digest="")
        return hashlib.sha256(repr(unweighted).encode()).hexdigest()

    @property
    def run_points(self) -> float:
        """Points of the run evidence."""
        return sum(run.max_points for run in self.runs)

    @property
    def total(self) -> float:
        """Points of the run evidence and the exercises together, without the written answers."""
        return sum(self.cells.values())

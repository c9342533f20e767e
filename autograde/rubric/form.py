"""What a rubric says, as `autograde.rubric.schema` has read and checked it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Criterion", "Execution", "Exercise", "ModelEvidence", "Rerun", "Rubric", "RunEvidence"]


@dataclass(frozen=True)
class Criterion:
    """One line of a rubric; `settings` are those of its kind (see `autograde.rubric.criteria.KINDS`)."""

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
        """What the cell is worth."""
        return sum(self.points.values())


@dataclass(frozen=True)
class Execution:
    """How answers are executed for the hidden checks.

    Attributes
    ----------
    run : tuple of str
        Ids of the lab's own code cells that the answers lean on (imports, helpers). They run as the lab has them.
    parameters : mapping
        Values for the notebook's parameters cell.
    data : tuple of str
        Staged data sets that the sandbox shows.
    withheld : tuple of str
        Modules of the course's library that answers do not find, since they solve an exercise: ``course_lib.MODULE``
        (see `autograde.sandbox.withheld`). The visible checks are always among them.
    seconds, memory_gib : float
        Limits on one exercise, all of its ranks together.
    """

    run: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    data: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()
    seconds: float = 60.0
    memory_gib: float = 4.0


@dataclass(frozen=True)
class ModelEvidence:
    """How the submitted weights are tried on held-out images.

    Attributes
    ----------
    network : str
        ``course_lib:NAME`` (see `autograde.grading.networks`), which needs no code of the student's, or ``notebook:FUNCTION``,
        a function of the notebook without arguments, called in the sandbox.
    datasets : tuple of str
        Those that a run may have used; the images are of the test split of the one that ``run.json`` names.
    images : int
        How many of them are asked, drawn and ordered by chance.
    tolerance : float
        How far the accuracy on them may differ from the learning curve's last one.
    held_out : str
        A staged set of the same kind of images that students have never seen, whose test split is used instead.
    seconds, memory_gib : float or None
        Limits on trying them; None: those of `Execution`.
    """

    network: str
    datasets: tuple[str, ...]
    images: int
    tolerance: float
    held_out: str = ""
    seconds: float | None = None
    memory_gib: float | None = None


@dataclass(frozen=True)
class RunEvidence:
    """One run folder that is handed in: its place, the cell that carries its points, and how it is judged.

    Attributes
    ----------
    cell : str
        grade_id of the notebook cell that carries the points.
    max_points : float
    criteria : tuple of Criterion
    model : ModelEvidence or None
    id : str
        Names the run among several; empty for the one of the rubric's top level, the notebook's own.
    folder : str
        A plain name below ``run/``; empty: ``run/`` itself.
    program : str
        What ``run.json`` must name as its ``program``; empty: not asked.
    """

    cell: str
    max_points: float
    criteria: tuple[Criterion, ...]
    model: ModelEvidence | None = None
    id: str = ""
    folder: str = ""
    program: str = ""

    @property
    def name(self) -> str:
        """Its name in messages: the id, or ``the notebook's run``."""
        return self.id or "the notebook's run"

    @property
    def writer(self) -> str:
        """What writes the folder, for messages: the program's file; empty for the notebook."""
        return f"{self.program}.py" if self.program else self.id

    @property
    def threshold(self) -> float | None:
        """The final accuracy asked for, else the best, else that of the weights, else None."""
        by_kind = {criterion.kind: criterion.settings.get("threshold") for criterion in self.criteria}
        kinds = ("final_accuracy", "best_accuracy", "held_out_accuracy")
        return next((by_kind[kind] for kind in kinds if kind in by_kind), None)


@dataclass(frozen=True)
class Rerun:
    """The budget of a grading run: parameters of the notebook, and seconds, data and memory for all of it."""

    parameters: Mapping[str, Any]
    seconds: float
    memory_gib: float = 8.0
    data: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rubric:
    """How a lab is graded.

    Attributes
    ----------
    lab, title : str
    mode : str
        ``evidence``: runs are judged from the submitted run folders. ``rerun``: the notebook's, and there is no other,
        from one that the grader's own run of the submitted notebook wrote.
    runs : tuple of RunEvidence
        The notebook's own first, where it has one.
    exercises : tuple of Exercise
    execution : Execution
    rerun : Rerun or None
    digest : str
        SHA-256 of the file.
    """

    lab: str
    title: str
    mode: str
    runs: tuple[RunEvidence, ...]
    exercises: tuple[Exercise, ...] = ()
    execution: Execution = field(default_factory=Execution)
    rerun: Rerun | None = None
    digest: str = ""

    @property
    def cells(self) -> dict[str, float]:
        """Each grade cell that is the grader's, and its points: exercises first, then the runs."""
        exercises = {exercise.cell: exercise.max_points for exercise in self.exercises}
        return exercises | {run.cell: run.max_points for run in self.runs}

    @property
    def run_points(self) -> float:
        """Points of the run evidence."""
        return sum(run.max_points for run in self.runs)

    @property
    def total(self) -> float:
        """Points of the run evidence and the exercises together; answers in words are not the grader's."""
        return sum(self.cells.values())

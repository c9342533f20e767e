"""What grading needs besides the submission: the lab's rubric and source notebook, the warm interpreter, a secret.

A `GradingContext` belongs to one worker. It holds no data of a submission, so all submissions are graded alike.
"""

from __future__ import annotations

import copy
import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
from nbformat import NotebookNode

from autograde.gradebook.scores import CourseError
from autograde.rubric.schema import Rubric
from autograde.sandbox.bubblewrap import installed
from autograde.submission.notebook_repair import starter_answers
from data_prep.errors import DataError
from data_prep.root import data_root
from data_prep.staged import read

if TYPE_CHECKING:
    from autograde.sandbox.warm import WarmInterpreter

__all__ = ["GradingContext", "course_secret", "grader_digest", "source_notebook"]

_PACKAGE = Path(__file__).resolve().parents[1]
_SECRET = "grading_secret"


@dataclass
class GradingContext:
    """A worker's tools for one lab."""

    rubric: Rubric
    source: NotebookNode
    # The course's secret. Hidden inputs are drawn from it and the submission. A second grading draws the same inputs,
    # and nobody without the secret can predict them.
    secret: bytes
    # None if nothing can be executed: exercises are then left out, and weights are not tested
    warm: WarmInterpreter | None
    threads: int = 1
    starter: Mapping[str, str] = field(init=False)
    digests: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.starter = starter_answers(self.source)
        text = nbformat.writes(_without_points(self.source))
        self.digests = {
            "rubric": self.rubric.digest,
            "criteria": self.rubric.criteria_digest,
            "grader": hashlib.sha256((grader_digest() + text).encode()).hexdigest(),
        }

    @property
    def sandbox(self) -> str:
        """The kind of sandbox for students' code."""
        if self.warm is None:
            return ""
        return "bubblewrap" if self.warm.sandboxed else "none"

    def seed(self, student: str, submission: str) -> list[int]:
        """The seed of the hidden inputs for one submission: 8 numbers of 32 bits."""
        key = hmac.new(self.secret, f"{self.rubric.lab}\0{student}\0{submission}".encode(), hashlib.sha256).digest()
        return [int.from_bytes(key[i : i + 4], "big") for i in range(0, 32, 4)]

    def data(self, names: tuple[str, ...]) -> dict[str, Path]:
        """Folders of staged data sets, for the sandbox. A set that ships with the course needs no folder.

        Raises `CourseError`: a set is not staged.
        """
        folders = {}
        for name in names:
            try:
                folder = read(name).path
            except DataError as error:
                raise CourseError(f"rubric {self.rubric.lab} asks for data set {name}: {error}") from None
            if folder.parent == data_root():
                folders[name] = folder
        return folders

    def close(self) -> None:
        """End the warm interpreter."""
        if self.warm is not None:
            self.warm.close()


def source_notebook(path: Path) -> NotebookNode:
    """Read an instructor's notebook. Raises `CourseError`: it cannot be read."""
    try:
        return nbformat.read(path, as_version=4)
    except Exception as error:
        what = type(error).__name__
        raise CourseError(
            f"source notebook {path} cannot be read ({what}); it holds the lab's cells and points"
        ) from None


def _without_points(source: NotebookNode) -> NotebookNode:
    """A copy of a source notebook whose cells name no points: grading takes those from the rubric."""
    copied = copy.deepcopy(source)
    for cell in copied.cells:
        cell.metadata.get("nbgrader", {}).pop("points", None)
    return copied


def course_secret(course: Path) -> bytes:
    """The course's secret, made at its first use: ``course/grading_secret``, readable only by its owner.

    Raises `CourseError`: it cannot be read or made.
    """
    path = Path(course) / _SECRET
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".{_SECRET}.{secrets.token_hex(5)}")
            with open(temporary, "x", opener=lambda name, flags: os.open(name, flags, mode=0o600)) as file:
                file.write(secrets.token_hex(32))
            try:
                os.link(temporary, path)  # fails if another grader was first; its secret is then used
            except FileExistsError:
                pass
            finally:
                temporary.unlink()
        return path.read_bytes()
    except OSError as error:
        raise CourseError(f"{path} cannot be used ({error.strerror}); make {course} writable") from None


@cache
def grader_digest() -> str:
    """SHA-256 of the grader's and the course library's code, and of the versions that can change results."""
    import assessment_print
    import course_lib
    import data_prep

    total = hashlib.sha256()
    folders = [_PACKAGE, Path(course_lib.__file__).parent, Path(data_prep.__file__).parent]
    # On a hub students' code runs with their own copies.
    folders += [place for name in ("course_lib", "data_prep") if (place := installed(name)) not in (*folders, None)]
    files = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
    for path in [*files, Path(assessment_print.__file__)]:
        if "report" not in path.relative_to(path.parents[1]).parts:
            total.update(hashlib.sha256(path.read_bytes()).digest())
    for name in ("torch", "numpy", "nbgrader"):
        total.update(f"{name} {version(name)}".encode())
    return total.hexdigest()

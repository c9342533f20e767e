"""What an exhibit is: one hostile submission, and what it may earn.

An exhibit is a function that changes an honest submission; its docstring says what it tries. It is handed a
`Submission` and the `World` that it would like to reach, and is registered with what is expected of it: the points of
each cell (an honest notebook without a run folder where nothing else is said), the kinds of flags, and a pattern that
one of the reasons for a lost point must match.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_raw_cell
from safetensors.torch import load_file, save_file

from autograde.rubric.schema import RUBRICS, find_rubric
from autograde.submission.notebook_repair import release_of

REPOSITORY = Path(__file__).resolve().parents[2]
LAB = "01_single_gpu"
SOURCE = REPOSITORY / "labs" / LAB / f"{LAB}.ipynb"
HONEST_RUN = REPOSITORY / "tests" / "autograde" / "honest_run"
RUBRIC = find_rubric(LAB)
EXERCISES = {each.cell.removeprefix("check-").replace("-", "_"): each for each in RUBRIC.exercises}
CELLS = {name: each.cell for name, each in EXERCISES.items()} | {"run": "run-evidence", "program": "run-program"}
AUTOMATIC = RUBRIC.total
POINTS = {name: each.max_points for name, each in EXERCISES.items()}
HONEST = POINTS | {"run": 10, "program": 10}
NONE_OF_THEM = dict.fromkeys(POINTS, 0)
UNKNOWN = dict.fromkeys(POINTS)  # nothing is said of any

EXHIBITS: dict[str, Exhibit] = {}


@dataclass(frozen=True)
class World:
    """What lies outside of every sandbox, for exhibits to reach for; each secret text begins with ``canary-``.

    Attributes
    ----------
    folder : Path
        Readable and writable by everybody on the host. Holds ``secret.txt``.
    course : Path
        The course folder, with the gradebook, the secret and the other submissions.
    port, udp_port : int
        Something listens there on the host's loopback.
    socket_name : str
        Of an abstract Unix socket of the host, without its leading zero byte.
    mark : str
        A word for command lines of processes that an exhibit would leave behind.
    """

    folder: Path
    course: Path
    port: int
    udp_port: int
    socket_name: str
    mark: str


@dataclass(frozen=True)
class Exhibit:
    """A hostile submission and what is expected of it; see the module's docstring."""

    build: Callable[[Submission, World], None]
    points: Mapping[str, float]
    flags: frozenset[str]
    reason: str
    slow: bool = False

    @property
    def student(self) -> str:
        """Its student's id."""
        return self.build.__name__.replace("_", "-")


def exhibit(
    *, flags: str = "", reason: str = "", slow: bool = False, before: str = "train-step", answers: str = "",
    runner: bool = False, **points: float,
) -> Callable:  # fmt: skip
    """Register a function as an exhibit.

    `points` are by the names in `CELLS`. Where nothing is said, an exercise has all of its points, and a run none. Code
    that the function returns is the answer to the exercise `answers`, or is put above that to `before`; with `runner`,
    `FIND_THE_RUNNER` is above the code.
    """

    def register(build: Callable[[Submission, World], str | None]) -> Callable[[Submission, World], None]:
        assert build.__doc__ and not set(points) - set(CELLS)

        @functools.wraps(build)
        def whole(submission: Submission, world: World) -> None:
            if code := build(submission, world):
                code = FIND_THE_RUNNER * runner + code
                submission.answer(answers, code) if answers else submission.before(before, code)

        expected = {CELLS[name]: (HONEST | {"run": 0, "program": 0} | points)[name] for name in CELLS}
        EXHIBITS[build.__name__] = Exhibit(whole, expected, frozenset(flags.split()), reason, slow)
        return whole

    return register


def hostile_code(name: str, about: str, *, source: str, **expected: object) -> None:
    """An exhibit that is one piece of code, as `exhibit` places it."""
    _register(lambda submission, world: source, name, about, expected)


def hostile_text(name: str, about: str, *, text: str, **expected: object) -> None:
    """An exhibit whose notebook is a text."""

    def build(submission: Submission, world: World) -> None:
        submission.path.write_text(text)

    _register(build, name, about, expected)


def _register(build: Callable, name: str, about: str, expected: dict) -> None:
    build.__name__, build.__doc__, build.__module__ = name, about, sys._getframe(2).f_globals["__name__"]
    exhibit(**expected)(build)


# Lab 01 hands in the run of one program more.
PROGRAM = """
[[run]]
id = "program"
program = "program"
cell = "run-program"
max_points = 10

[run.model]
network = "course_lib:wide_resnet_standardised"
datasets = ["fashion-mnist-small"]
images = 500
tolerance = 0.04

[[run.criterion]]
id = "run-record"
kind = "run_record"
points = 2
description = "run.json tells of a finished run on real data"
provenance = ["official"]

[[run.criterion]]
id = "time"
kind = "time_budget"
points = 3
description = "At most a thousand seconds of training"
seconds = 1000

[[run.criterion]]
id = "held-out"
kind = "held_out_accuracy"
points = 5
description = "The submitted weights reach 0.8"
threshold = 0.8

[leaderboard]
target = 0.85
"""


def source_notebook() -> nbformat.NotebookNode:
    """Lab 01 with a grade cell for the program's run."""
    source = nbformat.read(SOURCE, as_version=4)
    like = next(cell for cell in source.cells if cell.id == CELLS["run"])
    settings = like.metadata.nbgrader | {"grade_id": CELLS["program"], "points": 10}
    source.cells.append(new_code_cell("print('program')", id=CELLS["program"], metadata={"nbgrader": settings}))
    return source


def lay_out(root: Path, secret: str, **limits: int) -> Path:
    """A course of the real lab 01 and a program's run, below `root`, with limits of the rubric replaced; its folder."""
    (root / "labs" / LAB).mkdir(parents=True)
    shutil.copy(REPOSITORY / "nbgrader_config.py", root)
    nbformat.write(source_notebook(), root / "labs" / LAB / f"{LAB}.ipynb")
    rubric = (RUBRICS / f"{LAB}.toml").read_text()
    for name, value in limits.items():
        rubric, count = re.subn(rf"^{name} = .*$", f"{name} = {value}", rubric, flags=re.MULTILINE)
        assert count == 1
    (root / "rubrics").mkdir()
    (root / "rubrics" / f"{LAB}.toml").write_text(rubric + PROGRAM)
    course = root / "course"
    course.mkdir()
    (course / "grading_secret").write_text(secret)
    (course / "grading_secret").chmod(0o600)
    return course


class Submission:
    """A student's folder of the lab: the release with the right answers, without a run folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        source = source_notebook()
        self.notebook = release_of(source)
        for cell, original in zip(self.notebook.cells, source.cells, strict=True):
            if cell.cell_type == "code" and original.metadata.get("nbgrader", {}).get("solution"):
                cell.source = "\n".join(line for line in original.source.splitlines() if "### " not in line)

    @property
    def path(self) -> Path:
        """Where the notebook belongs."""
        return self.folder / f"{LAB}.ipynb"

    def cell(self, grade_id: str):
        """The cell with that grade id."""
        return next(c for c in self.notebook.cells if c.metadata.get("nbgrader", {}).get("grade_id") == grade_id)

    def answer(self, exercise: str, code: str) -> None:
        """Replace an exercise's answer (``train-step``)."""
        self.cell(f"ex-{exercise}").source = dedent(code).strip()

    def before(self, exercise: str, code: str) -> None:
        """Put code above the right answer, in its cell, which is executed whole."""
        cell = self.cell(f"ex-{exercise}")
        cell.source = dedent(code).strip() + "\n\n\n" + cell.source

    def add(self, text: str, kind: str = "code", at: int = 3) -> None:
        """Add a cell of the student's own."""
        make = {"code": new_code_cell, "markdown": new_markdown_cell, "raw": new_raw_cell}[kind]
        self.notebook.cells.insert(at, make(dedent(text).strip()))

    def run(self) -> Path:
        """Hand in the honest run's folder."""
        return Path(shutil.copytree(HONEST_RUN, self.folder / "run"))

    def program(self, name: str | None = "program") -> Path:
        """Hand in the honest run's folder as the program's, whose record names the program `name`."""
        folder = Path(shutil.copytree(HONEST_RUN, self.folder / "run" / "program"))
        with self.record(folder) as record:
            record |= {} if name is None else {"program": name}
        return folder

    @contextlib.contextmanager
    def record(self, folder: Path | None = None) -> Iterator[dict]:
        """The record of a run, by default of the honest one, which is handed in then: it is written as it is left."""
        path = (folder or self.run()) / "run.json"
        record = json.loads(path.read_text())
        yield record
        path.write_text(json.dumps(record))

    def mark_weights(self, folder: Path, text: str) -> None:
        """Make the weights of a run another file with the same values."""
        weights = folder / "model.safetensors"
        save_file(load_file(weights), weights, metadata={"trained": text})

    def save(self) -> None:
        """Write the notebook, where nothing lies in its place yet."""
        if not self.path.is_symlink() and not self.path.exists():
            self.path.write_text(json.dumps(self.notebook))


# A function for the sandbox: talk to the grader over the runner's own socket, which any code of that process can find.
FIND_THE_RUNNER = """
import gc, json, os, struct, sys, time

def find_the_runner():
    for thing in gc.get_objects():
        if type(thing).__name__ == "Runner" and hasattr(thing, "channel"):
            return thing
    frame = sys._getframe()
    while frame is not None:
        if type(frame.f_locals.get("self")).__name__ == "Runner":
            return frame.f_locals["self"]
        frame = frame.f_back

def say(value, blob=b""):
    text = json.dumps(value).encode()
    find_the_runner().channel.sendall(struct.pack(">QQ", len(text), len(blob)) + text + blob)
"""

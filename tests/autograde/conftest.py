"""A tiny course in nbgrader's layout, to hand runs in to."""

from __future__ import annotations

import shutil
from pathlib import Path

import nbformat
import pytest
from fake_runs import LAB, REPOSITORY, Run, source_notebook

from autograde.gradebook import ensure_assignment, nbgrader_settings
from autograde.rubric import find_rubric
from autograde.sandbox import missing_sandbox
from autograde.warm import WarmInterpreter


@pytest.fixture(scope="session")
def warm():
    """An interpreter that forks into sandboxes, started once."""
    if why := missing_sandbox():
        pytest.skip(why)
    with WarmInterpreter() as interpreter:
        yield interpreter


@pytest.fixture
def make_run():
    return Run


def lay_out(root: Path) -> Path:
    shutil.copy(REPOSITORY / "nbgrader_config.py", root)
    source = root / "labs" / LAB
    source.mkdir(parents=True)
    nbformat.write(source_notebook(), source / f"{LAB}.ipynb")
    (root / "course" / "submitted").mkdir(parents=True)
    return root / "course"


@pytest.fixture(scope="session")
def known_lab(tmp_path_factory) -> Path:
    """A gradebook that knows the lab: nbgrader takes two seconds to make one, and tests start from copies."""
    course = lay_out(tmp_path_factory.mktemp("known"))
    ensure_assignment(nbgrader_settings(course), find_rubric(LAB))
    return course / "gradebook.db"


@pytest.fixture
def fresh_course(tmp_path) -> Path:
    """A repository of one tiny lab: its `course` folder, beside labs/ and the real nbgrader_config.py."""
    return lay_out(tmp_path)


@pytest.fixture
def course(fresh_course, known_lab) -> Path:
    """The same, once ``nbgrader generate_assignment`` has run."""
    shutil.copy(known_lab, fresh_course)
    return fresh_course


@pytest.fixture
def submit(tmp_path):
    """Hand in a run (None: no run folder) with the solved notebook, or its text changed by `answer`."""

    def submit(student: str, run: Run | None = None, answer: str = "def double(x):\n    return 2 * x", lab: str = LAB):
        folder = tmp_path / "course" / "submitted" / student / lab
        folder.mkdir(parents=True)
        notebook = source_notebook()
        notebook.cells[1].source = answer
        nbformat.write(notebook, folder / f"{lab}.ipynb")
        if run is not None:
            run.write(folder)
        return folder

    return submit

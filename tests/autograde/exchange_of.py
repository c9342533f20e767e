"""An nbgrader exchange for a test's course: stock ``nbgrader submit``, and what its students find in it."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
from fake_runs import LAB, released_notebook
from nbgrader.apps.api import NbGraderAPI

from autograde.gradebook.scores import nbgrader_settings


class ExchangeOf:
    """The exchange of a course, made beside its folder; `settings` are lines for the course's nbgrader_config.py."""

    def __init__(self, course: Path, *settings: str) -> None:
        self.course, self.root = course, course.parent / "exchange"
        self.homes = course.parent / "homes"
        base = self.root / "distributed-training"
        self.inbound, self.feedback = base / "inbound", base / "feedback"
        for folder in (self.inbound, self.feedback, base / "outbound" / LAB):
            folder.mkdir(parents=True)
        self.root.chmod(0o777)
        nbformat.write(released_notebook(), base / "outbound" / LAB / f"{LAB}.ipynb")
        lines = [f"c.Exchange.root = {str(self.root)!r}", "c.ExchangeCollect.check_owner = False", *settings]
        with open(course.parent / "nbgrader_config.py", "a") as config:
            config.write("\n".join(["", *lines, ""]))

    def api(self, student: str = "*", **folders: str) -> NbGraderAPI:
        """nbgrader's own interface, as this student has it."""
        config = nbgrader_settings(self.course)
        config.CourseDirectory.merge({"student_id": student, "assignment_id": LAB, **folders})
        config.Exchange.assignment_dir = str(self.homes / student)
        config.Exchange.cache = str(self.homes / student / "cache")
        return NbGraderAPI(config=config)

    def submit(self, student: str, notebook=None, **files: str) -> Path:
        """Hand in through stock nbgrader; the folder in ``inbound``."""
        work = self.homes / student / LAB
        work.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook or released_notebook(), work / f"{LAB}.ipynb")
        for name, text in files.items():
            (work / name).write_text(text)
        before = set(os.listdir(self.inbound))
        self._start(student, "Submit")
        (name,) = set(os.listdir(self.inbound)) - before
        return self.inbound / name

    def listed(self, student: str) -> list[dict]:
        """What the student's Assignment List shows of the submissions, the oldest first."""
        api = self.api(student)
        lister = api.exchange.List(coursedir=api.coursedir, authenticator=api.authenticator, parent=api, cached=True)
        (lab,) = lister.start() or [{"submissions": []}]
        return lab["submissions"]

    def fetched(self, student: str) -> str | None:
        """The newest feedback page that stock nbgrader fetches for the student."""
        self._start(student, "FetchFeedback")
        pages = sorted((self.homes / student / LAB / "feedback").glob("*/*.html"))
        return pages[-1].read_text() if pages else None

    def collect(self, into: Path) -> None:
        """Stock ``nbgrader collect --update``, into another folder."""
        api = self.api("*", submitted_directory=str(into))
        assert api.collect(LAB, update=True)["success"]

    def _start(self, student: str, step: str) -> None:
        api = self.api(student)
        getattr(api.exchange, step)(coursedir=api.coursedir, authenticator=api.authenticator, parent=api).start()

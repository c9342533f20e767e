"""Our pages, policies and grader for nbgrader's formgrader; ``nbgrader_config.py`` installs them.

nbgrader has no setting for the class that renders a submission, nor for its handlers. `guard_formgrader` therefore
changes nbgrader's handler classes in place, when the course's configuration is read. Every server that shows this
course's submissions has read it, whatever else is installed or enabled there.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from datetime import datetime
from functools import partial, wraps
from pathlib import Path
from typing import Any

from nbgrader.api import Assignment, Gradebook, SubmittedAssignment
from nbgrader.apps.api import NbGraderAPI
from nbgrader.server_extensions.formgrader import apihandlers, handlers
from nbgrader.server_extensions.formgrader.base import BaseHandler, check_notebook_dir, check_xsrf
from sqlalchemy import event, select
from sqlalchemy.orm import ORMExecuteState, with_loader_criteria
from tornado import web

from autograde.gradebook.autograded import submitted_at
from autograde.reports.reading.feedback import page_or_scores
from autograde.reports.reading.inert_html import formgrader_policy, new_nonce
from autograde.rubric.schema import RubricError, find_rubric
from autograde.submission.student_id import is_student_id

__all__ = ["guard_formgrader"]

NO_RUBRIC = (
    "{lab!r} has no rubric, so `lab grade` cannot grade it in the sandbox, and this button does not run students' code "
    "outside of it. Where you trust the submissions, run `nbgrader autograde` in a terminal."
)
# Of addresses: nbgrader's templates do not escape what they show of them.
_NAME = re.compile(r"""[^<>"'&\\\x00-\x1f]*""")


def guard_formgrader() -> None:
    """Change nbgrader's handlers; a second call changes nothing."""
    if getattr(BaseHandler, "guarded", False):
        return
    BaseHandler.guarded = True
    BaseHandler.prepare = _prepare(BaseHandler.prepare)
    BaseHandler.finish = _finish(BaseHandler.finish)
    BaseHandler.render = _render(BaseHandler.render)
    handlers.SubmissionHandler.exporter = property(_Recorded)
    handlers.SubmissionHandler.get = _submission(handlers.SubmissionHandler.get)
    handlers.SubmissionFilesHandler.set_extra_headers = _file_headers
    apihandlers.AutogradeHandler.post = _autograde
    NbGraderAPI.get_submitted_timestamp = _submitted_timestamp
    Gradebook.submission_dicts = _of_one_lab(Gradebook.submission_dicts)
    Gradebook.notebook_submission_dicts = _of_one_lab(Gradebook.notebook_submission_dicts)


def _prepare(stock: Any) -> Any:
    async def prepare(self: BaseHandler) -> None:
        self.nonce = new_nonce()
        names = [*self.path_args, *self.path_kwargs.values()]
        if not isinstance(self, handlers.SubmissionFilesHandler) and not all(map(_NAME.fullmatch, filter(None, names))):
            raise web.HTTPError(404)
        if (waits := stock(self)) is not None:
            await waits

    return prepare


def _finish(stock: Any) -> Any:
    def finish(self: BaseHandler, chunk: Any = None) -> Any:
        if not self._headers_written:
            # Added to the server's own, which says who may frame the page. Added here because an error page resets headers.
            self.add_header("Content-Security-Policy", formgrader_policy(getattr(self, "nonce", "") or new_nonce()))
        return stock(self, chunk)

    return finish


def _render(stock: Any) -> Any:
    def render(self: BaseHandler, name: str, **values: Any) -> str:
        return stock(self, name, **values).replace("<script", f'<script nonce="{self.nonce}"')

    return render


class _Recorded:
    """Replaces the exporter: records the request. The page is made after nbgrader's handler has returned."""

    def __init__(self, handler: BaseHandler) -> None:
        self.handler = handler

    def from_filename(self, filename: str, resources: dict[str, Any]) -> tuple[str, dict]:
        self.handler.wanted = filename, resources
        return "", resources


def _submission(stock: Any) -> Any:
    async def get(self: handlers.SubmissionHandler, submission_id: str) -> None:
        self.wanted = None
        stock(self, submission_id)
        if self.wanted is None:
            return
        filename, resources = self.wanted
        names = {"notebook": "notebook_id", "assignment": "assignment_id", "student": "student"}
        resources["nbgrader"] = {name: resources[key] for name, key in names.items()} | {"db_url": self.db_url}
        resources["nonce"] = self.nonce
        make = partial(page_or_scores, "course_formgrade", filename, resources, ["nbgrader.preprocessors.GetGrades"])
        page, problem = await asyncio.get_running_loop().run_in_executor(None, make)
        if problem:
            self.log.warning("formgrader, %s: the notebook cannot be shown (%s)", resources["student"], problem)
        self.write(page)

    return get


def _of_one_lab(stock: Any) -> Any:
    """Limit nbgrader's query to one lab: each part of it sums the grades of all labs, and one lab's are shown."""

    @wraps(stock)
    def dicts(self: Gradebook, *names: str) -> list[dict[str, Any]]:
        lab = select(Assignment.id).where(Assignment.name == names[-1]).scalar_subquery()
        of_lab = with_loader_criteria(SubmittedAssignment, SubmittedAssignment.assignment_id == lab)

        def limit(execution: ORMExecuteState) -> None:
            execution.statement = execution.statement.options(of_lab)

        session = self.db()
        event.listen(session, "do_orm_execute", limit)
        try:
            return stock(self, *names)
        finally:
            event.remove(session, "do_orm_execute", limit)

    return dicts


def _submitted_timestamp(self: NbGraderAPI, assignment_id: str, student_id: str) -> datetime | None:
    """As `lab grade` reads it; nbgrader's own raises for a text that is no time, and the class is not listed."""
    folder = self.coursedir.format_path(self.coursedir.submitted_directory, student_id, assignment_id)
    return submitted_at(Path(folder))


def _file_headers(self: web.StaticFileHandler, path: str) -> None:
    """A student's file is not a page of this site, whatever its name is."""
    self.set_header("Content-Security-Policy", "sandbox; default-src 'none'")
    self.set_header("X-Content-Type-Options", "nosniff")


@web.authenticated
@check_xsrf
@check_notebook_dir
async def _autograde(self: apihandlers.AutogradeHandler, assignment_id: str, student_id: str) -> None:
    """What the button does: ``lab grade`` of that submission, in the sandbox, in a process of its own."""
    try:
        lab = find_rubric(assignment_id).lab
    except RubricError:
        lab = ""
    if lab != assignment_id or not is_student_id(student_id):
        refusal = NO_RUBRIC.format(lab=assignment_id) if lab != assignment_id else "That is not a student's id."
        self.write(json.dumps({"success": False, "log": refusal}))
        return
    root = Path(self.coursedir.root)
    course = (root / self.coursedir.submitted_directory).resolve().parent
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "autograde", "grade", lab, "--student", student_id, "--force", "--jobs", "1"),
        *("--course", str(course)),
        cwd=root,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    log = (await process.communicate())[0].decode(errors="replace")
    self.write(json.dumps({"success": process.returncode == 0, "log": log}))

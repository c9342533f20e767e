"""Penalties for late submissions: nbgrader's own step, with the plugin that the course's configuration names.

Stock ``nbgrader autograde`` ends with the preprocessor `AssignLatePenalties`. It resets the penalty, asks the plugin
where the submission is late, and clamps the answer to 0...score. The same preprocessor runs here, made from the same
configuration, so that ``lab grade`` and ``nbgrader autograde`` cannot differ: a subclass counts, another plugin counts,
and a course that takes the step out of ``Autograde.autograde_preprocessors`` has no penalties. Before it the student's
extensions and grace days are written where nbgrader looks for them (`autograde.gradebook.extensions`).
"""

from __future__ import annotations

from nbformat.v4 import new_notebook
from nbgrader.api import Gradebook
from nbgrader.converters import Autograde
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import AssignLatePenalties
from traitlets import TraitError
from traitlets.config import Config
from traitlets.utils.importstring import import_item

from autograde.gradebook.extensions import ExtensionError, Extensions
from course_lib.runs.run_evidence.quoting import quote

__all__ = ["LatePenalties", "LatePenaltyError"]


class LatePenaltyError(Exception):
    """A penalty could not be computed. The message is one line with the plugin, the student and the error."""


class LatePenalties:
    """nbgrader's step, ready for any number of submissions.

    Parameters
    ----------
    config : Config
        nbgrader's configuration (see `autograde.gradebook.scores.nbgrader_settings`).

    Raises `LatePenaltyError`: the configuration names a plugin that cannot be loaded, or the extensions cannot be read.
    """

    def __init__(self, config: Config):
        self._db_url = CourseDirectory(config=config).db_url
        try:
            self._extensions = Extensions(config)
        except ExtensionError as error:
            raise LatePenaltyError(str(error)) from None
        converter = Autograde(config=config)
        try:
            steps = [import_item(step) if isinstance(step, str) else step for step in converter.autograde_preprocessors]
            self._steps = [
                step(parent=converter)
                for step in steps
                if isinstance(step, type) and issubclass(step, AssignLatePenalties)
            ]
            for step in self._steps:
                step.init_plugin()  # now, before anybody is graded
        except (ImportError, AttributeError, TraitError, TypeError) as error:
            raise LatePenaltyError(
                f"the plugin for late submissions cannot be loaded ({quote(str(error), 200)}); "
                "see c.AssignLatePenalties.plugin_class and c.LateSubmissionPlugin in nbgrader_config.py"
            ) from None

    def assign(self, lab: str, student: str) -> None:
        """Write one submission's penalty, or none, into the gradebook; and those of the student's extended submissions.

        One submission may change how many grace days are left for the others. The submission and its scores must have
        been committed: nbgrader's step opens the database itself.

        Raises `LatePenaltyError`: the plugin failed, or the extensions cannot be read. The penalty is unchanged.
        """
        try:
            with Gradebook(self._db_url) as gradebook:
                labs = {lab, *self._extensions.settle(gradebook, student)}
                graded = {
                    each.assignment.name: [notebook.name for notebook in each.notebooks]
                    for each in gradebook.student_submissions(student)
                    if each.assignment.name in labs
                }
        except ExtensionError as error:
            raise LatePenaltyError(f"{student}: {error}") from None
        for each, notebooks in graded.items():
            for notebook in notebooks:
                self._assign(notebook, each, student)

    def _assign(self, notebook: str, lab: str, student: str) -> None:
        resources = {"nbgrader": {"notebook": notebook, "assignment": lab, "student": student, "db_url": self._db_url}}
        for step in self._steps:
            try:
                step.preprocess(new_notebook(), resources)
            except Exception as error:
                what = quote(f"{type(error).__name__}: {error}", 200)
                raise LatePenaltyError(f"{student}: {type(step.plugin_inst).__name__} failed ({what})") from None

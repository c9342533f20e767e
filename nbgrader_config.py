"""nbgrader's settings for this course: run `nbgrader ...` in this folder.

Sources are in labs/; everything that nbgrader makes goes to course/, which git ignores.
"""

import glob
import os
import shutil
import sys
from pathlib import Path

from nbgrader import preprocessors as stock

from autograde.commands.nbgrader_hooks import AddSetUp, KeepVerdict
from autograde.reports.reading.feedback import FeedbackPages, MarkUnread, ShowReasons
from autograde.reports.reading.formgrader import guard_formgrader

c = get_config()  # noqa: F821  (nbgrader provides it)
root = Path(__file__).resolve().parent

c.CourseDirectory.course_id = "distributed-training"
c.CourseDirectory.root = str(root)
c.CourseDirectory.source_directory = "labs"
c.CourseDirectory.source_with_tests_directory = "course/source_with_tests"
c.CourseDirectory.release_directory = "course/release"
c.CourseDirectory.submitted_directory = "course/submitted"
c.CourseDirectory.autograded_directory = "course/autograded"
c.CourseDirectory.feedback_directory = "course/feedback"
c.CourseDirectory.solution_directory = "course/solution"
c.CourseDirectory.db_url = f"sqlite:///{root / 'course' / 'gradebook.db'}"

# A run folder that an instructor left beside a source notebook must not reach the release, nor overwrite the
# students' own in `nbgrader autograde`, which copies the sources over each submission. Absolute, spelled as nbgrader
# walks its sources: the same names under submitted/ stay.
sources = os.path.join(glob.escape(str(root)), "labs", ".", "*")
c.CourseDirectory.ignore.extend([os.path.join(sources, name) for name in ("run", "runs", "assessment.out")])


def add_note_for_assistants(assignment: str, **others: object) -> None:
    """Put into a release what `lab start` gives too: what an AI assistant may do for a student."""
    shutil.copy(root / "labs" / "assistants.md", root / c.CourseDirectory.release_directory / assignment / "AGENTS.md")


c.GenerateAssignment.post_convert_hook = add_note_for_assistants

# nbgrader makes its database by running `alembic`, found on PATH: an environment that is not activated lacks it there.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])

# SQLite makes the file, not the folder.
(root / "course").mkdir(exist_ok=True)

# The labs train. nbgrader's own limit of 30 s a cell ends a training cell with an error, which is worth 0 points.
c.ExecutePreprocessor.timeout = 1800
c.Execute.timeout = 1800

# What a student opens sets up a machine that lacks the course.
c.GenerateAssignment.preprocessors.append(AddSetUp)

# A training cell prints a line per epoch, and a progress bar many; a feedback page needs neither whole.
c.LimitOutput.max_lines = 500
c.LimitOutput.max_traceback = 100

# nbgrader's own steps, and ours: the rubric's cells are scored by verdicts, not by what the cells printed.
c.Autograde.autograde_preprocessors = [
    stock.Execute,
    stock.IgnorePattern,
    "nbconvert.preprocessors.ClearMetadataPreprocessor",
    stock.LimitOutput,
    stock.SaveAutoGrades,
    KeepVerdict,
    stock.AssignLatePenalties,
    stock.CheckCellMetadata,
]

# Feedback pages and formgrader show what students wrote and what their code printed as text and pictures, never as
# markup; each page is made in a process with bounded time and memory.
c.GenerateFeedback.exporter_class = FeedbackPages
c.GenerateFeedback.preprocessors = [stock.GetGrades, ShowReasons, MarkUnread]
guard_formgrader()

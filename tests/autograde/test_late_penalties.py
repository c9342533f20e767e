"""Penalties for lateness: those of stock ``nbgrader autograde``, with none of our steps in it, are the oracle."""

import csv
import shutil

import pytest
from click.testing import CliRunner
from fake_class import Page
from fake_runs import (
    AUTOMATIC,
    BY_HAND,
    LAB,
    REPOSITORY,
    RUN,
    hand_in_to,
    open_book,
    released_notebook,
    source_notebook,
)
from nbgrader.apps.api import NbGraderAPI
from nbgrader.converters import Autograde
from nbgrader.coursedir import CourseDirectory

from autograde.batch.grade_lab import grade_lab
from autograde.commands.cli import report
from autograde.commands.export import export
from autograde.commands.extend import extend
from autograde.gradebook.autograded import submitted_at
from autograde.gradebook.late_penalties import LatePenalties
from autograde.gradebook.scores import CourseError, nbgrader_settings, open_gradebook, record_verdict
from autograde.rubric.verdict import CriterionResult, Verdict
from autograde.submission.notebook_repair import release_of

MOST = int(AUTOMATIC + BY_HAND)
DUE = "2026-11-20 22:00:00"
LATENESS = {
    "early": "2026-11-19 22:00:00 UTC",
    "exact": "2026-11-20 22:00:00 UTC",
    "second": "2026-11-20 22:00:01 UTC",
    "half": "2026-11-20 23:30:00 CET",
    "days": "2026-11-22 22:00:00 UTC",
    "unknown": None,
    "extended": "2026-11-22 22:00:00 UTC",  # by three days, before it is handed in
    "short": "2026-11-22 22:00:00 UTC",  # extended by a day and a half, after it is graded
    "hour": "2026-11-20 23:00:00 UTC",  # extended by half an hour
}
GRANTED = {"extended": {"days": 3}, "short": {"hours": 36}, "hour": {"minutes": 30}}
PLUGIN = """
from nbgrader.plugins import BasePlugin

class PerHour(BasePlugin):
    def late_submission_penalty(self, student_id, score, total_seconds_late):
        # A part of the score, more than there is, less than nothing, none.
        odd = {"second": -3, "half": None}
        return odd.get(student_id, 0.1 * score + 5 * total_seconds_late / 3600)

c.AssignLatePenalties.plugin_class = PerHour
"""
METHODS = {
    "zero": "c.LateSubmissionPlugin.penalty_method = 'zero'\n",
    "own": PLUGIN,
    "subclass": """
class Half(stock.AssignLatePenalties):
    def _check_late_penalty(self, notebook, penalty):
        return super()._check_late_penalty(notebook, penalty) / 2

c.LateSubmissionPlugin.penalty_method = "zero"
c.Autograde.autograde_preprocessors = [stock.SaveAutoGrades, KeepVerdict, Half]
""",
}


def penalties(course):
    with open_book(course) as gradebook:
        return {
            submission.student.id: (submission.score, submission.notebooks[0].late_submission_penalty)
            for submission in gradebook.assignment_submissions(LAB)
        }


def by_stock(course, tmp_path, steps=None):
    """The same submissions with the same scores, given by hand, under nbgrader's own extensions and steps alone."""
    root = tmp_path / "stock"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    for name in ("nbgrader_config.py", "labs", "course"):
        (shutil.copytree if (course.parent / name).is_dir() else shutil.copy)(course.parent / name, root / name)
    config = nbgrader_settings(root / "course")
    default = [step for step in Autograde().autograde_preprocessors if step.__name__ != "Execute"]
    config.Autograde.autograde_preprocessors = [
        next((own for own in steps or () if issubclass(own, step)), step) for step in default
    ]
    with open_book(root / "course") as gradebook:
        for submission in gradebook.assignment_submissions(LAB):
            for grade in submission.notebooks[0].grades:
                grade.manual_score = grade.score
            submission.notebooks[0].late_submission_penalty = 7.0  # to be reset
            submission.extension = None
        gradebook.db.commit()
        for student, time in GRANTED.items():
            gradebook.grant_extension(LAB, student, **time)
    converter = Autograde(coursedir=CourseDirectory(config=config, assignment_id=LAB), config=config)
    converter.force = True
    converter.start()
    return penalties(root / "course")


def configure(course, method):
    path = course.parent / "nbgrader_config.py"
    path.write_text((REPOSITORY / "nbgrader_config.py").read_text() + METHODS[method])


def due(course, date):
    with open_book(course) as gradebook:
        gradebook.update_or_create_assignment(LAB, duedate=date)


@pytest.mark.parametrize("method", METHODS)
def test_penalties_are_those_of_stock_nbgrader(course, tmp_path, method):
    for student, stamp in LATENESS.items():
        folder = hand_in_to(course, student, release_of(source_notebook()), None)
        if stamp:
            (folder / "timestamp.txt").write_text(stamp)
    configure(course, method)
    config = nbgrader_settings(course)
    steps = config.Autograde.autograde_preprocessors[2:] if method == "subclass" else None
    due(course, DUE)
    lab_extend(course, "extended", "1", "--days", "3")

    def grade(points):
        part = CriterionResult("run-evidence", "final", "final_accuracy", "Final", True, points, 20, "reached")
        with open_gradebook(config) as gradebook:
            steps_of_ours = LatePenalties(config)
            for student in LATENESS:
                verdict = Verdict(LAB, "Tiny", student, "2026-11-23T10:00:00+00:00", (part,), (), unanswered=("q-why",))
                when = submitted_at(course / "submitted" / student / LAB)
                record_verdict(gradebook, verdict, when, steps_of_ours)
        return {student: penalty for student, (_, penalty) in penalties(course).items()}

    def grade_and_compare(points):
        found = grade(points)
        assert penalties(course) == by_stock(course, tmp_path, steps)
        return found

    grade(20)
    with open_book(course) as gradebook:
        gradebook.grant_extension(LAB, "hour", minutes=30)
    lab_extend(course, "short", "1", "--days", "1.5")
    assert penalties(course)["short"][1] == {"zero": 20, "own": 20, "subclass": 10}[method]  # at once
    first = grade_and_compare(20)
    if method == "own":
        assert first == dict.fromkeys(LATENESS) | {"second": 0, "days": 20, "short": 20, "hour": 4.5}
    else:
        late = {"second", "half", "days", "short", "hour"}
        assert first == dict.fromkeys(LATENESS) | dict.fromkeys(late, 20 if method == "zero" else 10)
    # Another score, by the grader and by hand; then another due date: nobody is late, everybody is.
    with open_book(course) as gradebook:
        gradebook.find_grade("q-why", LAB, LAB, "days").manual_score = 2
        gradebook.db.commit()
    assert grade(17)["days"] == {"zero": 19, "own": 19, "subclass": 9.5}[method]
    due(course, "2026-12-24 22:00:00")
    assert set(grade(17).values()) == {None}
    due(course, "2026-11-01 22:00:00")
    found = grade_and_compare(17)
    in_time = {student for student in found if found[student] is None}
    assert in_time == ({"unknown", "half"} if method == "own" else {"unknown"})


@pytest.fixture
def late_class(lab_course, hand_in):
    """Two days late: bob; in time: ada, who had three days more. Both have a run's points and no others."""
    for student, day in (("ada", 20), ("bob", 22)):
        folder = hand_in(student, released_notebook())
        (folder / "timestamp.txt").write_text(f"2026-11-{day} 22:00:00 UTC")
    due(lab_course, DUE)
    configure(lab_course, "zero")
    lab_extend(lab_course, "ada", "1", "--days", "3")
    return lab_course


def test_a_penalty_reaches_gradebook_report_feedback_and_exports(late_class, graded_here, tmp_path):
    grade_lab("1", late_class)
    assert penalties(late_class) == {"ada": (RUN, None), "bob": (RUN, RUN)}

    config = nbgrader_settings(late_class)
    assert NbGraderAPI(config=config).generate_feedback(LAB)["success"]
    pages = {name: (late_class / "feedback" / name / LAB / f"{LAB}.html").read_text() for name in ("ada", "bob")}
    assert "<td>Late submission penalty</td><td></td><td>-10</td>" in pages["bob"] and "Late submission" not in pages["ada"]
    extended = "deadline was extended by 3 days, until 2026-11-23 22:00 UTC"
    assert extended in pages["ada"] and "extended" not in pages["bob"]

    exported = export_scores(late_class, "nbgrader")
    assert [(row["student_id"], row["late_submission_penalty"], row["score"]) for row in exported] == [
        ("ada", "0.0", "10.0"),
        ("bob", "10.0", "0.0"),
    ]
    canvas = tmp_path / "canvas.csv"
    canvas.write_text(f"Student,ID,SIS Login ID,Section,Lab 1 (7)\nPoints Possible,,,,{MOST}\nA,1,ada,S,\nB,2,bob,S,\n")
    filled = export_scores(late_class, "canvas", "--template", str(canvas))
    assert [row["Lab 1 (7)"] for row in filled] == [str(MOST), "10.00", "0.00"]
    moodle = tmp_path / "moodle.csv"
    moodle.write_text(
        "Identifier,Full name,Username,Grade,Maximum Grade,Grade can be changed,Last modified (grade),"
        f"Feedback comments\nParticipant 1,A,ada,,{MOST},Yes,-,\nParticipant 2,B,bob,,{MOST},Yes,-,\n"
    )
    filled = export_scores(late_class, "moodle", "--template", str(moodle), "--feedback")
    assert [row["Grade"] for row in filled] == ["10.00", "0.00"]
    assert "late by 2 days: a penalty of 10 points" in filled[1]["Feedback comments"]
    assert "late" not in filled[0]["Feedback comments"]
    assert [extended in row["Feedback comments"] for row in filled] == [True, False]

    assert CliRunner().invoke(report, ["1", "--course", str(late_class)]).exit_code == 0
    page = Page(late_class / "reports" / f"{LAB}.html").text
    assert "1 late, 1 with a penalty, 1 with an extension" in page and "2 days −10" in page and "– 3 days" in page
    own = Page(late_class / "reports" / LAB / "bob.html").text
    assert "Late 2 days Penalty 10 points" in own
    own = Page(late_class / "reports" / LAB / "ada.html").text
    assert "Penalty" not in own and "Extension 3 days until 2026-11-23 22:00 UTC" in own


def test_hand_grading_that_came_between_is_in_the_penalty_and_stays_done(late_class, graded_here):
    grade_lab("1", late_class)
    with open_book(late_class) as gradebook:
        for student in ("ada", "bob"):
            grade = gradebook.find_grade("q-knee", LAB, LAB, student)
            grade.manual_score, grade.needs_manual_grade = 4, False
        gradebook.db.commit()
    graded_here.clear()
    grade_lab("1", late_class)
    assert penalties(late_class) == {"ada": (RUN + 4, None), "bob": (RUN + 4, RUN + 4)} and graded_here == []
    with open_book(late_class) as gradebook:
        assert not gradebook.find_grade("q-knee", LAB, LAB, "bob").needs_manual_grade
    # As nbgrader has it: what was handed in anew is to be looked at again.
    grade_lab("1", late_class, ["bob"], force=True)
    with open_book(late_class) as gradebook:
        assert gradebook.find_grade("q-knee", LAB, LAB, "bob").needs_manual_grade


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("c.AssignLatePenalties.plugin_class = 'no_such_module.Plugin'", "cannot be loaded .*plugin_class"),
        ("c.LateSubmissionPlugin.penalty_method = 'half'", "cannot be loaded .*LateSubmissionPlugin"),
    ],
)
def test_a_plugin_that_cannot_be_loaded_is_told_before_anybody_is_graded(late_class, graded_here, settings, expected):
    path = late_class.parent / "nbgrader_config.py"
    path.write_text((REPOSITORY / "nbgrader_config.py").read_text() + settings)
    with pytest.raises(CourseError, match=expected):
        grade_lab("1", late_class)
    assert graded_here == []


def test_a_plugin_that_fails_loses_no_score(late_class, graded_here):
    path = late_class.parent / "nbgrader_config.py"
    path.write_text(path.read_text() + PLUGIN.replace("odd = {", "odd = {'bob': 1 / 0 if student_id == 'bob' else 0, "))
    with pytest.raises(CourseError, match=r"1 of 2 late penalties .* bob: PerHour failed .*ZeroDivisionError"):
        grade_lab("1", late_class)
    assert {student: score for student, (score, _) in penalties(late_class).items()} == {"ada": RUN, "bob": RUN}


def export_scores(course, target, *options):
    path = course / f"{target}.csv"
    done = CliRunner().invoke(export, ["1", "--to", target, "--course", str(course), "-o", str(path), *options])
    assert done.exit_code == 0 and "with an extension: 'ada: 3 days'" in done.output, done.output
    return list(csv.DictReader(path.open()))


def lab_extend(course, *arguments):
    done = CliRunner().invoke(extend, [*arguments, "--course", str(course)])
    assert done.exit_code == 0, done.output
    return done.output

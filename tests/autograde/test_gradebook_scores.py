"""Scores in nbgrader's gradebook, read back through nbgrader's own API."""

import json
import warnings

import nbformat
import pytest
from fake_runs import LAB, source_notebook
from nbgrader.api import Gradebook
from nbgrader.apps import NbGraderApp

from autograde.batch import grade_lab, is_student_id
from autograde.gradebook import CourseError
from autograde.verdict import Verdict, load_verdict, verdict_path


def grades(course):
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}", "distributed-training") as gradebook:
        return {
            (submission.student.id, grade.name): (grade.auto_score, grade.manual_score, bool(grade.needs_manual_grade))
            for submission in gradebook.assignment_submissions(LAB)
            for grade in submission.notebooks[0].grades
        }


def test_scores_reach_the_gradebook_and_grading_twice_changes_nothing(course, submit, make_run):
    submit("ada", make_run())
    submit("bob", make_run([0.5] * 8, stopped_early=False))
    submit("eve")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        verdicts = grade_lab("1", course)
    assert [(v.student, v.score) for v in verdicts] == [("ada", 20), ("bob", 15), ("eve", 0)]
    first = grades(course)
    assert {key[0]: value for key, value in first.items() if key[1] == "run-evidence"} == {
        "ada": (20.0, None, False),
        "bob": (15.0, None, False),
        "eve": (0.0, None, False),
    }
    # The other cells wait for nbgrader and for a person.
    assert {value for key, value in first.items() if key[1] != "run-evidence"} == {(None, None, True)}
    grade_lab(LAB, course)
    assert grades(course) == first


def test_nbgrader_s_own_export_shows_the_scores(course, submit, make_run, monkeypatch, tmp_path):
    submit("ada", make_run())
    submit("bob", make_run([0.5] * 8, stopped_early=False))
    grade_lab("1", course)
    monkeypatch.chdir(course.parent)
    NbGraderApp.clear_instance()
    NbGraderApp.launch_instance(["export", "--to", str(tmp_path / "grades.csv")])
    lines = [line.split(",") for line in (tmp_path / "grades.csv").read_text().splitlines()]
    column = {name: index for index, name in enumerate(lines[0])}
    assert {(line[column["student_id"]], line[column["score"]], line[column["max_score"]]) for line in lines[1:]} == {
        ("ada", "20.0", "28.0"),
        ("bob", "15.0", "28.0"),
    }


def test_a_person_s_score_stays(course, submit, make_run):
    submit("bob", make_run([0.5] * 8, stopped_early=False))
    grade_lab("1", course)
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}", "distributed-training") as gradebook:
        gradebook.find_grade("run-evidence", LAB, LAB, "bob").manual_score = 18
        gradebook.find_grade("ex-double", LAB, LAB, "bob").auto_score = 4
        gradebook.db.commit()
    grade_lab("1", course)
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}", "distributed-training") as gradebook:
        grade = gradebook.find_grade("run-evidence", LAB, LAB, "bob")
        assert (grade.auto_score, grade.manual_score, grade.score) == (15, 18, 18)
        assert gradebook.find_grade("ex-double", LAB, LAB, "bob").auto_score == 4


def test_one_bad_submission_stops_nobody(course, submit, make_run):
    submit("ada", make_run())
    folder = submit("bad", make_run())
    (folder / "run" / "learning_curve.csv").write_bytes(b"\xff" * 100)
    (course / "submitted" / "file").write_text("not a student")
    (course / "submitted" / "loop").symlink_to("loop")
    submit("zoe", make_run())
    scores = {verdict.student: verdict.score for verdict in grade_lab("1", course)}
    assert scores == {"ada": 20, "bad": 3, "zoe": 20}


def test_a_score_that_cannot_be_written_is_told_and_the_others_are_written(course, submit, make_run, monkeypatch):
    for student in ("ada", "bob", "zoe"):
        submit(student, make_run())
    save = Verdict.save
    monkeypatch.setattr(Verdict, "save", lambda self, course: 1 / 0 if self.student == "bob" else save(self, course))
    with pytest.raises(CourseError, match=r"1 of 3 scores could not be written: bob \(ZeroDivisionError\)"):
        grade_lab("1", course)
    assert {student for student, _ in grades(course)} == {"ada", "zoe"}


@pytest.mark.parametrize(
    ("name", "good"),
    [
        ("ada", True),
        ("a.b-c_d@uni.edu", True),
        ("9", True),
        (".hidden", False),
        ("..", False),
        ("-rf", False),
        ("@sum", False),
        ("a b", False),
        ("a/b", False),
        ("<b>", False),
        ("é", False),
        ("a\n", False),
        ("", False),
        ("x" * 101, False),
    ],
)
def test_student_ids(name, good):
    assert is_student_id(name) is good


def test_names_that_are_no_student_ids_are_skipped_and_named(course, submit, make_run):
    submit("ada", make_run())
    submit("<script>alert(1)<", make_run())
    submit("=cmd()", make_run())
    skipped = []
    assert [verdict.student for verdict in grade_lab("1", course, skipped=skipped.append)] == ["ada"]
    assert len(skipped) == 2 and all("not a student id" in line for line in skipped)


def test_chosen_students_only(course, submit, make_run):
    for student in ("ada", "bob"):
        submit(student, make_run())
    assert [verdict.student for verdict in grade_lab("1", course, ["bob"])] == ["bob"]
    with pytest.raises(CourseError, match="no submission of 01_single_gpu by 'nobody'"):
        grade_lab("1", course, ["bob", "nobody"])


def test_a_lab_without_submissions_or_notebook_is_one_clear_line(course, submit, make_run):
    with pytest.raises(CourseError, match="collect them first"):
        grade_lab("1", course)
    submit("ada", make_run(), lab="02_ddp")
    with pytest.raises(CourseError, match=r"no source notebook .*02_ddp\.ipynb"):
        grade_lab("2", course)
    with pytest.raises(CourseError, match="cannot be read"):
        grade_lab("1", course / "nowhere")


@pytest.mark.parametrize(("points", "cell", "expected"), [(10, True, "worth 10 points"), (20, False, "no grade cell")])
def test_notebook_and_rubric_must_agree(fresh_course, submit, make_run, points, cell, expected):
    course, notebook = fresh_course, source_notebook(points)
    if not cell:
        notebook.cells.pop()
    nbformat.write(notebook, course.parent / "labs" / LAB / f"{LAB}.ipynb")
    submit("ada", make_run())
    with pytest.raises(CourseError, match=expected):
        grade_lab("1", course)


def test_a_verdict_is_saved_whole_and_read_back(course, submit, make_run):
    submit("ada", make_run())
    (verdict,) = grade_lab("1", course)
    path = verdict_path(course, "ada", LAB)
    assert load_verdict(path) == Verdict.from_json(json.loads(json.dumps(verdict.to_json())))
    assert [p.name for p in path.parent.iterdir()] == ["verdict.json"]
    path.write_text("{}")
    with pytest.raises(ValueError, match="is no verdict"):
        load_verdict(path)

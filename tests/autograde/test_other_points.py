"""Other points in a rubric are counted from the verdicts' parts; a real grading with the new rubric is the oracle."""

import json
from dataclasses import replace

import nbformat
import pytest
from fake_class import RUN, UPDATE, verdict
from fake_runs import LAB, hand_in_to, open_book, solved_notebook
from nbgrader.apps.api import NbGraderAPI

from autograde.batch.grade_lab import grade_lab
from autograde.gradebook.scores import nbgrader_settings
from autograde.grading.other_points import verdict_today
from autograde.rubric.schema import RUBRICS, find_rubric
from autograde.rubric.verdict import load_verdict, verdict_path
from autograde.sandbox.bubblewrap import missing_sandbox
from course_lib.runs.run_evidence.course import course_criteria

needs_sandbox = pytest.mark.skipif(missing_sandbox() is not None, reason="no sandbox on this machine")

WRONG_STEP = "def train_step(model, images, labels, optimizer, loss_fn):\n    return 0.0, 0"
OTHER_PARTS = [
    ("update = 3, repeat = 2", "update = 1, repeat = 4"),
    ('id = "monotone"\npoints = 1', 'id = "monotone"\npoints = 2'),
    ('id = "run-record"\npoints = 2', 'id = "run-record"\npoints = 1'),
]
LOOK_AGAIN = {"check-evaluate"}  # of the cells that the person scored, the one whose automatic score changes
OTHER_TOTAL = [("no-graph = 1", "no-graph = 4")]


def write_rubric(folder, *edits):
    """Lab 01's rubric with its run's criteria written out, and with some texts replaced."""
    text = (RUBRICS / f"{LAB}.toml").read_text()
    for criterion in course_criteria(LAB):
        fields = {"id": "", "points": 0} | criterion
        text += "\n[[criterion]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in fields.items())
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    folder.mkdir(exist_ok=True)
    (folder / f"{LAB}.toml").write_text(text)
    return folder


def state(course):
    """Each student's parts with their points, and the gradebook's scores, maxima and comments."""
    verdicts = [load_verdict(path) for path in sorted((course / "autograded_evidence").glob(f"*/{LAB}/verdict.json"))]
    parts = {each.student: (each.score, each.max_score, each.results, each.digests) for each in verdicts}
    with open_book(course) as gradebook:
        notebooks = {each.student.id: each.notebooks[0] for each in gradebook.assignment_submissions(LAB)}
        grades = {
            (student, grade.name): (grade.auto_score, grade.manual_score, grade.max_score)
            for student, notebook in notebooks.items()
            for grade in notebook.grades
        }
        comments = {
            (student, each.name): (each.auto_comment, each.manual_comment)
            for student, notebook in notebooks.items()
            for each in notebook.comments
        }
        totals = {student: notebook.score for student, notebook in notebooks.items()}
    paths = (course / "autograded").glob(f"*/{LAB}/{LAB}.ipynb")
    return parts, grades, comments, totals, {path.parent.parent.name: path.read_bytes() for path in paths}


@needs_sandbox
def test_other_points_are_those_of_a_real_grading_and_nothing_is_executed(lab_course, graded_here, tmp_path):
    hand_in_to(lab_course, "ada", solved_notebook({"q-knee": "Near 200."}))
    hand_in_to(lab_course, "bob", solved_notebook({"ex-train-step": WRONG_STEP}), None)
    hand_in_to(lab_course, "eve", False)
    rubrics = write_rubric(tmp_path / "rubrics")
    grade_lab("1", lab_course, rubrics=rubrics)
    with open_book(lab_course) as gradebook:  # a person's scores: of an answer, and instead of ours
        for name, score in (("q-knee", 4), ("run-evidence", 7), ("check-evaluate", 5), ("check-train-step", 2)):
            grade = gradebook.find_grade(name, LAB, LAB, "ada")
            grade.manual_score, grade.needs_manual_grade = score, False
        gradebook.db.commit()
    before, graded, lines = state(lab_course), list(graded_here), []
    write_rubric(rubrics, *OTHER_PARTS, *OTHER_TOTAL)
    path = lab_course.parent / "labs" / LAB / f"{LAB}.ipynb"
    source = nbformat.read(path, as_version=4)
    (cell,) = (each for each in source.cells if each.metadata.get("nbgrader", {}).get("grade_id") == "check-evaluate")
    cell.metadata.nbgrader.points += 3
    nbformat.write(source, path)
    assert NbGraderAPI(config=nbgrader_settings(lab_course)).generate_assignment(LAB, force=True)["success"]

    grade_lab("1", lab_course, rubrics=rubrics, log=lines.append)
    assert graded_here == graded == ["ada", "bob", "eve"]
    assert lines == [f"{LAB}: the rubric has other points; 3 verdicts counted again, nothing executed"]
    now = state(lab_course)
    with open_book(lab_course) as gradebook:  # where our score is another one, the person looks again
        grades = gradebook.find_submission_notebook(LAB, LAB, "ada").grades
        assert {each.name for each in grades if each.needs_manual_grade} == LOOK_AGAIN
    assert now[0] != before[0] and now[3]["ada"] == before[3]["ada"] and now[3]["bob"] == before[3]["bob"] + 3
    grade_lab("1", lab_course, rubrics=rubrics, force=True)
    assert graded_here == graded * 2
    assert state(lab_course) == now
    for student in ("ada", "bob"):  # whose notebooks have the points of the first release
        flags = load_verdict(verdict_path(lab_course, student, LAB)).flags
        assert "tampered" not in {flag.kind for flag in flags}, flags
    grade_lab("1", lab_course, rubrics=rubrics, log=lines.append)
    assert len(lines) == 1 and state(lab_course) == now


def changed(tmp_path, *edits):
    return find_rubric("1", write_rubric(tmp_path / "rubrics", *edits))


@pytest.mark.parametrize(
    ("edits", "same"),
    [
        (OTHER_PARTS + OTHER_TOTAL, True),
        ([("[execution]", "# a comment\n[execution]")], True),
        ([("seconds = 12", "seconds = 13")], False),
        ([("edges = 1 }", "edges = 1, other = 1 }")], False),
        ([("training = 2, validation = 2", "validation = 2, training = 2")], False),
        ([('id = "final-accuracy"\npoints = 1', 'id = "final"\npoints = 1')], False),
        ([("tolerance = 0.04", "tolerance = 0.05")], False),
    ],
)
def test_only_points_leave_the_criteria_the_same(tmp_path, edits, same):
    before = find_rubric("1", write_rubric(tmp_path / "rubrics"))
    after = changed(tmp_path, *edits)
    assert before.digest != after.digest
    assert (before.criteria_digest == after.criteria_digest) is same


def test_points_are_counted_by_part_and_shared_weights_need_a_real_grading(two_labs, tmp_path):
    rubric = find_rubric(LAB, tmp_path / "rubrics")
    today = {"submission": "s", "grader": "g", "rubric": rubric.digest, "criteria": rubric.criteria_digest}
    old = {**today, "rubric": "other"}
    kept = verdict("ada", digests=old)
    assert verdict_today(kept, today, rubric).digests == today
    # `fake_class` gives 3 points for UPDATE and 1 for RETURNS of 10; here it is the other way round.
    (other,) = (replace(each, points={"update": 1.0, "returns": 3.0}) for each in rubric.exercises)
    counted = verdict_today(verdict("ada", [UPDATE], digests=old), today, replace(rubric, exercises=(other,)))
    assert (counted.score, counted.max_score) == (9, 10) and counted.results[0].points == 0
    assert verdict_today(replace(kept, digests=today), today, rubric).results is not None
    twice = tuple(replace(RUN, id=name, weights="same") for name in ("a", "b"))
    assert verdict_today(replace(kept, runs=twice), today, rubric) is None
    assert verdict_today(replace(kept, results=kept.results[1:]), today, rubric) is None
    assert verdict_today(replace(kept, digests={**old, "submission": "new"}), today, rubric) is None
    assert not verdict_path(two_labs, "ada", LAB).exists()

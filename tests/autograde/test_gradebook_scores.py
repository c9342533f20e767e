"""Scores in nbgrader's gradebook, read back through nbgrader's own API."""

import os
import shutil
import sqlite3
import warnings

import nbformat
import pytest
from fake_runs import AUTOMATIC, CHECKS, HONEST_RUN, LAB, RUN, lab_path, open_book, released_notebook, solved_notebook
from sqlalchemy import text

from autograde.batch.grade_lab import grade_lab
from autograde.gradebook.scores import CourseError
from autograde.reports.export.scores import read_scores
from autograde.rubric.verdict import load_verdict, verdict_path
from autograde.submission.student_id import is_student_id

WITHOUT_TRANSCRIPT = RUN - 1
ESSAYS = {"q-knee": "At 9a/b, where the fixed cost is a tenth.", "q-first-epoch": "The first steps pay for the set-up."}


def grades(course):
    with open_book(course) as gradebook:
        return {
            (submission.student.id, grade.name): (grade.auto_score, grade.manual_score, bool(grade.needs_manual_grade))
            for submission in gradebook.assignment_submissions(LAB)
            for grade in submission.notebooks[0].grades
        }


def of(student, found):
    return {name: value for (who, name), value in found.items() if who == student}


@pytest.fixture
def without_transcript(tmp_path):
    """An honest run folder that lacks assessment.out, which is worth 1 of 10 points."""
    shutil.copytree(HONEST_RUN, tmp_path / "spoilt")
    (tmp_path / "spoilt" / "assessment.out").unlink()
    return tmp_path / "spoilt"


def test_a_database_that_takes_no_index_is_graded_all_the_same(lab_course, hand_in, graded_here, monkeypatch):
    monkeypatch.setattr("autograde.gradebook.scores.INDEXES", (("no_such_table", "id"),))
    hand_in("ada")
    (verdict,) = grade_lab("1", lab_course)
    assert verdict.score == AUTOMATIC and of("ada", grades(lab_course))


def test_scores_reach_the_gradebook_and_grading_twice_changes_nothing(
    lab_course, hand_in, graded_here, without_transcript
):
    hand_in("ada", solved_notebook(ESSAYS))
    hand_in("bob", released_notebook(), without_transcript)
    hand_in("eve", False, None)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        verdicts = grade_lab("1", lab_course)
    assert [(v.student, v.score, v.max_score) for v in verdicts] == [
        ("ada", AUTOMATIC, AUTOMATIC),
        ("bob", WITHOUT_TRANSCRIPT, AUTOMATIC),
        ("eve", 0, AUTOMATIC),
    ]
    with open_book(lab_course) as gradebook:  # our sums are nbgrader's, and it need not read all labs' grades for each
        own = {each.student.id: (each.score, each.needs_manual_grade) for each in gradebook.assignment_submissions(LAB)}
        plan = gradebook.db.execute(text("EXPLAIN QUERY PLAN SELECT * FROM grade WHERE notebook_id = 'x'")).fetchall()
        counted = dict(gradebook.db.execute(text("SELECT tbl, stat FROM sqlite_stat1")).fetchall())
    assert {each.student: (each.raw, each.needs_hand_grading) for each in read_scores(lab_course, LAB).students} == own
    assert {waits for _, waits in own.values()} == {True, False} and "course_grade_notebook_id" in str(plan)
    assert int(counted["grade"].split()[0]) == len(grades(lab_course)) and "submitted_notebook" not in counted
    first = grades(lab_course)
    full = {cell: (points, None, False) for cell, points in CHECKS.items()}
    # An answer in words waits for a person; one that was never given is worth nothing.
    waits = dict.fromkeys(ESSAYS, (None, None, True))
    blank = dict.fromkeys(ESSAYS, (0.0, None, False))
    nothing = dict.fromkeys(CHECKS, (0.0, None, False))
    assert of("ada", first) == {**full, **waits, "run-evidence": (RUN, None, False)}
    assert of("bob", first) == {**nothing, **blank, "run-evidence": (WITHOUT_TRANSCRIPT, None, False)}
    assert of("eve", first) == {**nothing, **blank, "run-evidence": (0.0, None, False)}
    with open_book(lab_course) as gradebook:
        assert gradebook.find_comment("q-knee", LAB, LAB, "bob").comment == "No response."
        assert gradebook.find_comment("q-knee", LAB, LAB, "ada").comment is None
    grade_lab("1", lab_course)  # by what was saved
    grade_lab(LAB, lab_course, ["bob", "eve"], force=True)
    assert grades(lab_course) == first
    assert graded_here == ["ada", "bob", "eve", "bob", "eve"]


def test_an_answer_that_is_blanked_or_filled_in_later_is_followed(lab_course, hand_in, graded_here):
    folder = hand_in("ada", released_notebook(), None)
    path = folder / f"{LAB}.ipynb"
    grade_lab("1", lab_course)
    assert grades(lab_course)["ada", "q-knee"] == (0.0, None, False)
    notebook = released_notebook()
    next(cell for cell in notebook.cells if cell.id == "q-knee").source = "Near 200."
    nbformat.write(notebook, path)
    grade_lab("1", lab_course)
    found = grades(lab_course)
    assert (found["ada", "q-knee"], found["ada", "q-first-epoch"]) == ((None, None, True), (0.0, None, False))
    with open_book(lab_course) as gradebook:
        assert gradebook.find_comment("q-knee", LAB, LAB, "ada").comment is None
    # In what cannot be read there may be an answer: a person has to look.
    path.write_text("{")
    (verdict,) = grade_lab("1", lab_course)
    assert "is not JSON" in verdict.results[0].reason and {flag.kind for flag in verdict.flags} == {"missing"}
    assert {grades(lab_course)["ada", name] for name in ESSAYS} == {(None, None, True)}


def test_a_person_s_score_and_comment_stay(lab_course, hand_in, graded_here, without_transcript):
    hand_in("bob", released_notebook(), without_transcript)
    grade_lab("1", lab_course)
    with open_book(lab_course) as gradebook:
        gradebook.find_grade("run-evidence", LAB, LAB, "bob").manual_score = RUN
        gradebook.find_grade("q-knee", LAB, LAB, "bob").manual_score = 4
        gradebook.find_comment("q-knee", LAB, LAB, "bob").manual_comment = "You sent it by mail."
        gradebook.db.commit()
    for force in (False, True):
        grade_lab("1", lab_course, force=force)
        with open_book(lab_course) as gradebook:
            grade = gradebook.find_grade("run-evidence", LAB, LAB, "bob")
            assert (grade.auto_score, grade.manual_score, grade.score) == (WITHOUT_TRANSCRIPT, RUN, RUN)
            assert gradebook.find_grade("q-knee", LAB, LAB, "bob").score == 4
            assert gradebook.find_comment("q-knee", LAB, LAB, "bob").comment == "You sent it by mail."
            assert gradebook.find_grade("q-first-epoch", LAB, LAB, "bob").score == 0


def test_a_late_submission_has_its_time_in_the_gradebook(lab_course, hand_in, graded_here):
    for student, stamp in (
        ("ada", "2026-11-20 22:30:00 UTC"),
        ("bob", "2026-11-20 23:30:00 CET"),  # half past ten, too
        ("cyd", "²⁰²⁶"),
        ("dan", None),
    ):
        folder = hand_in(student, False)
        if stamp:
            (folder / "timestamp.txt").write_text(stamp)
    with open_book(lab_course) as gradebook:
        gradebook.update_or_create_assignment(LAB, duedate="2026-11-20 22:00:00")
    lines = []
    verdicts = grade_lab("1", lab_course, skipped=lines.append)
    assert lines == [
        r"cyd: timestamp.txt holds '\xb2\u2070\xb2\u2076', which is no time, so its lateness is not known; "
        "write a time as 2026-11-20 22:00:00 UTC"
    ]
    assert [verdict.score for verdict in verdicts] == [RUN] * 4
    with open_book(lab_course) as gradebook:
        late = {each.student.id: each.total_seconds_late for each in gradebook.assignment_submissions(LAB)}
    assert late == {"ada": 1800, "bob": 1800, "cyd": 0, "dan": 0}
    # Handed in again, and graded again.
    (lab_course / "submitted" / "ada" / LAB / "timestamp.txt").write_text("2026-11-20 21:59:00 UTC")
    grade_lab("1", lab_course)
    with open_book(lab_course) as gradebook:
        assert gradebook.find_submission(LAB, "ada").total_seconds_late == 0


def test_one_bad_submission_stops_nobody(lab_course, hand_in, graded_here):
    hand_in("ada", False)
    folder = hand_in("bad", False)
    (folder / "run" / "learning_curve.csv").write_bytes(b"\xff" * 100)
    (lab_course / "submitted" / "file").write_text("not a student")
    (lab_course / "submitted" / "loop").symlink_to("loop")
    hand_in("zoe", False)
    scores = {verdict.student: verdict.score for verdict in grade_lab("1", lab_course)}
    assert scores == {"ada": RUN, "bad": 4, "zoe": RUN}  # the bad one keeps its record (2) and its weights (2)


def test_a_score_that_cannot_be_written_is_told_and_the_others_are_written(
    lab_course, hand_in, graded_here, monkeypatch
):
    from autograde.batch import grade_lab as batch

    for student in ("ada", "bob", "zoe"):
        hand_in(student, False, None)
    record = batch.record_verdict
    monkeypatch.setattr(
        batch,
        "record_verdict",
        lambda book, verdict, *rest, **kept: 1 / (verdict.student != "bob") and record(book, verdict, *rest, **kept),
    )
    with pytest.raises(CourseError, match=r"1 of 3 scores could not be written: bob \(ZeroDivisionError\)"):
        grade_lab("1", lab_course)
    assert {student for student, _ in grades(lab_course)} == {"ada", "zoe"}
    # The verdict was kept: grading again only writes it.
    monkeypatch.undo()
    fresh = []
    monkeypatch.setattr("autograde.batch.grade_lab.run_local", lambda *_: pytest.fail("graded again"))
    grade_lab("1", lab_course, done=lambda verdict, new: fresh.append(new))
    assert {student for student, _ in grades(lab_course)} == {"ada", "bob", "zoe"} and not any(fresh)


GOOD = ("ada", "a.b-c_d@uni.edu", "9", "zoë.müller", "zoe\u0308", "李雷", "मीना")  # macOS writes ë as two characters
BAD = {
    "a path": (".hidden", "..", ".", "a/b", ""),
    "an option or a formula": ("-rf", "@sum", "=1+1", "＝1", "＠a"),
    "blanks and control characters": ("a b", "zoë müller", "a\n", "a\nb", "a\x00", "<b>"),
    "not seen": ("\u0308ada", "ada\ufe0f", "ada\u200b", "ada\u3164", "\u202eada", "ada\udcff"),
    "too long for a folder": ("李" * 67, "x" * 101),
}


def test_student_ids():
    assert [name for name in GOOD if not is_student_id(name)] == []
    assert [name for names in BAD.values() for name in names if is_student_id(name)] == []


def test_names_that_are_no_student_ids_are_skipped_and_named_in_one_line_each(lab_course, hand_in, graded_here):
    hand_in("ada", False, None)
    for name in ("<script>alert(1)<", "=cmd()", "a\nb", "\x1b[2J"):
        hand_in(name, False, None)
    skipped = []
    assert [verdict.student for verdict in grade_lab("1", lab_course, skipped=skipped.append)] == ["ada"]
    assert len(skipped) == 4 and all("not a student id" in line for line in skipped)
    assert all(line.isprintable() and line.isascii() for line in skipped)


def test_chosen_students_only(lab_course, hand_in, graded_here):
    for student in ("ada", "bob"):
        hand_in(student, False, None)
    assert [verdict.student for verdict in grade_lab("1", lab_course, ["bob", "bob"])] == ["bob"]
    assert graded_here == ["bob"]
    with pytest.raises(CourseError, match="no submission of 01_single_gpu by 'nobody'"):
        grade_lab("1", lab_course, ["bob", "nobody"])


def test_a_lab_without_submissions_or_notebook_is_one_clear_line(lab_course, hand_in, graded_here):
    with pytest.raises(CourseError, match="collect them, or put them into STUDENT/01_single_gpu/ there"):
        grade_lab("1", lab_course)
    hand_in("ada", False, None, lab="02_ddp")
    with pytest.raises(CourseError, match=r"source notebook .*02_ddp\.ipynb cannot be read"):
        grade_lab("2", lab_course)
    with pytest.raises(CourseError, match=r"cannot be read .*put them into .*submitted/STUDENT/01_single_gpu/"):
        grade_lab("1", lab_course / "nowhere")


def test_a_folder_of_submissions_that_is_a_link_is_followed_and_a_student_s_own_is_not(
    lab_course, hand_in, graded_here, tmp_path
):
    # Instructors keep submissions on another disk; a student who hands in a link wants to be graded by another's work.
    hand_in("ada", False)
    shutil.move(lab_course / "submitted", tmp_path / "disk")
    (lab_course / "submitted").symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "bob").symlink_to("ada")
    (tmp_path / "disk" / "eve").mkdir()
    (tmp_path / "disk" / "eve" / LAB).symlink_to(tmp_path / "disk" / "ada" / LAB)
    verdicts = {verdict.student: verdict for verdict in grade_lab("1", lab_course)}
    assert {student: verdict.score for student, verdict in verdicts.items()} == {"ada": RUN, "bob": 0, "eve": 0}
    assert "a link or a file" in verdicts["eve"].results[-1].reason


def test_notebook_and_rubric_must_agree_before_anything_is_written(new_lab_course, hand_in, graded_here):
    notebook = nbformat.read(lab_path(), as_version=4)
    next(each for each in notebook.cells if each.id == "check-memory").metadata.nbgrader["points"] = 4
    nbformat.write(notebook, new_lab_course.parent / "labs" / LAB / f"{LAB}.ipynb")
    expected = "cell 'check-memory' is worth 4 points in the notebook, 5 in the rubric"
    hand_in("ada", False, None)
    with pytest.raises(CourseError, match=expected):
        grade_lab("1", new_lab_course)
    assert graded_here == [] and sorted(os.listdir(new_lab_course)) == ["submitted"]


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [("max_score", "10", "cell 'check-memory' is worth 10 points"), ("name", "'x'", "no grade cell 'check-memory'")],
)
def test_a_gradebook_of_an_older_notebook_is_told(lab_course, hand_in, graded_here, column, value, expected):
    with sqlite3.connect(lab_course / "gradebook.db") as database:
        table = "grade_cells" if column == "max_score" else "base_cell"
        where = "id IN (SELECT id FROM base_cell WHERE name = 'check-memory')"
        database.execute(f"UPDATE {table} SET {column} = {value} WHERE {where}")
    hand_in("ada", False, None)
    with pytest.raises(CourseError, match=expected + ".*generate_assignment"):
        grade_lab("1", lab_course)
    assert graded_here == []


def test_a_verdict_is_saved_whole_and_read_back(lab_course, hand_in, graded_here):
    hand_in("ada", False)
    (verdict,) = grade_lab("1", lab_course)
    path = verdict_path(lab_course, "ada", LAB)
    assert load_verdict(path) == verdict
    assert sorted(p.name for p in path.parent.iterdir()) == [".lock", "verdict.json"]
    path.write_text("{}")
    with pytest.raises(ValueError, match="is no verdict"):
        load_verdict(path)

"""The page of the whole course: who is in trouble comes first, every figure is the gradebook's, nothing unescaped."""

import inspect
from datetime import datetime, timedelta

import pytest
from click.testing import CliRunner
from fake_class import Page
from fake_runs import LAB, open_book
from nbgrader.api import Gradebook
from sqlalchemy import event

from autograde.commands.cli import report
from autograde.reports.course import read_course, write_course_page
from autograde.reports.reading.formgrader import _of_one_lab

SECOND, THIRD = "02_ddp", "03_batch_size_scaling"
NOW = datetime(2026, 11, 26)
DAY = timedelta(days=1)


@pytest.fixture
def gradebook_of_three(course):
    """Three labs of 20 points, 10 of them by hand; the third has no due date.

    bob: all points, but two days late in the second; ada: one lab, marked in part; zoë, with markup in the name: nothing.
    """
    for lab in (SECOND, THIRD):
        with open_book(course) as gradebook:
            due = None if lab == THIRD else NOW - 3 * DAY
            gradebook.update_or_create_assignment(lab, duedate=due)
            gradebook.update_or_create_notebook(lab, lab)
            gradebook.update_or_create_grade_cell("a", lab, lab, max_score=10, cell_type="code")
            gradebook.update_or_create_grade_cell("q", lab, lab, max_score=10, cell_type="markdown")
            gradebook.update_or_create_solution_cell("q", lab, lab)
    with open_book(course) as gradebook:
        gradebook.remove_assignment(LAB)
        for student, name in (("ada", "Ada"), ("bob", "=1+1"), ("zoë", "<script>alert(1)</script>")):
            gradebook.update_or_create_student(student, first_name=name)
        for student, lab, scores in (
            ("bob", SECOND, {"a": 10, "q": 10}), ("bob", THIRD, {"a": 10, "q": 10}), ("ada", THIRD, {"a": 9, "q": None}),
        ):  # fmt: skip
            when = NOW - DAY if lab == SECOND else NOW
            gradebook.update_or_create_submission(lab, student, timestamp=when)
            for name, score in scores.items():
                grade = gradebook.find_grade(name, lab, lab, student)
                grade.manual_score, grade.needs_manual_grade = score, score is None
        gradebook.find_submission_notebook(SECOND, SECOND, "bob").late_submission_penalty = 5.0
        gradebook.db.commit()
    return course


def test_those_in_trouble_come_first_and_what_nobody_has_marked_counts_neither_way(gradebook_of_three):
    results = read_course(gradebook_of_three, NOW)
    assert [lab.lab for lab in results.labs] == [SECOND, THIRD]
    rows = {row.student: row for row in results.rows}
    assert [row.student for row in results.rows] == ["zoë", "ada", "bob"]
    # By hand: (points, possible, missing). The third lab has no due date, and two of three handed it in.
    assert (rows["zoë"].points, rows["zoë"].possible, rows["zoë"].missing) == (0, 40, 2)
    assert (rows["ada"].points, rows["ada"].possible, rows["ada"].missing) == (9, 30, 1)
    assert (rows["bob"].points, rows["bob"].possible, rows["bob"].missing) == (35, 40, 0)
    assert results.unread == 1
    # Before the second lab is due, ada is the best of all, and nobody misses it.
    early = read_course(gradebook_of_three, NOW - 4 * DAY)
    assert [(row.student, row.missing) for row in early.rows] == [("zoë", 1), ("bob", 0), ("ada", 0)]


def test_formgrader_s_page_of_each_submission_is_known(gradebook_of_three):
    pages = {each.student: each.page for each in read_course(gradebook_of_three, NOW).labs[0].students}
    with open_book(gradebook_of_three) as gradebook:
        handed_in = {each.student_id: each.notebooks[0].id for each in gradebook.assignment_submissions(SECOND)}
    assert handed_in and pages == dict.fromkeys(pages) | handed_in


@pytest.mark.parametrize("name", ["submission_dicts", "notebook_submission_dicts"])
def test_formgrader_sums_the_grades_of_one_lab_and_finds_what_nbgrader_finds(gradebook_of_three, name):
    stock = inspect.unwrap(getattr(Gradebook, name))  # some test may have changed it already
    ours = _of_one_lab(stock)
    with open_book(gradebook_of_three) as gradebook:
        statements = []
        event.listen(gradebook.engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
        rows = []
        for lab in (SECOND, THIRD, "unknown"):
            names = (lab,) * (2 if name.startswith("notebook") else 1)
            rows.append((ours(gradebook, *names), stock(gradebook, *names)))
    assert [len(found) for found, _ in rows] == [1, 2, 0]
    assert all(sorted(found, key=repr) == sorted(expected, key=repr) for found, expected in rows)
    # Every sum names the lab; and the gradebook is not limited afterwards.
    limits = [statement.count("assignment_id = (SELECT") for statement in statements]
    assert [limit > 5 for limit in limits] == [True, False] * 3, limits


def test_an_extension_is_waited_for(gradebook_of_three):
    (gradebook_of_three / "extensions.csv").write_text(f"student,lab,days\nada,{SECOND},9\n")
    missing = []
    for now in (NOW, NOW + 7 * DAY):
        rows = {row.student: row for row in read_course(gradebook_of_three, now).rows}
        assert rows["ada"].scores[0].extension.due == NOW + 6 * DAY
        missing.append(rows["ada"].missing)
    assert missing == [0, 1]


def test_the_page(gradebook_of_three):
    out = gradebook_of_three / "reports" / "course.html"
    (out.parent / THIRD).mkdir(parents=True)
    (out.parent / THIRD / "ada.html").write_text("")
    (out.parent / f"{SECOND}.html").write_text("")
    page = Page(write_course_page(gradebook_of_three, out, NOW))
    assert not {tag for tag, _ in page.tags} & {"script", "img", "iframe", "link", "form", "object"}
    assert [link["href"] for link in page.all("a")] == [f"{SECOND}.html", f"{THIRD}/ada.html"]
    assert "zoë <script>alert(1)</script> 0 % 2 missing missing" in page.text
    assert "ada Ada 30 % 1 missing 9 1 to mark" in page.text
    assert "bob =1+1 88 % – 15 late 2 days, −5 20" in page.text
    done = CliRunner().invoke(report, ["--course", str(gradebook_of_three)])
    assert (done.exit_code, done.output.strip()) == (0, str(out))


def test_a_mark_to_look_at_again_is_counted_and_counts(gradebook_of_three):
    before = read_course(gradebook_of_three, NOW)
    with open_book(gradebook_of_three) as gradebook:
        gradebook.find_grade("q", THIRD, THIRD, "bob").needs_manual_grade = True
        gradebook.db.commit()
    after = read_course(gradebook_of_three, NOW)
    assert (before.again, after.again, after.unread) == (0, 1, 1)
    assert [(row.points, row.possible) for row in after.rows] == [(row.points, row.possible) for row in before.rows]
    page = Page(write_course_page(gradebook_of_three, gradebook_of_three / "course.html", NOW))
    assert "Answers to mark 1 Marks to look at again 1" in page.text
    assert "bob =1+1 88 % – 15 late 2 days, −5 20 1 to look at again" in page.text


def test_no_gradebook_is_one_line(fresh_course):
    done = CliRunner().invoke(report, ["--course", str(fresh_course)])
    assert done.exit_code == 1 and done.output.count("\n") == 1 and "no gradebook" in done.output

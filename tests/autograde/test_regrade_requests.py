"""``regrade.txt``: a student asks, and the class's page shows whether a person has changed a mark since."""

import copy
import json
import re

import nbformat
import pytest
from fake_class import Page
from fake_runs import LAB, hand_in_to, open_book, released_notebook, solved_notebook
from nbformat.v4 import new_output

from autograde.gradebook.regrade_answers import FILE
from autograde.gradebook.scores import nbgrader_settings, open_gradebook, record_verdict
from autograde.reports.report import write_report
from autograde.rubric.verdict import CriterionResult, Verdict
from autograde.submission import regrade_request
from autograde.submission.regrade_request import RegradeRequest, only_asks, regrade_requests

STEP = "check-train-step"


@pytest.fixture
def asked(lab_course):
    for student in ("ada", "bob", "eve", "zoe"):
        folder = hand_in_to(lab_course, student, released_notebook(), None)
        verdict = Verdict(
            LAB,
            "t",
            student,
            "2026-11-20T10:04:00+00:00",
            (CriterionResult(STEP, "r", "k", "d", False, 0.0, 6.0, "r"),),
            (),
        )
        verdict.save(lab_course)
        with open_gradebook(nbgrader_settings(lab_course)) as gradebook:
            record_verdict(gradebook, verdict)
        if student == "ada":
            (folder / "regrade.txt").write_text(
                f"{STEP}: <script>x</script> is meant\n\n  http: //a b\nall of it, = 1\u202e\n"
            )
        elif student == "bob":
            (folder / "regrade.txt").symlink_to("/etc/passwd")
        elif student == "eve":
            (folder / "regrade.txt").write_bytes(b"x: y\n" * 5000)
    return lab_course


def rows(course):
    page = Page(write_report([LAB], course, course / "reports" / "page.html"))
    head = "Student Part Why Answered "
    return page.text.partition(head)[2].partition(" Students Those first")[0] if head in page.text else ""


def test_what_is_asked_is_on_the_page_escaped_and_bounded(asked):
    assert rows(asked) == (
        f"ada {STEP} <script>x</script> is meant – ada http //a b – ada the lab all of it, = 1\ufffd – "
        "bob the lab regrade.txt is a symbolic link, which is not followed: hand in the file itself – "
        "eve the lab regrade.txt has 25,000 bytes, at most 8,000 are read: ask the student for a short text –"
    )
    (asked / "submitted/eve" / LAB / "regrade.txt").write_text("x: y\n" * 1000)
    assert regrade_requests(asked / "submitted/eve" / LAB) == [RegradeRequest("x", "y")] * 20


def mark(course, cell, student="ada", *, comment=None, **values):
    """As formgrader stores it."""
    with open_book(course) as gradebook:
        for name, value in values.items():
            setattr(gradebook.find_grade(cell, LAB, LAB, student), name, value)
        if comment is not None:
            gradebook.find_comment(cell, LAB, LAB, student).manual_comment = comment
        gradebook.db.commit()


def ask(course, *lines, student="ada"):
    """Write the file anew; what the page says of each of its lines."""
    (course / "submitted" / student / LAB / "regrade.txt").write_text("\n".join(lines))
    return answered(course, student)


def answered(course, student="ada"):
    page = Page(write_report([LAB], course, course / "reports" / "page.html"))
    table = page.text.partition("Student Part Why Answered ")[2].partition(" Students Those first")[0]
    return [part[-1] == "d" for part in re.findall(rf"\b{student} .*?(?:by hand|–)", table)]


def test_a_mark_by_hand_answers_it(asked):
    assert rows(asked).startswith(f"ada {STEP} <script>x</script> is meant – ada http")
    mark(asked, STEP, manual_score=6.0)
    assert rows(asked).startswith(f"ada {STEP} <script>x</script> is meant by hand ada http")


def test_what_was_marked_before_is_not_answered_until_the_mark_changes(asked):
    mark(asked, "q-knee", manual_score=2.0, comment="too short")
    mark(asked, STEP, manual_score=5.0)
    lines = ["q-knee: it is long", f"{STEP}: six"]
    assert ask(asked, *lines) == [False, False]
    mark(asked, "q-knee", manual_score=3.0)
    assert answered(asked) == [True, False]
    mark(asked, STEP, manual_score=6.0)
    assert ask(asked, *lines) == [True, True]  # the same lines again
    # Another request about the same part; the others stay as they are.
    assert ask(asked, f"{STEP}: no, seven", *lines) == [False, True, True]
    mark(asked, STEP, extra_credit=1.0)
    assert answered(asked) == [True, True, True]


def test_a_comment_answers_it(asked):
    lines = ["q-knee: why", f"{STEP}: why", "ex-loaders: why", "check-evaluate: why"]
    assert ask(asked, *lines) == [False] * 4
    mark(asked, "q-knee", comment="")  # formgrader's box was left as it was
    assert answered(asked) == [False] * 4
    mark(asked, "q-knee", comment="because")
    assert answered(asked) == [True, False, False, False]
    mark(asked, "ex-train-step", comment="because")  # formgrader has no box at the check
    mark(asked, "check-loaders", manual_score=1.0)
    assert answered(asked) == [True, True, True, False]


@pytest.mark.parametrize("change", [{"manual_score": 3.0}, {"comment": "no"}], ids=["score", "comment"])
def test_any_mark_answers_what_is_about_no_part(asked, change):
    mark(asked, "q-knee", manual_score=2.0, comment="before")
    assert ask(asked, "all of it", "no-such-part: why", "http://a b") == [False] * 3
    mark(asked, "q-knee", "zoe", **change)
    assert answered(asked) == [False] * 3
    mark(asked, "q-knee", **change)
    assert answered(asked) == [True] * 3


def test_a_damaged_record_is_written_anew(asked):
    ask(asked, "all of it")
    damaged = (b"", b"\xff", b"[" * 200_000, b"[]", b'{"%s": {"ada": {"x": 1}}}' % LAB.encode())
    for score, damage in enumerate(damaged):
        (asked / FILE).write_bytes(damage)
        assert answered(asked) == [False]
        mark(asked, "q-knee", manual_score=score)
        assert answered(asked) == [True]


def test_a_record_that_cannot_be_written_is_said(asked):
    ask(asked, "all of it")
    (asked / FILE).unlink()
    (asked / FILE).mkdir()
    page = Page(write_report([LAB], asked, asked / "reports" / "page.html"))
    assert f"{asked / FILE} cannot be" in page.text and answered(asked) == [False]


def test_the_record_holds_nothing_that_a_student_wrote_and_a_submission_holds_no_record(asked):
    mark(asked, "q-knee", manual_score=2.0, comment="SECRET")
    ask(asked, "q-knee: <script>SECRET")
    assert "SECRET" not in (asked / FILE).read_text() and "script" not in (asked / FILE).read_text()
    (asked / "submitted/ada" / LAB / FILE).write_text("{}")
    mark(asked, "q-knee", manual_score=3.0)
    assert answered(asked) == [True]


# --- what is new work -------------------------------------------------------------------------------------------------


def a_cell(notebook, name):
    return next(each for each in notebook.cells if each.id == name)


def saved_again(notebook):
    """As JupyterLab saves it after a run on another machine."""
    notebook = copy.deepcopy(notebook)
    notebook.metadata |= {
        "kernelspec": {"name": "course", "display_name": "Course", "language": "python"},
        "language_info": {"name": "python", "version": "3.99"},
        "widgets": {"application/vnd.jupyter.widget-state+json": {"state": {}, "version_major": 2}},
    }
    for count, cell in enumerate((each for each in notebook.cells if each.cell_type == "code"), start=1):
        cell.execution_count, cell.metadata["execution"] = count, {"iopub.execute_input": "2026-11-21T09:00:00Z"}
        cell.outputs = [new_output("stream", text="0.87\n")]
        cell.metadata["collapsed"] = False
    return notebook


def same_again(folder, notebook):
    """Hand in once more, with a request; whether that is all it adds."""
    before, after = (folder / name / LAB for name in ("before", "after"))
    for place, each in ((before, solved_notebook()), (after, notebook)):
        place.mkdir(parents=True, exist_ok=True)
        data = each if isinstance(each, bytes) else nbformat.writes(each).encode()
        (place / f"{LAB}.ipynb").write_bytes(data)
    (after / "regrade.txt").write_text(f"{STEP}: look again")
    return only_asks(after, before)


def test_a_notebook_that_was_only_saved_again_is_no_new_work(tmp_path):
    assert same_again(tmp_path, solved_notebook()) and same_again(tmp_path, saved_again(solved_notebook()))
    for place in ("before", "after"):
        (tmp_path / place / LAB / "other.ipynb").write_text(nbformat.writes(solved_notebook()))
    assert only_asks(tmp_path / "after" / LAB, tmp_path / "before" / LAB)
    # Only the lab's own notebook is read as one.
    (tmp_path / "after" / LAB / "other.ipynb").write_text(nbformat.writes(saved_again(solved_notebook())))
    assert not only_asks(tmp_path / "after" / LAB, tmp_path / "before" / LAB)


PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
CHANGES = {
    "an answer": lambda book: a_cell(book, "ex-train-step").update(source="train_step = None"),
    "words": lambda book: a_cell(book, "q-knee").update(source="At 64."),
    "white space": lambda book: a_cell(book, "q-knee").update(source=a_cell(book, "q-knee").source + " "),
    "a picture": lambda book: a_cell(book, "q-knee").update(attachments={"a.png": {"image/png": PICTURE}}),
    "a type": lambda book: a_cell(book, "q-knee").update(cell_type="raw"),
    "an id": lambda book: a_cell(book, "ex-train-step").update(id="another"),
    "a grade id": lambda book: a_cell(book, "ex-train-step").metadata.nbgrader.update(grade_id="another"),
    "points": lambda book: a_cell(book, STEP).metadata.nbgrader.update(points=60),
    "a cell more": lambda book: book.cells.append(nbformat.v4.new_code_cell("1")),
    "a cell less": lambda book: book.cells.pop(),
    "the order": lambda book: book.cells.insert(3, book.cells.pop()),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_whatever_grading_reads_is_new_work(tmp_path, change):
    notebook = saved_again(solved_notebook())
    change(notebook)
    assert not same_again(tmp_path, notebook)


def test_a_notebook_that_cannot_be_read_is_compared_by_its_bytes(tmp_path, monkeypatch):
    text = nbformat.writes(solved_notebook())
    other = json.dumps(nbformat.writes(solved_notebook({"ex-train-step": "1"})))
    damaged = [
        b"", b"\xff" + text.encode(), text[:-9].encode(), b"[" * 200_000, b'{"cells": ' * 100_000, b"[]", b"1" * 9_000,
        text[:-2].encode() + b', "cells": 1}', text[:-2].encode() + b', "cells": ' + other.encode() + b"}",
        text.replace('"cell_type": "code"', '"cell_type": ["code"]').encode(), text.replace("4,", "NaN,").encode(),
    ]  # fmt: skip
    for data in damaged:
        assert not same_again(tmp_path, data)
        for place in ("before", "after"):
            (tmp_path / place / LAB / f"{LAB}.ipynb").write_bytes(data)
        assert only_asks(tmp_path / "after" / LAB, tmp_path / "before" / LAB)
    # What grading would read without the pictures in it.
    monkeypatch.setattr(regrade_request, "MAX_BYTES", len(text) + 100)
    assert same_again(tmp_path, solved_notebook()) and not same_again(tmp_path, saved_again(solved_notebook()))

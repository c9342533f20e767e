"""``regrade.txt``: a student asks, the class's page shows it until a person has given the part a mark."""

import pytest
from fake_class import Page
from fake_runs import LAB, hand_in_to, open_book, released_notebook

from autograde.gradebook.scores import nbgrader_settings, open_gradebook, record_verdict
from autograde.reports.report import write_report
from autograde.rubric.verdict import CriterionResult, Verdict
from autograde.submission.regrade_request import RegradeRequest, regrade_requests

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


def test_a_mark_by_hand_answers_it(asked):
    with open_book(asked) as gradebook:
        gradebook.find_grade(STEP, LAB, LAB, "ada").manual_score = 6.0
        gradebook.db.commit()
    assert rows(asked).startswith(f"ada {STEP} <script>x</script> is meant by hand ada http")

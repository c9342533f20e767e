"""``lab answers``: the page and the table, and the table's way back; nbgrader's API and formgrader's page are the oracles."""

import csv
import io
import re
import shutil
from dataclasses import replace
from datetime import datetime

import pytest
from click.testing import CliRunner
from fake_class import Page
from fake_runs import LAB, hand_in_to, open_book, released_notebook

from autograde.batch.grade_lab import submissions
from autograde.commands.answers import answers
from autograde.commands.cli import report
from autograde.gradebook.autograded import write_autograded
from autograde.gradebook.scores import nbgrader_settings, open_gradebook, record_verdict
from autograde.grading.grading_context import source_notebook as read_source
from autograde.reports.export.csv_file import neutral, plain
from autograde.reports.export.scores import read_scores
from autograde.reports.report import write_report
from autograde.rubric.schema import RUBRICS, find_rubric
from autograde.rubric.verdict import CriterionResult, Verdict, load_verdict, verdict_path
from autograde.submission.notebook_repair import repair, starter_answers

KNEE, FIRST = "q-knee", "q-first-epoch"
HOSTILE = '=HYPERLINK("http://evil")\n<script>alert(1)</script> **a** \u202e$x^2$;=1+1'
TEXTS = {"ada": {KNEE: "Near 200.\nSee b."}, "bob": {KNEE: HOSTILE, FIRST: "cold"}, "007": {FIRST: "-2 and\t=3"}}


def graded(course, student, texts, when=None):
    """Hand in these answers, instead of what the student handed in before, and grade them."""
    source = read_source(course.parent / "labs" / LAB / f"{LAB}.ipynb")
    starter = starter_answers(source)
    notebook = released_notebook()
    for cell in notebook.cells:
        cell.source = texts.get(cell.metadata.get("nbgrader", {}).get("grade_id"), cell.source)
    shutil.rmtree(course / "submitted" / student, ignore_errors=True)
    folder = hand_in_to(course, student, notebook, None)
    blank = tuple(name for name in starter if name.startswith("q-") and name not in texts)
    results = tuple(
        CriterionResult(cell, "r", "k", "d", True, 3.0 if cell == "run-evidence" else 0.0, most, "r")
        for cell, most in find_rubric(LAB).cells.items()
    )
    verdict = Verdict(LAB, "t", student, "2026-11-20T10:04:00+00:00", results, (), unanswered=blank)
    verdict.save(course)
    write_autograded(course, verdict, repair(notebook, source).notebook, folder)
    with open_gradebook(nbgrader_settings(course)) as gradebook:
        record_verdict(gradebook, verdict, when)


@pytest.fixture
def answered(lab_course):
    """Lab 01 with three students' answers, as the grader leaves them; bob's first answer has a person's mark."""
    for student, texts in TEXTS.items():
        graded(lab_course, student, texts)
    assert sorted(submissions(lab_course, LAB)) == sorted(TEXTS)
    with open_book(lab_course) as gradebook:
        grade = gradebook.find_grade(KNEE, LAB, LAB, "bob")
        grade.manual_score, grade.needs_manual_grade = 4.5, False
        gradebook.find_comment(KNEE, LAB, LAB, "bob").manual_comment = "- see b\n=(c); -1 each"
        gradebook.db.commit()
    return lab_course


def run(course, *arguments, code=0):
    done = CliRunner().invoke(answers, ["1", *map(str, arguments), "--course", str(course)])
    assert done.exit_code == code, done.output
    return done.output


def rows(course):
    run(course)
    text = (course / "exports" / f"{LAB}_answers.csv").read_bytes().decode("utf-8-sig")
    return list(csv.DictReader(io.StringIO(text, newline="")))


def save(course, rows, **dialect):
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]), **dialect)
    writer.writeheader()
    writer.writerows(rows)
    path = course / "edited.csv"
    path.write_text(text.getvalue(), encoding="utf-8", newline="")
    return path


def marks(course):
    """What nbgrader has: (automatic, by hand, counted, waits, comment) of each student's question."""
    found = {}
    with open_book(course) as gradebook:
        for student in TEXTS:
            for name in (KNEE, FIRST):
                grade = gradebook.find_grade(name, LAB, LAB, student)
                comment = gradebook.find_comment(name, LAB, LAB, student)
                found[student, name] = (
                    grade.auto_score,
                    grade.manual_score,
                    grade.score,
                    grade.needs_manual_grade,
                    comment.manual_comment,
                )
    return found


def row_of(table, student, question):
    (row,) = (each for each in table if (each["student"], each["question"]) == (student, question))
    return row


def test_the_page_has_every_answer_beside_the_model_answer_and_runs_nothing(answered):
    out = run(answered)
    assert out.split() == [
        str(answered / "reports" / f"{LAB}_answers.html"),
        str(answered / "exports" / f"{LAB}_answers.csv"),
    ]
    page = Page(answered / "reports" / f"{LAB}_answers.html")
    names = {tag for tag, _ in page.tags}
    assert not names & {"script", "img", "iframe", "link", "form", "object"} and "<script" not in page.html
    assert page.all("meta", **{"http-equiv": "Content-Security-Policy"})
    assert '=HYPERLINK("http://evil") <script>alert(1)</script> **a** \ufffd$x^2$;=1+1' in page.text
    assert "Near 200.\nSee b." in page.html
    model = next(c.source for c in read_source(answered.parent / "labs" / LAB / f"{LAB}.ipynb").cells if c.id == KNEE)
    assert " ".join(model.split()) in page.text
    assert "4.5" in page.text and "- see b =(c); -1 each" in page.text
    assert page.text.count("to mark") == 3 and "Nothing written: 007." in page.text
    # One question alone.
    run(answered, FIRST)
    alone = Page(answered / "reports" / f"{LAB}_answers_{FIRST}.html")
    assert "Near 200" not in alone.text and "cold" in alone.text
    assert "has no question 'q-none'; it has q-knee, q-first-epoch" in run(answered, "q-none", code=1)


def test_no_cell_is_a_formula_and_an_unchanged_table_changes_nothing(answered):
    table, before = rows(answered), marks(answered)
    for row in table:
        assert not [cell for cell in row.values() if re.match(r"\s*[=+\-@]", cell)]
    bob = row_of(table, "bob", KNEE)
    assert bob["answer"] == neutral(HOSTILE) and bob["comment"] == "'- see b\n'=(c); -1 each"
    for dialect in ({}, {"delimiter": ";"}, {"lineterminator": "\r\n", "quoting": csv.QUOTE_ALL}):
        out = run(answered, "--from", save(answered, table, **dialect))
        assert out == f"{LAB}: 0 points and 0 comments into the gradebook; 3 answers wait for a mark\n"
        assert marks(answered) == before
    # A spreadsheet drops zeros and the apostrophes.
    for row in table:
        row["student"] = row["student"].lstrip("0")
        row["comment"] = plain(row["comment"])
    run(answered, "--from", save(answered, table))
    assert marks(answered) == before


def test_marks_come_back_as_formgrader_stores_them(answered):
    table, before = rows(answered), marks(answered)
    row_of(table, "ada", KNEE).update(points="2,5", comment="@bob wrote the same\n'- and b?")
    row_of(table, "bob", KNEE).update(points="", comment="")
    row_of(table, "bob", FIRST).update(comment="half")
    row_of(table, "ada", FIRST).update(points="1")  # the starter's text, and a person gives a point
    path = save(answered, table)
    assert run(answered, "--from", path) == (
        f"{LAB}: 3 points (1 taken back) and 3 comments into the gradebook; 3 answers wait for a mark\n"
    )
    after = marks(answered)
    assert after == before | {
        ("ada", KNEE): (None, 2.5, 2.5, False, "@bob wrote the same\n- and b?"),
        ("bob", KNEE): (None, None, 0.0, True, ""),
        ("bob", FIRST): (None, None, 0.0, True, "half"),
        ("ada", FIRST): (0.0, 1.0, 1.0, False, None),
    }
    # The same file again.
    assert f"{LAB}: 0 points and 0 comments" in run(answered, "--from", path)
    assert marks(answered) == after
    with open_book(answered) as gradebook:
        assert gradebook.find_submission(LAB, "ada").score == 3 + 2.5 + 1


def test_after_a_new_submission_a_fresh_table_confirms_marks_and_an_older_one_does_not(answered):
    before, mark = rows(answered), marks(answered)["bob", KNEE]
    graded(answered, "bob", TEXTS["bob"], datetime(2026, 11, 21))
    waiting = (*mark[:3], True, *mark[4:])
    assert marks(answered)["bob", KNEE] == waiting  # nbgrader asks to look again
    first = rows(answered)
    graded(answered, "bob", TEXTS["bob"], datetime(2026, 11, 22))
    nothing = f"{LAB}: 0 points and 0 comments into the gradebook; 4 answers wait for a mark\n"
    for table in (before, first):  # the answer is the same, the submission is not
        assert run(answered, "--from", save(answered, table)) == nothing
        assert marks(answered)["bob", KNEE] == waiting
    fresh, others = rows(answered), marks(answered)
    row_of(fresh, "bob", FIRST).update(comment="half")  # a comment alone settles nothing
    path = save(answered, fresh)
    confirmed = f"{LAB}: 0 points and 1 comments into the gradebook, 1 mark confirmed; 3 answers wait for a mark\n"
    assert run(answered, "--from", path) == confirmed
    settled = others | {("bob", KNEE): mark, ("bob", FIRST): (None, None, 0.0, True, "half")}
    assert marks(answered) == settled
    assert "0 points and 0 comments into the gradebook; 3 " in run(answered, "--from", path)
    assert marks(answered) == settled
    # Another answer: the row is refused.
    graded(answered, "bob", {KNEE: "new", FIRST: "cold"}, datetime(2026, 11, 23))
    assert "no such answer" in run(answered, "--from", path, code=1)
    assert marks(answered)["bob", KNEE] == waiting


def test_a_new_comment_beside_points_confirms_them_and_without_points_the_mark_is_taken_back(answered):
    for number, (edit, after) in enumerate(
        [
            ({"comment": "still"}, (None, 4.5, 4.5, False, "still")),
            ({"points": "3"}, (None, 3.0, 3.0, False, "still")),
            ({"points": ""}, (None, None, 0.0, True, "still")),
        ]
    ):
        graded(answered, "bob", TEXTS["bob"], datetime(2026, 11, 21 + number))
        table = rows(answered)
        row_of(table, "bob", KNEE).update(edit)
        run(answered, "--from", save(answered, table))
        assert marks(answered)["bob", KNEE] == after


def test_the_report_counts_what_waits_for_a_second_look_as_the_export_does(answered):
    graded(answered, "bob", TEXTS["bob"], datetime(2026, 11, 21))
    page = Page(write_report([LAB], answered, answered / "reports" / "page.html"))
    # Score, Final, To mark: ada and 007 have one answer each without a mark, bob also a mark to look at again.
    assert "ada 3 3 1 0" in page.text and "007 3 3 1 0" in page.text and "bob 3 7.5 1 + 1 again 0" in page.text
    scores = read_scores(answered, LAB)
    assert {each.student for each in scores.waiting} == {each.student for each in scores.students}
    table = rows(answered)
    row_of(table, "bob", FIRST).update(points="1")
    run(answered, "--from", save(answered, table))
    page = Page(write_report([LAB], answered, answered / "reports" / "page.html"))
    assert "bob 3 8.5 – 0" in page.text
    assert {each.student for each in read_scores(answered, LAB).waiting} == {"007", "ada"}


def test_a_student_s_page_has_the_final_score_and_each_mark_with_its_comment(answered):
    with open_book(answered) as gradebook:
        grade = gradebook.find_grade("check-train-step", LAB, LAB, "bob")
        grade.manual_score, grade.needs_manual_grade = 6, False
        grade.extra_credit = 1
        gradebook.find_submission_notebook(LAB, LAB, "bob").late_submission_penalty = 2
        gradebook.find_comment(KNEE, LAB, LAB, "bob").manual_comment = "<script>alert(1)</script>\n- see b"
        gradebook.db.commit()
        assert gradebook.find_submission(LAB, "bob").score == 3 + 4.5 + 6 + 1
    write_report([LAB], answered, answered / "reports" / "page.html")
    pages = {name: Page(answered / "reports" / LAB / f"{name}.html") for name in ("ada", "bob")}
    bob = pages["bob"].text
    assert "Final score 12.5 of 68 Automatic score 3 of 58" in bob
    assert "1 answer waits for a mark; the final score is without it. Marks by hand" in bob
    assert "check-train-step 6 of 6 by hand, automatic 0, extra credit 1 q-first-epoch – of 5 to mark" in bob
    assert "q-knee 4.5 of 5 by hand <script>alert(1)</script> - see b Automatic score per cell" in bob
    assert "<script" not in pages["bob"].html and "more points" not in bob
    assert "q-first-epoch 0 of 5 automatic q-knee – of 5 to mark Automatic score per cell" in pages["ada"].text
    table = rows(answered)
    row_of(table, "bob", FIRST).update(points="5", comment="right")
    run(answered, "--from", save(answered, table))  # computes the penalty again: none
    write_report([LAB], answered, answered / "reports" / "page.html")
    bob = Page(answered / "reports" / LAB / "bob.html").text
    assert "Final score 19.5 of 68" in bob and "No answer waits for a mark." in bob
    assert "q-first-epoch 5 of 5 by hand right" in bob


def test_report_and_answers_take_the_rubrics_that_the_lab_was_graded_by(answered, tmp_path):
    rubrics = tmp_path / "own rubrics"
    rubrics.mkdir()
    text = (RUBRICS / f"{LAB}.toml").read_text()
    (rubrics / f"{LAB}.toml").write_text(re.sub('^title = .*', 'title = "My own"', text, flags=re.MULTILINE))
    digests = {"rubric": find_rubric(LAB, rubrics).digest}
    for student in TEXTS:
        path = verdict_path(answered, student, LAB)
        replace(load_verdict(path), digests=digests).save(answered)
    for options, told in (((), "3 of 3 verdicts are by another version"), (("--rubrics", str(rubrics)), "My own")):
        done = CliRunner().invoke(report, ["1", "--course", str(answered), *options])
        assert done.exit_code == 0, done.output
        page = Page(answered / "reports" / f"{LAB}.html")
        assert told in page.text and ("another version" in page.text) == (not options)
        run(answered, *options)
        assert ("My own" in Page(answered / "reports" / f"{LAB}_answers.html").text) == bool(options)
    done = CliRunner().invoke(report, ["--course", str(answered), "--rubrics", str(rubrics)])
    assert done.exit_code == 2 and "--rubrics is for the report of a LAB" in done.output


BAD = [
    ({"points": "six"}, "points 'six' is not a number"),
    ({"points": "1e0"}, "points '1e0' is not a number"),
    ({"points": "5.5"}, "points '5.5' is not between 0 and 5"),
    ({"points": "-1"}, "points '-1' is not between 0 and 5"),
    ({"student": "bob"}, "student is 'ada' in this row's answer; were columns sorted apart?"),
    ({"question": FIRST}, "question is 'q-knee' in this row's answer"),
    ({"row": "a1-m1"}, "no such answer"),
    ({"comment": "x" * 10_001}, "the comment has 10,001 characters"),
    ({"student": "\x1b[31m<b>"}, r"edited.csv, row \d+ \('\\x1b\[31m<b>'"),
]


def test_one_bad_row_is_one_line_and_nothing_is_written(answered):
    table, before = rows(answered), marks(answered)
    row_of(table, "bob", FIRST).update(points="3", comment="good")
    for edit, expected in BAD:
        edited = [dict(row) for row in table]
        row_of(edited, "ada", KNEE).update({"points": "1"} | edit)
        out = run(answered, "--from", save(answered, edited), code=1)
        assert re.search(expected, out) and out.count("\n") == 2, out
        assert "1 row cannot be used, so nothing was written" in out
        assert marks(answered) == before


def test_every_bad_row_is_named_and_marks_given_meanwhile_stay(answered):
    table = rows(answered)
    row_of(table, "bob", KNEE).update(points="0")
    row_of(table, "ada", KNEE).update(points="9")
    with open_book(answered) as gradebook:
        gradebook.find_grade(KNEE, LAB, LAB, "bob").manual_score = 5
        gradebook.db.commit()
    before = marks(answered)
    out = run(answered, "--from", save(answered, [*table, row_of(table, "007", FIRST)]), code=1)
    assert "changed after the table was written" in out and "not between 0 and 5" in out and "there twice" in out
    assert "3 rows cannot be used" in out and marks(answered) == before
    (answered / "edited.csv").write_text("student,points\nada,3\n")
    assert "row 1 has no column question" in run(answered, "--from", answered / "edited.csv", code=1)
    (answered / "edited.csv").write_text("a,b\n1,2\n")
    assert "row 1 names no column that is expected there" in run(answered, "--from", answered / "edited.csv", code=1)

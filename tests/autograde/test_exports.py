"""`lab export`: against stock nbgrader's export, Python's csv reader, and files laid out as Canvas and Moodle write them."""

import csv
import io
import random
import re
import shutil
import sqlite3
import warnings
from datetime import datetime

import pytest
from click.testing import CliRunner
from fake_class import FINAL, RECORD, verdict
from fake_runs import LAB, open_book
from nbgrader.plugins import CsvExportPlugin
from sqlalchemy.exc import SAWarning

from autograde.commands.export import export
from autograde.reports.export import csv_file
from autograde.reports.export.csv_file import CsvFile, ExportError, neutral
from autograde.reports.export.fill import parse_number
from autograde.rubric.verdict import verdict_path


def run(*arguments):
    return CliRunner().invoke(export, [str(argument) for argument in arguments])


def set_score(gradebook, student, score, waits=False, penalty=0.0):
    """Give a submission so many points, all on one cell, through nbgrader's own tables."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SAWarning)  # nbgrader's own, as in autograde.gradebook.scores
        submission = gradebook.update_or_create_submission(LAB, student)
    submission.timestamp = datetime(2026, 11, 20, 10, 0)
    (notebook,) = submission.notebooks
    for grade in notebook.grades:
        grade.auto_score, grade.needs_manual_grade = 0.0, False
    notebook.grades[0].auto_score, notebook.grades[0].needs_manual_grade = score, waits
    notebook.late_submission_penalty = penalty
    gradebook.db.commit()


@pytest.fixture(scope="module")
def scores_of_four(tmp_path_factory, known_lab):
    """A gradebook: ada 25.5; bob 20 less 2 for lateness; cyd 7, a question waits; dan without a submission. Of 28."""
    folder = tmp_path_factory.mktemp("graded")
    shutil.copy(known_lab, folder)
    with open_book(folder) as gradebook:
        gradebook.find_grade_cell("run-evidence", LAB, LAB).max_score = 20
        for last, first in (("Bell", "Bob"), ("Able", "Ada"), ("Dole", "Dan"), ("Cole", "Cyd")):
            student = first.lower()
            gradebook.add_student(student, last_name=last, first_name=first, email=f"{student}@uni.edu")
        set_score(gradebook, "ada", 25.5)
        set_score(gradebook, "bob", 20, penalty=2.0)
        set_score(gradebook, "cyd", 7, waits=True)
    return folder / "gradebook.db"


@pytest.fixture
def graded(fresh_course, scores_of_four):
    shutil.copy(scores_of_four, fresh_course)
    return fresh_course


def table(path, delimiter=","):
    return list(csv.reader(io.StringIO(path.read_bytes().decode("utf-8-sig"), newline=""), delimiter=delimiter))


def to_canvas(course, template, *more, target="canvas"):
    output = course / "exports" / f"{LAB}_{target}.csv"
    return run("1", "--to", target, "--course", course, "--template", template, *more), output


def to_moodle(course, template, *more):
    return to_canvas(course, template, *more, target="moodle")


def assert_refused(done, output, template, expected):
    """The command failed in one line about the template, and wrote nothing."""
    assert done.exit_code == 1 and len(done.output.strip().splitlines()) == 1
    assert re.search(expected, done.output), done.output
    assert str(template) in done.output and not output.exists()


# ---------------------------------------------------------------- cells and templates


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        *((text, "'" + text) for text in ("=1+1", "+1", "-1", "@SUM(A1)", " =1+1", "＝1")),
        *((text, text) for text in ("", " ", "Ada", "O'Neil", "a=b", "é", "'=1", "Able, Ada", "a; b", "a,b")),
        ("\t=1", "'\t'=1"),
        ("\r=1", "'\r'=1"),
        ("\0=1", "'=1"),
        ("Ada;=HYPERLINK(1)", "Ada;'=HYPERLINK(1)"),
        ("Ada; \t=1", "Ada; \t'=1"),
        ('Ada;"=1', "Ada;\"'=1"),
        ("a\r@b", "a\r'@b"),
        ("a\n＝b;+c,-d", "a\n'＝b;'+c,'-d"),
        ("=a;=b", "'=a;'=b"),
        ("rate 0.1, -1, or +2", "rate 0.1, -1, or +2"),
        (";-1+cmd|' /C calc'!A0", ";'-1+cmd|' /C calc'!A0"),
    ],
)
def test_a_formula_is_neutralised_once(text, safe):
    assert neutral(text) == safe and neutral(safe) == safe


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("quoted", [False, True])
def test_no_text_opens_a_formula_whatever_the_spreadsheet_s_separator(tmp_path, separator, quoted):
    chance = random.Random(11)
    pieces = [*';;,,\t\r\n"" \'=+-@＝', '""', "EVIL"]
    path = tmp_path / "t.csv"
    for _ in range(100):
        names = ["".join(chance.choice(pieces) for _ in range(chance.randrange(12))) for _ in range(4)]
        text = io.StringIO()
        writer = csv.writer(text, delimiter=separator, quoting=csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL)
        writer.writerow(["Name", "ID", "Other"])
        writer.writerows([[names[0], "7", names[1]], [names[2], "8", names[3]]])
        path.write_bytes(text.getvalue().encode())
        template = CsvFile(path, ["ID"])
        template.neutralise(["Name", "Other"])
        for other in ",;\t":
            for trimmed in (False, True):
                content = io.StringIO(template.to_bytes().decode(), newline="")
                rows = list(csv.reader(content, delimiter=other, skipinitialspace=trimmed))
                assert not [cell for row in rows for cell in row if re.match(r"\s*[=+\-@＝]", cell)], (names, other)


@pytest.mark.parametrize(
    ("text", "value"), [("10", 10), (" 10.50", 10.5), ("10,5", 10.5), ("", None), ("(read only)", None), ("1e3", None)]
)
def test_points(text, value):
    assert parse_number(text) == value


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_what_the_cells_say_and_the_ends_of_lines_stay(tmp_path, separator, end):
    path, chance = tmp_path / "t.csv", random.Random(7)
    for _ in range(60):
        pieces = ['"', '""', separator, "\n", "\r\n", "\r", "a", " ", "é", ";", ",", ""]
        rows = [["".join(chance.choice(pieces) for _ in range(chance.randrange(6))) for _ in "ab"] for _ in "cd"]
        text = io.StringIO(newline="")
        csv.writer(text, delimiter=separator, lineterminator=end, quoting=csv.QUOTE_ALL).writerows([["ID", "x"], *rows])
        path.write_bytes(text.getvalue().encode())
        template = CsvFile(path, ["ID"])
        assert template.rows == [["ID", "x"], *rows]
        template.set(1, 2, "new")
        path.write_bytes(template.to_bytes())
        assert table(path, separator) == [["ID", "x"], [*rows[0], "new"], rows[1]]
        assert template.to_bytes().startswith(f"ID{separator}x{end}".encode())


@pytest.mark.parametrize(
    "body", ['"a"b,c', '"a""b",c', ' "a",b', '"a"b"c,d', '"a\r\nb"', 'a"b', "", ",", "a" * 200_000]
)
@pytest.mark.parametrize("last", ["z", "z\n", "z\n\n"])
def test_odd_quotes_and_empty_rows_are_read_as_the_csv_module_reads_them(tmp_path, body, last):
    path = tmp_path / "t.csv"
    path.write_bytes(f"ID,x\n{body}\n{last}".encode())
    template = CsvFile(path, ["ID"])
    assert template.rows == table(path)
    path.write_bytes(template.to_bytes())
    assert template.rows == table(path)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_encoding_mark_and_separator_stay(tmp_path, encoding, delimiter):
    path = tmp_path / "t.csv"
    content = delimiter.join(["Student", "ID", "x"]) + "\n" + delimiter.join(["José", "1", ""])
    path.write_bytes(content.encode(encoding))
    template = CsvFile(path, ["Student", "ID"])
    template.set(1, 2, "é")
    assert template.to_bytes() == (content + "é\n").encode(encoding)


def test_a_character_that_the_encoding_lacks_is_an_error(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes("Student,ID\nJosé,1\n".encode("cp1252"))
    file = CsvFile(path, ["ID"])
    file.set(1, 0, "≥")
    with pytest.raises(ExportError, match=r"t\.csv: cp1252 has no U\+2265; save the template as UTF-8"):
        file.to_bytes()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "names no column"),
        (b"a,b\n", "names no column"),
        (b'ID\n1\n"2\n', "row 3 has a quote that is never closed"),
        (b"\xff\xfeI", "byte 2 is not text in utf-16-le"),
        (b"ID\n\x81\n", "is not text"),
        (b"ID\n\x81" + b"1" * 16, "is not text"),
        (b"ID\n" + b"1" * 18, "larger than"),
    ],
)
def test_what_is_no_template_is_one_line(tmp_path, monkeypatch, content, expected):
    monkeypatch.setattr(csv_file, "LIMIT", 20)
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(ExportError, match=expected) as error:
        CsvFile(path, ["ID"])
    assert str(path) in str(error.value) and "\n" not in str(error.value)


# ---------------------------------------------------------------- nbgrader


def stock(course, path):
    with open_book(course) as gradebook:
        CsvExportPlugin(to=str(path), assignment=[LAB]).export(gradebook)
    return path.read_bytes()


def test_nbgrader_s_file_is_that_of_stock_nbgrader(graded, tmp_path):
    with open_book(graded) as gradebook:
        gradebook.find_assignment(LAB).duedate = datetime(2026, 11, 20, 9, 0)
        gradebook.add_assignment("00_another")
        gradebook.add_student("eve")  # without a name
        set_score(gradebook, "eve", 1, penalty=5.0)
        gradebook.db.commit()
    done = run("1", "--to", "nbgrader", "--course", graded)
    assert done.exit_code == 0, done.output
    ours = graded / "exports" / f"{LAB}_nbgrader.csv"
    assert done.stdout.splitlines() == [str(ours)]
    assert ours.read_bytes() == stock(graded, tmp_path / "stock.csv")
    scores = {row["student_id"]: (row["raw_score"], row["score"]) for row in csv.DictReader(ours.open())}
    assert scores["bob"] == ("20.0", "18.0") and scores["dan"] == ("0.0", "0.0")
    assert scores["eve"] == ("1.0", "0.0"), "no score is below nothing"


def test_students_text_is_neutralised_and_quoted_for_nbgrader(graded, tmp_path):
    with open_book(graded) as gradebook:
        gradebook.add_student("=x", last_name='=HYPERLINK("http://x","y")', first_name="a\nb,c", email="+1@x\0")
    assert run("1", "--to", "nbgrader", "--course", graded, "-o", tmp_path / "o.csv").exit_code == 0
    assert b"\0" not in (tmp_path / "o.csv").read_bytes()
    (row,) = [row for row in table(tmp_path / "o.csv") if "HYPERLINK" in row[4]]
    assert row[3:7] == ["'=x", '\'=HYPERLINK("http://x","y")', "a\nb,c", "'+1@x"]


def test_those_who_wait_for_a_person_are_told_or_left_out(graded, tmp_path):
    path = tmp_path / "o.csv"
    done = run("1", "--to", "nbgrader", "--course", graded, "-o", path)
    assert "1 of 4 still need hand grading: scores are not final" in done.stderr
    assert [row[3] for row in table(path)[1:]] == ["ada", "bob", "cyd", "dan"]
    done = run("1", "--to", "nbgrader", "--course", graded, "-o", path, "--final-only")
    assert "1 of 4 still need hand grading: left out" in done.stderr
    assert [row[3] for row in table(path)[1:]] == ["ada", "bob", "dan"]


# ---------------------------------------------------------------- Canvas

CANVAS = """\
Student,ID,SIS User ID,SIS Login ID,Section,Notes,Lab 01 (123456),Lab 10 (9),Lab 01 Current Score,Final Score
,,,,,,Manual Posting,,,
    Points Possible,,,,,,28.00,10.00,(read only),(read only)
"Able, Ada",11,u1,ada,"Sec ""A"", B",=note,,3.00,1,2
"Bell, Bob",12,u2,BOB@uni.edu,S,,1.00,"4,00",1,2
"=cmd|' /C calc'!A0",13,u3,cyd,S,,,,,
"Dole, Dan",14,u4,dan,S,,,,,
"Zed, Zoe",15,-u5,+zoe,S,,9.00,,,
"Student, Test",16,,ada,S,,,,,
"""


@pytest.fixture
def canvas(graded, tmp_path):
    path = tmp_path / "canvas.csv"
    path.write_bytes(CANVAS.replace("\n", "\r\n").encode("utf-8-sig"))
    return path


def test_canvas_s_file_changes_in_the_scores_and_in_names_that_are_formulas_only(graded, canvas):
    before = canvas.read_bytes()
    done, output = to_canvas(graded, canvas)
    assert done.exit_code == 0, done.output
    expected = table(canvas)
    expected[3][6], expected[4][6], expected[5][6] = "25.50", "18.00", "7.00"
    expected[5][0] = "'=cmd|' /C calc'!A0"
    assert table(output) == expected
    assert output.read_bytes()[:3] == b"\xef\xbb\xbf" and output.read_bytes().count(b"\r\n") == len(expected)
    assert canvas.read_bytes() == before
    assert "3 filled in column 'Lab 01 (123456)', students found by SIS Login ID" in done.stderr
    assert "no score for 2 in the file: 'dan', '+zoe'" in done.stderr
    assert "warning" not in done.stderr and "not in the file" not in done.stderr


def test_canvas_excused_and_unassigned_stay(graded, canvas):
    canvas.write_text(CANVAS.replace("=note,,3.00", "=note,EX,3.00").replace("cyd,S,,,", "cyd,S,,N/A,"))
    done, output = to_canvas(graded, canvas)
    assert {row[3]: row[6] for row in table(output)[3:]} == {
        "ada": "",  # the test student's row comes last and has the same login
        "BOB@uni.edu": "18.00",
        "cyd": "N/A",
        "dan": "",
        "+zoe": "9.00",
    }
    assert table(output)[3][6] == "EX"
    assert "left so: 'ada', 'cyd'" in done.stderr


def test_canvas_missing_final_and_absent(graded, canvas):
    done, output = to_canvas(graded, canvas, "--zero-missing", "--final-only")
    assert [row[6] for row in table(output)[3:]] == ["25.50", "18.00", "", "0.00", "9.00", ""]
    assert "no score for 2 in the file: 'cyd', '+zoe'" in done.stderr
    with open_book(graded) as gradebook:
        gradebook.add_student("eve")
        set_score(gradebook, "eve", 3)
    done, _ = to_canvas(graded, canvas)
    assert "not in the file: 'eve'\n" in done.stderr


def test_canvas_other_points_are_told_and_scaled_when_asked(graded, canvas):
    canvas.write_text(CANVAS.replace("28.00", "56.00"))
    done, output = to_canvas(graded, canvas)
    assert "warning: Points Possible of 'Lab 01 (123456)' is 56, the lab is worth 28" in done.stderr
    assert table(output)[3][6] == "25.50"
    done, output = to_canvas(graded, canvas, "--scale")
    assert "warning" not in done.stderr
    assert table(output)[3][6] == "51.00" and table(output)[2][6] == "56.00"
    canvas.write_text(CANVAS.replace("28.00", ""))
    done, _ = to_canvas(graded, canvas, "--scale")
    assert done.exit_code == 1 and "cannot scale" in done.output


@pytest.mark.parametrize(
    ("header", "options", "expected"),
    [
        ("Lab 1 (5)", [], None),
        ("01_single_gpu (5)", [], None),
        ("Training on a single GPU: run (5)", [], None),
        ("Homework (5)", ["--column", "Homework"], None),
        ("Homework (5)", ["--column", "Homework (5)"], None),
        ("Homework (5)", [], "row 1 has no column beginning with .*choose with --column from .*'Homework \\(5\\)'"),
        ("Homework (5)", ["--column", "Home"], "row 1 has no column named 'Home'; .*'Homework \\(5\\)'"),
        ("Lab 1 (5),Lab 01 quiz (6)", [], "row 1 has 2 columns .* from 'Lab 1 \\(5\\)', 'Lab 01 quiz \\(6\\)'"),
        ("Lab 1 (5),Lab 1 (6)", ["--column", "Lab 1"], "row 1 has 2 columns named 'Lab 1'"),
        ("Lab 1 (5)", ["--column", "Final Score"], "no column named"),
        ("Lab 11 (5)", [], "no column"),
    ],
)
def test_canvas_one_column_must_be_meant(graded, canvas, header, options, expected):
    canvas.write_text(f"Student,ID,SIS Login ID,Section,{header},Lab 1 Final Score,Final Score\nA,1,ada,S,,\n")
    done, output = to_canvas(graded, canvas, *options)
    if expected is None:
        assert done.exit_code == 0, done.output
        assert table(output)[1][4] == "25.50"
    else:
        assert_refused(done, output, canvas, expected)


@pytest.mark.parametrize(
    ("header", "rows", "found"),
    [
        ("ID,SIS User ID,SIS Login ID", ["1,x,ada", "2,y,bob"], "SIS Login ID"),
        ("ID,SIS User ID,SIS Login ID", ["1,ada,z", "2,bob,y"], "SIS User ID"),
        ("ID,SIS User ID,SIS Login ID", ["ada,q,z", "bob,r,y"], "ID"),
        ("ID,SIS User ID,SIS Login ID", ["1,x,ada@a.edu", "2,y,BOB"], "SIS Login ID"),
        # One platform number is another student's id: the column that finds most decides alone.
        ("ID,SIS User ID,SIS Login ID", ["bob,ada,z", "9,bob,y"], "SIS User ID"),
    ],
)
def test_canvas_students_are_found_by_one_column(graded, canvas, header, rows, found):
    lines = [f"Student,{header},Section,Lab 1 (5)", *(f"N,{row},S," for row in rows)]
    canvas.write_text("\n".join(lines) + "\n")
    done, output = to_canvas(graded, canvas)
    assert f"found by {found}\n" in done.stderr
    assert [row[5] for row in table(output)[1:]] == ["25.50", "18.00"]


def test_canvas_nobody_gets_a_score_that_could_be_another_s(graded, canvas):
    with open_book(graded) as gradebook:
        gradebook.add_student("zoe@a.edu")
        set_score(gradebook, "zoe@a.edu", 5)
    lines = ["ada@a.edu", "ada@b.edu", "bob", "bob", "zoe@b.edu", "cyd"]
    text = "Student,ID,SIS Login ID,Section,Lab 1 (5)\n" + "".join(f"N,{n},{x},S,\n" for n, x in enumerate(lines))
    canvas.write_text(text)
    done, output = to_canvas(graded, canvas)
    assert [row[4] for row in table(output)[1:]] == ["", "", "", "", "", "7.00"]
    assert "several match, fill by hand: 'ada', 'bob'" in done.stderr
    assert "not in the file: 'zoe@a.edu'" in done.stderr


def test_canvas_with_semicolons_decimal_commas_and_separate_names(graded, canvas):
    canvas.write_text(
        "LastName;FirstName;ID;SIS Login ID;Section;Lab 01 (1)\n    Points Possible;;;;;28,00\n"
        "=Able;@da;1;ada;S;\nStudent;Test;2;bob;S;\n"
    )
    _, output = to_canvas(graded, canvas)
    assert output.read_text().splitlines()[2:] == ["'=Able;'@da;1;ada;S;25,50", "Student;Test;2;bob;S;"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Student,Name\n", "row 1 has no Student and ID"),
        ("Student,ID,Lab 1 (1)\nA,7,\n", "no student of the gradebook is in column 'ID'"),
        ("Student,ID,Lab 1 (1)\n Points Possible,,(read only)\nA,ada,\n", "computed by Canvas"),
    ],
)
def test_canvas_what_cannot_be_filled_is_one_line(graded, canvas, text, expected):
    canvas.write_text(text)
    assert_refused(*to_canvas(graded, canvas), canvas, expected)


# ---------------------------------------------------------------- Moodle

HEADINGS = (
    'Identifier,"Full name","Email address",Status,Grade,"Maximum Grade","Grade can be changed",'
    '"Last modified (submission)","Online text","Last modified (grade)","Feedback comments"\n'
)
DATES = '"Friday, 20 November 2026, 9:00 AM"'
MOODLE = HEADINGS + (
    f'"Participant 101","Ada Able",ada@uni.edu,"Submitted for grading",,28.00,Yes,{DATES},=1+1,-,\n'
    f'"Participant 102","Bob Bell",bob@elsewhere.edu,"Submitted, graded",3.00,28.00,No,-,,{DATES},"Well ""done"""\n'
    '"Participant 103",=Cyd,cyd@uni.edu,"No submission",,28.00,Yes,-,,-,"=by hand"\n'
    '"Participant 104","Dan Dole",+dan@uni.edu,"No submission",,28.00,Yes,-,,-,\n'
)


@pytest.fixture
def moodle(graded, tmp_path):
    path = tmp_path / "moodle.csv"
    path.write_text(MOODLE)
    return path


def test_moodle_s_file_changes_in_grades_and_in_shown_formulas_only(graded, moodle):
    done, output = to_moodle(graded, moodle)
    assert done.exit_code == 0, done.output
    expected = table(moodle)
    expected[1][4], expected[1][8] = "25.50", "'=1+1"
    expected[3][1], expected[3][4] = "'=Cyd", "7.00"
    expected[4][2] = "'+dan@uni.edu"
    assert table(output) == expected
    assert moodle.read_text() == MOODLE
    assert "2 filled in column 'Grade', students found by Email address" in done.stderr
    assert "grade cannot be changed in Moodle, left as it is: 'bob'" in done.stderr
    assert "no score for 1 in the file: '+dan@uni.edu'" in done.stderr


def test_moodle_decimal_commas_and_scaling(graded, moodle):
    moodle.write_text(MOODLE.replace("28.00", '"100,00"'))
    done, output = to_moodle(graded, moodle)
    assert "warning: Maximum Grade is 100, the lab is worth 28" in done.stderr
    assert table(output)[1][4:6] == ["25,50", "100,00"]
    done, output = to_moodle(graded, moodle, "--scale")
    assert table(output)[1][4:6] == ["91,07", "100,00"] and "warning" not in done.stderr


def test_moodle_a_grade_that_it_would_leave_out_is_told(graded, moodle):
    moodle.write_text(MOODLE.replace("28.00", "20.00"))
    done, _ = to_moodle(graded, moodle)
    assert "above Maximum Grade, which Moodle leaves out on import: 'ada'" in done.stderr


def test_moodle_zero_for_missing_by_id_number(graded, moodle):
    moodle.write_text(MOODLE.replace("Email address", "ID number").replace("+dan@uni.edu", "dan"))
    done, output = to_moodle(graded, moodle, "--zero-missing")
    assert [row[4] for row in table(output)[1:]] == ["25.50", "3.00", "7.00", "0.00"]
    assert "found by ID number" in done.stderr


def test_moodle_comments_are_the_reasons_as_text(graded, tmp_path):
    for student, criteria in {"ada": (), "bob": [RECORD], "cyd": (), "dan": ()}.items():
        verdict(student, criteria).save(graded)
    path = verdict_path(graded, "bob", LAB)
    text = path.read_text().replace("run-record as bob did it", "<script>alert(1)</script>")
    path.write_text(text.replace("look at run-record", "look & see"))
    verdict_path(graded, "dan", LAB).write_text("{}")
    template = tmp_path / "moodle.csv"
    rows = "".join(f"Participant {n},N,{x}@uni.edu,,,28,Yes,-,,-,\n" for n, x in enumerate(("ada", "bob", "dan")))
    template.write_text(HEADINGS + rows + 'Participant 9,N,cyd@uni.edu,,,28,Yes,-,,-,"by hand"\n')
    done, output = to_moodle(graded, template, "--feedback", "--zero-missing")
    assert done.exit_code == 0, done.output
    comments = {row[2].split("@")[0]: row[-1] for row in table(output)[1:]}
    assert comments["ada"] == (
        "Graded from the files handed in: 10 of 10 points<br>\npassed 3/3 What update is about: update as ada did it<br>\n"
        "passed 1/1 What returns is about: returns as ada did it<br>\n"
        "passed 2/2 What run-record is about: run-record as ada did it<br>\n"
        "passed 4/4 What final is about: final as ada did it"
    )
    reason = "FAILED 0/2 What run-record is about: &lt;script&gt;alert(1)&lt;/script&gt;<br>\n"
    assert reason + "how to look at it: look &amp; see<br>" in comments["bob"]
    assert (comments["dan"], comments["cyd"]) == ("", "by hand")
    assert "a comment is there already, left as it is: 'cyd'" in done.stderr
    assert "no readable verdict, so no comment: 'dan'" in done.stderr
    # Ours is written anew when asked for again.
    verdict("ada", [FINAL]).save(graded)
    again = tmp_path / "again.csv"
    again.write_bytes(output.read_bytes())
    to_moodle(graded, again, "--feedback")
    assert "6 of 10 points" in table(output)[1][-1]
    # Without the option comments stay.
    _, output = to_moodle(graded, template)
    assert [row[-1] for row in table(output)[1:]] == ["", "", "", "by hand"]


@pytest.mark.parametrize(
    ("old", "new", "more", "expected"),
    [
        ('"Grade can be changed"', "Editable", [], "no column 'Grade can be changed'; .* in English"),
        ("Identifier", "Bezeichner", [], "no column 'Identifier'"),
        ('"Maximum Grade"', "Scale", [], "graded on a scale"),
        ('"Feedback comments"', "Files", ["--feedback"], "no column 'Feedback comments'"),
        ('"Email address"', "Group", [], "row 1 has no column 'Username' or 'ID number' or 'Email address'"),
        ('+dan@uni.edu,"No submission",,28.00', "d,,,30.00", [], "column Maximum Grade has '28.00', '30.00'"),
    ],
)
def test_moodle_what_cannot_be_filled_is_one_line(graded, moodle, old, new, more, expected):
    assert old in MOODLE
    moodle.write_text(MOODLE.replace(old, new))
    assert_refused(*to_moodle(graded, moodle, *more), moodle, expected)


# ---------------------------------------------------------------- the command


BAD_ARGUMENTS = [
    [], ["1"], ["99", "--to", "nbgrader"], ["1", "--to", "excel"], ["1", "--to", "canvas"], ["1", "--to", "moodle"],
    ["1", "--to", "canvas", "--template", "nowhere.csv"], ["1", "--to", "nbgrader", "--template", __file__],
    ["1", "--to", "nbgrader", "--scale"], ["1", "--to", "nbgrader", "--zero-missing"],
    ["1", "--to", "moodle", "--template", __file__, "--column", "x"],
    ["1", "--to", "canvas", "--template", __file__, "--feedback"],
]  # fmt: skip


@pytest.mark.parametrize("arguments", BAD_ARGUMENTS)
def test_bad_arguments_are_exit_code_2(course, arguments):
    assert run(*arguments, "--course", course).exit_code == 2
    assert not (course / "exports").exists()


def test_the_template_is_overwritten_only_by_name(graded, canvas):
    inside = graded / "exports" / f"{LAB}_canvas.csv"
    inside.parent.mkdir()
    inside.write_text(CANVAS)
    done, _ = to_canvas(graded, inside)
    assert done.exit_code == 1 and "is the template" in done.output
    assert inside.read_text() == CANVAS
    done, _ = to_canvas(graded, inside, "-o", inside)
    assert done.exit_code == 0 and table(inside)[3][6] == "25.50"
    assert [path.name for path in inside.parent.iterdir()] == [inside.name]


def test_a_file_that_cannot_be_written_leaves_the_old_one(graded, tmp_path, monkeypatch):
    path = tmp_path / "o.csv"
    path.write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("course_lib.system.atomic.os.replace", full)
    done = run("1", "--to", "nbgrader", "--course", graded, "-o", path)
    assert done.exit_code == 1 and "No space left on device" in done.output and "-o FILE" in done.output
    assert path.read_text() == "old" and not list(tmp_path.glob(".o.csv*"))


def test_no_gradebook_and_no_lab_in_it_are_one_line(fresh_course, known_lab):
    done = run("1", "--to", "nbgrader", "--course", fresh_course)
    assert done.exit_code == 1 and "no gradebook" in done.output and "lab grade" in done.output
    assert not (fresh_course / "gradebook.db").exists()
    (fresh_course / "gradebook.db").write_bytes(known_lab.read_bytes())
    done = run("2", "--to", "nbgrader", "--course", fresh_course)
    assert done.exit_code == 1 and "does not know 02_ddp" in done.output
    (fresh_course / "gradebook.db").write_bytes(b"no database" * 100)
    done = run("1", "--to", "nbgrader", "--course", fresh_course)
    assert done.exit_code == 1 and "cannot be opened" in done.output


def test_a_score_that_is_no_number_is_told(graded):
    with sqlite3.connect(graded / "gradebook.db") as database:
        database.execute("UPDATE grade SET auto_score = 9e999 WHERE auto_score > 25")
    done = run("1", "--to", "nbgrader", "--course", graded)
    assert done.exit_code == 1 and "the score of 'ada' in 01_single_gpu is not a number" in done.output

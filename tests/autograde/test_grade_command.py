"""`lab grade` and `lab report` as commands: exit codes, one-line errors, what they print."""

import contextlib
import io
import os
import pty
import secrets
import sys
from dataclasses import replace
from importlib.metadata import entry_points

import pytest
from click.testing import CliRunner
from fake_runs import AUTOMATIC, CHECKS, LAB, RUN, open_book, released_notebook, solved_notebook
from nbgrader.apps.api import NbGraderAPI

from autograde.batch.grade_lab import grade_lab
from autograde.commands.cli import UNSANDBOXED, backup, grade, report, restore
from autograde.commands.export import export
from autograde.commands.extend import extend
from autograde.commands.progress import Progress
from autograde.gradebook.scores import CourseError, nbgrader_settings
from autograde.grading.grading_context import course_secret
from autograde.rubric.schema import RUBRICS, find_rubric
from autograde.rubric.verdict import RunSummary, Verdict, load_verdict, verdict_path
from autograde.sandbox.bubblewrap import SandboxError

EARNED = sum(CHECKS.values())  # of all exercises, without a run
CRITERIA = len(find_rubric(LAB).runs[0].criteria)
PARTS = sum(len(exercise.points) for exercise in find_rubric(LAB).exercises)


def run(command, *arguments):
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def test_they_are_commands_of_lab():
    points = {point.name: point for point in entry_points(group="lab.commands")}
    commands = {"grade": grade, "report": report, "export": export, "extend": extend, "backup": backup, "restore": restore}
    assert {name: points[name].load() for name in commands} == commands


def test_grading_and_reporting(lab_course, hand_in, graded_here, tmp_path):
    hand_in("bob", released_notebook())
    hand_in("eve", False, None)
    hand_in("<b>\nx", False, None)
    done = run(grade, "01", "--course", lab_course)
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    blank = "not answered: the exercise still has its blank  [missing"
    assert lines[0].startswith("[1/2, ")
    assert f"bob: {RUN:g}/{AUTOMATIC:g}  missed {PARTS} criteria: {blank}" in lines[0]
    assert f"eve: 0/{AUTOMATIC:g}  missed " in lines[1] and "[missing]" in lines[1]
    assert f"{LAB}: 2 graded, scores in the gradebook; next: lab report 01" in lines
    assert len([line for line in lines if "skipped submitted/" in line and "not a student id" in line]) == 1
    again = run(grade, "01", "--course", lab_course)
    assert f"{LAB}: 2 of 2 are graded already and have not changed" in again.output
    assert f"{LAB}: 2 graded (2 of them before), scores in the gradebook" in again.output
    again = run(grade, "01", "--course", lab_course, "--rubrics", RUBRICS)
    assert again.output.splitlines()[-1].endswith(f"next: lab report 01 --rubrics {RUBRICS}")
    done = run(report, LAB, "--course", lab_course)
    assert done.exit_code == 0
    assert (lab_course / "reports" / f"{LAB}.html").is_file()
    assert run(report, "1", "--course", lab_course, "-o", tmp_path / "mine.html").exit_code == 0
    assert (tmp_path / "mine.html").is_file()


BAD_ARGUMENTS = [
    (grade, []), (grade, ["99"]), (grade, ["01_single_gpu/../x"]), (grade, ["1", "--student", "../ada"]),
    (grade, ["1", "--student", "a\nb"]), (grade, ["1", "--student", ".ada"]), (grade, ["1", "--jobs", "0"]),
    (grade, ["1", "--executor", "cloud"]), (report, ["99"]),
]  # fmt: skip


@pytest.mark.parametrize(("command", "arguments"), BAD_ARGUMENTS)
def test_bad_arguments_are_exit_code_2(lab_course, command, arguments):
    assert run(command, *arguments, "--course", lab_course).exit_code == 2


@pytest.mark.parametrize(("command", "expected"), [(grade, "collect"), (report, "lab grade")])
def test_work_that_cannot_be_done_is_exit_code_1_in_one_line(lab_course, command, expected):
    done = run(command, "1", "--course", lab_course)
    assert done.exit_code == 1
    assert len(done.output.strip().splitlines()) == 1
    assert expected in done.output


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (SandboxError("no sandbox: install it"), "Error: no sandbox: install it"),
        (CourseError("gradebook.db cannot be opened"), "Error: gradebook.db cannot be opened"),
        (KeyboardInterrupt(), "Error: interrupted; 0 of 1 were graded and are kept: the same command continues"),
    ],
)
def test_what_ends_a_batch_is_one_line(lab_course, hand_in, monkeypatch, error, expected):
    hand_in("ada", False, None)

    def end(*_):
        raise error
        yield

    monkeypatch.setattr("autograde.batch.grade_lab.run_local", end)
    monkeypatch.setattr("autograde.batch.grade_lab.missing_sandbox", lambda: None)
    done = run(grade, "1", "--course", lab_course)
    assert (done.exit_code, done.output.strip()) == (1, expected)


def test_no_sandbox_on_the_machine_is_one_line_and_nobody_is_graded(lab_course, hand_in, monkeypatch):
    hand_in("ada", False, None)
    monkeypatch.setattr("autograde.sandbox.bubblewrap.shutil.which", lambda name: None)
    done = run(grade, "1", "--course", lab_course)
    assert done.exit_code == 1 and len(done.output.strip().splitlines()) == 1
    assert "bubblewrap" in done.output and "--no-sandbox" in done.output
    assert not verdict_path(lab_course, "ada", LAB).exists()


def test_no_sandbox_is_said_aloud_and_marks_every_result(lab_course, hand_in, warm):
    """Through the real pool, whose worker then makes no namespaces."""
    hand_in("ada", solved_notebook())
    done = run(grade, "1", "--course", lab_course, "--no-sandbox", "--jobs", "1")
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[0] == UNSANDBOXED and done.output.count("[unsandboxed]") == 1
    verdict = load_verdict(verdict_path(lab_course, "ada", LAB))
    assert (verdict.score, verdict.sandbox, verdict.flags[0].kind) == (AUTOMATIC, "none", "unsandboxed")
    with open_book(lab_course) as gradebook:
        grades = gradebook.find_submission(LAB, "ada").notebooks[0].grades
        assert sum(grade.auto_score or 0 for grade in grades) == AUTOMATIC
    for cell in verdict.cells:
        assert "graded without the sandbox" in verdict.comment(cell)
    path = lab_course / "autograded" / "ada" / LAB / f"{LAB}.ipynb"
    assert path.read_text().count("graded without the sandbox") == len(verdict.cells)
    run(report, "1", "--course", lab_course)
    assert "sandbox" in (lab_course / "reports" / f"{LAB}.html").read_text()


def test_a_result_without_the_sandbox_is_not_taken_for_one_with_it(lab_course, hand_in, graded_here):
    hand_in("ada", False, None)
    (verdict,) = grade_lab("1", lab_course)
    replace(verdict, sandbox="none").save(lab_course)
    (again,) = grade_lab("1", lab_course)
    assert graded_here == ["ada", "ada"] and again.sandbox == "bubblewrap"


def grade_three(monkeypatch, file):
    """What a batch of four shows in a file, of which one is graded already."""
    monkeypatch.setattr(sys, "stdout", file)
    verdict = Verdict(LAB, "t", "ada", "2026-11-20T10:00:00+00:00", (), (RunSummary(),))
    progress = Progress(LAB)
    progress.begun(3, 4)
    for fresh in (False, True, True, True):
        progress.done(verdict, fresh)
    progress.close()
    print("after", flush=True)


def test_a_terminal_shows_a_bar_and_gets_its_line_back(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    controller, terminal = pty.openpty()
    with open(terminal, "w") as file:
        grade_three(monkeypatch, file)
    with open(controller, "rb", buffering=0) as file, contextlib.suppress(OSError):  # Linux's end of a terminal
        text = ""
        while piece := file.read(4096):
            text += piece.decode()
    assert "1 of 4 are graded already" in text
    assert "grading 01_single_gpu" in text and "3/3" in text
    assert text.endswith("\r\nafter\r\n") and "\x1b[?25h" in text  # a line of its own, and the cursor is back
    assert "ada" not in text


def test_a_log_gets_a_line_for_each_submission(monkeypatch):
    grade_three(monkeypatch, log := io.StringIO())
    lines = log.getvalue().splitlines()
    assert [line.split(",")[0] for line in lines[1:4]] == ["[1/3", "[2/3", "[3/3"]
    assert lines[3].endswith("0 s left] ada: 0/0") and lines[4] == "after"


def test_a_missing_run_folder_is_a_flag_and_one_sentence(lab_course, hand_in, graded_here):
    hand_in("zoë.müller", solved_notebook(), None)
    done = run(grade, "1", "--course", lab_course)
    assert done.exit_code == 0, done.output
    assert (
        f"zoë.müller: {EARNED:g}/{AUTOMATIC:g}  missed {CRITERIA} criteria: no run folder in the submission"
        in done.output
    )
    assert done.output.count("[missing]") == 1
    verdict = load_verdict(verdict_path(lab_course, "zoë.müller", LAB))
    assert [flag.kind for flag in verdict.flags] == ["missing"]
    comment = verdict.comment("run-evidence")
    assert comment.count("no run folder") == 1 and "how to look at it" not in comment
    assert len(comment.splitlines()) == 2
    assert run(report, "1", "--course", lab_course).exit_code == 0
    main = (lab_course / "reports" / f"{LAB}.html").read_text()
    assert f'<a href="{LAB}/zo%C3%AB.m%C3%BCller.html">zoë.müller</a>' in main
    page = (lab_course / "reports" / LAB / "zoë.müller.html").read_text()
    assert page.count("no run folder in the submission") == 2  # the flag and the reason
    with open_book(lab_course) as gradebook:
        assert gradebook.find_submission(LAB, "zoë.müller").score == EARNED
    feedback = NbGraderAPI(config=nbgrader_settings(lab_course)).generate_feedback(LAB, "zoë.müller")
    assert feedback["success"], feedback
    shown = (lab_course / "feedback" / "zoë.müller" / LAB / f"{LAB}.html").read_text()
    assert shown.count("no run folder in the submission") == 1
    # A platform that writes the letter as two characters means her, too.
    canvas = lab_course / "canvas.csv"
    canvas.write_text("Student,ID,SIS Login ID,Section,Lab 1 (7)\nZ,1,zoe\u0308.mu\u0308ller,S,\n")
    done = run(export, "1", "--to", "canvas", "--template", canvas, "--course", lab_course)
    assert done.exit_code == 0, done.output
    filled = (lab_course / "exports" / f"{LAB}_canvas.csv").read_text()
    assert f"zoe\u0308.mu\u0308ller,S,{EARNED:.2f}" in filled


def test_a_terminal_that_lacks_a_letter_of_an_id_stops_nothing(monkeypatch):
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr("autograde.batch.grade_lab.grade_lab", lambda *_, **options: print("zoë") or [])
    grade.main(["1", "--course", "nowhere", "--student", "zoë"], standalone_mode=False)
    terminal.flush()
    assert b"zo\\xeb" in terminal.buffer.getvalue()


def test_nobody_else_can_read_the_course_s_secret_not_even_while_it_is_made(monkeypatch, tmp_path):
    modes, drawn = [], secrets.token_hex

    def draw(count):
        modes.extend(path.stat().st_mode & 0o777 for path in tmp_path.iterdir())
        return drawn(count)

    monkeypatch.setattr(secrets, "token_hex", draw)
    before = os.umask(0)
    try:
        secret = course_secret(tmp_path)
    finally:
        os.umask(before)
    [path] = tmp_path.iterdir()
    assert modes == [0o600] and path.stat().st_mode & 0o777 == 0o600
    assert course_secret(tmp_path) == secret == path.read_bytes()

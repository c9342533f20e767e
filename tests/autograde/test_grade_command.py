"""`lab grade` and `lab report` as commands: exit codes, one-line errors, what they print."""

from importlib.metadata import entry_points

import pytest
from click.testing import CliRunner
from fake_runs import LAB

from autograde.cli import grade, report


def run(command, *arguments):
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def test_both_are_commands_of_lab():
    found = {
        point.name: point.load() for point in entry_points(group="lab.commands") if point.name in ("grade", "report")
    }
    assert found == {"grade": grade, "report": report}


def test_grading_and_reporting(course, submit, make_run, tmp_path):
    submit("ada", make_run())
    submit("eve")
    submit("<b>", make_run())
    done = run(grade, "01", "--course", course)
    assert done.exit_code == 0, done.output
    assert "ada: 20/20\n" in done.output
    assert "eve: 0/20  missed 8 criteria: no run folder in the submission" in done.output
    assert "skipped submitted/'<b>'" in done.output
    done = run(report, LAB, "--course", course)
    assert done.exit_code == 0
    assert (course / "reports" / f"{LAB}.html").is_file()
    assert run(report, "1", "--course", course, "-o", tmp_path / "mine.html").exit_code == 0
    assert (tmp_path / "mine.html").is_file()


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (grade, []),
        (grade, ["99"]),
        (grade, ["01_single_gpu/../x"]),
        (grade, ["1", "--student", "../ada"]),
        (grade, ["1", "--student", ".ada"]),
        (grade, ["1", "--jobs", "4"]),
        (report, []),
        (report, ["99"]),
    ],
)
def test_bad_arguments_are_exit_code_2(course, command, arguments):
    assert run(command, *arguments, "--course", course).exit_code == 2


@pytest.mark.parametrize(("command", "expected"), [(grade, "collect"), (report, "lab grade")])
def test_work_that_cannot_be_done_is_exit_code_1_in_one_line(course, command, expected):
    done = run(command, "1", "--course", course)
    assert done.exit_code == 1
    assert len(done.output.strip().splitlines()) == 1
    assert expected in done.output

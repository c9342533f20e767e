"""``lab extend`` and grace days. nbgrader's own ``grant_extension`` is the oracle in `test_late_penalties`."""

import re
from datetime import datetime, timedelta

import pytest
from click.testing import CliRunner
from fake_runs import LAB, hand_in_to, open_book, source_notebook
from nbgrader.converters import Autograde
from nbgrader.coursedir import CourseDirectory

import autograde.gradebook.extensions as extensions_module
from autograde.commands.extend import extend
from autograde.commands.nbgrader_hooks import KeepVerdict
from autograde.gradebook.extensions import Extensions
from autograde.gradebook.late_penalties import LatePenalties, LatePenaltyError
from autograde.gradebook.scores import nbgrader_settings
from autograde.rubric.verdict import CriterionResult, Verdict
from autograde.submission.notebook_repair import release_of

DAY, SECOND = timedelta(days=1), timedelta(seconds=1)
DUE = {LAB: datetime(2026, 11, 20, 22), "02_ddp": datetime(2026, 11, 6, 22), "03_batch_size_scaling": None}
SECOND_LAB, THIRD_LAB = "02_ddp", "03_batch_size_scaling"
ZERO = 'c.LateSubmissionPlugin.penalty_method = "zero"\n'


@pytest.fixture
def labs(course):
    """Lab 01, due after lab 02, and lab 03 without a due date, each of 20 points; with nbgrader's penalty of everything."""
    with open_book(course) as gradebook:
        for lab, due in DUE.items():
            gradebook.update_or_create_assignment(lab, duedate=due)
            gradebook.update_or_create_notebook(lab, lab)
            gradebook.update_or_create_grade_cell("a", lab, lab, max_score=20, cell_type="code")
    configure(course, ZERO)
    return course


def configure(course, text):
    path = course.parent / "nbgrader_config.py"
    path.write_text(path.read_text() + text)


def hand_in(course, student, lab, late):
    """A submission with 20 points, as the grader leaves it."""
    with open_book(course) as gradebook:
        gradebook.update_or_create_student(student)
        gradebook.update_or_create_submission(lab, student, timestamp=(DUE[lab] or DUE[LAB]) + late)
        gradebook.find_grade("a", lab, lab, student).auto_score = 20
        gradebook.db.commit()


def grade(course, *labs, student="ada"):
    for lab in labs:
        LatePenalties(nbgrader_settings(course)).assign(lab, student)
    return found(course, student)


def found(course, student="ada"):
    """By lab: the extension in days, as nbgrader has it, and the penalty."""
    with open_book(course) as gradebook:
        return {
            each.assignment.name: (each.extension and each.extension / DAY, each.late_submission_penalty)
            for each in gradebook.student_submissions(student)
        }


def lab_extend(course, *arguments):
    return CliRunner().invoke(extend, [*arguments, "--course", str(course)])


def test_an_extension_is_given_listed_replaced_and_taken_back(labs):
    (labs / "submitted" / "ada").mkdir()
    assert lab_extend(labs).output == "no extensions\n"
    assert lab_extend(labs, "ada", "01", "--days", "3").output == f"ada  {LAB}  3 days, until 2026-11-23 22:00 UTC\n"
    with open_book(labs) as gradebook:  # nobody has handed in anything
        assert gradebook.assignment_submissions(LAB) == []
    hand_in(labs, "ada", LAB, 2 * DAY)
    hand_in(labs, "zoë", LAB, -DAY)
    assert found(labs) == {LAB: (None, 0)}
    assert grade(labs, LAB) == grade(labs, LAB) == {LAB: (3, 0)}
    done = lab_extend(labs, "ada", "1", "--days", "0.5")
    assert done.output.splitlines() == [
        f"ada  {LAB}  12 hours, until 2026-11-21 10:00 UTC",
        f"penalty of ada for {LAB}: 0 before, 20 points now; to show it: "
        f"nbgrader generate_feedback {LAB} --student ada --force",
    ]
    assert found(labs) == grade(labs, LAB) == {LAB: (0.5, 20)}
    assert lab_extend(labs, "zoë", "1", "--days", "1").exit_code == 0
    assert lab_extend(labs).output.count("\n") == 2 and lab_extend(labs, "zoë").output.count("\n") == 1
    assert f"ada  {LAB}  no extension\n" == lab_extend(labs, "ada", "1", "--days", "0").output
    assert found(labs) == grade(labs, LAB) == {LAB: (None, 20)}
    assert (labs / "extensions.csv").read_text() == f"student,lab,days\nzoë,{LAB},1\n"


BAD = [
    (["adaa", "1", "--days", "3"], "no student adaa in the gradebook or in .*nbgrader db student add adaa"),
    (["ada", "3", "--days", "3"], "03_batch_size_scaling has no due date to extend; set one in formgrader"),
    (["ada", "99", "--days", "3"], "99"),
    (["../x", "1", "--days", "3"], "is not a student id"),
    (["ada", "1", "--days", "-1"], "-1 is negative; 0 takes an extension back"),
    (["ada", "1", "--days", "nan"], "'nan' is not a number of days up to 1000"),
    (["ada", "1", "--days", "1e9"], "'1e9' is not a number of days up to 1000"),
    (["ada", "1", "--days", "three"], "'three' is not a number of days"),
    (["ada", "1", "--days", "0"], f"ada has no extension for {LAB} to take back"),
    (["ada", "--days", "3"], "--days needs STUDENT and LAB"),
]


@pytest.mark.parametrize(("arguments", "expected"), BAD)
def test_bad_input_is_one_line_and_changes_nothing(labs, arguments, expected):
    hand_in(labs, "ada", LAB, DAY)
    done = lab_extend(labs, *arguments)
    error = done.output[done.output.index("Error: ") :]
    assert done.exit_code in (1, 2) and error.count("\n") == 1
    assert re.search(expected, error)
    assert not (labs / "extensions.csv").exists() and found(labs) == {LAB: (None, 0)}


def test_there_is_no_gradebook_yet(fresh_course):
    done = lab_extend(fresh_course, "ada", "1", "--days", "3")
    assert done.exit_code == 1 and "no gradebook" in done.output
    assert not (fresh_course / "gradebook.db").exists() and not (fresh_course / "extensions.csv").exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ada,01,3\n", "line 1: student,lab,days is expected"),
        (f"student,lab,days\nada,{LAB},x\n", "line 2: 'x' is not a number of days"),
        (f"student,lab,days\n../x,{LAB},3\n", "line 2: '../x' is not a student id"),
        (f"student,lab,days\nada,{LAB}\n", "line 2: student,lab,days is expected"),
        (f"student,lab,days\nada,{LAB},1\n\nada,{LAB},2\n", "line 4: 'ada' has an earlier line"),
        ("student,lab,days\nada,\x1b[31m,1\n", r"line 2: '\\x1b\[31m' is not a lab"),
    ],
)
def test_a_bad_line_of_the_file_is_named_before_anything_is_graded(labs, text, expected):
    (labs / "extensions.csv").write_text(text)
    with pytest.raises(LatePenaltyError, match=expected):
        LatePenalties(nbgrader_settings(labs))


def test_a_file_that_a_spreadsheet_has_saved(labs):
    (labs / "extensions.csv").write_bytes(f"\ufeffstudent;lab;days\r\nada;{LAB};1,5\r\n".encode())
    assert Extensions(nbgrader_settings(labs)).given() == {("ada", LAB): 1.5 * DAY}


# Late in lab 02 (the first that is due) and lab 01, given for lab 01, settings → days of both columns, penalties, left.
GRACE = {
    "in time": (0 * DAY, -DAY, 0, "", None, None, 0, 0, 3),
    "a second is a day": (SECOND, 0 * DAY, 0, "", 1, None, 0, 0, 2),
    "a day is a day": (DAY, DAY + SECOND, 0, "", 1, 2, 0, 0, 0),
    "not enough is kept": (2 * DAY, 2 * DAY, 0, "", 2, None, 0, 20, 1),
    "too late at first": (4 * DAY, 3 * DAY, 0, "", None, 3, 20, 0, 0),
    "partly": (2 * DAY, 2 * DAY, 0, "c.GraceDays.partly = True\n", 2, 1, 0, 20, 0),
    "after the extension": (DAY, 4 * DAY, 2, "", 1, 4, 0, 0, 0),
    "the extension is enough": (DAY, 4 * DAY, 5, "", 1, 5, 0, 0, 2),
}


@pytest.mark.parametrize("case", GRACE)
def test_grace_days_go_to_late_submissions_in_the_order_of_due_dates(labs, case):
    first, second, given, setting, *days, in_first, in_second, left = GRACE[case]
    configure(labs, "c.GraceDays.per_student = 3\n" + setting)
    hand_in(labs, "ada", LAB, second)
    if given:
        assert lab_extend(labs, "ada", LAB, "--days", str(given)).exit_code == 0
    grade(labs, LAB)  # before the lab that was due earlier
    hand_in(labs, "ada", SECOND_LAB, first)
    expected = {LAB: (days[1], in_second), SECOND_LAB: (days[0], in_first)}
    assert grade(labs, SECOND_LAB) == expected
    assert grade(labs, LAB, SECOND_LAB, LAB) == expected
    used = {each.lab: each for each in extensions(labs)}
    assert all(each.left == left and each.budget == 3 for each in used.values())
    assert 3 - sum(each.grace for each in used.values()) == left
    assert {lab: each.given / DAY for lab, each in used.items() if each.given} == ({LAB: given} if given else {})


@pytest.mark.parametrize("case", GRACE)
def test_a_student_s_own_deadline_is_the_last_time_without_a_penalty(labs, case):
    """nbgrader's own penalty is the oracle: none for work handed in at that time, everything a second later."""
    first, _, given, setting, *_ = GRACE[case]
    configure(labs, "c.GraceDays.per_student = 3\n" + setting)
    hand_in(labs, "ada", SECOND_LAB, first)
    hand_in(labs, "ada", THIRD_LAB, DAY)
    hand_in(labs, "ada", LAB, -DAY)
    if given:
        assert lab_extend(labs, "ada", LAB, "--days", str(given)).exit_code == 0
    grade(labs, *DUE)
    deadline = own_deadline(labs, LAB)
    for late, penalty in ((0 * DAY, 0), (SECOND, 20)):
        hand_in(labs, "ada", LAB, deadline - DUE[LAB] + late)
        assert grade(labs, LAB)[LAB][1] == penalty
        assert own_deadline(labs, LAB) == deadline  # what the lab itself uses does not count
    assert own_deadline(labs, THIRD_LAB) is own_deadline(labs, LAB, "zoë") is None


def own_deadline(course, lab, student="ada"):
    with open_book(course) as gradebook:
        return Extensions(nbgrader_settings(course)).own_deadline(gradebook, student, lab)


def extensions(course):
    with open_book(course) as gradebook:
        return Extensions(nbgrader_settings(course)).all(gradebook)


def test_grace_days_are_shown_follow_the_extension_and_go_with_the_setting(labs):
    configure(labs, "c.GraceDays.per_student = 3\n")
    hand_in(labs, "ada", LAB, 3 * DAY)
    hand_in(labs, "ada", SECOND_LAB, 2 * DAY)
    hand_in(labs, "ada", THIRD_LAB, DAY)
    assert grade(labs, *DUE) == {SECOND_LAB: (2, 0), LAB: (None, 20), THIRD_LAB: (None, 0)}
    done = lab_extend(labs, "ada", "2", "--days", "1").output.splitlines()
    assert done[0] == f"ada  {SECOND_LAB}  1 day and 1 grace day (2 of 3 left), until 2026-11-08 22:00 UTC"
    assert lab_extend(labs, "ada", "2", "--days", "2").output.splitlines() == [
        f"ada  {SECOND_LAB}  2 days, until 2026-11-08 22:00 UTC",
        f"penalty of ada for {LAB}: 20 before, 0 points now; to show it: "
        f"nbgrader generate_feedback {LAB} --student ada --force",
    ]
    assert (
        lab_extend(labs, "ada", "1").output == f"ada  {LAB}  3 grace days (0 of 3 left), until 2026-11-23 22:00 UTC\n"
    )
    assert lab_extend(labs, "ada", "2", "--days", "0").exit_code == 0
    assert found(labs) == {SECOND_LAB: (2, 0), LAB: (None, 20), THIRD_LAB: (None, 0)}
    assert lab_extend(labs, "ada", "2", "--days", "0").exit_code == 1  # only grace days, which are not given
    configure(labs, "c.GraceDays.per_student = 0\n")
    assert grade(labs, SECOND_LAB)[SECOND_LAB] == (None, 20)


def test_an_extension_by_nbgrader_itself_stays_beside_grace_days(labs):
    configure(labs, "c.GraceDays.per_student = 3\n")
    hand_in(labs, "ada", LAB, 3 * DAY)
    with open_book(labs) as gradebook:
        gradebook.grant_extension(LAB, "ada", hours=30)
    assert grade(labs, LAB) == grade(labs, LAB) == {LAB: (3.25, 0)}
    (one,) = extensions(labs)
    assert (one.given, one.grace, str(one)) == (1.25 * DAY, 2, "30 hours and 2 grace days (1 of 3 left)")


def test_an_interruption_at_a_write_loses_and_invents_no_day(labs, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    configure(labs, "c.GraceDays.per_student = 3\n")
    hand_in(labs, "ada", LAB, 2 * DAY)
    hand_in(labs, "ada", SECOND_LAB, DAY)
    real, writes = extensions_module.write_atomically, []

    def written_and_interrupted(*file):
        real(*file)
        writes.append(file)
        raise KeyboardInterrupt

    for target, name, replacement in (
        (extensions_module, "write_atomically", interrupted),  # nothing is written
        (extensions_module, "write_atomically", written_and_interrupted),  # the file, and no column
        (LatePenalties, "_assign", interrupted),  # no penalty
    ):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(target, name, replacement)
            grade(labs, LAB)
    assert len(writes) == 1
    assert grade(labs, LAB) == {LAB: (2, 0), SECOND_LAB: (1, 0)}


def test_a_lab_that_loses_its_due_date_has_no_lateness(labs):
    hand_in(labs, "ada", LAB, 2 * DAY)
    lab_extend(labs, "ada", "1", "--days", "1")
    with open_book(labs) as gradebook:
        gradebook.update_or_create_assignment(LAB, duedate=None)
    assert "without effect: the lab has no due date" in lab_extend(labs).output
    assert grade(labs, LAB) == {LAB: (None, 0)}
    with open_book(labs) as gradebook:
        gradebook.update_or_create_assignment(LAB, duedate=DUE[LAB])
    assert grade(labs, LAB) == {LAB: (1, 20)}


@pytest.mark.parametrize("setting", ["per_student = -1", "per_student = 'two'", "partly = 3"])
def test_a_bad_setting_is_named(labs, setting):
    configure(labs, f"c.GraceDays.{setting}\n")
    done = lab_extend(labs)
    assert done.exit_code == 1 and done.output.startswith("Error: c.GraceDays in nbgrader_config.py: The ")
    assert done.output.count("\n") == 1


def test_nbgrader_autograde_gives_the_same(course, monkeypatch):
    """The submission is not in the gradebook when the extension is given."""
    folder = hand_in_to(course, "ada", release_of(source_notebook()), None)
    (folder / "timestamp.txt").write_text("2026-11-22 22:00:00 UTC")
    configure(course, ZERO)
    with open_book(course) as gradebook:
        gradebook.update_or_create_assignment(LAB, duedate=DUE[LAB])
    part = CriterionResult("run-evidence", "final", "final_accuracy", "Final", True, 10, 10, "reached")
    verdict = Verdict(LAB, "Tiny", "ada", "2026-11-23T10:00:00+00:00", (part,), (), unanswered=("q-why",))
    monkeypatch.setattr(KeepVerdict, "_verdict", lambda *_: verdict)
    assert by_nbgrader(course) == {LAB: (None, 15)}  # 5 for the cell of which the verdict does not speak
    for days, expected in (("3", (3, 0)), ("1", (1, 15))):
        assert lab_extend(course, "ada", "1", "--days", days).exit_code == 0
        with open_book(course) as gradebook:
            gradebook.remove_submission(LAB, "ada")
        assert by_nbgrader(course) == {LAB: expected}


def by_nbgrader(course):
    config = nbgrader_settings(course)
    config.Autograde.autograde_preprocessors = config.Autograde.autograde_preprocessors[4:]  # nothing is executed
    converter = Autograde(coursedir=CourseDirectory(config=config, assignment_id=LAB), config=config)
    converter.force = True
    converter.start()
    return found(course)

"""``lab serve``: submissions by stock nbgrader are graded once each, within the limit, and their feedback is released."""

import os
import pwd
import random
import re
import shutil
import signal
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from exchange_of import ExchangeOf
from fake_class import Page
from fake_runs import LAB, open_book, solved_notebook
from prometheus_client.parser import text_string_to_metric_families

from autograde.batch import grade_on_submission, worker
from autograde.batch.grade_lab import grade_lab
from autograde.batch.grade_on_submission import GradingService
from autograde.batch.pool import GradingResult
from autograde.commands.serve import _show
from autograde.gradebook.extensions import Extensions
from autograde.gradebook.late_penalties import LatePenalties
from autograde.gradebook.scores import CourseError, nbgrader_settings
from autograde.grading.grading_context import GradingContext, course_secret, source_notebook
from autograde.reports.reading import feedback
from autograde.reports.report import write_report
from autograde.rubric.schema import find_rubric
from autograde.rubric.verdict import load_verdict, verdict_path
from autograde.submission.regrade_request import RegradeRequest, regrade_requests

MINUTE, DAY = 60.0, 86400.0
NOTHING = "c.GradeOnSubmission.feedback = 'none'"  # and no due date: no pages are made


@pytest.fixture
def exchange(lab_course):
    return lambda *settings: ExchangeOf(lab_course, *settings)


@pytest.fixture
def executed(lab_course, monkeypatch):
    """Gradings go on in this process, without the exercises; a file has a line for each that was reached."""
    path = lab_course.parent / "executed"
    path.touch()
    monkeypatch.setattr(GradingContext, "sandbox", "bubblewrap")
    monkeypatch.setattr("autograde.batch.grade_lab.missing_sandbox", lambda: None)
    source = source_notebook(lab_course.parent / "labs" / LAB / f"{LAB}.ipynb")
    context = GradingContext(find_rubric(LAB), source, course_secret(lab_course), None)
    monkeypatch.setattr(worker, "_context", context)
    grade = worker._grade

    def counted(job, student):
        verdict = grade(job, student)
        with open(path, "a") as file:
            file.write(f"{student} {(job.submission(student) / 'timestamp.txt').read_text()}\n")
        return verdict

    monkeypatch.setattr(worker, "_grade", counted)
    monkeypatch.setattr(
        "autograde.batch.grade_lab.run_local",
        lambda job, students, *_: (GradingResult(each, worker.grade_one(job, each)) for each in students),
    )
    return path


class Clock:
    """The grader's own clock, which a test moves."""

    def __init__(self):
        self.now = datetime.now(UTC).timestamp()

    def __call__(self):
        return self.now


@pytest.fixture
def serve(lab_course, executed):
    """Services on the course, as after as many starts of the command; each call steps one until nothing is due."""
    clock, services = Clock(), []

    def serve(again=False, **options):
        if again or not services:
            services.append(GradingService(lab_course, [LAB], grade_lab, show=_show, clock=clock, **options))
        while services[-1].step():
            pass
        return services[-1]

    serve.clock = clock
    yield serve
    for service in services:
        service.close()


def states(service):
    return {row.name: row.state for state in ("waiting", "running", "graded", "done", "refused", "replaced")
            for row in service.queue.of(state)}  # fmt: skip


def state(service, folder):
    return states(service)[folder.name]


def times(executed):
    """How often each submission was graded."""
    return Counter(executed.read_text().splitlines())


def test_submitted_by_stock_nbgrader_it_is_graded_and_stock_nbgrader_fetches_the_feedback(exchange, serve, executed):
    class_ = exchange()
    for student in ("ada", "zoë.müller"):
        class_.submit(student)
        assert not class_.listed(student)[-1]["has_exchange_feedback"]
    service = serve()
    assert set(states(service).values()) == {"done"} and set(times(executed).values()) == {1}
    for student in ("ada", "zoë.müller"):
        assert class_.listed(student)[-1]["has_exchange_feedback"]
        assert "FAILED" in class_.fetched(student) and "no run folder" in class_.fetched(student)
    with open_book(class_.course) as gradebook:
        assert {each.student.id for each in gradebook.assignment_submissions(LAB)} == {"ada", "zoë.müller"}
    # What was collected is what stock nbgrader collects.
    class_.collect(class_.course.parent / "stock")
    stock, ours = class_.course.parent / "stock", class_.course / "submitted"
    found = [
        {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        for root in (stock, ours)
    ]
    assert found[0] == found[1] and len(found[0]) == 6
    # A second look, and a batch beside it, grade nobody again; a later submission is graded.
    serve(again=True)
    grade_lab("1", class_.course)
    assert set(times(executed).values()) == {1}
    serve.clock.now += 10 * MINUTE
    class_.submit("ada", notes="another")
    serve()
    assert len(class_.listed("ada")) == 2 and class_.listed("ada")[-1]["has_exchange_feedback"]


def test_a_request_for_a_regrade_does_not_replace_the_work_it_is_about(exchange, serve, executed):
    """After the deadline it would be late."""
    class_ = exchange(NOTHING, "c.GradeOnSubmission.minutes_apart = 0.0")
    class_.submit("ada", other(0))
    serve()
    again = other(0)
    again.metadata["widgets"] = {}  # JupyterLab saved it again
    again.cells[1].metadata["execution"] = {"iopub.status.busy": "2026-11-21T09:00:00Z"}
    asks = class_.submit("ada", again, **{"regrade.txt": "check-train-step: look again"})
    service = serve()
    assert state(service, asks) == "refused" and "asks for a regrade" in service.queue.of("refused")[0].reason
    place = class_.course / "submitted" / "ada" / LAB
    assert regrade_requests(place) == [RegradeRequest("check-train-step", "look again")]
    # What a person does from now on is an answer, although no report has shown the request.
    assert answered_by(class_.course, 6.0, "look again")
    # Another notebook, or another file beside the same one, is work.
    for number, files in ((1, {}), (1, {"notes.txt": "a run that ended later"})):
        line = f"once more {len(files)}"
        work = class_.submit("ada", other(number), **{"regrade.txt": f"check-train-step: {line}", **files})
        assert state(serve(), work) == "graded" and answered_by(class_.course, len(files), line)
    assert (place / "notes.txt").exists() and len(times(executed)) == 2  # no criterion reads the notes


def answered_by(course, score, line):
    """Whether the class's page has the request for a regrade as answered, once a person has given this score."""
    with open_book(course) as gradebook:
        gradebook.find_grade("check-train-step", LAB, LAB, "ada").manual_score = score
        gradebook.db.commit()
    return f"{line} by hand" in Page(write_report([LAB], course, course / "reports" / "page.html")).text


# --- killed ------------------------------------------------------------------------------------------------------------


def killed_at(monkeypatch, place, name, when):
    """Let this process be killed before, in the middle of, or after the next call of a function."""
    real = getattr(place, name)

    def call(*args, **options):
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        if when == "between":  # of the two renames in `replace_folder`
            args[1].rename(args[2])
            os.kill(os.getpid(), signal.SIGKILL)
        real(*args, **options)
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(place, name, call)


MOMENTS = [
    (grade_on_submission.SubmissionQueue, "add", "before"),
    (grade_on_submission.SubmissionQueue, "add", "after"),
    (grade_on_submission.SubmissionQueue, "start", "before"),
    (grade_on_submission.SubmissionQueue, "start", "after"),
    (grade_on_submission, "copy_submission", "after"),
    (grade_on_submission, "replace_folder", "between"),
    (grade_on_submission, "replace_folder", "after"),
    (worker, "_grade", "before"),
    (worker, "write_autograded", "after"),
    (worker, "_grade", "after"),
    ("autograde.batch.grade_lab", "record_verdict", "after"),
    (grade_on_submission.SubmissionQueue, "change", "before"),
    (grade_on_submission.SubmissionQueue, "change", "after"),
    (grade_on_submission.NbGraderAPI, "generate_feedback", "after"),
    (grade_on_submission.NbGraderAPI, "release_feedback", "after"),
]


@pytest.mark.parametrize("moments", [MOMENTS, MOMENTS[3:10:2]], ids=["all", "some, without pages"])
def test_killed_at_any_moment_it_grades_each_once_and_loses_none(exchange, serve, executed, monkeypatch, moments):
    pages = moments is MOMENTS
    class_ = exchange("c.GradeOnSubmission.minutes_apart = 0.0", *([] if pages else [NOTHING]))
    class_.submit("first")
    serve().close()
    for number, (place, name, when) in enumerate(moments):
        place = sys.modules[place] if isinstance(place, str) else place
        again = when == "between"  # it replaces a submission
        class_.submit("first" if again else f"s{number}", solved_notebook() if again else None)
        child = os.fork()
        if not child:
            try:
                feedback._server._process = None  # one of its own
                killed_at(monkeypatch, place, name, when)
                serve(again=True)
            finally:
                os._exit(1)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1]), f"{name} was not called"
    service = serve(again=True)
    handed_in = len(moments) + 1
    assert Counter(states(service).values()) == (
        {"done": handed_in} if pages else {"graded": handed_in - 1, "replaced": 1}
    )
    assert set(times(executed).values()) == {1} and len(times(executed)) == handed_in
    for student in {path.name.partition("+")[0] for path in class_.inbound.iterdir()}:
        assert all(each["has_exchange_feedback"] == pages for each in class_.listed(student)), student
    with open_book(class_.course) as gradebook:
        assert len(gradebook.assignment_submissions(LAB)) == handed_in - 1


@pytest.mark.slow
def test_thirty_kills_at_random_moments_lose_none_and_grade_none_twice(exchange, serve, executed):
    chance = random.Random(seed := time.time_ns())
    print(f"seed {seed}")
    class_ = exchange("c.GradeOnSubmission.minutes_apart = 0.0")

    def started(student, number):
        newest[student] = class_.submit(student, other(number))
        child = os.fork()
        if not child:
            try:
                feedback._server._process = None  # one of its own
                serve(again=True)
                os._exit(0)
            finally:
                os._exit(1)
        return child

    newest, begin = {}, time.monotonic()
    os.waitpid(started("first", 0), 0)
    seconds, kills, number = time.monotonic() - begin, 0, 0
    while kills < 30:
        number += 1
        child = started(f"s{number // 2}", number)
        time.sleep(chance.uniform(0, seconds))
        os.kill(child, signal.SIGKILL)
        kills += os.WIFSIGNALED(os.waitpid(child, 0)[1])
    service = serve(again=True)
    counts = Counter(states(service).values())
    print(f"{number} starts, {counts}")
    assert set(counts) <= {"done", "replaced"} and counts.total() == number + 1
    assert max(times(executed).values()) == 1  # each line was written after its verdict
    for student, folder in newest.items():
        assert state(service, folder) == "done" and class_.listed(student)[-1]["has_exchange_feedback"]
        assert load_verdict(verdict_path(class_.course, student, LAB)).max_score > 0
    with open_book(class_.course) as gradebook:
        assert len(gradebook.assignment_submissions(LAB)) == len(newest)


# --- the limit ---------------------------------------------------------------------------------------------------------


def other(number):
    """A notebook whose grading is another."""
    return solved_notebook({"ex-train-step": f"train_step = {number}"})


def test_what_comes_too_early_waits_and_the_newest_is_graded(exchange, serve, executed):
    class_ = exchange(NOTHING, "c.GradeOnSubmission.per_day = 3", "c.GradeOnSubmission.minutes_apart = 10.0")
    first, ben = class_.submit("ada", other(0)), class_.submit("ben", other(0))
    service = serve()
    assert state(service, first) == state(service, ben) == "graded"
    second, third = class_.submit("ada", other(1)), class_.submit("ada", other(2))  # two in one second
    service = serve()
    assert (state(service, second), state(service, third)) == ("replaced", "waiting")
    page = (class_.course / "reports" / "queue.html").read_text()
    assert "the limit allows it at" in page
    serve.clock.now += 10 * MINUTE - 1
    assert state(serve(again=True), third) == "waiting"  # a restart forgets nothing
    serve.clock.now += 1
    assert state(serve(), third) == "graded"
    serve.clock.now += 10 * MINUTE
    class_.submit("ada", other(3))
    serve()
    serve.clock.now += 10 * MINUTE
    late = class_.submit("ada", other(4))
    assert state(serve(), late) == "waiting"  # three in this day
    serve.clock.now += DAY - 30 * MINUTE - 1
    assert state(serve(), late) == "waiting"
    serve.clock.now += 1
    assert state(serve(), late) == "graded"
    assert len(times(executed)) == 5 and set(times(executed).values()) == {1}


def renamed(folder, **parts):
    """The folder under a name with other parts, as its owner may rename it."""
    student, lab, stamp, ending = folder.name.split("+")
    stamp = parts.get("stamp", stamp)
    (folder / "timestamp.txt").write_text(stamp)
    return folder.rename(folder.with_name(f"{student}+{lab}+{stamp}+{parts.get('ending', ending)}"))


def stamp_of(folder, **later):
    stamp = datetime.strptime(folder.name.split("+")[2], "%Y-%m-%d %H:%M:%S.%f %Z") + timedelta(**later)
    return f"{stamp:%Y-%m-%d %H:%M:%S.%f} UTC"


TRICKS = {
    "another ending": lambda folder: renamed(folder, ending="AAAA"),
    "a later time": lambda folder: renamed(folder, stamp=stamp_of(folder, minutes=20)),
    "an earlier time": lambda folder: renamed(folder, stamp=stamp_of(folder, days=-2)),
    "the same time": lambda folder: renamed(folder, stamp=stamp_of(folder), ending="BBBB"),
    "seconds only": lambda folder: renamed(folder, stamp=stamp_of(folder)[:19] + " UTC"),
    "old files": lambda folder: [os.utime(path, (0, 0)) for path in (folder, *folder.iterdir())] and folder,
    "a copy": lambda folder: shutil.copytree(folder, folder.with_name(folder.name + "CC")),
    "another notebook name": lambda folder: (folder / f"{LAB}.ipynb").rename(folder / "mine.ipynb") and folder,
    "no ending": lambda folder: folder.rename(folder.with_name(folder.name.rpartition("+")[0])),
    "no secret": lambda folder: (folder / "submission_secret.txt").unlink() or folder,
}


def test_the_queue_in_numbers(exchange, serve, lab_course):
    class_ = exchange(NOTHING, "c.GradeOnSubmission.minutes_apart = 10.0")

    def numbers(service):
        path = lab_course.parent / "queue.prom"
        _show(service, metrics=path)
        samples = [each for family in text_string_to_metric_families(path.read_text()) for each in family.samples]
        return {"".join([each.name.removeprefix("lab_queue_"), *each.labels.values()]): each.value for each in samples}

    class_.submit("ada", other(0))
    serve()
    class_.submit("ada", other(1))
    (class_.inbound / f"x+{LAB}+y").mkdir()
    found = numbers(serve())
    assert found["submissionsgraded"] == found["submissionswaiting"] == found["submissionsrefused"] == 1
    assert found["submissionsdone"] == found["longest_wait_seconds"] == found["failing_submissions"] == 0
    assert found["written_timestamp_seconds"] == pytest.approx(time.time(), abs=600)
    serve.clock.now += 12 * MINUTE
    assert numbers(serve(again=True))["longest_wait_seconds"] == 0  # graded
    class_.submit("ben")
    service = GradingService(lab_course, [LAB], lambda *_, **__: 1 / 0, clock=serve.clock)
    service.step()
    assert numbers(service)["failing_submissions"] == 1
    class_.submit("cyd")
    service._look()
    serve.clock.now += 90
    assert numbers(service)["longest_wait_seconds"] == 90
    service.close()


@pytest.mark.parametrize("trick", TRICKS.values(), ids=TRICKS)
def test_no_trick_is_graded_before_its_time(exchange, serve, executed, trick):
    class_ = exchange(NOTHING, "c.GradeOnSubmission.minutes_apart = 30.0")
    class_.submit("ada", other(0))
    serve()
    trick(class_.submit("ada", other(1)))
    for _ in range(3):
        serve.clock.now += 9 * MINUTE
        service = serve(again=True)
        assert len(times(executed)) == 1 and len(service.queue.of("graded")) == 1
    serve.clock.now += 3 * MINUTE
    serve()
    assert len(executed.read_text().splitlines()) <= 2


def test_a_submission_is_taken_once_it_is_whole(exchange, serve, executed):
    class_ = exchange(NOTHING)
    folder = class_.submit("ada")
    folder.chmod(0o755)  # as while nbgrader submit copies
    assert states(serve()) == {}
    folder.chmod(0o777)
    assert state(serve(), folder) == "graded"
    by_hand = class_.submit("ben")
    by_hand.chmod(0o755)
    assert by_hand.name not in states(serve())
    serve.clock.now += MINUTE
    assert state(serve(), by_hand) == "graded"


def replaced_by_link(folder, target):
    path = folder / f"{LAB}.ipynb"
    path.unlink()
    path.symlink_to(target)
    return folder


def linked(folder):
    """The submission's name, as a link to the real one."""
    real = folder.rename(folder.parent.parent / "elsewhere")
    folder.symlink_to(real)
    return folder


def beside(folder, name, make):
    make(folder / name)
    return folder


def many_folders(folder):
    folder.mkdir()
    for number in range(10_001):
        (folder / str(number)).mkdir()


SOURCE = Path(grade_on_submission.__file__).resolve().parents[2] / "labs" / LAB / f"{LAB}.ipynb"
REFUSED = {
    "a link to the solution": (lambda folder: replaced_by_link(folder, SOURCE), "a link"),
    "a link to nothing": (lambda folder: replaced_by_link(folder, "/nowhere"), "a link"),
    "a folder that is a link": (lambda folder: beside(folder, "run", lambda path: path.symlink_to("/etc")), "is a link"),
    "a submission that is a link": (linked, "a link or a file"),
    "a pipe": (lambda folder: beside(folder, "run", os.mkfifo), "no plain file"),
    "too deep": (lambda folder: beside(folder, "/".join("a" * 30), lambda path: path.mkdir(parents=True)) , "too deep"),
    "too many folders": (lambda folder: beside(folder, "run", many_folders), "more than 10,000 files"),
    "a time to come": (lambda folder: renamed(folder, stamp=stamp_of(folder, days=400)), "has not come"),
    "no time": (lambda folder: renamed(folder, stamp="<b>now"), "is no time"),
    "a path as a time": (lambda folder: folder.rename(folder.with_name(f"ada+{LAB}+2026-11-20 22:00:00 UTC+..")), "its name"),
    "two times": (lambda folder: (folder / "timestamp.txt").write_text("2020-01-01 00:00:00 UTC") and folder, "different"),
    "no time stamp": (lambda folder: (folder / "timestamp.txt").unlink() or folder, "different"),
    "another's id": (lambda folder: folder.rename(folder.with_name(f"..+{LAB}+2026-11-20 22:00:00 UTC")), "its name"),
    "markup": (lambda folder: folder.rename(folder.with_name(f"<img src=x onerror=y>+{LAB}+<script>")), "its name"),
    "no text": (lambda folder: Path(os.fsdecode(os.fsencode(folder) + b"\xff\x1b[2J")) and folder.rename(
        os.fsdecode(os.fsencode(folder) + b"\xff\x1b[2J")), "its name"),
    "gone": (lambda folder: folder, "removed"),
}  # fmt: skip


@pytest.mark.parametrize(("spoil", "why"), REFUSED.values(), ids=REFUSED)
def test_what_nbgrader_would_follow_or_believe_is_refused(exchange, serve, executed, monkeypatch, spoil, why):
    class_ = exchange(NOTHING)
    folder = spoil(class_.submit("ada"))
    if why == "removed":
        collect = GradingService._collect
        monkeypatch.setattr(
            GradingService, "_collect", lambda self, row: shutil.rmtree(folder, True) or collect(self, row)
        )
    service = serve()
    (row,) = service.queue.of("refused")
    assert why in row.reason and row.reason.isascii() and row.reason.isprintable()
    assert times(executed) == {} and not list((class_.course / "submitted").glob(f"*/{LAB}"))
    page = Page(class_.course / "reports" / "queue.html")  # it parses, and every element is closed
    assert not page.all("script") and not page.all("img") and "\x1b" not in page.html
    assert row.reason in page.text
    honest = class_.submit("ben")
    assert state(serve(), honest) == "graded"  # and others are served


def test_stock_nbgrader_follows_the_link(exchange):
    class_ = exchange()
    replaced_by_link(class_.submit("ada"), SOURCE)
    class_.collect(class_.course.parent / "stock")
    (collected,) = (class_.course.parent / "stock").glob(f"ada/{LAB}/*.ipynb")
    assert collected.read_bytes() == SOURCE.read_bytes()


def test_another_owner_than_the_name_says_is_refused(exchange, serve, executed):
    class_ = exchange(NOTHING, "c.ExchangeCollect.check_owner = True")

    mine, other_s = class_.submit(pwd.getpwuid(os.getuid()).pw_name), class_.submit("ben")
    service = serve()
    assert (state(service, mine), state(service, other_s)) == ("graded", "refused")
    assert "belongs to" in service.queue.of("refused")[0].reason


@pytest.mark.skipif(os.getuid() != 0, reason="a folder of another owner can only be made as root")
def test_a_stranger_s_folder_does_not_take_the_turn_of_whom_it_names(exchange, serve, executed):
    class_ = exchange(NOTHING, "c.ExchangeCollect.check_owner = True", "c.GradeOnSubmission.minutes_apart = 10")
    me = pwd.getpwuid(os.getuid()).pw_name
    class_.submit(me)
    serve()
    waits = class_.submit(me, other(1))
    assert state(serve(), waits) == "waiting"
    forged = waits.with_name(f"{me}+{LAB}+{stamp_of(waits, minutes=20)}")
    shutil.copytree(waits, forged)
    (forged / "timestamp.txt").write_text(stamp_of(waits, minutes=20))
    for path in (forged, *forged.iterdir()):
        os.chown(path, 12345, -1)
    service = serve()
    assert (state(service, waits), state(service, forged)) == ("waiting", "refused")
    serve.clock.now += 10 * MINUTE
    assert state(serve(), waits) == "graded"


# --- feedback ----------------------------------------------------------------------------------------------------------


def set_due(course, **later):
    with open_book(course) as gradebook:
        due = datetime.now(UTC).replace(tzinfo=None) + timedelta(**later)
        gradebook.update_or_create_assignment(LAB, duedate=due)


def test_points_alone_are_released_and_an_instructor_still_gives_the_reasons(exchange, serve, executed):
    class_ = exchange(f"c.GradeOnSubmission.feedback_by_lab = {{{LAB!r}: 'points'}}")
    class_.submit("ada")
    service = serve()
    page = class_.fetched("ada")
    assert "0 of 10 points" in page
    verdict = load_verdict(verdict_path(class_.course, "ada", LAB))
    shown = [each.reason for each in verdict.results if each.reason and each.reason in page]
    assert shown == [] and "FAILED" not in page
    assert "points released" in service.queue.of("done")[0].reason
    api = class_.api()
    assert api.generate_feedback(LAB, "ada")["success"] and api.release_feedback(LAB, "ada")["success"]
    assert "FAILED" in class_.fetched("ada")


def test_nothing_is_released_before_the_student_s_own_deadline(exchange, serve, executed):
    class_ = exchange(NOTHING)
    set_due(class_.course, hours=2)
    class_.submit("ada")
    class_.submit("ben")
    serve()
    config = nbgrader_settings(class_.course)
    with open_book(class_.course) as gradebook:  # as lab extend does it
        Extensions(config).give(gradebook, "ben", LAB, timedelta(days=1))
        LatePenalties(config).assign(LAB, "ben")
    hours = {1.9: (False, False), 2.1: (True, False), 25.9: (True, False), 26.1: (True, True)}
    start = serve.clock.now
    for hour, expected in hours.items():
        serve.clock.now = start + 3600 * hour
        serve(again=hour > 20)
        listed = tuple(class_.listed(student)[-1]["has_exchange_feedback"] for student in ("ada", "ben"))
        assert listed == expected, hour
        assert (class_.course / "feedback" / "ben").exists() == expected[1]
    assert "FAILED" in class_.fetched("ben")


def test_nothing_is_released_while_grace_days_would_pay_for_another_submission(exchange, serve, executed):
    class_ = exchange(NOTHING, "c.GraceDays.per_student = 3", 'c.LateSubmissionPlugin.penalty_method = "zero"')
    set_due(class_.course, hours=2)
    ada = class_.submit("ada")
    ben = class_.submit("ben")
    with open_book(class_.course) as gradebook:  # ben has used two days for an earlier lab
        due = datetime.now(UTC).replace(tzinfo=None) - timedelta(days=9)
        gradebook.update_or_create_assignment("00_earlier", duedate=due)
        gradebook.update_or_create_student("ben")
        gradebook.update_or_create_submission("00_earlier", "ben", timestamp=due + timedelta(days=2))
    start = serve.clock.now
    for hour, *expected in (2.1, "graded", "graded"), (25.9, "graded", "graded"), (26.1, "graded", "done"), (
        73.9, "graded", "done"), (74.1, "done", "done"):  # fmt: skip
        serve.clock.now = start + 3600 * hour
        service = serve(again=True)
        assert [state(service, ada), state(service, ben)] == expected, hour


def test_a_failure_is_tried_again_and_does_not_hold_up_others(exchange, serve, executed, monkeypatch):
    class_ = exchange(NOTHING)
    broken = [True]

    def grade(lab, course, students, **options):
        if broken and "ada" in students:
            raise CourseError("the disk <b>is full</b>")
        return grade_lab(lab, course, students, **options)

    ada, ben = class_.submit("ada"), class_.submit("ben")
    service = GradingService(class_.course, [LAB], grade, jobs=2, show=_show, clock=serve.clock)
    for _ in range(3):
        service.step()
    assert (state(service, ada), state(service, ben)) == ("running", "running")
    serve.clock.now += 2 * MINUTE
    while service.step():
        pass
    assert (state(service, ada), state(service, ben)) == ("running", "graded")
    assert "the disk &lt;b&gt;is full&lt;/b&gt;; tried again soon" in (class_.course / "reports/queue.html").read_text()
    broken.clear()
    serve.clock.now += 5 * MINUTE
    service.step()
    assert state(service, ada) == "graded" and set(times(executed).values()) == {1}
    service.close()


def test_a_batch_that_ends_later_does_not_bring_an_earlier_submission_back(exchange, serve, executed, monkeypatch):
    """The batch grades ada's first submission; before it writes the gradebook, the service has graded her second."""
    class_ = exchange(NOTHING, "c.GradeOnSubmission.minutes_apart = 0.0")
    class_.submit("ada", other(0))
    serve()
    run_local = sys.modules["autograde.batch.grade_lab"].run_local

    def meanwhile(*arguments):
        for result in [*run_local(*arguments)]:
            monkeypatch.setattr("autograde.batch.grade_lab.run_local", run_local)
            class_.submit("ada", solved_notebook({"q-knee": "Near 200."}))
            serve()
            yield result

    monkeypatch.setattr("autograde.batch.grade_lab.run_local", meanwhile)
    (verdict,) = grade_lab("1", class_.course, force=True)
    assert "q-knee" not in verdict.unanswered
    with open_book(class_.course) as gradebook:
        assert gradebook.find_grade("q-knee", LAB, LAB, "ada").needs_manual_grade
    assert len(times(executed)) == 2


@pytest.mark.parametrize("name", ["1", "01", LAB, 1])
def test_a_policy_s_lab_is_named_as_in_the_commands(exchange, serve, executed, name):
    class_ = exchange(f"c.GradeOnSubmission.feedback_by_lab = {{{name!r}: 'none', '12': 'points'}}")
    ada = class_.submit("ada")
    service = serve()
    assert state(service, ada) == "graded" and "no feedback before the deadline" in service.note(
        service.queue.of("graded")[0]
    )
    assert [service.settings.policy(lab) for lab in ("12_assessment", "02_ddp")] == ["points", "full"]


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("c.GradeOnSubmission.feedback = 'all'", "c.GradeOnSubmission in nbgrader_config.py: "),
        ("c.GradeOnSubmission.per_day = 0", "c.GradeOnSubmission in nbgrader_config.py: "),
        ("c.Exchange.root = '/nowhere'", "no exchange to watch"),
        ("c.GradeOnSubmission.feedback_by_lab = 'none'", "'feedback_by_lab' trait of a GradeOnSubmission"),
    ],
)
def test_a_setting_that_cannot_be_used_is_one_line(exchange, setting, why):
    class_ = exchange(setting)
    with pytest.raises(CourseError) as raised:
        GradingService(class_.course, [LAB], grade_lab)
    assert why in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("policies", "why"),
    [
        ({"12_assesment": "none"}, "no rubric for lab '12_assesment'; there are .*; correct or remove this entry"),
        ({"99": "none"}, "no rubric for lab '99'; there are .*; correct or remove this entry"),
        ({None: "none"}, "no rubric for lab 'None'; there are .*; correct or remove this entry"),
        ({LAB: "nothing"}, f"'nothing' for '{LAB}' is none of full, points, none; choose one"),
        ({"1": ["none"]}, r"\['none'\] for '1' is none of full, points, none; choose one"),
        ({"1": "none", "01": "full"}, f"'01' is another name of {LAB}; remove one of the two entries"),
    ],
)
def test_a_policy_for_no_lab_is_refused_in_one_line(exchange, policies, why):
    class_ = exchange(f"c.GradeOnSubmission.feedback_by_lab = {policies}")
    with pytest.raises(CourseError) as raised:
        GradingService(class_.course, [LAB], grade_lab)
    assert re.fullmatch(f"c.GradeOnSubmission.feedback_by_lab in nbgrader_config.py: {why}", str(raised.value))

"""`lab backup` and `lab restore`: beside a writer, killed at any step, and archives that are no backups."""

import errno
import gzip
import io
import os
import shutil
import signal
import sqlite3
import sys
import tarfile
from contextlib import closing, suppress
from itertools import count
from pathlib import Path

import pytest
from click.testing import CliRunner
from fake_runs import LAB, hand_in_to, open_book, released_notebook
from test_other_points import OTHER_PARTS, write_rubric

from autograde.batch.grade_lab import grade_lab
from autograde.commands.cli import backup, restore
from autograde.gradebook.backup import back_up
from autograde.gradebook.backup import restore as put_back
from autograde.gradebook.scores import CourseError
from autograde.rubric.schema import RUBRICS

PARTS = (
    *("gradebook.db", "grading_secret", "extensions.csv", "regrade_requests.json", "on_submission/queue.sqlite", "submitted"),
    "autograded_evidence",
)
VERDICT = "autograded_evidence/ada/01_single_gpu/verdict.json"
NOTEBOOK = "autograded/ada/01_single_gpu/01_single_gpu.ipynb"
GRADEBOOK = """
    CREATE TABLE a AS SELECT 0 AS n, '{}' AS t; CREATE TABLE b AS SELECT 0 AS n;
    CREATE TABLE assignment(id, name); CREATE TABLE submitted_assignment(student_id, assignment_id, timestamp);
"""


def fill(course, text):
    """A course in which `text` is in each part; its gradebook's two tables always hold the same number."""
    (course / "on_submission").mkdir(parents=True)
    for name in ("gradebook.db", "on_submission/queue.sqlite"):
        with closing(sqlite3.connect(course / name)) as database:
            database.executescript(GRADEBOOK.format(text))
    (course / "grading_secret").write_text(text)
    (course / "grading_secret").chmod(0o600)
    (course / "extensions.csv").write_text(text)
    (course / "regrade_requests.json").write_text(text)
    run = course / "submitted/ada/01_single_gpu/run"
    run.mkdir(parents=True)
    (run / "é\n.csv").write_text(text)
    (run.parent / "empty").mkdir()
    (course / VERDICT).parent.mkdir(parents=True)
    (course / VERDICT).write_text(text)
    return course


@pytest.fixture
def full(fresh_course):
    shutil.rmtree(fresh_course)
    return fill(fresh_course, "new")


def parts(course):
    """All files and folders of what a backup holds, databases as SQL."""
    found = {}
    for part in PARTS:
        for path in (course / part, *(course / part).rglob("*")):
            if path.exists() and path.name != ".lock":
                found[str(path.relative_to(course))] = path.read_bytes() if path.is_file() else None
    for name in {"gradebook.db", "on_submission/queue.sqlite"} & found.keys():
        with closing(sqlite3.connect(course / name)) as database:
            found[name] = list(database.iterdump())
    return found


def lab(command, *arguments):
    done = CliRunner().invoke(command, [str(each) for each in arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def test_it_is_put_back_as_it_was(full, tmp_path):
    before = parts(full)
    os.symlink("/etc/passwd", full / "submitted/ada/01_single_gpu/link")
    os.symlink("/etc", full / "submitted/eve\x1b")
    os.mkfifo(full / "submitted/ada/01_single_gpu/pipe")
    os.link(full / "submitted/ada/01_single_gpu/run/é\n.csv", full / "submitted/ada/01_single_gpu/same")
    done = lab(backup, tmp_path / "b.tar.gz", "--course", full)
    assert done.exit_code == 0, done.output
    assert done.output.count("left out") == 3 and "\x1b" not in done.output
    assert (tmp_path / "b.tar.gz").stat().st_mode & 0o777 == 0o600
    assert lab(restore, tmp_path / "b.tar.gz", "--course", tmp_path / "empty").exit_code == 0
    same = {"submitted/ada/01_single_gpu/same": b"new"}
    assert parts(tmp_path / "empty") == before | same
    assert (tmp_path / "empty/grading_secret").stat().st_mode & 0o777 == 0o600
    assert "is there already" in lab(backup, tmp_path / "b.tar.gz", "--course", full).output


def test_what_is_left_out_has_its_true_reason_and_other_names_get_no_folder(full, tmp_path):
    others = ("a b/01_single_gpu", ".ipynb_checkpoints/x", "ada/.ipynb_checkpoints")
    for name in others:
        (full / "submitted" / name).mkdir(parents=True)
        (full / "submitted" / name / "kept").write_text("")
    for name in ("notes.txt", "ada/notes.txt"):
        (full / "submitted" / name).write_text("")
    os.symlink("/etc", full / "submitted/link")
    os.mkfifo(full / "submitted/ada/pipe")
    assert {(name.removeprefix(f"{full}/submitted/"), why) for name, why in back_up(full, tmp_path / "b")} == {
        ("notes.txt", "a file outside the folders STUDENT/LAB"),
        ("ada/notes.txt", "a file outside the folders STUDENT/LAB"),
        ("link", "a link"),
        ("ada/pipe", "neither file nor folder"),
    }
    assert sorted(each.name for each in (full / "autograded_evidence").glob("*")) == ["ada"]
    assert sorted(each.name for each in (full / "autograded_evidence/ada").glob("*")) == ["01_single_gpu"]
    (tmp_path / "empty").mkdir()
    put_back(tmp_path / "b", tmp_path / "empty")
    assert all((tmp_path / "empty/submitted" / name / "kept").is_file() for name in others)


def test_a_database_is_copied_between_two_changes(full, tmp_path):
    with closing(sqlite3.connect(full / "gradebook.db", isolation_level=None)) as writer:
        writer.executescript("PRAGMA journal_mode=WAL; UPDATE a SET n = 1; UPDATE b SET n = 1")  # not in the file yet
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE a SET n = 2")
        back_up(full, tmp_path / "b")
        writer.execute("COMMIT")
    assert put_back(tmp_path / "b", full, replace=True)
    with closing(sqlite3.connect(full / "gradebook.db")) as database:
        assert database.execute("SELECT a.n, b.n FROM a, b").fetchone() == (1, 1)


def killed_at(step, work):
    """Do `work` in a process that is killed at its step-th call for a file or a database; whether it was."""
    if (child := os.fork()) == 0:
        left = iter(range(step, -1, -1))

        def watch(event, arguments):
            steps = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "sqlite3.connect")
            if event in steps and next(left) == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.addaudithook(watch)
            work()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_a_backup_that_is_killed_leaves_none(full, tmp_path):
    to = tmp_path / "b.tar.gz"
    for step in count():
        if not killed_at(step, lambda: back_up(full, to)):
            break
        if to.exists():  # the rename was its last step but the removal of its folder
            put_back(to, full, replace=True)
            to.unlink()
    assert step > 20 and to.exists()


def test_a_restoration_that_is_killed_mixes_nothing_and_can_be_repeated(full, tmp_path):
    archive, wanted = tmp_path / "b.tar.gz", parts(full)
    back_up(full, archive)
    course = tmp_path / "other"
    old = parts(fill(course, "old"))
    ends = set()
    for step in count():
        shutil.rmtree(course)
        fill(course, "old")
        if not killed_at(step, lambda: put_back(archive, course, replace=True)):
            break
        found = parts(course)
        ends.add("old" if found == old else "new" if found == wanted else "none")
        assert found in (old, wanted) or "gradebook.db" not in found
        put_back(archive, course, replace=True)
        assert parts(course) == wanted
    assert ends == {"old", "none", "new"} and parts(course) == wanted


def everything(course):
    return {str(each.relative_to(course)): each.read_bytes() if each.is_file() else None for each in course.rglob("*")}


def failing_renames(monkeypatch, *fails):
    """From now on each rename whose number is in `fails` fails as that of a mount point; the renames."""
    renames, rename = [], Path.rename

    def counted(path, to):
        renames.append(path)
        if len(renames) - 1 in fails:
            raise OSError(errno.EBUSY, "Device or resource busy", str(path))
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", counted)
    return renames


@pytest.mark.parametrize("queue", [True, False])
def test_after_an_error_at_any_move_all_is_as_before(full, tmp_path, monkeypatch, queue):
    back_up(full, tmp_path / "b")
    course = fill(tmp_path / "other", "old")
    (course / "gradebook.db-wal").write_text("old")
    if not queue:
        shutil.rmtree(course / "on_submission")
    before = everything(course)
    for step in count():
        with monkeypatch.context() as patch:
            renames = failing_renames(patch, step)
            done = lab(restore, tmp_path / "b", "--course", course, "--replace") if queue else None
            if not queue:  # the command makes the folder of the queue
                with suppress(CourseError):
                    put_back(tmp_path / "b", course, replace=True)
        if len(renames) <= step:
            break
        found = everything(course)
        found.pop("on_submission/.lock", None)
        assert found == before
        assert done is None or (done.exit_code == 1 and done.output.count("\n") == 1 and "busy" in done.output)
    assert step >= 2 * len(PARTS) and (course / "extensions.csv").read_text() == "new"


def test_what_cannot_be_put_back_is_named(full, tmp_path, monkeypatch):
    back_up(full, tmp_path / "b")
    with monkeypatch.context() as patch:
        failing_renames(patch, 3, 4)
        done = lab(restore, tmp_path / "b", "--course", full, "--replace")
    (aside,) = full.glob("replaced-*")
    assert done.exit_code == 1 and done.output.count("\n") == 1 and f"is in {aside}\n" in done.output
    assert (aside / "gradebook.db").is_file() and not (full / "gradebook.db").exists()  # last to come back


def packed(*members, end=None):
    """A tar.gz of (name, what, …): bytes, or a type with where it links to."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        for name, what in members:
            info = tarfile.TarInfo(name)
            if isinstance(what, bytes):
                info.size = len(what)
                tar.addfile(info, io.BytesIO(what))
            else:
                info.type, info.linkname = what
                tar.addfile(info)
    return data.getvalue()[:end]


def flipped(data, at):
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


NO_BACKUPS = {
    "a link": packed(("submitted/x", (tarfile.SYMTYPE, "/etc"))),
    "a hard link": packed(("submitted/x", (tarfile.LNKTYPE, "gradebook.db"))),
    "a pipe": packed(("submitted/x", (tarfile.FIFOTYPE, ""))),
    "upwards": packed(("submitted/../../x", b"x")),
    "absolute": packed(("/tmp/x", b"x")),
    "another file": packed(("nbgrader_config.py", b"x")),
    "no gradebook": packed(("grading_secret", b"x")),
    "a gradebook that is none": packed(("gradebook.db", b"x" * 5000)),
    "cut": packed(("gradebook.db", b"x" * 5000), end=-9),
    "without its end": packed(("gradebook.db", b""), end=-1),
    "another checksum": flipped(packed(("gradebook.db", b"")), -6),
    "no archive": b"x" * 2000,
    "no tar": gzip.compress(b"x" * 2000),
}


@pytest.mark.parametrize("what", NO_BACKUPS)
def test_what_is_no_backup_changes_nothing(full, tmp_path, what):
    (tmp_path / "b").write_bytes(NO_BACKUPS[what])
    before, names = parts(full), sorted(os.listdir(full))
    done = lab(restore, tmp_path / "b", "--course", full, "--replace")
    assert done.exit_code == 1 and done.output.startswith("Error: ") and done.output.count("\n") == 1, done.output
    assert parts(full) == before and sorted(os.listdir(full)) == names


def test_what_is_there_is_kept_with_its_journals(full, tmp_path):
    back_up(full, tmp_path / "b")
    done = lab(restore, tmp_path / "b", "--course", full)
    assert done.exit_code == 1 and "--replace" in done.output
    (full / "extensions.csv").write_text("later")
    (full / "gradebook.db-wal").write_text("later")
    aside = put_back(tmp_path / "b", full, replace=True)
    assert (full / "extensions.csv").read_text() == "new" and not (full / "gradebook.db-wal").exists()
    assert (aside / "extensions.csv").read_text() == (aside / "gradebook.db-wal").read_text() == "later"


def test_verdicts_of_another_state_are_moved_aside_for_an_archive_without_verdicts(full, tmp_path):
    (tmp_path / "b").write_bytes(packed(("gradebook.db", (full / "gradebook.db").read_bytes()), ("submitted/x", b"")))
    made = (VERDICT, NOTEBOOK, "feedback/ada/01_single_gpu/01_single_gpu.html")
    for name in made:
        (full / name).parent.mkdir(parents=True, exist_ok=True)
        (full / name).write_text("later")
    aside = put_back(tmp_path / "b", full, replace=True)
    assert (full / "submitted/x").is_file() and not any((full / name.split("/")[0]).exists() for name in made)
    assert all((aside / name).read_text() == "later" for name in made)


def essay(text):
    """The released notebook with one answer in it; there is nothing to execute."""
    notebook = released_notebook()
    (cell,) = (each for each in notebook.cells if each.metadata.get("nbgrader", {}).get("grade_id") == "q-knee")
    cell.source = text
    return notebook


@pytest.fixture
def marked(lab_course, hand_in, graded_here):
    """Three students are graded: one by hand, too, one without a notebook, and one with a notebook that is none."""
    (hand_in("ada", essay("Near 200."), None) / "timestamp.txt").write_text("2026-11-20 22:30:00.5 UTC")
    hand_in("bob", False, None)
    (hand_in("eve", False, None) / f"{LAB}.ipynb").write_text("{")
    grade_lab("1", lab_course)
    with open_book(lab_course) as gradebook:
        grade = gradebook.find_grade("q-knee", LAB, LAB, "ada")
        grade.manual_score, grade.needs_manual_grade = 4, False
        gradebook.db.commit()
    return lab_course


def graded_state(course):
    """The gradebook's scores, and what is beside nbgrader's own folders for formgrader and feedback."""
    with open_book(course) as gradebook:
        scores = {
            (submission.student.id, grade.name): (grade.auto_score, grade.manual_score, bool(grade.needs_manual_grade))
            for submission in gradebook.assignment_submissions(LAB)
            for grade in submission.notebooks[0].grades
        }
    return scores, {name: data for name, data in everything(course / "autograded").items() if "secret" not in name}


def restored(course, tmp_path):
    """The course after a backup and its restoration in an empty folder of the same name."""
    back_up(course, tmp_path / "b")
    course.rename(tmp_path / "before")
    course.mkdir()
    put_back(tmp_path / "b", course)
    assert not (course / "autograded").exists()


@pytest.mark.parametrize("points", [False, True])
def test_after_a_restoration_nothing_is_graded_again_and_marks_stay(marked, graded_here, tmp_path, points):
    rubrics = RUBRICS
    if points:  # other points were given since: they are counted, as in the course that was not restored
        rubrics = write_rubric(tmp_path / "rubrics")
        grade_lab("1", marked, rubrics=rubrics)
        with open_book(marked) as gradebook:
            gradebook.find_grade("q-knee", LAB, LAB, "ada").needs_manual_grade = False
            gradebook.db.commit()
        write_rubric(rubrics, *OTHER_PARTS)
    graded = list(graded_here)
    restored(marked, tmp_path)
    for course in (tmp_path / "before", marked):
        grade_lab("1", course, rubrics=rubrics)
    assert graded_here == graded
    scores, files = graded_state(marked)
    assert (scores, files) == graded_state(tmp_path / "before")
    assert scores["ada", "q-knee"] == (None, 4, False)
    assert {f"{student}/{LAB}/{LAB}.ipynb" for student in ("ada", "bob", "eve")} < files.keys()


def test_a_mark_of_an_answer_that_the_gradebook_did_not_know_yet_needs_another_look(marked, graded_here, tmp_path):
    """A submission was collected and graded after the gradebook had been copied."""
    old = (marked / "gradebook.db").read_bytes()
    folder = marked / "submitted/ada" / LAB
    shutil.rmtree(folder)
    hand_in_to(marked, "ada", essay("Near 400."), None)
    (folder / "timestamp.txt").write_text("2026-11-21 22:30:00.5 UTC")
    grade_lab("1", marked)
    (marked / "gradebook.db").write_bytes(old)
    restored(marked, tmp_path)
    assert sorted(each.parent.parent.name for each in marked.glob("*/*/*/verdict.json")) == ["bob", "eve"]
    grade_lab("1", marked)
    assert graded_here == ["ada", "bob", "eve", "ada", "ada"]
    assert graded_state(marked)[0]["ada", "q-knee"] == (None, 4, True)


def test_no_check_of_tarfile_s_is_needed(full, tmp_path, monkeypatch):
    """Python 3.11.2, Debian 12's, has none."""
    monkeypatch.delattr(tarfile, "data_filter", raising=False)
    (full / "submitted/ada/01_single_gpu/run.sh").write_text("")
    (full / "submitted/ada/01_single_gpu/run.sh").chmod(0o6777)
    os.utime(full / "submitted/ada/01_single_gpu/run.sh", (1e9, 1e9))
    back_up(full, tmp_path / "b")
    (tmp_path / "empty").mkdir()
    put_back(tmp_path / "b", tmp_path / "empty", replace=False)
    found = (tmp_path / "empty/submitted/ada/01_single_gpu/run.sh").stat()
    assert (found.st_mode & 0o7777, found.st_mtime) == (0o755, 1e9)


def test_root_does_not_write_into_another_account_s_course(full, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: full.stat().st_uid + 1)
    for work in (lambda: back_up(full, tmp_path / "b"), lambda: put_back(tmp_path / "b", full, True)):
        with pytest.raises(CourseError, match="runuser"):
            work()


@pytest.mark.parametrize(
    ("url", "place"), [("postgresql://u:secret@db/course", "postgresql"), ("sqlite:///{}/other.db", "{}/other.db")]
)
def test_a_gradebook_elsewhere_is_named_and_nothing_is_done(full, tmp_path, url, place):
    back_up(full, tmp_path / "before")
    before = parts(full)
    with open(full.parent / "nbgrader_config.py", "a") as file:
        file.write(f'c.CourseDirectory.db_url = "{url.format(tmp_path)}"\n')
    for done in (
        lab(backup, tmp_path / "b", "--course", full),
        lab(restore, tmp_path / "before", "--course", full, "--replace"),
    ):
        assert done.exit_code == 1 and done.output.count("\n") == 1, done.output
        assert f"in {place.format(tmp_path)}, not in {full}" in done.output and "own program" in done.output
    assert parts(full) == before and not (tmp_path / "b").exists()

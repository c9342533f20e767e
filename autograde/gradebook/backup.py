"""Backup and restoration of what a course folder cannot make again: one archive, ``.tar.gz``.

The queue of ``lab serve`` is copied before the gradebook, and both before the submissions: whatever an earlier part says
is done is in the later ones, although graders write meanwhile. What came after the copy of the queue is in the exchange
still, and is taken again. SQLite's own backup copies a database whole between two changes. gzip's checksum finds an
archive that is cut or damaged.

Each submission's verdict is copied with it, so that `lab grade` need not grade again, which would ask for all marks by
hand again. A verdict that is newer than the gradebook's copy is left out: marks in that copy are of other answers.
"""

from __future__ import annotations

import gzip
import os
import shutil
import sqlite3
import tarfile
import tempfile
import zlib
from contextlib import closing, nullcontext
from datetime import datetime
from pathlib import Path

from nbgrader.coursedir import CourseDirectory
from sqlalchemy.engine import make_url

from autograde.gradebook.autograded import submitted_at
from autograde.gradebook.regrade_answers import FILE as REQUESTS
from autograde.gradebook.scores import CourseError, nbgrader_settings
from autograde.rubric.verdict import FOLDER as VERDICTS
from autograde.rubric.verdict import verdict_lock, verdict_path
from autograde.submission.student_id import is_student_id
from course_lib.runs.run_evidence.quoting import quote

__all__ = ["back_up", "restore"]

GRADEBOOK, QUEUE = "gradebook.db", "on_submission/queue.sqlite"
FILES, SUBMITTED = ("extensions.csv", REQUESTS, "grading_secret"), "submitted"
PARTS = (GRADEBOOK, QUEUE, *FILES, SUBMITTED, VERDICTS)
MADE = ("autograded", "feedback")  # by `lab grade` and nbgrader, of submissions that a restoration replaces
_JOURNALS = ("-journal", "-wal", "-shm")  # SQLite would apply those of one database to another in its place


def back_up(course: Path, to: Path) -> list[tuple[str, str]]:
    """Write the archive `to`, readable by its owner alone, whole or not at all.

    Returns what is below ``submitted/`` and not in the archive: names, and what each is.

    Raises `CourseError`: the gradebook is elsewhere, `to` is there, or something cannot be read or written.
    """
    if os.path.lexists(to):
        raise CourseError(f"{to} is there already; choose another name")
    if not (course / GRADEBOOK).is_file():
        raise CourseError(f"no gradebook {course / GRADEBOOK}; name the course folder with --course")
    _check_account(course)
    _check_gradebook(course)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{to.name}.", dir=to.parent) as folder:
            archive, copied = Path(folder, "archive"), Path(folder, "copied")
            with open(archive, "xb") as file:
                archive.chmod(0o600)
                with tarfile.open(fileobj=file, mode="w:gz", compresslevel=1, dereference=True) as tar:
                    for name in (QUEUE, GRADEBOOK):
                        if (course / name).is_file():
                            _copy_database(course / name, copied)
                            if name == GRADEBOOK:
                                times = _times(copied)
                            tar.add(copied, name)
                            copied.unlink()
                    for name in FILES:
                        if (course / name).is_file():
                            tar.add(course / name, name)
                    left_out = _add_submissions(tar, course, times)
                file.flush()
                os.fsync(file.fileno())
            archive.rename(to)
    except (OSError, sqlite3.Error) as error:
        raise CourseError(f"no backup was written: {_said(error)}") from None
    return left_out


def restore(archive: Path, course: Path, replace: bool = False) -> Path | None:
    """Put what `archive` holds into the course folder; nothing else may use it meanwhile.

    What was there is moved to a new folder in `course`, which is returned. The gradebook leaves first and comes last: a
    restoration that is killed leaves a course without one, and can be repeated.

    Raises `CourseError`: something is there and is not to be replaced, the gradebook is elsewhere, the archive is no
    whole backup, or something cannot be read or moved. Nothing was changed, unless the message says where the old parts
    are.
    """
    there = [name for name in (*PARTS, *MADE) if os.path.lexists(course / name)]
    if there and not replace:
        raise CourseError(f"{course} has {', '.join(there)}; with --replace they are moved aside first")
    _check_account(course)
    _check_gradebook(course)
    try:
        with tempfile.TemporaryDirectory(prefix=".restore-", dir=course, ignore_cleanup_errors=True) as folder:
            staged = Path(folder)
            _unpack(archive, staged)
            aside = Path(tempfile.mkdtemp(prefix=f"replaced-{datetime.now():%Y%m%d-%H%M%S}-", dir=course))
            old = [name + end for name in (*PARTS, *MADE) for end in ("", *_JOURNALS)]
            moves = [(course / name, aside / name) for name in old]
            moves += [(staged / name, course / name) for name in reversed(PARTS)]
            _move_all(moves, aside)
    except (OSError, EOFError, zlib.error, tarfile.TarError, sqlite3.Error) as error:
        raise CourseError(f"{archive} cannot be restored: {_said(error)}") from None
    if os.listdir(aside):
        return aside
    aside.rmdir()
    return None


def _check_account(course: Path) -> None:
    owner = course.stat().st_uid
    if os.geteuid() != owner:  # root's files would keep the graders out
        raise CourseError(f"{course} is another account's; run this as that account: runuser -u '#{owner}' -- lab …")


def _check_gradebook(course: Path) -> None:
    """nbgrader's settings may name any database; an archive holds ``course/gradebook.db``."""
    url = make_url(CourseDirectory(config=nbgrader_settings(course)).db_url)
    sqlite, here = url.get_backend_name() == "sqlite", course.resolve() / GRADEBOOK
    file = Path(url.database or "")
    if not sqlite or file.parent.resolve() / file.name != here:
        raise CourseError(
            f"the gradebook is in {url.database or 'memory' if sqlite else url.get_backend_name()}, not in {here} "
            "(db_url in nbgrader_config.py); back it up and restore it with that database's own program"
        )


def _said(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _copy_database(source: Path, target: Path) -> None:
    with (
        closing(sqlite3.connect(source.resolve().as_uri() + "?mode=rw", uri=True)) as database,
        closing(sqlite3.connect(target)) as copy,
    ):
        database.backup(copy)
        _check_database(copy, source)
    target.chmod(0o600)


def _check_database(database: sqlite3.Connection, path: Path) -> None:
    (answer,) = database.execute("PRAGMA integrity_check(1)").fetchone()
    if answer != "ok":
        raise CourseError(f"{path} is damaged ({answer})")


def _times(gradebook: Path) -> dict[tuple[str, str], str]:
    """The time of each submission that the gradebook has, as it is written there, by student and lab."""
    query = (
        "SELECT submitted_assignment.student_id, assignment.name, submitted_assignment.timestamp "
        "FROM submitted_assignment JOIN assignment ON assignment.id = submitted_assignment.assignment_id"
    )
    with closing(sqlite3.connect(gradebook)) as database:
        return {(student, lab): when for student, lab, when in database.execute(query)}


def _add_submissions(tar: tarfile.TarFile, course: Path, times: dict[tuple[str, str], str]) -> list[tuple[str, str]]:
    """Add ``submitted/`` and verdicts, each while nobody collects or grades it; what is left out, and what it is."""
    left_out: list[tuple[str, str]] = []
    if not (course / SUBMITTED).is_dir():
        return left_out
    tar.add(course / SUBMITTED, SUBMITTED, recursive=False)
    for student in _folders(course / SUBMITTED, left_out):
        tar.add(student, f"{SUBMITTED}/{student.name}", recursive=False)
        for lab in _folders(student, left_out):
            # No other names are collected or graded, and the lock would make a folder for them.
            graded = is_student_id(student.name) and not lab.name.startswith(".")
            with verdict_lock(course, student.name, lab.name) if graded else nullcontext():
                _add_tree(tar, lab, f"{SUBMITTED}/{student.name}/{lab.name}", left_out)
                verdict, when = verdict_path(course, student.name, lab.name), submitted_at(lab)
                known = when is None or f"{when:%Y-%m-%d %H:%M:%S.%f}" == times.get((student.name, lab.name))
                if graded and known and verdict.is_file():
                    _add_file(tar, verdict, str(verdict.relative_to(course)))
    return left_out


def _folders(folder: Path, left_out: list[tuple[str, str]]) -> list[Path]:
    entries = sorted(folder.iterdir())
    left_out += [(str(each), _kind(each)) for each in entries if each.is_symlink() or not each.is_dir()]
    return [each for each in entries if not each.is_symlink() and each.is_dir()]


def _kind(path: Path) -> str:
    if path.is_symlink():
        return "a link"
    return "a file outside the folders STUDENT/LAB" if path.is_file() else "neither file nor folder"


def _add_tree(tar: tarfile.TarFile, folder: Path, name: str, left_out: list[tuple[str, str]]) -> None:
    def give_up(error: OSError) -> None:
        raise error

    for below, folders, names in os.walk(folder, onerror=give_up):
        inside = os.path.join(name, os.path.relpath(below, folder)).removesuffix("/.")
        tar.add(below, inside, recursive=False)
        for each in (*names, *folders):
            path = Path(below, each)
            if path.is_file() and not path.is_symlink():
                _add_file(tar, path, f"{inside}/{each}")
            elif path.is_symlink() or not path.is_dir():
                left_out.append((str(path), _kind(path)))


def _add_file(tar: tarfile.TarFile, path: Path, name: str) -> None:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        tar.addfile(tar.gettarinfo(arcname=name, fileobj=file), file)


def _unpack(archive: Path, folder: Path) -> None:
    """Write files and folders of known names, and nothing else, into an empty folder.

    `tarfile`'s own checks are not used: Debian 12's Python 3.11.2 has none.
    """
    with gzip.open(archive) as stream:
        with tarfile.open(fileobj=stream, mode="r|") as tar:
            for member in tar:
                known = member.name in PARTS or member.name.startswith((f"{SUBMITTED}/", f"{VERDICTS}/"))
                if not known or not (member.isfile() or member.isdir()) or ".." in Path(member.name).parts:
                    raise CourseError(f"{archive} holds {quote(member.name)}, which is in no backup")
                target = folder / member.name
                (target if member.isdir() else target.parent).mkdir(parents=True, exist_ok=True)
                if member.isfile():
                    with open(target, "xb") as file:
                        shutil.copyfileobj(tar.extractfile(member), file)
                    target.chmod(member.mode & 0o755 | 0o600)
                    os.utime(target, (member.mtime, member.mtime))
        while stream.read(1 << 20):
            pass  # the checksum is at the end
    if not (folder / GRADEBOOK).is_file():
        raise CourseError(f"{archive} holds no {GRADEBOOK}, so it is no backup")
    for name in (GRADEBOOK, QUEUE):
        if (folder / name).is_file():
            with closing(sqlite3.connect(folder / name)) as database:
                _check_database(database, Path(name))


def _move_all(moves: list[tuple[Path, Path]], aside: Path) -> None:
    """Rename what is there, one after the other. After an error, such as that of a mount point, all is put back."""
    made: list[Path] = []
    begun: list[tuple[Path, Path]] = []
    try:
        for path, to in moves:
            if os.path.lexists(path):
                if not to.parent.is_dir():
                    to.parent.mkdir()
                    made.append(to.parent)
                begun.append((path, to))
                path.rename(to)
    except BaseException as error:
        try:
            for path, to in reversed(begun):
                if os.path.lexists(to):  # all but the last are there
                    to.rename(path)
            for folder in (*made, aside):
                folder.rmdir()
        except OSError as another:
            raise CourseError(
                f"nothing could be restored ({_said(error)}), nor all be put back ({_said(another)}); "
                f"what is missing from before is in {aside}"
            ) from None
        raise

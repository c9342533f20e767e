"""Submissions in nbgrader's exchange, read without trust: the names in ``inbound``, and a copy of one submission.

``nbgrader collect`` believes a folder's name, and copies what a link in it leads to, with the rights of the course's
account. That is harmless only as long as a person looks. Here a folder is refused whose owner is another than its name
says, or that holds a link, a pipe, a device or a file of another owner; and nothing is opened by a path that a student
could change meanwhile. What is left out by name or size is what nbgrader leaves out.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import stat
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatch
from pathlib import Path

from nbgrader.coursedir import CourseDirectory

from autograde.gradebook.autograded import parse_time
from autograde.submission.student_id import is_student_id
from course_lib.runs.run_evidence.quoting import quote

__all__ = ["InboundName", "RefusedError", "copy_submission", "is_complete", "read_name", "replace_folder"]

# `nbgrader submit` ends with this mode, so that the instructor can remove the folder.
COMPLETE = 0o777
AHEAD = timedelta(hours=1)  # that a clock may be ahead of this machine's
DEPTH, FILES = 20, 10_000
_PIECE = 1 << 20
_NAME = re.compile(r"([^+]+)\+([^+]+)\+([^+]+)(?:\+[A-Za-z0-9_=-]{1,100})?")


class RefusedError(Exception):
    """A submission is not collected. The message is one line."""


@dataclass(frozen=True)
class InboundName:
    """What the name of a submission's folder says; `stamp` in UTC without zone."""

    student: str
    lab: str
    stamp: datetime


def read_name(name: str) -> InboundName:
    """The parts of ``STUDENT+LAB+TIME+RANDOM``, as ``nbgrader submit`` writes it. Raises `RefusedError`."""
    match = _NAME.fullmatch(name)
    if match is None or not is_student_id(match[1]):
        raise RefusedError("its name is not one that nbgrader submit writes")
    try:
        stamp = parse_time(match[3])
    except ValueError as error:
        raise RefusedError(f"its name has {error}") from None
    if stamp > datetime.now(UTC).replace(tzinfo=None) + AHEAD:
        raise RefusedError(f"its name has a time that has not come, {stamp:%Y-%m-%d %H:%M} UTC")
    return InboundName(match[1], match[2], stamp)


def is_complete(folder: Path, owner: str | None) -> bool:
    """Whether ``nbgrader submit`` has ended.

    Raises `RefusedError`: it is no folder, or another's than `owner`'s. Everybody may write into ``inbound``, so without
    this a folder in another's name would take that student's turn.
    """
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode):
        raise RefusedError("it is a link or a file, not a folder")
    _check_account(status.st_uid, owner)
    return stat.S_IMODE(status.st_mode) & COMPLETE == COMPLETE


def copy_submission(source: Path, target: Path, directories: CourseDirectory, owner: str | None) -> None:
    """Copy a submission into a new folder.

    Parameters
    ----------
    source : Path
        A folder that a student may change at any time.
    directories : CourseDirectory
        Its `ignore`, `include`, `max_file_size` and `max_dir_size` (kB) hold.
    owner : str, optional
        Who must own the folder and all files in it.

    Raises
    ------
    RefusedError
        It cannot be taken; what is there of `target` is of no use.
    OSError
        It is gone, or `target` cannot be written.
    """
    try:
        top = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RefusedError(f"it is not a folder that can be opened ({error.strerror})") from None
    try:
        _check_account(os.fstat(top).st_uid, owner)
        room, files = 1000 * directories.max_dir_size, 0  # folders count, too
        for below, folders, names, fd in os.fwalk(".", dir_fd=top, follow_symlinks=False):
            if below.count(os.sep) > DEPTH:
                raise RefusedError("its folders are too deep")
            folders[:] = [name for name in folders if not _any(directories.ignore, name)]
            for name in folders:
                if stat.S_ISLNK(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                    raise RefusedError(f"it holds {quote(name)}, which is a link")
            names = [name for name in names if not _any(directories.ignore, name) and _any(directories.include, name)]
            files += len(folders) + len(names)
            if files > FILES:
                raise RefusedError(f"it holds more than {FILES:,} files and folders")
            (target / below).mkdir()
            for name in names:
                room -= _copy_plain(name, fd, target / below / name, 1000 * directories.max_file_size, room, owner)
    finally:
        os.close(top)


def _any(globs: list[str], name: str) -> bool:
    return any(fnmatch(name, each) for each in globs)


def _copy_plain(name: str, folder_fd: int, path: Path, largest: int, room: int, owner: str | None) -> int:
    """Copy one file and return its size; 0 for one that is left out because it is larger than `largest`."""
    # O_NONBLOCK: opening a pipe must return, so that it can be refused.
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder_fd)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RefusedError(f"it holds {quote(name)}, a link or what cannot be opened ({error.strerror})") from None
    with open(fd, "rb", buffering=0) as source:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise RefusedError(f"it holds {quote(name)}, which is no plain file")
        if owner not in (None, _account(status.st_uid)):  # a hard link
            raise RefusedError(f"it holds {quote(name)}, a file of another account")
        if status.st_size > largest:
            return 0
        copied = 0
        with open(path, "xb") as target:
            while piece := source.read(_PIECE):
                copied += len(piece)
                if copied > room:
                    raise RefusedError("it is larger than nbgrader's c.CourseDirectory.max_dir_size")
                target.write(piece)
    return copied


def _check_account(uid: int, owner: str | None) -> None:
    account = _account(uid)
    if owner not in (None, account):
        raise RefusedError(f"its name says {owner}, and it belongs to {quote(account)}")


def _account(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def replace_folder(new: Path, place: Path, old: Path) -> None:
    """Put a folder in the place of another. At any moment one of the two, or none, is there; `old` is a free name."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        place.rename(old)
    new.rename(place)
    shutil.rmtree(old, ignore_errors=True)

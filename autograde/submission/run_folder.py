"""Opening a submission's folders and files as data, without trusting any of it.

A student controls every name in the submission, so the system must not resolve a path for us. Each component is opened
relative to the one above with ``O_NOFOLLOW``. Its type is checked *after* opening, and its size before a byte is read.
So a link, a pipe or a device neither leads out of the submission nor hangs the grader. Only names that the grader
chooses are opened; a pickle is never opened.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from course_lib.runs.run_evidence.errors import EvidenceError

__all__ = ["EvidenceError", "RunFolder", "is_handed_in", "open_submission", "read_plain_text"]


class RunFolder:
    """A run folder, held open by its descriptor. A context manager.

    Parameters
    ----------
    submission : Path
        ``submitted/STUDENT/LAB``. Neither of the last two components may be a link.
    lab : str
        Name of the lab, for the second place that is looked in.
    folder : str
        A plain name, chosen by the rubric, of a folder below; empty for the notebook's own run.
    writer : str
        The program that writes it, for messages; empty for the notebook.

    Raises `EvidenceError` where there is no such folder (``run/``, else ``runs/LAB/``; ``run/FOLDER/``, else
    ``runs/LAB/FOLDER/``), or one of its components is not a plain folder.
    """

    def __init__(self, submission: Path, lab: str, folder: str = "", writer: str = "") -> None:
        self.remedy = (
            f"run {writer} to its end, which writes it" if writer else "run the lab to its end, which writes it"
        )
        below = (folder,) if folder else ()
        try:
            submission_fd = open_submission(submission)
            try:
                self._fd = self._open_first(submission_fd, ("run", *below), ("runs", lab, *below))
            finally:
                os.close(submission_fd)
        except FileNotFoundError:
            what = f"no run folder of {writer}" if writer else "no run folder"
            expected = "/".join(("run", *below, "run.json"))
            raise EvidenceError(
                f"{what} in the submission: expected {expected} beside the notebook; {self.remedy}"
            ) from None

    def _open_first(self, submission_fd: int, *places: tuple[str, ...]) -> int:
        for place in places:
            try:
                fd = _open_directories(submission_fd, place)
            except FileNotFoundError:
                continue
            self.where = "/".join(place)
            return fd
        raise FileNotFoundError

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def read(self, name: str, limit: int) -> bytes:
        """Read one plain file of the folder, as `read_plain`."""
        shown, remedy = f"{self.where}/{name}", "hand in the file as the lab wrote it"
        return read_plain(self._fd, name, limit, shown=shown, missing=self.remedy, remedy=remedy)


def is_handed_in(submission: Path, lab: str, folder: str = "") -> bool:
    """Whether there is a run folder that can be opened."""
    try:
        with RunFolder(submission, lab, folder):
            return True
    except EvidenceError:
        return False


def open_submission(submission: Path) -> int:
    """Open ``submitted/STUDENT/LAB``; a descriptor, for the caller to close. Neither STUDENT nor LAB may be a link.

    Raises `FileNotFoundError` if there is no such folder, and `EvidenceError` if one of the two is a link or another
    thing than a folder, or cannot be opened.
    """
    opened = []
    try:
        opened.append(os.open(submission.parent.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        for name in (submission.parent.name, submission.name):
            opened.append(_open_directory(opened[-1], name, "the submission"))
        return opened.pop()
    finally:
        for fd in opened:
            os.close(fd)


def read_plain_text(folder_fd: int, name: str, limit: int, *, shown: str, missing: str, remedy: str) -> str:
    """Read one plain UTF-8 file of an opened folder; as `read_plain`, and `EvidenceError` where it is not UTF-8."""
    data = read_plain(folder_fd, name, limit, shown=shown, missing=missing, remedy=remedy)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise EvidenceError(f"{shown} is not UTF-8 text (byte {error.start}): {remedy}") from None


def read_plain(folder_fd: int, name: str, limit: int, *, shown: str, missing: str, remedy: str) -> bytes:
    """Read one plain file of an opened folder.

    Parameters
    ----------
    name : str
        A bare file name, chosen by the grader.
    limit : int
        Largest size accepted, in bytes.
    shown, missing, remedy : str
        What messages call the file; what to do where it is missing, and where it cannot be used.

    Raises `EvidenceError`: missing, a link, not a plain file, larger than `limit`, or unreadable.
    """
    # O_NONBLOCK: opening a named pipe must return, so that we can see what it is and refuse it.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(name, flags, dir_fd=folder_fd)
    except FileNotFoundError:
        raise EvidenceError(f"{shown} is missing: {missing}") from None
    except OSError as error:
        raise EvidenceError(_refusal(error, shown)) from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise EvidenceError(f"{shown} is not a plain file: {remedy}")
        if status.st_size > limit:
            raise EvidenceError(f"{shown} has {status.st_size:,} bytes, at most {limit:,} are read: {remedy}")
        data = bytearray()
        # One byte beyond the limit, in case the file is longer than it said.
        while len(data) <= limit and (piece := os.read(fd, min(1 << 20, limit + 1 - len(data)))):
            data += piece
    except OSError as error:
        raise EvidenceError(f"{shown} cannot be read ({error.strerror}): hand it in again") from None
    finally:
        os.close(fd)
    if len(data) > limit:
        raise EvidenceError(f"{shown} is larger than {limit:,} bytes: {remedy}")
    return bytes(data)


def _open_directories(parent_fd: int, names: tuple[str, ...]) -> int:
    """Open the last of nested folders, one at a time."""
    fd = os.dup(parent_fd)
    for depth, name in enumerate(names, start=1):
        try:
            below = _open_directory(fd, name, "/".join(names[:depth]) + "/")
        finally:
            os.close(fd)
        fd = below
    return fd


def _open_directory(parent_fd: int, name: str, shown: str) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=parent_fd)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise EvidenceError(_refusal(error, shown)) from None


def _refusal(error: OSError, shown: str) -> str:
    # With O_DIRECTORY|O_NOFOLLOW Linux answers ENOTDIR for a link, with O_NOFOLLOW alone ELOOP.
    if error.errno == errno.ELOOP:
        return f"{shown} is a symbolic link, which is not followed: hand in the file itself"
    if error.errno == errno.ENOTDIR:
        return f"{shown} is not a plain folder (a link or a file): hand in the folder itself"
    return f"{shown} cannot be opened ({error.strerror}): hand it in again"

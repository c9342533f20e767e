"""How a rank's progress reaches the process that launched it: a file in the launch's folder, replaced whole."""

from __future__ import annotations

import os
from pathlib import Path

from course_lib.live_view.progress import Progress

__all__ = ["ProgressFile", "ProgressReader", "current", "open_channel"]

NAME = "training.json"

_current: ProgressFile | None = None


def open_channel(folder: Path) -> None:
    """From here on the trainings of this process are told to whoever reads `folder`."""
    global _current
    _current = ProgressFile(folder / NAME)


def current() -> ProgressFile | None:
    """This process's channel; None where nobody reads."""
    return _current


class ProgressFile:
    """A rank's end."""

    def __init__(self, path: Path) -> None:
        self._path, self._earlier, self._last = path, [], None

    def begin(self) -> None:
        """A training begins; the one before it is kept as text."""
        if self._last is not None:
            self._earlier.append(self._last.text())
            self._last = None

    def show(self, progress: Progress) -> None:
        self._last = progress
        progress.earlier = self._earlier
        partial = self._path.with_suffix(".partial")
        partial.write_text(progress.to_json())
        os.replace(partial, self._path)


class ProgressReader:
    """The launching end."""

    def __init__(self, folder: Path) -> None:
        self._path, self._seen = folder / NAME, None

    def read(self) -> Progress | None:
        """The state, if there is one that was not read before."""
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return None
        version = (found.st_ino, found.st_mtime_ns)
        if version == self._seen:
            return None
        self._seen = version
        return Progress.from_json(self._path.read_text())

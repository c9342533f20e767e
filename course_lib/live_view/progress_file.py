"""A rank's progress for the process that launched it: a JSON file in the launch's folder, replaced atomically."""

import json
import os
from dataclasses import asdict
from pathlib import Path

from course_lib.live_view.listener import PROGRESS_FILE
from course_lib.live_view.progress import Progress, ProgressListener

__all__ = ["ProgressFile", "progress_file"]


def progress_file() -> ProgressListener:
    """The listener of rank 0 in a launch that a notebook's page follows."""
    return ProgressListener(ProgressFile(Path(os.environ[PROGRESS_FILE])), int(os.environ.get("WORLD_SIZE", "1")))


class ProgressFile:
    """Writes and reads the file. The rank prints the transcript's lines; they appear with its other output."""

    keeps_lines = False

    def __init__(self, path: Path) -> None:
        self._path, self._seen = path, None

    def begin(self, progress: Progress) -> None:
        """A training begins; the one before it is kept as a line of text."""
        before = self.read()
        if before is not None:
            progress.earlier = before.earlier + ([before.text()] if before.records else [])
        self.show(progress)

    def show(self, progress: Progress) -> None:
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(progress)))
        os.replace(partial, self._path)

    def read(self) -> Progress | None:
        """The state, if there is one that this object has not read before."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return None
        version = (status.st_ino, status.st_mtime_ns)
        if version == self._seen:
            return None
        self._seen = version
        return Progress(**json.loads(self._path.read_text()))

"""A launch as its notebook shows it: the training that its ranks tell of, and their lines, rank by rank."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from course_lib.live_view import cell_trainings
from course_lib.live_view.cell_output import CellOutput
from course_lib.live_view.progress import Progress
from course_lib.live_view.rank_channel import ProgressReader
from course_lib.live_view.rank_html import ranks_html, ranks_text
from course_lib.live_view.rank_text import RankText
from course_lib.live_view.training_view import INTERVAL

__all__ = ["LaunchView"]

BRIEF = 2.0  # seconds: what a shorter launch has printed is shown at its end
FEW = 40  # lines up to which that is plain text

_kept: tempfile.TemporaryDirectory | None = None  # the latest long logs; goes with the kernel


class LaunchView:
    """Looks at a launch's folder whenever asked, at most twice a second, and shows what has changed.

    Parameters
    ----------
    folder : Path
        The launch's.
    logs : callable
        Returns each rank's log, once there are some.
    """

    def __init__(
        self, folder: Path, logs: Callable[[], Mapping[int, Path]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._logs, self._clock = logs, clock
        self._reader, self._trainings = ProgressReader(folder), cell_trainings.of_this_cell()
        self._trainings.begin()
        self._progress: Progress | None = None
        self._texts: dict[int, RankText] = {}
        self._output = CellOutput()
        self._began = self._last = clock()
        self._broken = self._unshown = False

    def look(self) -> None:
        """Show what is new, if the last look is long enough ago."""
        now = self._clock()
        if now - self._last < INTERVAL or self._broken:
            return
        self._last = now
        try:
            self._show_training()
            self._unshown |= self._read()
            if self._unshown and now - self._began > BRIEF:
                self._unshown = False
                self._output.show(ranks_html(self._texts, over=False), ranks_text(self._texts))
        except Exception as error:  # a picture must not end a launch: what the ranks say is shown at its end
            self._broken = True
            print(f"no live view ({type(error).__name__}: {error})", flush=True)

    def close(self) -> None:
        """Show how it ended; the ranks are gone by now, the folder is not."""
        try:
            self._show_training(ended=True)
            self._read(to_the_end=True)
            self._show_lines_for_good()
        except Exception:
            text = "\n".join(f"[rank {rank}] {line}" for rank, text in self._texts.items() for line in text.lines)
            print(text)
        sys.stdout.flush()

    def _show_training(self, ended: bool = False) -> None:
        found = self._reader.read()
        if found is not None:
            self._progress = found
        elif not ended:
            return
        if self._progress is None:
            return
        if ended and not self._progress.over:  # its rank was ended before it could say so
            self._progress.phase = "ended"
            found = self._progress
        if found is not None:
            self._trainings.show(found)

    def _read(self, to_the_end: bool = False) -> bool:
        for rank, log in self._logs().items():
            self._texts.setdefault(rank, RankText(Path(log)))
        return any([text.read(to_the_end) for text in self._texts.values()])

    def _show_lines_for_good(self) -> None:
        total = sum(text.count for text in self._texts.values())
        if not total:
            return
        note = self._keep_logs() if any(text.left_out for text in self._texts.values()) else ""
        text = ranks_text(self._texts, note)
        if not self._output.shown and total <= FEW:
            print(text)
        else:
            self._output.show(ranks_html(self._texts, over=True, note=note), text)

    def _keep_logs(self) -> str:
        """Move the logs to where they can be read while the kernel lives; the launch's folder is removed."""
        global _kept
        if _kept is None or not os.path.isdir(_kept.name):
            _kept = tempfile.TemporaryDirectory(prefix="rank-output-", ignore_cleanup_errors=True)
        for rank, text in self._texts.items():
            if text.log.exists():
                shutil.move(text.log, Path(_kept.name) / f"rank-{rank}.txt")
        return f"{_kept.name}/rank-N.txt has all, until the next long output or the kernel's end"

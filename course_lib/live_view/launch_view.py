"""Display of a launch in a notebook: the training of rank 0, and the lines of every rank."""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from course_lib.live_view.cell_display import CellOutput, CellTrainings, cell_trainings
from course_lib.live_view.interactive import running_shell
from course_lib.live_view.progress import INTERVAL, Progress
from course_lib.live_view.progress_file import ProgressFile
from course_lib.live_view.rank_lines import RankLog, ranks_html, ranks_text

__all__ = ["LaunchView"]

BRIEF = 2.0  # seconds: the lines of a shorter launch are shown only at its end
FEW = 40  # up to this many lines are then plain text


class LaunchView:
    """Shows what is new in a launch, at most twice per second.

    Parameters
    ----------
    progress : Path
        The file with rank 0's `Progress`.
    logs : callable
        Returns each rank's log, once there are some.
    trainings : CellTrainings, optional
        Where the training is shown; by default below the running cell.
    """

    def __init__(
        self, progress: Path, logs: Callable[[], Mapping[int, str | Path]], trainings: CellTrainings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._find_logs, self._clock = logs, clock
        self._file, self._trainings = ProgressFile(progress), trainings or cell_trainings()
        self._trainings.begin()
        self._progress: Progress | None = None
        self._logs: dict[int, RankLog] = {}
        self._output = CellOutput()
        self._began = self._last = clock()
        self._broken = self._unshown = False

    def look(self) -> None:
        """Show what is new, if the last update is at least `INTERVAL` seconds ago."""
        now = self._clock()
        if now - self._last < INTERVAL or self._broken:
            return
        self._last = now
        try:
            self._show_training()
            self._unshown |= self._read()
            if self._unshown and now - self._began > BRIEF:
                self._unshown = False
                self._output.show(ranks_html(self._logs, over=False), ranks_text(self._logs))
        except Exception as error:  # a display must not end a launch; `close` shows the ranks' lines
            self._broken = True
            print(f"no live view ({type(error).__name__}: {error})", flush=True)

    def close(self) -> None:
        """Show the end of the launch. The ranks have ended; their folder still exists."""
        try:
            self._read()
            self._show_training()
            if self._progress is not None and not self._progress.phase:  # rank 0 was ended before it could write it
                self._progress.phase = "ended"
                self._trainings.show(self._progress)
            self._show_all_lines()
        except Exception as error:  # a display must not end a launch
            if not self._broken:
                print(f"no live view ({type(error).__name__}: {error})", flush=True)
            print("\n".join(f"[rank {rank}] {line}" for rank, log in self._logs.items() for line in log.lines))
        sys.stdout.flush()

    def _show_training(self) -> None:
        if (new := self._file.read()) is not None:
            self._progress = new
            self._trainings.show(new)

    def _read(self) -> bool:
        for rank, path in self._find_logs().items():
            self._logs.setdefault(rank, RankLog(Path(path)))
        return any([log.read() for log in self._logs.values()])

    def _show_all_lines(self) -> None:
        total = sum(log.count for log in self._logs.values())
        if not total:
            return
        note = self._keep_logs() if any(log.left_out for log in self._logs.values()) else ""
        text = ranks_text(self._logs, note)
        if self._output.handle is None and total <= FEW:
            print(text)
        else:
            self._output.show(ranks_html(self._logs, over=True, note=note), text)

    def _keep_logs(self) -> str:
        """Move the logs into a folder that lives as long as the kernel; the launch's folder is removed."""
        kept = running_shell().meta.get("rank_output")
        if kept is None or not os.path.isdir(kept.name):
            kept = tempfile.TemporaryDirectory(prefix="rank-output-", ignore_cleanup_errors=True)
            running_shell().meta["rank_output"] = kept  # removed with the kernel
        for rank, log in self._logs.items():
            if log.path.exists():
                shutil.move(log.path, Path(kept.name) / f"rank-{rank}.txt")
        return f"{kept.name}/rank-N.txt has all, until the next long output or the kernel's end"

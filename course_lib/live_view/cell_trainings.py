"""The trainings of a cell, in one output: the one under way, and those before it as text."""

from __future__ import annotations

import dataclasses

from course_lib.live_view.cell_output import CellOutput
from course_lib.live_view.front_end import running_cell
from course_lib.live_view.progress import Progress
from course_lib.live_view.training_html import training_html, training_text

__all__ = ["CellTrainings", "of_this_cell"]

_latest: tuple[str, CellTrainings] | None = None


def of_this_cell() -> CellTrainings:
    """The same for every training of one execution of a cell."""
    global _latest
    cell = running_cell()
    if _latest is None or _latest[0] != cell:
        _latest = (cell, CellTrainings())
    return _latest[1]


class CellTrainings:
    """Shows the state of the training under way; those before it become text."""

    def __init__(self) -> None:
        self._output, self._earlier, self._last = CellOutput(), [], None

    def begin(self) -> None:
        """A training begins, or a launch that may hold several."""
        if self._last is not None:
            self._earlier += [*self._last.earlier, self._last.text()]
            self._last = None

    def show(self, progress: Progress) -> None:
        self._last = progress
        shown = dataclasses.replace(progress, earlier=[*self._earlier, *progress.earlier])
        self._output.show(training_html(shown), training_text(shown))

"""Shows a training whose loop over the epochs is the notebook's own.

`course_lib.training.fit` knows where it is and says so. A loop that a student writes says it without knowing: by the
epochs that it appends to its run folder, and by the batches that go through `course_lib.training.train_epoch`. The run
that was started last in this process, or came to this rank, is the one that is followed: in a notebook within the cell
that started it, in a rank to its end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from course_lib.live_view.front_end import running_cell, running_shell
from course_lib.live_view.training_view import NoView, view_of_training

__all__ = ["OwnLoop", "follow", "followed", "not_followed"]

_followed: OwnLoop | None = None


class OwnLoop:
    """What is known of the run that is followed; its view opens with the first batch or epoch that is seen.

    Parameters
    ----------
    path : str
        The run folder's.
    epochs : int
        Of the whole training, at most.
    """

    def __init__(self, path: str, epochs: int) -> None:
        self.path, self.cell = path, running_cell()
        self._epochs, self._view = epochs, None

    def _opened(self) -> NoView:
        if self._view is None:
            self._view = view_of_training(self._epochs, ()).__enter__()
            if (shell := running_shell()) is not None:
                shell.events.register("post_run_cell", self._cell_over)
        return self._view

    def batches(self, batches: Any) -> Any:
        """The batches of the epoch under way, counted on their way."""
        view = self._opened()
        return view.batches(batches, view.epoch or 1)

    def lines(self) -> contextlib.AbstractContextManager:
        """What is printed in the block belongs to the training."""
        return self._opened().lines()

    def epoch_done(self, record: Any) -> None:
        """An `EpochRecord` was appended."""
        view = self._opened()
        view.epoch_done(record)
        view.begin_epoch(record.epoch + 1)

    def over(self, error: BaseException | None = None) -> None:
        """The training's result is written, or it has failed; what is trained after it is no part of it."""
        global _followed
        if _followed is self:
            _followed = None
        if self._view is not None:
            self._view.__exit__(type(error) if error else None, error, None)
            self._view = None

    def _cell_over(self, result: Any) -> None:
        """IPython has run the cell, in whatever way it ended."""
        running_shell().events.unregister("post_run_cell", self._cell_over)
        self.over(result.error_in_exec)


def follow(path: str, epochs: Any) -> None:
    """From here on show the run in `path`; one whose number of epochs is not known is not shown."""
    global _followed
    _followed = OwnLoop(path, epochs) if isinstance(epochs, int) and epochs > 0 else None


def followed(path: str | None = None) -> OwnLoop | None:
    """The run that is followed here and now (None: it is not, or it is not the one in `path`)."""
    here = _followed is not None and path in (None, _followed.path) and _followed.cell == running_cell()
    return _followed if here else None


@contextlib.contextmanager
def not_followed() -> Iterator[None]:
    """For the block, nothing is followed: `fit` shows its training itself."""
    global _followed
    before, _followed = _followed, None
    try:
        yield
    finally:
        _followed = before

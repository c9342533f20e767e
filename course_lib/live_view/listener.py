"""The interface through which a training reports its progress, and the default listeners."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

from course_lib.live_view.interactive import in_one_line, is_interactive

__all__ = ["PROGRESS_FILE", "Listeners", "TrainingListener", "default_callbacks"]

PROGRESS_FILE = "LAB_PROGRESS_FILE"  # environment variable: the file in which `launch` reads rank 0's progress


class TrainingListener:
    """Base class: every method does nothing. `fit` and `RunFolder` call them in the process that trains."""

    def began(self, epochs: int, records: Sequence[Any] = ()) -> None:
        """A training of at most `epochs` epochs begins; `records` are the `EpochRecord`s of a checkpoint."""

    def epoch_began(self, epoch: int, batches: int | None) -> None:
        """Epoch `epoch` (from 1) begins; `batches` is None where their number is not known."""

    def batch_done(self, images: int) -> None:
        """A step on `images` images of this rank was taken."""

    def line(self, text: str) -> bool:
        """`text` is a line of the transcript. Return True to show it yourself; it is printed if no listener does."""
        return False

    def epoch_done(self, record: Any) -> None:
        """An epoch has been trained and validated; `record` is its `EpochRecord`."""

    def interrupted(self) -> None:
        """The training was stopped by an interrupt (■)."""

    def ended(self, error: BaseException | None = None) -> None:
        """The training is over, by `error` if it failed. May be called again."""


class Listeners(TrainingListener):
    """Several listeners as one; knows the current epoch.

    Attributes
    ----------
    epochs, epoch : int
        Maximum number of epochs (0 before the training begins), and the current one, from 1.
    """

    def __init__(self, listeners: Sequence[TrainingListener]) -> None:
        self._listeners = tuple(listeners)
        self.epochs, self.epoch = 0, 1

    def began(self, epochs: int, records: Sequence[Any] = ()) -> None:
        self.epochs, self.epoch = epochs, len(records) + 1
        self._report("began", epochs, records)

    def epoch_began(self, epoch: int, batches: int | None) -> None:
        self.epoch = epoch
        self._report("epoch_began", epoch, batches)

    def batch_done(self, images: int) -> None:
        for listener in self._listeners:
            listener.batch_done(images)

    def line(self, text: str) -> bool:
        if not any(self._report("line", text)):
            print(text, flush=True)
        return True

    def epoch_done(self, record: Any) -> None:
        self.epoch = min(record.epoch + 1, self.epochs)
        self._report("epoch_done", record)

    def interrupted(self) -> None:
        self._report("interrupted")

    def ended(self, error: BaseException | None = None) -> None:
        self._report("ended", error)

    def _report(self, event: str, *arguments: Any) -> list[Any]:
        return [getattr(listener, event)(*arguments) for listener in self._listeners]

    @contextlib.contextmanager
    def hear(self, epochs: int, records: Sequence[Any]) -> Iterator[None]:
        """Report the beginning and the end of the training in the block. IPython shows an interrupt as one line."""
        self.began(epochs, records)
        try:
            yield
        except KeyboardInterrupt as error:
            self.interrupted()
            in_one_line(error, f"the training was stopped in epoch {self.epoch} of {epochs}")
            raise
        except BaseException as error:
            self.ended(error)
            raise
        self.ended()


def default_callbacks() -> list[TrainingListener]:
    """The listeners of a training that was given none.

    In rank 0 of a launch from a notebook's page, the file that `launch` reads; in a cell that a page sent, the display
    below the cell; elsewhere none: the training prints lines and imports no display.
    """
    if PROGRESS_FILE in os.environ:
        from course_lib.live_view.progress_file import progress_file

        return [progress_file()]
    if is_interactive():
        from course_lib.live_view.cell_display import cell_display

        return [cell_display()]
    return []

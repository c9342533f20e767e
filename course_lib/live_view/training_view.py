"""What `fit` tells whoever looks on: nothing, the notebook's cell, or, in a rank, the process that launched it."""

from __future__ import annotations

import contextlib
import io
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from course_lib.live_view import cell_trainings, rank_channel
from course_lib.live_view.front_end import watched
from course_lib.live_view.progress import Point, Progress
from course_lib.live_view.short_interrupt import shorten

__all__ = ["NoView", "TrainingView", "view_of_training"]

INTERVAL = 0.5  # seconds between two updates
LATEST = 3  # epochs from which the time left is reckoned


def view_of_training(epochs: int, before: Sequence[Any], quiet: bool = False) -> NoView | TrainingView:
    """The view for a training of `epochs` epochs, of which `before` (`EpochRecord`s) are done already.

    `quiet`: it prints nothing at the end; a training of less than half a second is then not shown at all.
    """
    channel = rank_channel.current()
    if channel is not None:
        return TrainingView(channel, epochs, before, ranks=int(os.environ.get("WORLD_SIZE", "1")), quiet=quiet)
    if watched():
        return TrainingView(cell_trainings.of_this_cell(), epochs, before, quiet=quiet, keeps_lines=True)
    return NoView(epochs)


class NoView:
    """Nobody looks: everything is printed as it is."""

    def __init__(self, epochs: int) -> None:
        self.epochs, self.epoch = epochs, 0

    def __enter__(self) -> NoView:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> None:
        if kind is KeyboardInterrupt:
            shorten(error, f"the training was stopped in epoch {self.epoch} of {self.epochs}")

    def batches(self, batches: Any, epoch: int) -> Any:
        """The batches of an epoch, counted on their way."""
        self.epoch = epoch
        return batches

    def begin_epoch(self, epoch: int) -> None:
        """An epoch begins of which no batch will be seen, perhaps."""
        self.epoch = min(epoch, self.epochs)

    def validating(self) -> None:
        """The epoch's batches are over."""

    def lines(self) -> contextlib.AbstractContextManager:
        """What is printed in the block belongs to the training."""
        return contextlib.nullcontext()

    def epoch_done(self, record: Any) -> None:
        """An epoch's `EpochRecord`."""


class TrainingView(NoView):
    """Follows a training and shows its state, at most twice a second.

    Parameters
    ----------
    sink
        Has ``begin()`` and ``show(progress)``.
    keeps_lines : bool
        Printed lines become part of the view, instead of an output of their own.
    """

    def __init__(
        self, sink: Any, epochs: int, before: Sequence[Any] = (), *, ranks: int = 1, quiet: bool = False,
        keeps_lines: bool = False, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        super().__init__(epochs)
        self._sink, self._quiet, self._keeps_lines, self._clock = sink, quiet, keeps_lines, clock
        self.progress = Progress(epochs, ranks, points=list(map(_point, before)), epoch=len(before) + 1)
        self._started: float | None = None  # the epoch under way, if its beginning was seen
        self._expected: int | None = None  # images of an epoch, on this rank
        self._durations: list[float] = []  # of this process's epochs, validation included
        self._seen = False

    def __enter__(self) -> TrainingView:
        self._sink.begin()
        self._last = self._clock()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        super().__exit__(kind, error, trace)
        stopped = kind is not None and issubclass(kind, KeyboardInterrupt)
        self.progress.phase = "interrupted" if stopped else "failed" if kind else "finished"
        if self._seen or not self._quiet:
            self._show()

    def batches(self, batches: Any, epoch: int) -> Iterator[Any]:
        self.begin_epoch(epoch)
        self._expected = self._expected or _images_in(batches)
        return self._counted(batches)

    def begin_epoch(self, epoch: int) -> None:
        super().begin_epoch(epoch)
        self._started = self._clock()
        self.progress.phase, self.progress.epoch = "training", self.epoch
        self.progress.images, self.progress.part = 0, None

    def _counted(self, batches: Iterable[Any]) -> Iterator[Any]:
        images = 0
        for batch in batches:
            yield batch
            images += len(batch[1])
            if self._clock() - self._last >= INTERVAL:  # also in between the epochs' ends
                self._count(images)
                self._show()
        self._count(images)
        self._expected = images

    def _count(self, images: int) -> None:
        elapsed, progress = self._clock() - self._started, self.progress
        progress.images = images * progress.ranks
        progress.part = min(1.0, images / self._expected) if self._expected else None
        progress.images_per_sec = progress.images / elapsed if elapsed > 0 else None
        self._reckon(elapsed)

    def _reckon(self, elapsed: float) -> None:
        """The time left, from the latest epochs, or from as much as there is of the first."""
        if self._durations:
            epoch = sum(self._durations[-LATEST:]) / len(self._durations[-LATEST:])
        elif self.progress.part:
            epoch = elapsed / self.progress.part
        else:
            return
        self.progress.seconds_left = max(0.0, epoch * (self.epochs - len(self.progress.points)) - elapsed)

    def validating(self) -> None:
        self.progress.phase = "validating"
        self._show_if_due()

    @contextlib.contextmanager
    def lines(self) -> Iterator[None]:
        if not self._keeps_lines or self._sink is None:
            yield
            return
        told = io.StringIO()
        try:
            with contextlib.redirect_stdout(told):
                yield
        finally:
            self.progress.lines += told.getvalue().splitlines()

    def epoch_done(self, record: Any) -> None:
        if self._started is not None:
            self._durations.append(self._clock() - self._started)
        self.progress.points.append(_point(record))
        self.progress.images_per_sec = record.images_per_sec
        self._reckon(0.0)
        self._show_if_due()

    def _show_if_due(self) -> None:
        if self._clock() - self._last >= INTERVAL:
            self._show()

    def _show(self) -> None:
        self._last = self._clock()
        if self._sink is None:
            return
        try:
            self._sink.show(self.progress)
            self._seen = True
        except Exception as error:  # a picture must not end a training: from here on it is text
            self._sink = None
            print(f"no live view ({type(error).__name__}: {error})", *self.progress.lines, sep="\n", flush=True)


def _point(record: Any) -> Point:
    return Point(*(getattr(record, name) for name in Point._fields))


def _images_in(batches: Any) -> int | None:
    """How many images an epoch has, as far as the batches tell: `Batches` and DataLoader do, lists of batches too."""
    try:
        return len(batches) * batches.batch_size
    except (AttributeError, TypeError):
        pass
    return sum(len(batch[1]) for batch in batches) if isinstance(batches, list | tuple) else None

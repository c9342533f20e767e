"""The state of one training, and the listener that keeps it up to date and shows it twice per second."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tqdm import tqdm

from course_lib.live_view.listener import TrainingListener

__all__ = ["INTERVAL", "Progress", "ProgressListener"]

INTERVAL = 0.5  # seconds between two updates


@dataclass
class Progress:
    """The progress of a training. It is plain data, which a rank sends to the kernel as JSON."""

    epochs: int  # at most
    ranks: int = 1
    phase: str = ""  # empty while it trains; then finished, interrupted, failed, or ended (by others)
    epoch: int = 1  # the current one
    part: float = 0.0  # of that epoch's batches, 0…1
    restored: int = 0  # epochs that came from a checkpoint
    seconds: float = 0.0  # since it began, in this process
    images_per_sec: float = 0.0  # on all ranks
    records: list[dict[str, float]] = field(default_factory=list)  # an `EpochRecord` per epoch
    lines: list[str] = field(default_factory=list)  # the transcript, where the display shows it
    earlier: list[str] = field(default_factory=list)  # a text for each training before it in the same cell

    def headline(self) -> str:
        """Phase and epoch."""
        done = len(self.records)
        if self.phase == "finished":
            return f"{done} epoch{'s' * (done != 1)}" + (f" of at most {self.epochs}" if done < self.epochs else "")
        return f"{self.phase} in epoch {self.epoch} of {self.epochs}".removeprefix(" in ")

    def details(self) -> str:
        """Number of ranks, throughput, the latest accuracy."""
        parts = [f"{self.ranks} ranks"] if self.ranks > 1 else []
        parts += [f"{self.images_per_sec:,.0f} images/s"] if self.images_per_sec else []
        parts += [f"validation accuracy {self.records[-1]['val_accuracy']:.1%}"] if self.records else []
        return ", ".join(parts)

    def bar(self) -> str:
        """tqdm's bar, counted in epochs: part done, time passed and left."""
        done = len(self.records)
        return tqdm.format_meter(
            n=min(self.epochs, done + (self.part if self.epoch > done else 0.0)),
            total=max(1, done if self.phase == "finished" else self.epochs),
            initial=self.restored,
            elapsed=self.seconds,
            prefix=self.headline(),
            postfix=self.details(),
            bar_format="{desc}: {percentage:3.0f}%|{bar:30}| {elapsed}<{remaining}{postfix}",
        )

    def text(self) -> str:
        """The training in one line, and its transcript."""
        return "\n".join([", ".join(filter(None, (self.headline(), self.details()))), *self.lines])


class ProgressListener(TrainingListener):
    """Follows a training and shows its state, at most twice per second.

    Parameters
    ----------
    sink
        Has ``begin(progress)`` and ``show(progress)``; ``keeps_lines``: the transcript is part of what it shows.
    ranks : int
        Ranks that train on shares of equal size.
    clock : callable
        Seconds.
    """

    def __init__(self, sink: Any, ranks: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self._sink, self._ranks, self._clock = sink, ranks, clock

    def began(self, epochs: int, records: Sequence[Any] = ()) -> None:
        self.progress = Progress(epochs, self._ranks, epoch=len(records) + 1, restored=len(records))
        self.progress.records += [dict(vars(record)) for record in records]
        self._began = self._last = self._clock()
        self._shown, self._batches = False, None
        self._try(self._sink.begin)

    def epoch_began(self, epoch: int, batches: int | None) -> None:
        self.progress.epoch, self.progress.part = epoch, 0.0
        self._batches, self._done, self._images, self._epoch_began = batches, 0, 0, self._clock()

    def batch_done(self, images: int) -> None:
        self._done += 1
        self._images += images
        now = self._clock()
        if now - self._last >= INTERVAL:
            self.progress.part = min(1.0, self._done / self._batches) if self._batches else 0.0
            if now > self._epoch_began:
                self.progress.images_per_sec = self._ranks * self._images / (now - self._epoch_began)
            self._show()

    def line(self, text: str) -> bool:
        if self._sink is None or not self._sink.keeps_lines:
            return False
        self.progress.lines.append(text)
        return True

    def epoch_done(self, record: Any) -> None:
        progress = self.progress
        progress.records.append(dict(vars(record)))
        progress.phase, progress.epoch, progress.part = "", min(record.epoch + 1, progress.epochs), 0.0
        progress.images_per_sec = record.images_per_sec
        if self._clock() - self._last >= INTERVAL:
            self._show()

    def interrupted(self) -> None:
        self._end("interrupted")

    def ended(self, error: BaseException | None = None) -> None:
        self._end("failed" if error else "finished")

    def _end(self, phase: str) -> None:
        if self.progress.phase:
            return
        self.progress.phase = phase
        if self._shown or self.progress.lines:  # a short training that prints nothing is not worth a picture
            self._show()

    def _show(self) -> None:
        self._last, self._shown = self._clock(), True
        self.progress.seconds = self._last - self._began
        if self._sink is not None:
            self._try(self._sink.show)

    def _try(self, show: Callable[[Progress], None]) -> None:
        try:
            show(self.progress)
        except Exception as error:  # a display must not end a training: from here on its lines are printed
            self._sink = None
            print(f"no live view ({type(error).__name__}: {error})", *self.progress.lines, sep="\n", flush=True)

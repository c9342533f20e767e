"""An interrupt that ends a launch once: a second one does not disturb the ending of the ranks."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from course_lib.live_view.interactive import in_one_line

__all__ = ["OneInterrupt"]


class OneInterrupt:
    """For the block, the first of the signals raises; those after it are dropped. Off the main thread it does nothing.

    SIGINT raises KeyboardInterrupt, any other SystemExit, as a shell counts it.

    Parameters
    ----------
    what : str
        What a notebook says of the interrupt, after its name.
    numbers : signal numbers
    """

    def __init__(self, what: str, *numbers: int) -> None:
        self._what, self._numbers = what, numbers
        self._before: dict[int, object] = {}
        self._held, self._waiting, self.raised = 0, 0, False

    def __enter__(self) -> OneInterrupt:
        if threading.current_thread() is threading.main_thread():
            for number in self._numbers:
                self._before[number] = signal.signal(number, self._arrived)
        return self

    def __exit__(self, *exc_info) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._waiting and not self.raised:  # it came when all was done: the cell's rest is what it ends
            signal.raise_signal(self._waiting)

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """A signal that arrives within the block raises at its end: what begins or ends processes is done whole."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
        if self._waiting and not self._held and not self.raised:
            self._arrived(self._waiting, None)

    def _arrived(self, number: int, _: FrameType | None) -> None:
        if self._held:
            self._waiting = self._waiting or number
        elif not self.raised:
            self.raised = True
            raise in_one_line(KeyboardInterrupt(), self._what) if number == signal.SIGINT else SystemExit(128 + number)

"""The first interrupt ends a launch; a second one does not disturb the end of the ranks."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from course_lib.live_view.interactive import in_one_line

__all__ = ["InterruptGuard"]


class InterruptGuard:
    """In the block, the first of the signals raises and later ones are dropped. Only in the main thread.

    SIGINT raises KeyboardInterrupt, other signals SystemExit with a shell's exit code.

    Parameters
    ----------
    what : str
        The text after ``KeyboardInterrupt:`` in a notebook.
    numbers : signal numbers
    """

    def __init__(self, what: str, *numbers: int) -> None:
        self._what, self._numbers = what, numbers
        self._before: dict[int, object] = {}
        self._held, self._waiting, self.raised = 0, 0, False

    def __enter__(self) -> InterruptGuard:
        if threading.current_thread() is threading.main_thread():
            for number in self._numbers:
                self._before[number] = signal.signal(number, self._arrived)
        return self

    def __exit__(self, *exc_info) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._waiting and not self.raised:  # it arrived after the work: it ends the rest of the cell
            signal.raise_signal(self._waiting)

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """A signal in the block raises at its end, so that processes are all started, or all ended."""
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

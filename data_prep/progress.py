"""The progress of long work: a bar on a terminal or in a notebook, or a plain line from time to time in a log."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence

from tqdm import tqdm

SECONDS = 10.0  # between two lines of a log


def shows_bars() -> bool:
    """Whether standard error shows a moving bar: a terminal, or a notebook's output."""
    return sys.stderr.isatty() or type(sys.stderr).__module__.partition(".")[0] == "ipykernel"


def counted(items: Sequence, what: str, report: Callable[[str], object]) -> Iterator:
    """The items. Where standard error shows it there is a bar; otherwise `report` gets a line from time to time."""
    if shows_bars():
        yield from tqdm(items, desc=what, leave=False)
        return
    last = time.monotonic()
    for done, item in enumerate(items):
        if time.monotonic() - last >= SECONDS:
            report(f"{what}: {done:,} of {len(items):,}")
            last = time.monotonic()
        yield item

"""The progress of long work: a bar on a terminal, or a plain line from time to time in a log."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence

from tqdm import tqdm

SECONDS = 10.0  # between two lines of a log


def counted(items: Sequence, what: str, report: Callable[[str], object]) -> Iterator:
    """The items. A terminal on standard error shows a bar; otherwise `report` gets a line from time to time."""
    if sys.stderr.isatty():
        yield from tqdm(items, desc=what, leave=False)
        return
    last = time.monotonic()
    for done, item in enumerate(items):
        if time.monotonic() - last >= SECONDS:
            report(f"{what}: {done:,} of {len(items):,}")
            last = time.monotonic()
        yield item

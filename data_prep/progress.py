"""How far long work is: a bar on a terminal, and in a log a plain line now and then."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence

from tqdm import tqdm

SECONDS = 10.0  # between two lines of a log


def counted(items: Sequence, what: str, report: Callable[[str], object]) -> Iterator:
    """The items; `report` is given a line where standard error is no terminal, which else has a bar."""
    if sys.stderr.isatty():
        yield from tqdm(items, desc=what, leave=False)
        return
    last = time.monotonic()
    for done, item in enumerate(items):
        if time.monotonic() - last >= SECONDS:
            report(f"{what}: {done:,} of {len(items):,}")
            last = time.monotonic()
        yield item

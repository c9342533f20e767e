"""What a launch changes of the launching process for a moment, and gives back."""

from __future__ import annotations

import contextlib
import os
import threading

__all__ = ["changing_the_process", "environment"]

# Launches may run in threads of one process; what they change of it for a moment, they change one at a time.
changing_the_process = threading.RLock()


@contextlib.contextmanager
def environment(**values: str):
    """Set environment variables for the block; afterwards each is as it was."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

"""What a launch changes of the launching process for a moment, and gives back."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading

__all__ = ["changing_the_process", "environment", "notebook_safe_signals", "quiet_elastic_logs"]

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


@contextlib.contextmanager
def notebook_safe_signals():
    """Give back the handlers that the agent takes over: the kernel's own interrupt must go on working."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    taken = (signal.SIGTERM, signal.SIGINT) if in_main_thread else ()
    handlers = {number: signal.getsignal(number) for number in taken}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


_silenced = 0  # launches under way
_level = logging.NOTSET


@contextlib.contextmanager
def quiet_elastic_logs():
    """The agent reports failures by log lines on stderr; ours are raised, once."""
    global _silenced, _level
    logger = logging.getLogger("torch.distributed.elastic")
    with changing_the_process:
        if not _silenced:
            _level = logger.level
            logger.setLevel(logging.CRITICAL + 1)
        _silenced += 1
    try:
        yield
    finally:
        with changing_the_process:
            _silenced -= 1
            if not _silenced:
                logger.setLevel(_level)

"""What a launch changes of the launching process for a moment, and gives back."""

from __future__ import annotations

import contextlib
import logging
import os
import threading

__all__ = ["changing_the_process", "environment", "quiet_elastic_logs"]

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


_silenced = 0  # launches under way
_spoke: list[logging.Logger] = []


@contextlib.contextmanager
def quiet_elastic_logs():
    """The agent reports failures, and signals, by log lines on stderr; ours are raised, once."""
    global _silenced, _spoke
    with changing_the_process:
        if not _silenced:
            # Each module's logger has a level and a handler of its own.
            _spoke = [
                logger
                for name, logger in list(logging.root.manager.loggerDict.items())
                if name.startswith("torch.distributed.elastic")
                and isinstance(logger, logging.Logger)
                and not logger.disabled
            ]
            for logger in _spoke:
                logger.disabled = True
        _silenced += 1
    try:
        yield
    finally:
        with changing_the_process:
            _silenced -= 1
            if not _silenced:
                for logger in _spoke:
                    logger.disabled = False

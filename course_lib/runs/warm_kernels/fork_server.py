"""Python's fork server in a warm kernel: a fork of the kernel, which has imported PyTorch already.

`course_lib.distributed.launch` gets its ranks from the fork server. A new one would import PyTorch again.
"""

from __future__ import annotations

import os
import sys
from multiprocessing import util
from unittest import mock

__all__ = ["start_fork_server"]


def start_fork_server() -> None:
    """Fork the fork server that `launch` will use. This process must have a single thread."""
    from course_lib.distributed import warm_up

    with mock.patch.object(util, "spawnv_passfds", _fork_instead):
        warm_up()


def _fork_instead(path: str, arguments: list[str], passed: list[int]) -> int:
    """Instead of ``exec``: run the command (``python … -c CODE``) in a fork that keeps only `passed` open."""
    if "multiprocessing.forkserver" not in arguments[-1]:
        return _spawnv_passfds(path, arguments, passed)  # the resource tracker, which is small
    pid = os.fork()
    if pid:
        return pid
    try:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        kept = sorted({0, 1, 2, *passed})
        for low, high in zip(kept, [*kept[1:], os.sysconf("SC_OPEN_MAX")], strict=True):
            if low + 1 < high:
                os.closerange(low + 1, high)
        exec(arguments[-1], {"__name__": "__main__"})
    except SystemExit:
        pass  # the fork server ends so when its last client has ended
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)


_spawnv_passfds = util.spawnv_passfds

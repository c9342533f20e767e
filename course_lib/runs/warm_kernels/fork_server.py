"""Python's fork server for a warm kernel: forked, with PyTorch imported already, instead of started anew.

`course_lib.distributed.launch` takes its ranks from it. Starting it costs the import of PyTorch; a warm kernel has that.
"""

from __future__ import annotations

import os
import sys
from multiprocessing import util
from unittest import mock

__all__ = ["start_fork_server"]


def start_fork_server() -> None:
    """Fork the fork server that `launch` will find. Call it while this process has a single thread."""
    from course_lib.distributed import warm_up

    with mock.patch.object(util, "spawnv_passfds", _fork_instead):
        warm_up()


def _fork_instead(path: str, arguments: list[str], passed: list[int]) -> int:
    """In place of ``exec``: run the command (``python … -c CODE``) in a fork that keeps only `passed` open."""
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
        pass  # how the fork server ends once nobody can ask it any more
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)


_spawnv_passfds = util.spawnv_passfds

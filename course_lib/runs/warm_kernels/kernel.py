"""The start of a warm kernel."""

import os
import sys
from multiprocessing import util
from unittest import mock

from ipykernel.kernelapp import IPKernelApp

__all__ = ["main"]


def main() -> None:
    """Be a kernel: ``sys.argv[1:]`` are ipykernel's arguments, ``-f CONNECTION_FILE`` at least."""
    from course_lib.distributed.launching.forked_ranks import end_children_with_kernel

    _start_fork_server()  # before there are threads
    sys.argv.append(f"--IPKernelApp.parent_handle={os.getppid()}")  # the kernel ends when the warm process does
    app = IPKernelApp.instance()
    app.initialize()
    end_children_with_kernel()
    _show_figures(app)
    app.start()
    # When stopped, the control thread still flushes its messages. If the exit functions close it before, the kernel
    # sometimes waits for ever.
    if app.control_thread is not None:
        app.control_thread.join(2)


def _start_fork_server() -> None:
    """Fork Python's fork server, from which `launch` gets its ranks; a new one would import PyTorch again.

    This process must have a single thread.
    """
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
INLINE = "module://matplotlib_inline.backend_inline"


def _show_figures(app: IPKernelApp) -> None:
    """Configure matplotlib as its import in a kernel does; the warm process imported it outside of a kernel."""
    import matplotlib
    from IPython.core.pylabtools import activate_matplotlib
    from matplotlib_inline.backend_inline import configure_inline_support

    backend = os.environ.get("MPLBACKEND") or INLINE
    if backend == INLINE:
        activate_matplotlib(backend)
        configure_inline_support(app.shell, backend)
    else:
        matplotlib.rcParams["backend"] = backend

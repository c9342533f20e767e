"""What a warm kernel does before it is a kernel like any other."""

from __future__ import annotations

import os
import sys
from multiprocessing import resource_tracker

import psutil
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp

from course_lib.runs.warm_kernels.fork_server import start_fork_server

__all__ = ["WarmKernel", "main"]


class WarmKernel(IPythonKernel):
    """IPython's kernel, which at its end does not wait for what cannot end before it.

    A kernel ends its children before itself, by SIGTERM, and looks whether they have gone. multiprocessing's resource
    tracker ignores that and ends once the kernel has; its fork server ends, and stays in the list as a zombie. So every
    notebook that has launched ranks would take seconds to close.
    """

    def _process_children(self) -> list[psutil.Process]:
        tracker = resource_tracker._resource_tracker._pid
        return [child for child in super()._process_children() if child.pid != tracker and not _is_zombie(child)]


def _is_zombie(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def main() -> None:
    """Be a kernel: ``sys.argv[1:]`` are ipykernel's arguments, ``-f CONNECTION_FILE`` at least."""
    start_fork_server()  # before there are threads
    sys.argv.append(f"--IPKernelApp.parent_handle={os.getppid()}")  # the kernel ends when the warm process does
    app = IPKernelApp.instance(kernel_class=WarmKernel)
    app.initialize()
    _show_figures(app)
    app.start()
    # Told to stop, its control thread still flushes what it has to say. Closed before that, by the exit functions, the
    # kernel would wait for it for ever, now and then.
    if app.control_thread is not None:
        app.control_thread.join(2)


INLINE = "module://matplotlib_inline.backend_inline"


def _show_figures(app: IPKernelApp) -> None:
    """Do what importing matplotlib does in a kernel, and did not when the warm process imported it."""
    import matplotlib
    from IPython.core.pylabtools import activate_matplotlib
    from matplotlib_inline.backend_inline import configure_inline_support

    backend = os.environ.get("MPLBACKEND") or INLINE
    if backend == INLINE:
        activate_matplotlib(backend)
        configure_inline_support(app.shell, backend)
    else:
        matplotlib.rcParams["backend"] = backend

"""Whether the running cell was sent from a notebook's page, and other facts that IPython has about the cell.

papermill, nbclient and nbgrader execute notebooks in kernels like any other. The difference is the request that runs
the cell: JupyterLab (Notebook 7, VS Code) sends the cell's identifier in its metadata; programs that execute notebooks
do not. The environment is the same for both: JupyterLab's Validate button starts its own kernel from it.
"""

import os
import sys
import threading
from typing import Any

__all__ = ["SWITCH", "in_one_line", "is_interactive", "running_cell", "running_shell"]

SWITCH = "LAB_LIVE"  # 0: plain text everywhere; 1: a live view in every kernel


def is_interactive() -> bool:
    """True where the running cell was sent from a notebook's page; ``LAB_LIVE=0`` or ``1`` decides otherwise.

    Never in a thread or a fork, on a terminal, or while the output is caught (``%%capture``,
    `contextlib.redirect_stdout`).
    """
    setting = os.environ.get(SWITCH, "")
    if setting == "0" or threading.current_thread() is not threading.main_thread():
        return False
    shell = running_shell()
    if shell is None or shell.kernel.session.pid != os.getpid():
        return False
    streams = sys.modules.get("ipykernel.iostream")
    if streams is None or not isinstance(sys.stdout, streams.OutStream):
        return False
    return setting == "1" or "cellId" in (_request(shell).get("metadata") or {})


def running_shell() -> Any:
    """IPython's shell if this process is a notebook's kernel, else None. Nothing is imported for it."""
    ipython = sys.modules.get("IPython")
    shell = getattr(ipython, "get_ipython", lambda: None)()
    return shell if getattr(shell, "kernel", None) is not None else None


def running_cell() -> str:
    """The identifier of this execution of this cell; empty outside of a kernel."""
    shell = running_shell()
    return str((_request(shell).get("header") or {}).get("msg_id", "")) if shell is not None else ""


def in_one_line(error: BaseException, what: str) -> BaseException:
    """Make IPython show `error` as one line that ends with `what`; other programs show it as usual."""
    error._render_traceback_ = lambda: [f"{type(error).__name__}: {what}"]
    return error


def _request(shell: Any) -> dict[str, Any]:
    return shell.kernel.get_parent() or {}

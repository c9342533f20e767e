"""One notebook, executed by papermill: its sockets, and the message of a failure."""

import errno
import logging
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

__all__ = ["NotebookFailedError", "execute_notebook", "is_disk_full"]


class NotebookFailedError(RuntimeError):
    """A cell raised, or the kernel died; the message is one line.

    Attributes
    ----------
    traceback : str
        Of the cell, without colours; empty when the kernel died.
    """

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message)
        self.traceback = traceback


def execute_notebook(
    notebook: Path,
    executed: Path,
    parameters: Mapping[str, Any],
    stdout: Any = None,
    stderr: Any = None,
    sockets_in: str | Path | None = None,
    **engine: Any,
) -> None:
    """Execute `notebook` with `parameters` and write it, with its outputs, to `executed`.

    Parameters
    ----------
    stdout, stderr : file, optional
        For what the kernel prints; by default this process's.
    sockets_in : path, optional
        A folder for the kernel's sockets; by default the system's temporary one.
    engine
        ``engine_name`` and that engine's own arguments.

    Raises
    ------
    NotebookFailedError
        `executed` holds the cells' outputs up to the failure.
    OSError
        `executed` cannot be written.
    """
    from course_lib.system.nbformat_import import leave_addresses_out

    leave_addresses_out()
    import papermill
    from nbclient.exceptions import DeadKernelError
    from traitlets.config import Config

    began = datetime.now(UTC).isoformat(timespec="seconds")
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")  # debugpy warns on stderr otherwise
    # On a shared machine, the kernel's messages should not pass over a TCP port. This function removes the sockets'
    # folder: jupyter_client would leave the sockets in the working folder.
    with tempfile.TemporaryDirectory(prefix="lab-", dir=sockets_in) as sockets:
        try:
            papermill.execute_notebook(
                str(notebook),
                str(executed),
                parameters=dict(parameters),
                progress_bar=False,
                stdout_file=stdout or sys.stdout,
                stderr_file=stderr or sys.stderr,
                config=Config({"KernelManager": {"transport": "ipc", "ip": os.path.join(sockets, "kernel")}}),
                extra_arguments=["--log-level=CRITICAL"],  # a kernel that is shut down within a cell logs a traceback
                **engine,
            )
        except papermill.PapermillExecutionError as error:
            from course_lib.runs.records import divergence  # not before it is needed: it imports PyTorch

            reason = str(error.evalue).strip().splitlines()
            if not reason and error.ename == "NotImplementedError":
                reason = ["an exercise is not filled in yet"]  # nbgrader's stub says nothing
            line = f"failed in cell {error.cell_index + 1}: {error.ename}: {reason[0] if reason else ''}"
            line = divergence(parameters.get("output_dir", ""), began) or line  # in any process and rank
            raise NotebookFailedError(line, re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", "\n".join(error.traceback))) from None
        except KeyboardInterrupt:
            # The client's task for the cell is left behind; asyncio would print its traceback when it is deleted.
            logging.getLogger("asyncio").setLevel(logging.CRITICAL)
            raise
        except DeadKernelError:
            raise NotebookFailedError("the kernel died, as it does when memory runs out") from None


def is_disk_full(error: BaseException) -> bool:
    """Whether no space is left, or a quota is exhausted."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)

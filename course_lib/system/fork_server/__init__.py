"""Python's fork server: it imports once what its processes need, in the background."""

import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Iterable
from multiprocessing import forkserver, process, util

from course_lib.system.main_script import process_lock

__all__ = ["SAFE_PATH", "start_fork_server"]

SAFE_PATH = "of the fork server"  # of PYTHONSAFEPATH; `setup` removes it
LONGEST_SOCKET = 107  # bytes of a socket's path


def start_fork_server(modules: Iterable[str]) -> None:
    """Start it in the background, to import `modules`. One that this process already has serves as well.

    It looks for modules where they are installed, not in the current folder, as ``python -c`` would do first: that may be
    a student's folder, or a checkout beside the installed course.
    """
    multiprocessing.set_forkserver_preload([f"{__name__}.setup", *modules, f"{__name__}.ready"])
    with process_lock:
        if len(os.fsencode(util.get_temp_dir())) + len("/listener-12345678") > LONGEST_SOCKET:
            folder = tempfile.mkdtemp(prefix="pymp-", dir="/tmp")
            util.Finalize(None, shutil.rmtree, args=(folder, True), exitpriority=-100)
            process.current_process()._config["tempdir"] = folder
        own = os.environ.setdefault("PYTHONSAFEPATH", SAFE_PATH) == SAFE_PATH
        try:
            forkserver.ensure_running()
        finally:
            if own:
                del os.environ["PYTHONSAFEPATH"]

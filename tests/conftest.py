import gc
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import types
import uuid
from pathlib import Path

import cost_classes
import leftovers
import pytest

from course_lib.system.nbformat_import import leave_addresses_out

LONG = ("labs", "hostile", "rehearsal", "exercises")  # folders whose files take minutes

# Read when PyTorch is loaded, here and in every process that a test starts. Elsewhere threads that wait for each other
# spin; where more of them compute than there are cores, that is most of what they do.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# A script that starts `make test &` has the tests ignore an interrupt, and so would all that they start and interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

leave_addresses_out()  # each process that shares the files collects them, two seconds sooner

_MARK = os.environ.setdefault(leftovers.MARK, uuid.uuid4().hex)
_STARTED = time.time()


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the marks
def pytest_collection_modifyitems(items):
    """Marks each test with its classes of cost. Long files go first, so that no process is left with one at the end."""
    for item in items:
        name = f"{item.path.relative_to(Path(__file__).parent).as_posix()}::{getattr(item, 'originalname', item.name)}"
        case = item.callspec.id if hasattr(item, "callspec") else None
        for mark in cost_classes.classes(name, case, {mark.name for mark in item.iter_markers()}):
            item.add_marker(mark)
    items.sort(key=lambda item: item.path.parent.name not in LONG)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    """The libraries and the tests stay: no collection of garbage has to look at them again (0.2 s for each)."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)  # without xdist there is no such hook
def pytest_xdist_make_scheduler(config, log):
    """A file's tests go to one process; the table of all labs' exercises, by far the longest file, lab by lab.

    Lab 02's program is a part of its own: it takes as long as the lab's other exercises together.
    """
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class FileOrLab(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            lab = (
                re.search(r"\[(lab\d\d(?:-program)?)\b", nodeid) if file.endswith("exercises/test_generic.py") else None
            )
            return f"{file} {lab[1]}" if lab else file

    return FileOrLab(config, log)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    """A run whose tests forgot a process has failed. Those that share the files are looked at by the one that deals."""
    if hasattr(session.config, "workerinput"):
        return
    found = leftovers.left_behind(_MARK, _STARTED, float(os.environ.get("LAB_TEST_PATIENCE", "15")))
    for line in found:
        print(f"\nleft behind: {line}")
    if found and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session", autouse=True)
def page_server():
    """The process that made pages of submissions in this one; it waits a minute for another page."""
    yield
    if feedback := sys.modules.get("autograde.reports.reading.feedback"):
        feedback._server.close()


@pytest.fixture(scope="session", autouse=True)
def turns_of_its_own(tmp_path_factory):
    """Each process that shares the files grades alone for itself, and does not keep the other waiting."""
    from autograde.sandbox import turns

    folder = str(tmp_path_factory.mktemp("turns"))
    turns.tempfile = types.SimpleNamespace(gettempdir=lambda: folder)
    yield
    turns.tempfile = tempfile


@pytest.fixture(scope="session")
def warm_server(tmp_path_factory):
    """A process that has imported what labs import; kernels and points of sweeps are its forks.

    It was started in a folder of which nobody should see anything.
    """
    from course_lib.runs.warm_kernels import WarmServer

    here = os.getcwd()
    os.chdir(tmp_path_factory.mktemp("elsewhere"))
    try:
        with WarmServer.private() as server:
            os.chdir(here)
            yield server
    finally:
        os.chdir(here)


@pytest.fixture(scope="session")
def warm():
    """An interpreter that forks into sandboxes."""
    from autograde.sandbox.bubblewrap import missing_sandbox
    from autograde.sandbox.warm import WarmInterpreter

    if why := missing_sandbox():
        pytest.skip(why)
    with WarmInterpreter() as interpreter:
        yield interpreter


@pytest.fixture(scope="session")
def repository():
    """The repository's root."""
    return Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def chromium():
    """Chromium, driven by Playwright."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("needs Chromium (Debian: apt-get install chromium)")
    playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install -e '.[browser]'")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])  # root's Chromium has none
        yield started
        started.close()

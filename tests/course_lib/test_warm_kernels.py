"""Warm kernels by papermill's engine and Jupyter's provisioner; the fork server itself is `test_prefork`'s subject."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import types
from pathlib import Path

import nbformat
import papermill
import psutil
import pytest
from nbclient.exceptions import DeadKernelError
from rank_processes import GENEROUS, alive, survivors
from warm_notebook import execute, outputs, printed, write_notebook

import course_lib
from course_lib.runs.warm_kernels import WarmServer, WarmServerError, client
from course_lib.runs.warm_kernels.client import _folder, _state
from course_lib.runs.warm_kernels.provisioner import _is_ours

CORES = sorted(os.sched_getaffinity(0))
IDENTITY = "import os, random, numpy; print(os.getpid(), random.random(), numpy.random.rand())"
LAUNCH = """
from course_lib.distributed import launch
def rank():
    import torch.distributed as dist
    return dist.get_rank(), os.getpid()
ranks, pids = zip(*launch(rank, 2))
print(ranks, len(set(pids)))
"""


@pytest.fixture(scope="module")
def kernels(warm_server, tmp_path_factory):
    """The outputs of two kernels' cells: one with the caller's folder and variables and a core of its choice, one without."""
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "beside.py").write_text("value = 42")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("A_WORD", "of mine")
        first = execute(
            warm_server, folder, "import sys; print(*sys.modules)", IDENTITY,
            "import builtins; builtins.left_behind = 1; os.environ['LEFT'] = '1'",
            "import beside; print(os.getcwd(), os.environ['A_WORD'], beside.value)",
            "print([folder for folder in sys.path if 'elsewhere' in folder])",
            "import torch; from course_lib.system.hardware import available_cores\n"
            "print(sorted(os.sched_getaffinity(0)), available_cores(), torch.get_num_threads())",
            "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()",
            cpus=CORES[:1],
        )  # fmt: skip
        figure = outputs(folder)[-1]
        patch.delenv("A_WORD")
        os.sched_setaffinity(0, CORES[-1:])
        try:
            second = execute(
                warm_server, folder, IDENTITY,
                "import builtins; print(hasattr(builtins, 'left_behind'), 'LEFT' in os.environ, 'A_WORD' in os.environ)",
                "import torch; print(sorted(os.sched_getaffinity(0)), torch.get_num_threads())",
                LAUNCH, "import subprocess; print(subprocess.run(['echo', 'a child'], capture_output=True, text=True).stdout)",
                "from multiprocessing import forkserver\n"
                "server = forkserver._forkserver._forkserver_pid\n"
                "print(open(f'/proc/{server}/cmdline').read().split(chr(0))[2])",
                "import atexit, psutil\nfrom multiprocessing import resource_tracker\n"
                f"atexit.register(lambda: open({str(folder / 'ended')!r}, 'w').write("
                "str([child for child in psutil.Process().children()"
                " if child.pid != resource_tracker._resource_tracker._pid])))",
                "print(os.getpid(), server, *pids, subprocess.Popen(['sleep', '600']).pid)",
            )  # fmt: skip
        finally:
            os.sched_setaffinity(0, CORES)
    return first, second, figure, folder / "ended"


def test_every_module_of_the_library_is_there_without_a_list(kernels):
    root = Path(course_lib.__file__).parent
    files = [path.relative_to(root.parent).with_suffix("") for path in root.glob("*/*.py") if path.stem != "__init__"]
    packages = [file for file in files if (root.parent / file).with_name("__init__.py").exists()]
    assert {"torch", *(".".join(file.parts) for file in packages)} <= set(kernels[0][0].split())


def test_nothing_is_shared_between_kernels(kernels):
    first, second, *_ = kernels
    assert not set(first[1].split()) & set(second[0].split())  # neither the process nor its random numbers
    assert second[1].split() == ["False"] * 3


def test_a_kernel_has_the_callers_folder_environment_and_cores(kernels, tmp_path_factory):
    first, second, *_ = kernels
    folder, *words = first[3].split()
    assert Path(folder).name.startswith("kernels") and words == ["of", "mine", "42"]
    assert first[4] == "[]\n"  # without the folder in which the warm process was started
    assert first[5] == f"{CORES[:1]} 1 1\n" and second[2] == f"{CORES[-1:]} 1\n"


def test_figures_are_shown_as_in_any_notebook(kernels):
    assert [list(output.data) for output in kernels[2]] == [["image/png", "text/plain"]]


def test_launch_gets_its_ranks_from_the_warm_fork_server(kernels):
    second = kernels[1]
    assert second[3].splitlines()[-1] == "(0, 1) 2" and second[4].strip() == "a child"
    assert second[5].strip() == "course_lib.runs.warm_kernels.server"  # forked, not started anew


def test_a_kernel_ends_its_children_and_itself(kernels):
    """Without that it would wait for multiprocessing's servers until it is killed. The resource tracker ends after it."""
    assert kernels[3].read_text() == "[]"


def test_no_process_is_left_after_a_run(kernels):
    pids = [int(pid) for pid in kernels[1][7].split()]
    assert len(pids) == 5 and survivors(pids, GENEROUS) == []


def test_cells_with_a_tag_are_left_out_and_an_error_is_papermills(warm_server, tmp_path):
    source = write_notebook(
        tmp_path, "print('kept')", "print('lesson')", "raise ValueError('ran away')", "print('not reached')"
    )
    tagged = nbformat.read(source, as_version=4)
    tagged.cells[1].metadata["tags"] = ["lesson"]
    nbformat.write(tagged, source)
    with pytest.raises(papermill.PapermillExecutionError, match="ran away"):
        papermill.execute_notebook(source, str(tmp_path / "out.ipynb"), engine_name="lab-warm", progress_bar=False,
                                   warm_server=warm_server.path, skip_cells_with_tag="lesson")  # fmt: skip
    assert "".join(printed(tmp_path)) == "kept\n"


def test_a_dead_kernels_children_end_too(warm_server, tmp_path):
    child = "import os, subprocess\nprint(subprocess.Popen(['sleep', '600']).pid, file=open('child', 'w'), flush=True)\nos._exit(9)"
    with pytest.raises(DeadKernelError):
        execute(warm_server, tmp_path, child, cwd=str(tmp_path))
    assert survivors([int((tmp_path / "child").read_text())], GENEROUS) == []


def test_a_relative_folder_and_standard_output_are_the_clients(warm_server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "below").mkdir()
    with open("log", "wb") as log:
        process = warm_server.fork("this", "", folder="below", stdout=log.fileno(), stderr=log.fileno())
        assert process.wait(GENEROUS) == 1  # the module has no such function
    assert "Beautiful is better than ugly" in Path("log").read_text()
    assert warm_server.fork("os", "getcwd", folder="below").wait(GENEROUS) == 1  # a text is a failure, as for sys.exit


def test_plain_papermill_finds_the_engine_and_the_shared_server(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    source = write_notebook(tmp_path, "import psutil; print(psutil.Process().parent().ppid())")
    bin_folder, out = Path(sys.executable).parent, str(tmp_path / "out.ipynb")
    monkeypatch.setenv("JUPYTER_DEFAULT_PROVISIONER_NAME", "lab-warm")  # nbclient's own command knows no papermill
    parents = []
    try:
        for command in (["papermill", "--engine", "lab-warm", "--no-progress-bar", source, out],
                        ["jupyter", "execute", "--inplace", out]):  # fmt: skip
            done = subprocess.run([bin_folder / command[0], *command[1:]], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            parents.append(int(printed(tmp_path)[0]))
        assert parents[0] == parents[1] and alive(parents[0])  # the second run found the first one's server
        assert "warm_kernels.server" in " ".join(psutil.Process(parents[0]).cmdline())
        assert (tmp_path / "lab").stat().st_mode & 0o777 == 0o700
    finally:
        for pid in set(parents):
            os.kill(pid, signal.SIGTERM)


@pytest.mark.parametrize(
    "make, message", [(lambda path: path.mkdir(mode=0o755), "yours alone"), (Path.touch, "cannot be made")]
)
def test_a_folder_that_others_can_enter_is_refused(tmp_path, monkeypatch, make, message):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    make(tmp_path / "lab")
    with pytest.raises(WarmServerError, match=message):
        _folder()


@pytest.mark.parametrize("change", ["PYTHONPATH", "SLURM_JOB_ID", "an edited library"])
def test_what_is_fixed_when_a_server_starts_needs_another_server(change, tmp_path, monkeypatch):
    library = tmp_path / "__init__.py"
    library.touch()
    real = client.find_spec
    monkeypatch.setattr(client, "find_spec", lambda name: (
        types.SimpleNamespace(origin=str(library)) if name == "course_lib" else real(name)))  # fmt: skip
    before = _state()
    assert _state() == before
    if change == "an edited library":
        os.utime(library, ns=(1, 1))
    else:
        monkeypatch.setenv(change, "4711")
    assert _state() != before


def test_a_socket_that_a_killed_server_left_is_not_taken_for_the_new_ones(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    stale = _folder() / f"warm-{_state()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(stale))
    seen = []

    def start(folder, name, idle):
        seen.append((folder / name).exists())
        return types.SimpleNamespace(control=contextlib.nullcontext(), wait_until_ready=lambda: None)

    monkeypatch.setattr(WarmServer, "_start", start)
    assert WarmServer.shared().path == str(stale) and seen == [False]


def test_kernels_of_another_environment_are_not_ours(tmp_path):
    # Its interpreter is a link to the same file, as in any virtual environment of the same Python.
    other = tmp_path / "bin" / "python"
    other.parent.mkdir()
    other.symlink_to(os.path.realpath(sys.executable))
    words = ["-Xfrozen_modules=off", "-m", "ipykernel_launcher", "-f", "connection.json"]
    assert _is_ours([sys.executable, *words]) and not _is_ours([str(other), *words]) and not _is_ours(["bash", *words])


def test_where_there_can_be_no_warm_process_one_line_says_why(tmp_path, monkeypatch):
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with pytest.raises(WarmServerError, match="set TMPDIR to a shorter path"), WarmServer.private():
        pass
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(WarmServerError, match="need Linux, this is darwin"), WarmServer.private():
        pass

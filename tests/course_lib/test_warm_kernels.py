"""Warm kernels: forks of one process, by papermill's engine and Jupyter's provisioner, that live as long as who asked."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path

import nbformat
import papermill
import psutil
import pytest
from jupyter_client.connect import write_connection_file
from nbclient.exceptions import DeadKernelError
from rank_processes import alive, survivors

import course_lib
from course_lib.runs.warm_kernels import WarmServer, WarmServerError, client
from course_lib.runs.warm_kernels.client import _folder, _state
from course_lib.runs.warm_kernels.provisioner import _is_ours

CORES = sorted(os.sched_getaffinity(0))


@pytest.fixture
def server(warm_server):
    return warm_server


def server_process(server):
    (found,) = [child for child in psutil.Process().children() if server.path in _cmdline(child)]
    return found


def ask(server, request, close=False):
    """Send a request, well-formed or not, and go at once if `close`; returns the connection."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(server.path)
    connection.settimeout(20)
    null = os.open(os.devnull, os.O_RDWR)
    with tempfile.TemporaryFile() as file:
        file.write(request)
        file.flush()
        socket.send_fds(connection, [b"fork"], [null, null, null, file.fileno()])
    os.close(null)
    if close:
        connection.close()
    return connection


def notebook(path, *sources):
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), path)
    return str(path)


def printed(executed):
    cells = nbformat.read(executed, as_version=4).cells
    return [
        "".join(o.text for o in cell.outputs if o.output_type == "stream") for cell in cells if cell.cell_type == "code"
    ]


def execute(server, tmp_path, *sources, **engine):
    source, target = notebook(tmp_path / "in.ipynb", *sources), tmp_path / "out.ipynb"
    papermill.execute_notebook(
        source, str(target), engine_name="lab-warm", warm_server=server.path, progress_bar=False, **engine
    )
    return printed(target)


def test_torch_is_there_and_nothing_is_shared_between_kernels(server, tmp_path):
    first = execute(
        server, tmp_path,
        "import sys, os, random, numpy; print('torch' in sys.modules, 'course_lib.training.loop' in sys.modules)",
        "import builtins; builtins.left_behind = 1; os.environ['LEFT'] = '1'; print(os.getpid(), random.random(), numpy.random.rand())",
    )  # fmt: skip
    second = execute(
        server, tmp_path, "import sys, os, random, numpy, builtins; print(hasattr(builtins, 'left_behind'), 'LEFT' in os.environ)",
        "print(os.getpid(), random.random(), numpy.random.rand())",
    )  # fmt: skip
    assert first[0].split() == ["True", "True"] and second[0].split() == ["False", "False"]
    assert not set(first[1].split()) & set(second[1].split())  # neither the process nor its random numbers


def test_every_module_of_the_library_is_there_without_a_list(server, tmp_path):
    out = execute(server, tmp_path, "import sys; print(*sys.modules)")[0].split()
    root = Path(course_lib.__file__).parent
    files = [path.relative_to(root.parent).with_suffix("") for path in root.glob("*/*.py") if path.stem != "__init__"]
    assert {".".join(file.parts) for file in files if (root.parent / file).with_name("__init__.py").exists()} <= set(
        out
    )


def test_a_kernel_has_the_callers_folder_environment_and_cores(server, tmp_path, monkeypatch):
    monkeypatch.setenv("A_WORD", "of mine")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside.py").write_text("value = 42")
    out = execute(
        server, tmp_path,
        "import os, torch, beside; print(os.getcwd()); print(os.environ['A_WORD']); print(beside.value)",
        "from course_lib.system.hardware import available_cores; print(sorted(os.sched_getaffinity(0)), available_cores(), torch.get_num_threads())",
        "import sys; print([folder for folder in sys.path if 'elsewhere' in folder])",
        cpus=CORES[:1],
    )  # fmt: skip
    assert out[2].strip() == "[]"  # the folder in which the warm process was started
    assert out[0].splitlines() == [str(tmp_path), "of mine", "42"]
    assert out[1].strip() == f"{CORES[:1]} 1 1"
    assert execute(server, tmp_path, "import torch; print(torch.get_num_threads())")[0].strip() == str(len(CORES))


def test_figures_are_shown_as_in_any_notebook(server, tmp_path):
    execute(server, tmp_path, "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()")
    (cell,) = [c for c in nbformat.read(tmp_path / "out.ipynb", as_version=4).cells if c.cell_type == "code"]
    assert [list(o.data) for o in cell.outputs] == [["image/png", "text/plain"]]


def test_launch_takes_its_ranks_from_the_warm_fork_server(server, tmp_path):
    out = execute(
        server, tmp_path,
        "import os, time\nfrom course_lib.distributed import launch\n"
        "def rank():\n    import torch.distributed as dist\n    return dist.get_rank(), os.getpid()\n"
        "start = time.perf_counter()\nresults = launch(rank, 2)\nprint([r for r, _ in results], len({p for _, p in results}))",
        "import subprocess\nprint(subprocess.run(['echo', 'a child'], capture_output=True, text=True).stdout)",
        "import multiprocessing.forkserver as f\nprint(open(f'/proc/{f._forkserver._forkserver_pid}/cmdline').read().split(chr(0))[2])",
    )  # fmt: skip
    assert out[0].split() == ["[0,", "1]", "2"] and out[1].strip() == "a child"
    assert out[2].strip() == "course_lib.runs.warm_kernels.server"  # forked, not started anew


def test_a_closing_kernel_does_not_wait_for_what_outlives_it(server, tmp_path):
    out = execute(
        server, tmp_path,
        "import os, signal, time\nfrom multiprocessing import forkserver\nkernel = get_ipython().kernel\nprint(len(kernel._process_children()))",
        "os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)\ntime.sleep(0.3)\nprint(kernel._process_children())",
    )  # fmt: skip
    # The fork server; then, as a zombie, no more. multiprocessing's resource tracker, which stays, never counts.
    assert out == ["1\n", "[]\n"]


def test_cells_with_a_tag_are_left_out(server, tmp_path):
    source = notebook(tmp_path / "in.ipynb", "print('kept')", "print('taught')")
    tagged = nbformat.read(source, as_version=4)
    tagged.cells[1].metadata["tags"] = ["lesson"]
    nbformat.write(tagged, source)
    papermill.execute_notebook(source, str(tmp_path / "out.ipynb"), engine_name="lab-warm", warm_server=server.path,
                               progress_bar=False, skip_cells_with_tag="lesson")  # fmt: skip
    assert printed(tmp_path / "out.ipynb") == ["kept\n", ""]


def test_an_error_is_papermills(server, tmp_path):
    with pytest.raises(papermill.PapermillExecutionError, match="ran away"):
        execute(server, tmp_path, "raise ValueError('ran away')", "print('not reached')")
    assert printed(tmp_path / "out.ipynb")[-1] == ""


def test_no_process_is_left_after_a_run(server, tmp_path):
    out = execute(
        server, tmp_path,
        "import os, subprocess\nprint(os.getpid())\nprint(subprocess.Popen(['sleep', '600']).pid)\n"
        "from course_lib.distributed import launch\nprint(launch(os.getpid, 1)[0])",
    )  # fmt: skip
    assert survivors([int(pid) for pid in out[0].split()], 5) == []


def test_what_a_kernel_leaves_when_it_dies_ends_too(server, tmp_path):
    with pytest.raises(DeadKernelError):
        execute(
            server, tmp_path,
            "import os, subprocess\nprint(subprocess.Popen(['sleep', '600']).pid, file=open('child', 'w'))\nos._exit(9)",
            cwd=str(tmp_path),
        )  # fmt: skip
    assert survivors([int((tmp_path / "child").read_text())], 5) == []


DRIVER = """
import sys, time
from course_lib.runs.warm_kernels import WarmServer
process = WarmServer(sys.argv[1]).fork("course_lib.runs.warm_kernels.kernel", "main", ["-f", sys.argv[2]])
print(process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_fork_ends_with_who_asked_for_it(server, tmp_path, number):
    connection = tmp_path / "connection.json"
    write_connection_file(str(connection))
    command = [sys.executable, "-c", DRIVER, server.path, str(connection)]
    asking = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    pid = int(asking.stdout.readline())
    time.sleep(0.3)
    assert alive(pid)
    asking.send_signal(number)
    asking.wait()
    assert survivors([pid], 5) == []


def test_a_private_server_ends_with_its_owner_and_takes_its_folder_along(tmp_path):
    code = (
        "import os, time\nfrom course_lib.runs.warm_kernels import WarmServer\n"
        "with WarmServer.private() as server:\n    print(server.path, flush=True)\n    time.sleep(600)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    path = Path(owner.stdout.readline().strip())
    servers = [p.pid for p in psutil.process_iter() if str(path) in " ".join(_cmdline(p))]
    assert len(servers) == 1
    owner.kill()
    owner.wait()
    assert survivors(servers, 5) == [] and not path.parent.exists()


def _cmdline(process):
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_plain_papermill_finds_the_engine_and_the_shared_server(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    source = notebook(tmp_path / "in.ipynb", "import psutil; print(psutil.Process().parent().ppid())")
    parents = []
    try:
        for target in ("a.ipynb", "b.ipynb"):
            done = subprocess.run(
                [str(Path(sys.executable).parent / "papermill"), "--engine", "lab-warm", "--no-progress-bar", source, str(tmp_path / target)],
                capture_output=True, text=True, timeout=120,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            parents.append(int(printed(tmp_path / target)[0]))
        assert parents[0] == parents[1] and alive(parents[0])  # the second run found the first one's server
        assert "warm_kernels.server" in " ".join(psutil.Process(parents[0]).cmdline())
        assert (tmp_path / "lab").stat().st_mode & 0o777 == 0o700
        # The provisioner by its name: nbclient's own command, which knows no papermill.
        environment = {**os.environ, "JUPYTER_DEFAULT_PROVISIONER_NAME": "lab-warm"}
        done = subprocess.run([str(Path(sys.executable).parent / "jupyter"), "execute", "--inplace", str(tmp_path / "a.ipynb")],
                              env=environment, capture_output=True, text=True, timeout=120)  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert int(printed(tmp_path / "a.ipynb")[0]) == parents[0]
    finally:
        for pid in set(parents):
            os.kill(pid, signal.SIGTERM)


def test_a_folder_that_others_can_enter_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "lab").mkdir(mode=0o755)
    with pytest.raises(WarmServerError, match="yours alone"):
        _folder()
    (tmp_path / "lab").rmdir()
    (tmp_path / "lab").touch()
    with pytest.raises(WarmServerError, match="cannot be made"):
        _folder()


def test_an_edited_library_needs_another_server(tmp_path, monkeypatch):
    (tmp_path / "__init__.py").write_text("")
    real = client.find_spec
    monkeypatch.setattr(
        client,
        "find_spec",
        lambda name: (
            real(name) if name != "course_lib" else type("Spec", (), {"origin": str(tmp_path / "__init__.py")})
        ),
    )
    before = _state()
    assert _state() == before
    os.utime(tmp_path / "__init__.py", ns=(1, 1))
    assert _state() != before


def test_a_server_that_is_gone_is_told_in_one_line(tmp_path):
    with pytest.raises(WarmServerError, match="does not answer") as raised:
        WarmServer(tmp_path / "nobody").fork("a", "b")
    assert "\n" not in str(raised.value)


def test_a_request_that_is_none_does_not_disturb_the_server(server, tmp_path):
    for message in (b"", b"not json", json.dumps({"module": "x"}).encode()):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
            stranger.connect(server.path)
            stranger.send(message)
            stranger.settimeout(5)
            stranger.recv(4096)
        with ask(server, message) as stranger:
            answer = json.loads(stranger.recv(4096))
            assert "Error" in answer.get("error", "") or (
                os.waitstatus_to_exitcode(json.loads(stranger.recv(4096))["status"]) == 1
            )
    assert execute(server, tmp_path, "print('well')") == ["well\n"]


def test_a_function_that_returns_no_code_does_not_disturb_the_server(server):
    assert server.fork("os", "getcwd").wait(20) == 1  # a text, which sys.exit takes for a failure too
    assert server.fork("gc", "enable").wait(20) == 0


def test_who_says_nothing_keeps_nobody_waiting_and_an_end_and_a_hang_up_may_come_together(server):
    process = server.fork("signal", "pause")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.connect(server.path)
        start = time.monotonic()
        os.kill(process.pid, signal.SIGKILL)
        time.sleep(0.2)
        process.close()
        assert server.fork("gc", "enable").wait(20) == 0 and time.monotonic() - start < 3


def test_who_goes_before_the_answer_leaves_no_process(server):
    process = server_process(server)
    process.suspend()  # so that the connection is closed before the fork
    try:
        request = {"module": "signal", "function": "pause", "arguments": [], "environment": {}}
        ask(server, json.dumps(request | {"folder": "/", "cpus": []}).encode(), close=True)
    finally:
        process.resume()
    assert server.fork("gc", "enable").wait(20) == 0  # it has answered the first by now
    assert survivors([child.pid for child in process.children()], 5) == []


def test_an_environment_of_any_size_passes(server):
    large = {f"LARGE_{index}": "x" * 100_000 for index in range(30)}
    assert server.fork("gc", "enable", environment={**os.environ, **large}).wait(20) == 0


def test_a_relative_folder_is_the_callers(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "below").mkdir()
    assert server.fork("gc", "enable", folder="below").wait(20) == 0


@pytest.mark.skipif(len(CORES) < 2, reason="one core")
def test_without_a_choice_a_kernel_has_the_callers_cores(server, tmp_path):
    os.sched_setaffinity(0, CORES[-1:])
    try:
        out = execute(server, tmp_path, "import os; print(sorted(os.sched_getaffinity(0)))")
    finally:
        os.sched_setaffinity(0, CORES)
    assert out == [f"{CORES[-1:]}\n"]


def test_a_server_that_is_killed_takes_its_forks_along():
    with WarmServer.private() as server:
        process = server.fork("timeit", "main", ["import subprocess; subprocess.run(['sleep', '600'])"])
        started = psutil.Process(process.pid)
        while not (children := started.children()):
            time.sleep(0.01)
        server_process(server).kill()
        assert process.wait(5) == -signal.SIGKILL and survivors([process.pid, children[0].pid], 5) == []


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


@pytest.mark.parametrize("name", ["PYTHONPATH", "SLURM_JOB_ID"])
def test_what_is_fixed_when_a_server_starts_needs_another_server(name, monkeypatch):
    before = _state()
    monkeypatch.setenv(name, "4711")
    assert _state() != before


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

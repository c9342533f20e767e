"""The fork server, without PyTorch: requests of every kind, and no process outlives client, server or owner."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from rank_processes import GENEROUS, noted_pids, survivors

from course_lib.system.prefork import ForkServer, ForkServerError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

SERVER = """
import sys
from course_lib.system.prefork.server import main
main(["no_such_module"], lambda request, descriptors: eval(request["code"]), *sys.argv[1:])
"""
COMMAND = [sys.executable, "-c", SERVER]
# Notes its process and a child's in the folder, and sleeps.
SLEEPER = """exec('''
import os, subprocess, time
for name, pid in (("0", os.getpid()), ("1", subprocess.Popen(["sleep", "600"]).pid)):
    open(f"{folder}/{name}.pid", "w").write(str(pid))
time.sleep(600)
''', {"folder": %r})"""


@pytest.fixture
def server(tmp_path):
    folder = tmp_path / "server"
    folder.mkdir()
    with contextlib.closing(ForkServer.start(COMMAND, folder, os.environ, tmp_path / "socket")) as server:
        server.wait_until_ready()
        yield server


def run(server, code):
    return server.request({"code": code})


def sleeper(server, folder):
    """A process with a child; returns it and the numbers of both."""
    process = run(server, SLEEPER % str(folder))
    return process, noted_pids(folder, 2)


def send(server, request):
    """Send a request to the server's socket, well-formed or not; returns the connection."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(GENEROUS)
    connection.connect(server.path)
    with tempfile.TemporaryFile() as file, open(os.devnull, "r+b") as null:
        file.write(request)
        file.flush()
        socket.send_fds(connection, [b"fork"], [*[null.fileno()] * 3, file.fileno()])
    return connection


@pytest.mark.parametrize(
    "code, exit_code",
    [("3", 3), ("None", 0), ("'a text'", 1), ("sys.exit(4)", 4), ("1 / 0", 1), ("os._exit(256 + 5)", 5),
     ("len(request['large']) - 3_000_000", 0), ("os.getpgid(0) - os.getpid()", 0),
     ("len(os.listdir('/proc/self/fd'))", 4),  # the standard streams and this folder: nothing of the server's
     ("__import__('signal').raise_signal(9)", -9)],
)  # fmt: skip
def test_the_exit_code_is_the_processs(server, code, exit_code):
    names = "__import__('builtins').__dict__.update(os=__import__('os'), sys=__import__('sys')) or "
    request = {"code": names + code, "large": "x" * 3_000_000}
    with open(os.devnull, "wb") as null:
        process = server.request(request, stderr=null.fileno())
        assert process.wait(GENEROUS) == exit_code == process.poll()


def test_bad_requests_and_silent_clients_do_not_disturb_the_server(server):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.connect(server.path)
        for message in (b"", b"not json"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:  # sends no descriptors
                stranger.connect(server.path)
                stranger.settimeout(GENEROUS)
                stranger.send(message)
                assert stranger.recv(4096) == b""
            with send(server, message) as stranger:
                assert "Error" in json.loads(stranger.recv(4096))["error"]
        assert run(server, "3").wait(GENEROUS) == 3


@pytest.mark.parametrize("how", ["close", "kill", "both"])
def test_a_closed_process_and_its_children_end(server, tmp_path, how):
    process, pids = sleeper(server, tmp_path)
    if how != "close":
        os.kill(process.pid, signal.SIGKILL)
    if how == "kill":
        assert process.wait(GENEROUS) == -signal.SIGKILL
    process.close()
    assert survivors(pids, GENEROUS) == []


def test_a_client_that_goes_before_the_answer_leaves_no_process(server, tmp_path):
    process = psutil.Process(server.process.pid)
    process.suspend()  # so that the connection is closed before the fork
    try:
        send(server, json.dumps({"code": SLEEPER % str(tmp_path)}).encode()).close()
    finally:
        process.resume()
    assert run(server, "3").wait(GENEROUS) == 3  # the server has handled the first request by now
    assert survivors([child.pid for child in process.children(recursive=True)], GENEROUS) == []


def test_a_killed_server_takes_its_forks_along(server, tmp_path):
    process, pids = sleeper(server, tmp_path)
    server.process.kill()
    assert process.wait(GENEROUS) == -signal.SIGKILL and survivors(pids, GENEROUS) == []


def test_a_killed_owner_takes_server_folder_and_forks_along(tmp_path):
    folder = tmp_path / "server"
    folder.mkdir()
    owner = f"""
import os, sys, time
from pathlib import Path
from course_lib.system.prefork import ForkServer
server = ForkServer.start({COMMAND!r}, Path({str(folder)!r}), os.environ)
server.wait_until_ready()
process = server.request({{"code": {SLEEPER % str(tmp_path)!r}}})
print(server.process.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", owner], stdout=subprocess.PIPE, text=True) as process:
        server = int(process.stdout.readline())
        pids = noted_pids(tmp_path, 2)
        process.kill()
    assert survivors([server, *pids], GENEROUS) == [] and not folder.exists()


def test_an_unused_server_ends_after_its_idle_time(tmp_path):
    server = ForkServer.start(COMMAND, tmp_path, os.environ, tmp_path / "socket", idle=0.3)
    server.wait_until_ready()
    server.control.close()
    assert server.process.wait(GENEROUS) == 0 and not (tmp_path / "socket").exists()


THREAD = "import threading, time; threading.Thread(target=time.sleep, args=(9,), daemon=True).start()"


@pytest.mark.parametrize(
    "program, log",
    [
        ("raise SystemExit('no torch')", "no torch"),
        ("", "it said nothing"),
        (THREAD + SERVER, "2 threads after the imports: a library has started some, and forks would hang"),
    ],
)
def test_a_server_that_does_not_start_is_one_line(tmp_path, program, log):
    server = ForkServer.start([sys.executable, "-c", program], tmp_path, os.environ)
    with pytest.raises(ForkServerError, match=rf"^the warm process did not start \(.*{log}\)$"):
        server.wait_until_ready()
    server.close()


def test_a_server_that_has_gone_is_one_line(tmp_path):
    with pytest.raises(ForkServerError, match="does not answer") as raised:
        run(ForkServer(tmp_path / "nobody"), "3")
    assert "\n" not in str(raised.value)
    assert not list(Path(tmp_path).iterdir())

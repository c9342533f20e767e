"""Kernels of the hub's servers speak through sockets in their student's own folder: no port that could collide.

One port remains: what a kernel's own subprocesses print comes in there. The kernel takes it in the step in which it
chooses it, and nothing else is told to use it.
"""

import json
import os
import pwd
import signal
import threading
import time
from pathlib import Path

import nbformat
import psutil
import pytest
from hub_load_memory import _listening
from hub_load_student import KernelSocket, Student

pytestmark = [pytest.mark.browser, pytest.mark.slow]
ABOUT = """
import json, os
from ipykernel.connect import get_connection_file, get_connection_info
info = get_connection_info(unpack=True)
paths = [f"{info['ip']}-{info[name]}" for name in info if name.endswith("_port")]
about = {"transport": info["transport"], "paths": paths, "pid": os.getpid(), "file": get_connection_file(),
         "sockets": [oct(os.stat(one).st_mode) for one in paths]}
open("about.json", "w").write(json.dumps(about))
"""


@pytest.fixture(scope="module")
def student(hub):
    student = Student(hub, hub.student_b)
    student.start_server()
    return student


@pytest.fixture
def kernel(student):
    """A kernel's number, and its socket."""
    number = student.open_kernel("some.ipynb")
    one = KernelSocket(student, number)
    yield number, one
    one.close()
    student.by_token("DELETE", f"/user/{student.name}/api/kernels/{number}")


def about(hub, student, one):
    """What the kernel says of itself."""
    assert one.execute(ABOUT)[2] is None
    return json.loads((hub.home(student.name) / "about.json").read_text())


def ports_of(name):
    """The server's, and those of all else."""
    uid = pwd.getpwnam(name).pw_uid
    ports = {port for owner, port in _listening() if owner == uid}
    of_server = {port for port in ports if port in range(20000, 29250)}  # the demo's
    return sorted(of_server), sorted(ports - of_server)


def test_a_kernel_has_no_port_and_its_sockets_are_the_students_alone(hub, student, kernel):
    said = about(hub, student, kernel[1])
    assert said["transport"] == "ipc"
    assert len(set(said["paths"])) == 5
    folder = Path(said["file"]).parent
    assert {Path(path).parent for path in said["paths"]} == {folder}
    assert folder.stat().st_mode & 0o077 == 0
    assert folder.owner() == student.name
    assert max(map(len, said["paths"])) < 107  # what a socket's address has room for
    of_server, of_kernel = ports_of(student.name)
    assert len(of_server) == 1
    assert len(of_kernel) <= 1  # over TCP it would be six


def test_a_busy_kernel_is_interrupted(hub, student, kernel):
    number, one = kernel

    def interrupt():
        time.sleep(2)
        student.by_token("POST", f"/user/{student.name}/api/kernels/{number}/interrupt")

    thread = threading.Thread(target=interrupt)
    thread.start()
    begun = time.monotonic()
    _, _, failure = one.execute("import time\nfor _ in range(600): time.sleep(0.1)")
    thread.join()
    assert failure.startswith("KeyboardInterrupt")
    assert time.monotonic() - begun < 20
    assert one.execute("1 + 1")[0][0].data["text/plain"] == "2"


@pytest.mark.parametrize("way", ["restarted", "killed"])
def test_a_kernel_that_is_gone_comes_back_on_the_same_sockets(hub, student, kernel, way):
    number, one = kernel
    before = about(hub, student, one)
    one.close()
    if way == "restarted":
        student.by_token("POST", f"/user/{student.name}/api/kernels/{number}/restart").raise_for_status()
    else:  # as when memory runs out; the server starts it again
        os.kill(before["pid"], signal.SIGKILL)
        for _ in range(100):
            children = psutil.process_iter(["cmdline", "username"])
            lines = [" ".join(one.info["cmdline"] or ()) for one in children if one.info["username"] == student.name]
            if not psutil.pid_exists(before["pid"]) and any(before["file"] in line for line in lines):
                break
            time.sleep(0.2)
    again = KernelSocket(student, number)
    try:
        after = about(hub, student, again)
    finally:
        again.close()
    assert after["pid"] != before["pid"]
    assert after["paths"] == before["paths"]
    assert len(ports_of(student.name)[1]) <= 1


def test_validates_kernel_too(hub, student):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(ABOUT)])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    student._save(f"/user/{student.name}/api/contents/asked.ipynb", notebook)
    (hub.home(student.name) / "about.json").unlink(missing_ok=True)
    answer = student.by_token("POST", f"/user/{student.name}/assignments/validate", json={"path": "asked.ipynb"})
    assert answer.json()["success"], answer.text[-500:]
    said = json.loads((hub.home(student.name) / "about.json").read_text())
    assert said["transport"] == "ipc"
    assert {Path(path).parent for path in said["paths"]} == {Path(said["paths"][0]).parent}
    assert Path(said["paths"][0]).name.startswith("validate-")
    assert not any(Path(path).exists() for path in said["paths"])


def test_a_server_that_ends_takes_its_folder_along(hub, student, kernel):
    folder = Path(about(hub, student, kernel[1])["file"]).parent
    assert folder.is_dir()
    student.by_token("DELETE", f"/hub/api/users/{student.name}/server")
    for _ in range(100):
        if not folder.exists():
            break
        time.sleep(0.2)
    assert not folder.exists()
    student.start_server()

"""A warm interpreter that forks itself into sandboxes.

Started as ``python -I zygote.py CONTROL`` with a clean environment, `CONTROL` being the descriptor of a sequenced-packet
socket. It imports the libraries that labs use, once, keeps a single thread, and then answers requests one at a time:
each is a JSON object with two to six descriptors: the socket that `runner` talks over, the pipe for what the student
prints, and where there are such the pidfd of the process whose namespaces to join and the ``cgroup.procs`` of a control
group. The answer is ``{"pid": …}`` or ``{"error": …}``. A request with ``prepare`` has no descriptors and starts
nothing; its answer, ``{"prepared": true}``, comes when the library that the next ones need is imported.

The course's own library, and torchvision, are imported by *branches*: forks of this process, one for each choice of what a
rubric withholds of them, which have imported the redacted texts of those modules and never the others. A request is passed on to its
branch, which forks.

The processes hold nothing but public libraries, so that a fork of them has nothing to give away. When the control socket
closes, they end.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.abc
import importlib.util
import json
import os
import shutil
import signal
import socket
import struct
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType
from typing import Any

# What the labs' notebooks import; the slow ones are the point.
WARM = [
    "numpy",
    "pandas",
    "torch",
    "torch.distributed",
    "torch._dynamo",
    "torch.nn.parallel",
    "torch.utils.data",
    "matplotlib.pyplot",
    "matplotlib.backends.backend_agg",
    "IPython.core.interactiveshell",
    "safetensors.torch",
    "psutil",
]
COURSE = [
    "course_lib.checks",
    "course_lib.data",
    "course_lib.distributed",
    "course_lib.distributed.rank_process",
    "course_lib.hardware",
    "course_lib.models",
    "course_lib.parameters",
    "course_lib.plots",
    "course_lib.precision",
    "course_lib.records",
    "course_lib.training",
    "data_prep.staged",
]

DESCRIPTORS = 6  # that come with a request, at most


def warm() -> None:
    """Import everything but the course's library, and leave a single thread and no OpenMP pool behind."""
    for name in WARM:
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    _see_that_it_can_be_forked()


def _see_that_it_can_be_forked() -> None:
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        raise RuntimeError(f"the warm interpreter has {threads} threads after its imports and cannot be forked")
    gc.collect()
    gc.freeze()  # a collection in a fork would otherwise copy every page that holds an object


def serve(control: socket.socket) -> None:
    """Pass requests on to branches until the grader closes the socket."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    control.send(json.dumps({"ready": True}).encode())
    branches: dict[str, tuple[int, socket.socket]] = {}
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 65536, DESCRIPTORS)
        if not message:
            break
        redacted = json.loads(message)["redacted"]
        key = json.dumps(redacted)
        for _ in range(2):  # a branch may have been ended for want of memory: once more, with a new one
            if key not in branches:
                branches[key] = _branch(control, redacted, [branch for _, branch in branches.values()])
            try:
                socket.send_fds(branches[key][1], [message], descriptors)
                break
            except OSError:
                branches.pop(key)[1].close()
        else:
            control.send(json.dumps({"error": "the warm interpreter ended when it had forked"}).encode())
        for descriptor in descriptors:
            os.close(descriptor)
    for pid, branch in branches.values():
        branch.close()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _branch(
    control: socket.socket, redacted: list[list[str]], others: list[socket.socket]
) -> tuple[int, socket.socket]:
    """Fork a process that imports the course's library as it is to be seen; it ends when its socket is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, ours
    problem = None
    try:
        for each in (*others, ours):  # held here too, they would keep the others from seeing their end
            each.close()
        _import_course(redacted)
        _see_that_it_can_be_forked()
    except BaseException as error:
        problem = f"{type(error).__name__}: {error}"
    with contextlib.suppress(BaseException):
        _serve_branch(control, theirs, problem)
    os._exit(0)


def _serve_branch(control: socket.socket, requests: socket.socket, problem: str | None) -> None:
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, 65536, DESCRIPTORS)
        if not message:
            return
        request = json.loads(message)
        if problem is not None:
            control.send(json.dumps({"error": problem}).encode())
        elif "prepare" in request:
            control.send(json.dumps({"prepared": True}).encode())
        elif os.fork() == 0:
            requests.close()
            _enter_and_run(control, request, descriptors)  # never returns
        for descriptor in descriptors:
            os.close(descriptor)


class RedactedLoader(SourceFileLoader):
    """Executes another text in the place of a module's own, and never what is compiled of that."""

    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self.text = text

    def get_code(self, fullname: str) -> CodeType:
        with open(self.text, "rb") as file:
            return compile(file.read(), self.path, "exec", dont_inherit=True)


class RedactedFinder(importlib.abc.MetaPathFinder):
    """Finds the modules of which something is withheld, each ``(name, path, text)``."""

    def __init__(self, redacted: list[list[str]]) -> None:
        self.redacted = {name: (path, text) for name, path, text in redacted}

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if fullname not in self.redacted:
            return None
        file, text = self.redacted[fullname]
        inner = [os.path.dirname(file)] if os.path.basename(file) == "__init__.py" else None
        loader = RedactedLoader(fullname, file, text)
        return importlib.util.spec_from_file_location(fullname, file, loader=loader, submodule_search_locations=inner)


def _import_course(redacted: list[list[str]]) -> None:
    """Import the course's library, of some modules the redacted texts, which then look like any other module."""
    names = [name for name, _, _ in redacted]
    if early := [name for name in names if name in sys.modules]:
        raise ImportError(f"{early[0]} cannot be withheld: it is imported before any lab is known")
    finder = RedactedFinder(redacted)
    sys.meta_path.insert(0, finder)
    from course_lib.torchvision_import import import_torchvision

    with contextlib.suppress(ImportError):
        import_torchvision()
    for name in (*COURSE, *names):
        importlib.import_module(name)
    sys.meta_path.remove(finder)
    for name in names:  # the sandbox shows the same text in the file's place
        module = sys.modules[name]
        module.__loader__ = module.__spec__.loader = SourceFileLoader(name, module.__file__)


def _enter_and_run(control: socket.socket, request: dict[str, Any], descriptors: list[int]) -> None:
    """In the first fork: join the namespaces, fork the process that runs the student's code, wait for its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    channel, output, *others = descriptors
    try:
        joined = others[:1] if request["join"] else []
        for group in others[len(joined) :]:
            os.write(group, b"0")  # the control group: this process, and so its children, count in it
        if joined:
            confine_module.enter(*joined, request["user_namespace"])
        pid = os.fork()
    except BaseException as error:
        control.send(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
        os._exit(1)
    if pid == 0:
        _become_runner(request, channel, output)  # never returns
    control.send(json.dumps({"pid": pid, "parent": os.getpid()}).encode())
    control.close()
    for descriptor in (output, *others):
        os.close(descriptor)
    _, status = os.waitpid(pid, 0)
    # Over the channel, which the runner may have filled: what does not fit now is lost, and the end of the channel
    # tells as much.
    with contextlib.suppress(OSError):
        socket.socket(fileno=channel).send(STATUS.pack(STATUS_MARK, status), socket.MSG_DONTWAIT)
    os._exit(0)


# A message's first length is never this large: see `wire`.
STATUS_MARK = 2**64 - 1
STATUS = struct.Struct(">QQ")


def _become_runner(request: dict[str, Any], channel: int, output: int) -> None:
    try:
        null = os.open("/dev/null", os.O_RDONLY)
        for source, target in ((null, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        channel = os.dup(channel) if channel <= 2 else channel
        if request["join"]:
            apart, network = request["apart"], request["network"]
            if apart:
                confine_module.part(network)
                confine_module.furnish(request["folder"], request["limits"]["file"], request["limits"]["files"])
            confine_module.confine(
                {0, 1, 2, channel}, request["folder"], request["uid"], request["limits"], apart, network
            )
        else:  # the instructor insisted on no sandbox
            os.setsid()
            os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        runner.main(socket.socket(fileno=channel), request)
    except BaseException as error:
        with contextlib.suppress(BaseException):
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(70)


if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, here)
    import confine as confine_module
    import runner

    sys.path.remove(here)
    warm()
    serve(socket.socket(fileno=int(sys.argv[1])))
    # The grader may have been ended without a chance to clean up.
    if os.path.basename(home := os.environ.get("HOME", "")).startswith("lab-warm-"):
        shutil.rmtree(home, ignore_errors=True)
    os._exit(0)

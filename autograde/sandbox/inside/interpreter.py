"""The warm interpreter: a fork server (`course_lib.system.prefork.server`) whose forks enter sandboxes.

Started as ``python -I interpreter.py CONTROL FOLDER`` with a clean environment. It imports the labs' libraries once.
*Branches* import the course's own library and torchvision: forks of it, one for each set of withheld solutions. A branch
imports stand-ins for those modules and never their own texts, and is a fork server too. Its keepers join a
sandbox's namespaces and control group. The process that a keeper forks gives up its privileges and becomes the student's
interpreter. The request's descriptors are the socket of `runner` and, if there are any, the pidfd of the process whose
namespaces to join and the ``cgroup.procs`` of control groups.

The processes contain only public libraries, so a fork of them can reveal nothing. Their control sockets have no names, so
no sandbox can reach one.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import sys
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import Any
from unittest import mock

from course_lib.system.prefork.server import main, serve

# The slow imports of the labs' notebooks.
LIBRARIES = ["torch._dynamo", "pandas", "matplotlib.pyplot", "matplotlib.backends.backend_agg", "safetensors.torch"]
LIBRARIES += ["IPython.core.interactiveshell", "psutil"]
COURSE = ["checks", "distributed.launching.rank_process", "models", "runs.parameters", "plots"]
COURSE += ["training.precision", "training"]


def branch(request: dict[str, Any], descriptors: list[int]) -> None:
    """Import the course's library with the stand-ins, and serve."""
    import_course(request["stand_ins"])
    serve(socket.socket(fileno=descriptors[0]), become_runner, join)


def import_course(stand_ins: list[list[str]]) -> None:
    """Import the course's library, some modules from stand-ins, which look like any other module."""
    texts = {name: text for name, _, text in stand_ins}
    if early := [name for name in texts if name in sys.modules]:
        raise ImportError(f"{early[0]} cannot be withheld: it is imported before any lab is known")
    get_code = SourceFileLoader.get_code

    def stand_in_code(loader: SourceFileLoader, name: str) -> CodeType | None:
        """Compile the stand-in; never read the module's own compiled file. The sandbox shows the same text."""
        if name not in texts:
            return get_code(loader, name)
        with open(texts[name], "rb") as file:
            return compile(file.read(), loader.path, "exec", dont_inherit=True)

    with mock.patch.object(SourceFileLoader, "get_code", stand_in_code):
        from course_lib.system.torchvision_import import import_torchvision

        with contextlib.suppress(ImportError):
            import_torchvision()
        for name in (*(f"course_lib.{name}" for name in COURSE), *texts):
            importlib.import_module(name)


def join(request: dict[str, Any], descriptors: list[int]) -> None:
    """In the keeper: join the control groups, which include its children, and the namespaces."""
    groups = descriptors[2 if request["join"] else 1 :]
    for group in groups:
        os.write(group, b"0")
    if request["join"]:
        confine.enter(descriptors[1], request["user_namespace"])


def become_runner(request: dict[str, Any], descriptors: list[int]) -> None:
    """Give up the privileges that student code must not have, and serve the grader. Does not return."""
    channel = descriptors[0]
    try:
        if request["join"]:
            apart, network = request["apart"], request["network"]
            if apart:
                confine.part(network)
                confine.furnish(request["folder"], request["limits"]["file"], request["limits"]["files"])
            confine.confine(
                {0, 1, 2, channel}, request["folder"], request["uid"], request["limits"], apart, network, request["gpu"]
            )
        else:  # the instructor chose no sandbox
            os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        os.write(channel, runner.wire.CONFINED)  # what fails before this is never the student's doing
        runner.main(socket.socket(fileno=channel), request)
    except BaseException as error:
        with contextlib.suppress(BaseException):
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(70)


if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path.insert(0, here)
    import confine
    import runner

    sys.path.remove(here)
    main(LIBRARIES, branch, *sys.argv[1:])

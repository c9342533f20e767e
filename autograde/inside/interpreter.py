"""The warm interpreter: a fork server (`course_lib.prefork.server`) whose forks enter sandboxes.

Started as ``python -I interpreter.py CONTROL FOLDER`` with a clean environment. It imports the libraries that labs use,
once. The course's own library, and torchvision, are imported by *branches*: forks of it, one for each choice of what a
rubric withholds of them, which have imported the redacted texts of those modules and never the others. A branch is a
fork server in its turn. Its keepers join a sandbox's namespaces and control group, and what they fork gives up its
privileges and becomes the student's interpreter. That fork's descriptors are the socket that `runner` talks over and,
where there are such, the pidfd of the process whose namespaces to join and the ``cgroup.procs`` of control groups.

The processes hold nothing but public libraries, so that a fork of them has nothing to give away. Their control sockets
have no names, so that no sandbox can reach one.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.abc
import importlib.util
import os
import socket
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType
from typing import Any

from course_lib.prefork.server import LIBRARIES, main, serve

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


def branch(request: dict[str, Any], descriptors: list[int]) -> None:
    """Import the course's library as it is to be seen, and serve."""
    import_course(request["redacted"])
    serve(socket.socket(fileno=descriptors[0]), become_runner, join)


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


def import_course(redacted: list[list[str]]) -> None:
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


def join(request: dict[str, Any], descriptors: list[int]) -> None:
    """In the keeper: join the control groups, which its children then count in, and the namespaces."""
    groups = descriptors[2 if request["join"] else 1 :]
    for group in groups:
        os.write(group, b"0")
    if request["join"]:
        confine.enter(descriptors[1], request["user_namespace"])


def become_runner(request: dict[str, Any], descriptors: list[int]) -> None:
    """Give up what student code must not have, and talk to the grader. Never returns."""
    channel = descriptors[0]
    try:
        if request["join"]:
            apart, network = request["apart"], request["network"]
            if apart:
                confine.part(network)
                confine.furnish(request["folder"], request["limits"]["file"], request["limits"]["files"])
            confine.confine({0, 1, 2, channel}, request["folder"], request["uid"], request["limits"], apart, network)
        else:  # the instructor insisted on no sandbox
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
    import confine
    import runner

    sys.path.remove(here)
    main(LIBRARIES, branch, *sys.argv[1:])

"""Executes a student's cells and calls their functions; answers in plain data (`wire`).

This is the student's process. The grader believes nothing that it says: the code that it runs can rewrite it. It
answers requests until the socket closes:

``{"do": "cells", "cells": [{"id", "source", "definitions"}]}``
    executes them in order in an IPython shell, or only their definitions; answers ``{"id", "error"}`` after each
``{"do": "call", "module", "function", "given"}``
    executes the driver `module` (a text) once and calls its `function` as ``function(student, given, outside)``
``{"do": "read", "names", "limit"}``
    answers with the bytes of files below the working folder

`student("name")` is the student's function of that name. The grader answers `outside("name", *args)`, so a driver
counts and times outside.
"""

from __future__ import annotations

import ast
import os
import re
import socket
import sys
import threading
import types
from typing import Any

import wire

LIMIT = 1 << 30  # of what the grader sends: weights, and a notebook's text
_EXECUTION = re.compile(r"<ipython-input-(\d+)-")


_DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _is_constant(node: ast.stmt) -> bool:
    if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
        return False
    try:
        ast.literal_eval(node.value)
    except (ValueError, TypeError, RecursionError):
        return False
    return True


class MissingAnswerError(Exception):
    """The notebook does not define the requested function."""


class Answers:
    """The student's namespace."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.namespace = namespace

    def __call__(self, name: str) -> Any:
        try:
            return self.namespace[name]
        except KeyError:
            raise MissingAnswerError(name) from None


class Runner:
    """One conversation with the grader."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.cells: dict[int, str] = {}
        self.modules: dict[str, types.ModuleType] = {}
        self.asking = threading.Lock()
        # Private and fresh: `get_ipython()` answers it, magics and `!` work, and nothing is written to a history.
        from IPython.core.interactiveshell import InteractiveShell
        from traitlets.config import Config

        config = Config()
        config.HistoryManager.enabled = False
        config.InteractiveShell.colors = "nocolor"
        config.InteractiveShell.xmode = "Plain"
        config.InteractiveShell.cache_size = 0

        class Headless(InteractiveShell):
            def enable_gui(self, gui: str | None = None) -> None:
                """Do nothing: there is no GUI, but `%matplotlib inline` must pass."""

        self.shell = Headless.instance(config=config)
        self.shell.user_ns["__name__"] = "__main__"

    def talk(self) -> None:
        """Answer until the grader closes the socket."""
        while (request := self.receive()) is not None:
            getattr(self, "do_" + request.pop("do"))(**request)

    def do_cells(self, cells: list[dict[str, str]]) -> None:
        """Execute cells. After a failure the next cell is still tried."""
        for cell in cells:
            self.cells[self.shell.execution_count] = cell["id"]
            source = self.definitions(cell["source"]) if cell.get("definitions") else cell["source"]
            result = self.shell.run_cell(source, store_history=True, silent=False)
            error = result.error_before_exec or result.error_in_exec
            self.send({"id": cell["id"], "error": None if error is None else self.described(error)})

    def definitions(self, source: str) -> str:
        """The imports, functions, classes and constants at the top level of a cell; the whole cell if it does not parse."""
        try:
            tree = ast.parse(self.shell.transform_cell(source))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return source
        tree.body = [node for node in tree.body if isinstance(node, _DEFINITIONS) or _is_constant(node)]
        return ast.unparse(tree)

    def do_call(self, module: str, function: str, given: Any) -> None:
        """Call a driver's function."""
        try:
            if module not in self.modules:
                self.modules[module] = driver = types.ModuleType("driver")
                exec(compile(module, "<driver>", "exec"), driver.__dict__)
            value = getattr(self.modules[module], function)(Answers(self.shell.user_ns), given, self.outside)
            answer = wire.encode({"value": value})  # here, because an unusual object may raise when it is read
        except MissingAnswerError as error:
            self.send({"missing": str(error)})
        except BaseException as error:
            self.send({"error": self.described(error)})
        else:
            self.channel.sendall(answer)
        sys.stdout.flush()

    def do_read(self, names: list[str], limit: int) -> None:
        """Send files of the working folder; one that is missing is None."""
        contents = []
        for name in names:
            try:
                with open(name, "rb") as file:
                    contents.append(file.read(limit + 1))
            except OSError:
                contents.append(None)
        self.send(contents)

    def outside(self, name: str, *args: Any) -> Any:
        """Ask the grader, and wait for its answer; one thread at a time."""
        with self.asking:
            self.send({"ask": name, "args": list(args)})
            return self.receive()

    def described(self, error: BaseException) -> dict[str, Any]:
        """An error in plain data: its type, its message, and the last line of a cell in its traceback."""
        place = [None, None]
        trace = error.__traceback__
        while trace is not None:
            if found := _EXECUTION.match(trace.tb_frame.f_code.co_filename):
                place = [self.cells.get(int(found[1])), trace.tb_lineno]
            trace = trace.tb_next
        if isinstance(error, SyntaxError) and place[0] is None:
            place = [self.cells.get(self.shell.execution_count - 1), error.lineno]
        try:
            message = str(error)[:2000]
        except Exception:  # the student's own class of errors may raise here
            message = "(no message: its __str__ raises an error)"
        return {"type": type(error).__name__[:80], "message": message, "cell": place[0], "line": place[1]}

    def send(self, value: Any) -> None:
        """Send one message."""
        self.channel.sendall(wire.encode(value))

    def receive(self) -> Any:
        """The next message, or None at the end."""
        header = self._exactly(wire.HEADER.size)
        if header is None:
            return None
        text, blob = wire.lengths(header, LIMIT, LIMIT)
        return wire.decode(self._exactly(text), self._exactly(blob))

    def _exactly(self, size: int) -> bytes | None:
        data = bytearray()
        while len(data) < size:
            piece = self.channel.recv(min(1 << 20, size - len(data)))
            if not piece:
                return None
            data += piece
        return bytes(data)


def main(channel: socket.socket, request: dict[str, Any]) -> None:
    """Serve until the grader closes the socket, then end without the student's exit handlers."""
    import torch

    import course_lib.distributed

    torch.set_num_threads(request["threads"])
    if not request["fork_server"]:
        # A notebook calls it for speed's sake only; here it would import PyTorch a second time for nothing.
        course_lib.distributed.warm_up = lambda: None
    sys.argv = ["notebook"]
    sys.path.insert(0, os.getcwd())
    Runner(channel).talk()
    os._exit(0)

"""Make each page in a process of its own, with bounded time and memory.

A fork server (``python -m autograde.reports.reading.page_process``) imports what pages need once, and forks for each
page. The reader's own process cannot fork: Jupyter's server has threads.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from typing import Any

__all__ = ["PageError", "PageServer"]

CPU_SECONDS = 20  # per page; an honest one takes one or two
SECONDS = 180.0  # per page, wall clock: the machine may be busy with other work
MEMORY = 1 << 30  # bytes beyond what the server has itself
LONGEST = 64 << 20  # bytes of a page
IDLE = 60.0  # seconds without a request after which the server ends


class PageError(RuntimeError):
    """A page could not be made; the message is the cause, in a few words."""


class PageServer:
    """Makes pages one at a time; starts its process with the first, and again where it has ended."""

    def __init__(self, cpu_seconds: int = CPU_SECONDS) -> None:
        self._command = [sys.executable, "-P", "-m", "autograde.reports.reading.page_process", str(cpu_seconds)]
        self._lock = threading.Lock()
        self._process: subprocess.Popen | None = None

    def page(self, kind: str, path: str, resources: dict[str, Any], preprocessors: list[str]) -> str:
        """`autograde.reports.reading.page.read_page` in a bounded process.

        Raises `PageError`: the notebook cannot be shown, or not within the limits.
        """
        line = json.dumps([kind, path, resources, preprocessors]).encode() + b"\n"
        with self._lock:
            for attempt in (1, 2):
                try:
                    return self._ask(line)
                except (OSError, ValueError):  # it ended after IDLE, or was killed
                    self._stop()
                    if attempt == 2:
                        raise PageError("the process that makes pages ended") from None
        raise AssertionError

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._stop()

    def _ask(self, line: bytes) -> str:
        if self._process is None:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        self._process.stdin.write(line)
        self._process.stdin.flush()
        made, size = json.loads(self._process.stdout.readline())
        text = self._process.stdout.read(size)
        if len(text) != size:
            raise OSError
        if not made:
            raise PageError(text.decode())
        return text.decode()

    def _stop(self) -> None:
        if self._process is None:
            return
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                stream.close()
        self._process.kill()
        self._process.wait()
        self._process = None


def _main(cpu_seconds: int) -> None:
    from autograde.reports.reading.page import KINDS, exporter

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is for the client
    answers = os.dup(1)
    os.dup2(2, 1)
    for kind in KINDS:
        exporter(kind)
    import autograde.reports.reading.feedback  # noqa: F401  (its preprocessors)

    while select.select([0], [], [], IDLE)[0] and (line := sys.stdin.buffer.raw.readline()):
        try:
            made, text = True, _bounded(json.loads(line), cpu_seconds)
        except PageError as error:
            made, text = False, str(error).encode()
        head = json.dumps([made, len(text)]).encode() + b"\n"
        with open(answers, "wb", closefd=False) as file:
            file.write(head + text)


def _bounded(request: list, cpu_seconds: int) -> bytes:
    """The page, made by a forked process: ``P`` and the page, or ``E`` and the cause, come through a pipe."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _make_page(request, writing, cpu_seconds)
    os.close(writing)
    ends, pieces, size = time.monotonic() + SECONDS, [], 0
    try:
        while select.select([reading], [], [], max(0.0, ends - time.monotonic()))[0]:
            piece = os.read(reading, 1 << 20)
            if not piece:
                break
            pieces.append(piece)
            size += len(piece)
            if size > LONGEST:
                raise PageError(f"the page has more than {LONGEST >> 20} MB")
        else:
            raise PageError(f"it took more than {SECONDS:.0f} s")
    finally:
        os.close(reading)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
    page = b"".join(pieces)
    if page[:1] == b"P":
        return page[1:]
    if page[:1] == b"E":
        raise PageError(page[1:].decode())
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
        raise PageError(f"it took more than {cpu_seconds} s of processor time")
    raise PageError("its process ended")


def _make_page(request: list, writing: int, cpu_seconds: int) -> None:
    """Make the page in the forked process; never returns."""
    try:
        with open("/proc/self/statm") as file:
            size = int(file.read().split()[0]) * resource.getpagesize()
        _limit(resource.RLIMIT_AS, size + MEMORY)
        _limit(resource.RLIMIT_CPU, cpu_seconds, 2)
        _limit(resource.RLIMIT_CORE, 0)
        from autograde.reports.reading.page import read_page

        try:
            text = b"P" + read_page(*request).encode(errors="replace")
        except MemoryError:
            text = f"Eit needs more than {MEMORY >> 30} GiB of memory".encode()
        except BaseException as error:
            text = f"Eit cannot be read ({type(error).__name__})".encode()
        with open(writing, "wb") as file:
            file.write(text)
    finally:
        os._exit(0)


def _limit(which: int, value: int, more: int = 0) -> None:
    hard = resource.getrlimit(which)[1]
    top = value + more if hard == resource.RLIM_INFINITY else min(hard, value + more)
    resource.setrlimit(which, (min(value, top), top))


if __name__ == "__main__":
    _main(int(sys.argv[1]))

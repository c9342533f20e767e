"""A kernel asked as JupyterLab asks it, and what its cells show."""

import contextlib
import os
import queue
import re
import tempfile
import time

from jupyter_client import KernelManager


class Cell:
    """What one execution has shown: streams, displays with their updates, the error."""

    def __init__(self):
        self.streams = {"stdout": "", "stderr": ""}
        self.displays = {}  # display_id → the bundles, in order
        self.order = []  # display_id or stream's name, as they came first
        self.error = None
        self.times = {}  # display_id → when each of its bundles came

    def take(self, message):
        kind, content = message["msg_type"], message["content"]
        if kind == "stream":
            self.streams[content["name"]] += content["text"]
            self._note(content["name"])
        elif kind in ("display_data", "update_display_data"):
            name = content.get("transient", {}).get("display_id")
            assert (kind == "display_data") == (name not in self.displays), "the first is data, the rest are updates"
            self.displays.setdefault(name, []).append(content["data"])
            self.times.setdefault(name, []).append(time.monotonic())
            self._note(name)
        elif kind == "error":
            self.error = content

    def _note(self, name):
        if name not in self.order:
            self.order.append(name)

    @property
    def traceback(self):
        return [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in self.error["traceback"]]

    def last(self, number=0):
        """The final state of a display."""
        return list(self.displays.values())[number][-1]


class Kernel:
    """A context: the kernel lives as long as the block."""

    def __init__(self, folder, **environment):
        self.folder, self.environment = folder, environment

    def __enter__(self):
        self.sockets = tempfile.TemporaryDirectory(prefix="lab-", ignore_cleanup_errors=True)
        self.manager = KernelManager(
            kernel_name="python3", transport="ipc", ip=os.path.join(self.sockets.name, "kernel")
        )
        self.manager.start_kernel(
            cwd=str(self.folder), env={**os.environ, "TMPDIR": self.sockets.name, **self.environment}
        )
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=300)
        return self

    def __exit__(self, *exc_info):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()
        self.sockets.cleanup()

    def send(self, code, looked_at=True):
        """Ask for a cell; with `looked_at` as JupyterLab does, else as nbclient does. Returns the request's identifier."""
        content = {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False, "stop_on_error": False}  # fmt: skip
        metadata = (
            {"trusted": True, "deletedCells": [], "recordTiming": False, "cellId": "0b9e52f6"} if looked_at else {}
        )
        message = self.client.session.msg("execute_request", content, metadata=metadata)
        self.client.shell_channel.send(message)
        return message["header"]["msg_id"]

    def collect(self, request, until=None, timeout=300.0):
        """What the cell shows until it has run, or until ``until(cell)``."""
        return self.follow(Cell(), request, until, timeout)

    def follow(self, cell, request, until=None, timeout=300.0):
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            with contextlib.suppress(queue.Empty):
                message = self.client.get_iopub_msg(timeout=0.2)
                if message["parent_header"].get("msg_id") != request:
                    continue
                cell.take(message)
                if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                    return cell
            if until is not None and until(cell):
                return cell
        raise AssertionError(f"the cell did not end within {timeout} s: {cell.streams} {cell.error}")

    def run(self, code, looked_at=True, timeout=300.0):
        """Run a cell to its end; one that fails does not keep the next from running."""
        return self.collect(self.send(code, looked_at), timeout=timeout)

    def interrupt(self):
        """Press ■: SIGINT to the kernel's process group."""
        self.manager.interrupt_kernel()

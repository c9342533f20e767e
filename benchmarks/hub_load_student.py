"""A student who is a program: signs in, starts a server, opens a lab's notebook and runs it cell by cell.

Everything passes over HTTP and the kernel's web socket, through the hub's proxy, as a browser's JupyterLab has it.
"""

import json
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from websocket import create_connection

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/hub"))

from visitor import Visitor

TIMEOUT = 900.0  # seconds for any one request
METRICS_EVERY = 5.0  # as JupyterLab's status bar asks
# The smoke profile trains too little for the points that the run folder brings, and the notebook says so.
EXPECTED = {"run-evidence": "CheckFailed"}


class TurnedAwayError(RuntimeError):
    """The hub would not start a server; one line."""


@dataclass
class LabRun:
    """What became of a notebook."""

    cells: int = 0
    seconds: float = 0.0
    errors: list[str] = field(default_factory=list)
    stderr: list[str] = field(default_factory=list)


def retry_after(headers: Mapping[str, str], least: float = 1.0, most: float = 120.0) -> float | None:
    """Seconds that a refusal (429, 503) asks us to wait; None where it does not ask to come again."""
    text = {name.lower(): value for name, value in headers.items()}.get("retry-after", "").strip()
    return min(max(float(text), least), most) if text.isascii() and text.isdigit() else None


class Student(Visitor):
    """A visitor who works.

    `most_rss` is the most that jupyter-resource-usage said, in bytes; `slowest_answer` how many seconds it took at most
    to say it, while notebooks ran.
    """

    def __init__(self, hub, name: str) -> None:
        super().__init__(hub, name)
        self.refusals = 0
        self.most_rss, self.slowest_answer = 0, 0.0
        self._asked = 0.0

    def start_server(self, sleep: Callable[[float], None] = time.sleep) -> None:
        """Our own server, until the hub says that it is ready; a hub that is busy is asked again when it says so.

        Raises
        ------
        TurnedAwayError
            The hub refuses without a time to come again, or the server did not start.
        """
        path = f"/hub/api/users/{self.name}/server"
        while (answer := self.by_token("POST", path, timeout=TIMEOUT)).status_code == 429:
            self.refusals += 1
            seconds = retry_after(answer.headers)
            if seconds is None:
                raise TurnedAwayError(f"{self.name}: {answer.json().get('message', answer.text)[:200]}")
            sleep(seconds)
        if answer.status_code == 400 and "already running" in answer.text:
            return
        if answer.status_code not in (201, 202):
            raise TurnedAwayError(f"{self.name}: {answer.status_code} {answer.text[:200]}")
        if answer.status_code == 202:
            self._follow(f"{path}/progress")

    def _follow(self, path: str) -> None:
        # The page that a browser shows meanwhile reads the same stream.
        with self.by_token("GET", path, stream=True, timeout=TIMEOUT) as events:
            for line in events.iter_lines():
                event = json.loads(line.removeprefix(b"data: ")) if line.startswith(b"data: ") else {}
                if event.get("ready"):
                    return
                if event.get("failed"):
                    raise TurnedAwayError(f"{self.name}: {event.get('message', 'the server did not start')}")
        raise TurnedAwayError(f"{self.name}: the hub said nothing more of the server's start")

    def fetch(self, course: str, lab: str) -> None:
        """Assignment List's button."""
        form = {"course_id": course, "assignment_id": lab}
        answer = self.by_token("POST", f"/user/{self.name}/assignments/fetch", data=form, timeout=TIMEOUT)
        if not answer.ok or not answer.json()["success"]:
            raise RuntimeError(f"{self.name} cannot fetch {lab}: {answer.text[-300:]}")

    def run_lab(self, path: str, answers: Mapping[int, str]) -> LabRun:
        """Open the notebook, type `answers` (by the cell's number), run its cells one after another, save it."""
        address = f"/user/{self.name}/api/contents/{path}"
        notebook = nbformat.from_dict(self._json("GET", address)["content"])
        for number, text in answers.items():
            notebook.cells[number].source = text
        self._save(address, notebook)
        done, begun = LabRun(), time.monotonic()
        with_kernel = KernelSocket(self, self.open_kernel(path))
        try:
            for cell in notebook.cells:
                if cell.cell_type != "code":
                    continue
                cell.outputs, cell.execution_count, failure = with_kernel.execute(cell.source)
                self._note(done, cell, failure)
                self.read_meters()
                if failure and cell.id not in EXPECTED:
                    break  # as *Run All* does
        finally:
            with_kernel.close()
        done.seconds = time.monotonic() - begun
        self._save(address, notebook)
        return done

    def open_kernel(self, path: str) -> str:
        """Start the kernel of a notebook; its id."""
        session = {"path": path, "name": path, "type": "notebook", "kernel": {"name": "python3"}}
        return self._json("POST", f"/user/{self.name}/api/sessions", json=session)["kernel"]["id"]

    def read_meters(self, now: bool = False) -> None:
        """Ask jupyter-resource-usage, if the last time was long enough ago."""
        if not now and time.monotonic() - self._asked < METRICS_EVERY:
            return
        self._asked = time.monotonic()
        said = self._json("GET", f"/user/{self.name}/api/metrics/v1")
        self.slowest_answer = max(self.slowest_answer, time.monotonic() - self._asked)
        self.most_rss = max(self.most_rss, said.get("rss") or 0)

    @staticmethod
    def _note(done: LabRun, cell, failure: str | None) -> None:
        done.cells += 1
        if failure and EXPECTED.get(cell.id) != failure.partition(":")[0]:
            done.errors.append(f"{cell.id}: {failure}")
        said = "".join(one.text for one in cell.outputs if one.output_type == "stream" and one.name == "stderr")
        if said:
            done.stderr.append(f"{cell.id}: {said}")

    def _save(self, address: str, notebook) -> None:
        self._json("PUT", address, json={"type": "notebook", "format": "json", "content": notebook})

    def _json(self, method: str, path: str, **options):
        answer = self.by_token(method, path, timeout=TIMEOUT, **options)
        if not answer.ok:
            raise RuntimeError(f"{self.name}: {method} {path}: {answer.status_code} {answer.text[:200]}")
        return answer.json()


class KernelSocket:
    """A kernel's channels over one web socket (Jupyter's messaging, version 5)."""

    def __init__(self, student: Visitor, kernel: str) -> None:
        self._session = uuid.uuid4().hex
        address = f"{student.hub.address.replace('http', 'ws', 1)}/user/{student.name}/api/kernels/{kernel}/channels"
        self._socket = create_connection(
            f"{address}?session_id={self._session}", header=[f"Authorization: token {student.token}"], timeout=TIMEOUT
        )

    def execute(self, code: str) -> tuple[list, int | None, str | None]:
        """Outputs, the count, and ``NAME: value`` of an error or None; returns when the kernel is idle again."""
        sent = self._send("execute_request", code=code, silent=False, store_history=True, user_expressions={},
                          allow_stdin=False, stop_on_error=True)  # fmt: skip
        outputs, reply, idle = [], None, False
        while reply is None or not idle:
            text = self._socket.recv()
            if isinstance(text, bytes):
                continue  # buffers, of which no lab makes use
            message = json.loads(text)
            if message.get("parent_header", {}).get("msg_id") != sent:
                continue
            kind = message["header"]["msg_type"]
            if kind == "execute_reply":
                reply = message["content"]
            elif kind == "status":
                idle = message["content"]["execution_state"] == "idle"
            elif kind in ("stream", "display_data", "execute_result", "error"):
                outputs.append(nbformat.v4.output_from_msg(message))
        failure = f"{reply.get('ename', reply['status'])}: {reply.get('evalue', '')}"
        return outputs, reply.get("execution_count"), None if reply["status"] == "ok" else failure

    def close(self) -> None:
        """Close the tab; the kernel stays."""
        self._socket.close()

    def _send(self, kind: str, **content) -> str:
        number = uuid.uuid4().hex
        header = {"msg_id": number, "msg_type": kind, "username": "", "session": self._session, "date": "",
                  "version": "5.3"}  # fmt: skip
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell",
                   "buffers": []}  # fmt: skip
        self._socket.send(json.dumps(message))
        return number

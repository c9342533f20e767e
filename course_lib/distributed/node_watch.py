"""Nodes of a job that keep an eye on each other, so that the loss of one ends all, with its name.

Without it a lost node shows in two ways. Where its kernel still answers, Gloo raises at once and names an address. Where
nothing answers any more (power, cable, switch) TCP waits, and so does every rank: Gloo and NCCL for their timeout of ten
minutes or more.

Each node's launcher holds one connection to the first node. A launcher that ends closes it; where nobody answers, TCP's
keep-alive breaks it after `SILENCE` seconds. The first node tells the others whom they have lost.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["SILENCE", "Member", "NodeHub"]

SILENCE = 15.0  # seconds without an answer after which a node counts as lost
GRACE = 2.0  # seconds after the first failure, in which the others' reports are waited for
RETRY = 0.5  # seconds between two attempts to reach the first node


def _listen_at(port: int) -> socket.socket:
    with contextlib.suppress(OSError):  # a kernel may know IPv6 and have it turned off
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _break_after(connection: socket.socket, silence: float) -> None:
    """Have the kernel break the connection when nothing has come from the other side for `silence` seconds."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, round(silence / 3)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, round(silence / 10)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(1000 * silence))


def _send(connection: socket.socket, **message: Any) -> None:
    with contextlib.suppress(OSError):  # whoever is gone is told of by the reading side
        connection.sendall(json.dumps(message).encode() + b"\n")


def _messages(data: bytes) -> tuple[list[dict[str, Any]], bytes]:
    """The whole lines among `data` that are messages, and the rest."""
    *lines, rest = data.split(b"\n")
    messages = []
    for line in lines:
        with contextlib.suppress(ValueError):
            messages.append(json.loads(line))
    return [message for message in messages if isinstance(message, dict)], rest


def _why_gone(error: OSError | None) -> str:
    if error is None or isinstance(error, ConnectionResetError | BrokenPipeError):
        return "its launcher ended without a word; was it killed, or did the node go down?"
    return f"it does not answer any more ({error.strerror}); is the node or its network down?"


@dataclass
class _Node:
    """What the first node knows of another."""

    name: str = ""
    ranks: list[int] = field(default_factory=list)
    unread: bytes = b""
    done: bool = False  # nobody misses it: it has ended well, or reported its failure

    def __str__(self) -> str:
        if not self.ranks:
            return self.name
        return f"{'rank' if len(self.ranks) == 1 else 'ranks'} {', '.join(map(str, self.ranks))} on {self.name}"


class NodeHub:
    """The first node's side: a thread that all nodes' `Member` talk to.

    Parameters
    ----------
    port : int
        To listen at, on all of this machine's addresses.
    nodes : int
        Of the job, this one included.
    name : str
        Of this node.
    job : str
        All nodes of a job have the same; whoever says another is not listened to.
    silence : float
        Seconds without an answer after which a node counts as lost.

    Raises
    ------
    OSError
        The port is taken.
    """

    def __init__(self, port: int, nodes: int, name: str, job: str, silence: float = SILENCE) -> None:
        self.nodes, self.name, self.job, self.silence = nodes, name, job, silence
        self._door = _listen_at(port)
        self._known: dict[socket.socket, _Node] = {}
        self._reports: list[tuple[bool, str]] = []  # (ended by a signal, what has failed)
        self._decide_at: float | None = None
        self._verdict: str | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="node hub", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Tell the nodes that this one has ended well, and let go of the port."""
        self._closing.set()
        self._thread.join()

    def present(self) -> list[str]:
        """Names of the nodes that have reported."""
        return sorted(node.name for node in list(self._known.values()) if node.name)

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector, self._door:
            selector.register(self._door, selectors.EVENT_READ)
            while not self._closing.is_set():
                for key, _ in selector.select(0.1):
                    if key.fileobj is self._door:
                        connection, _ = self._door.accept()
                        _break_after(connection, self.silence)
                        self._known[connection] = _Node()
                        selector.register(connection, selectors.EVENT_READ)
                    elif not self._hear(key.fileobj):
                        selector.unregister(key.fileobj)
                        key.fileobj.close()
                self._decide()
            for connection in self._known:
                _send(connection, bye=True)
                connection.close()

    def _hear(self, connection: socket.socket) -> bool:
        """Take in what a node sends; False when its connection has ended."""
        node, why = self._known[connection], None
        try:
            data = connection.recv(65536)
        except OSError as error:
            data, why = b"", error
        if not data:
            del self._known[connection]
            if node.name and not node.done:
                self._tell(f"{node} {'are' if len(node.ranks) > 1 else 'is'} gone: {_why_gone(why)}")
            return False
        messages, node.unread = _messages(node.unread + data)
        for message in messages:
            if not node.name and message.get("job") != self.job:
                continue  # somebody who has come to the wrong door
            if "name" in message:
                node.name = message["name"]
                _send(connection, welcome=self.name)
                if self._verdict is not None:
                    _send(connection, verdict=self._verdict)
            node.ranks = message.get("ranks", node.ranks)
            node.done = message.get("done", node.done)
            if "failed" in message:
                self._reports.append((message["killed"], f"{message['failed']} on {node.name}"))
                node.done = True
                self._decide_at = self._decide_at or time.monotonic() + GRACE
        return True

    def _decide(self) -> None:
        if self._decide_at is None or self._verdict is not None:
            return
        if len(self._reports) == self.nodes or time.monotonic() > self._decide_at:
            # A rank that was killed is the cause; those that raised may only have missed it.
            killed = [text for by_signal, text in self._reports if by_signal]
            self._tell("; ".join(killed or [text for _, text in self._reports]))

    def _tell(self, verdict: str) -> None:
        if self._verdict is None:
            self._verdict = verdict
            for connection in self._known:
                _send(connection, verdict=verdict)


class Member:
    """A node's side: holds the connection, and hears what has happened to the others.

    Parameters
    ----------
    host, port
        Of the `NodeHub`.
    name, job : str
        Of this node; as the hub's.
    on_loss : callable
        Called with the verdict, on a thread of its own, when the job is lost and this node has not reported it itself.
    silence : float
        As the hub's.

    Attributes
    ----------
    verdict : str or None
        What ended the job, in one line.
    """

    def __init__(
        self, host: str, port: int, name: str, job: str, on_loss: Callable[[str], None], silence: float = SILENCE
    ) -> None:
        self.address, self.name, self.job, self.on_loss, self.silence = (host, port), name, job, on_loss, silence
        self.verdict: str | None = None
        self._connection: socket.socket | None = None
        self._first: str | None = None  # the hub's node, once it has answered
        self._decided, self._welcome, self._reported, self._leaving = (threading.Event() for _ in range(4))
        self._thread = threading.Thread(target=self._listen, name="node watch", daemon=True)
        self._thread.start()

    def welcomed(self, seconds: float) -> bool:
        """Wait for the first node's answer; whether it has come."""
        return self._welcome.wait(seconds)

    def tell_ranks(self, ranks: list[int]) -> bool:
        """Say which ranks run here; False while the first node has not answered yet."""
        if self._welcome.is_set():
            _send(self._connection, ranks=ranks)
        return self._welcome.is_set()

    def failed(self, what: str, killed: bool = False) -> str:
        """Report this node's failure; returns what ended the job, which may be another node's.

        Parameters
        ----------
        what : str
            For instance ``rank 3 was ended by SIGKILL``.
        killed : bool
            A signal ended it.
        """
        self._reported.set()
        if self._welcome.is_set():
            _send(self._connection, failed=what, killed=killed)
            self._decided.wait(GRACE + 2)
        return self.verdict or f"{what} on {self.name}"

    def leave(self) -> None:
        """End well, or after the end was told."""
        self._leaving.set()
        if self._connection is not None:
            _send(self._connection, done=True)
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)

    def _listen(self) -> None:
        while not self._leaving.is_set():
            try:
                self._connection = socket.create_connection(self.address, timeout=self.silence)
            except OSError:  # the first node has not begun
                self._leaving.wait(RETRY)
                continue
            with self._connection as connection:
                connection.settimeout(None)
                _break_after(connection, self.silence)
                _send(connection, name=self.name, job=self.job)
                why = self._read(connection)
            if self._first is not None:
                break
            self._leaving.wait(RETRY)  # somebody else's door
        else:
            return
        if not self._leaving.is_set() and self.verdict is None and why is not False:
            self._end(f"{self._first}, where the nodes meet, is gone: {_why_gone(why)}")

    def _read(self, connection: socket.socket) -> OSError | bool | None:
        """Hear the hub until it ends: with an error, without a word (None), or having said so (False)."""
        unread = b""
        while True:
            try:
                data = connection.recv(65536)
            except OSError as error:
                return error
            if not data:
                return None
            messages, unread = _messages(unread + data)
            for message in messages:
                if "welcome" in message:
                    self._first = message["welcome"]
                    self._welcome.set()
                if "verdict" in message:
                    self._end(message["verdict"])
                if "bye" in message:
                    return False

    def _end(self, verdict: str) -> None:
        self.verdict = verdict
        self._decided.set()
        if not self._reported.is_set():
            threading.Thread(target=self.on_loss, args=(verdict,), daemon=True).start()

"""One rank's socket and output pipe, as the grader sees them: messages come in pieces, from somebody not trusted."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Any

from .inside import wire
from .limits import Exceeded

__all__ = ["Later", "Rank"]

# How the waiting parent tells its child's end; see autograde/inside/zygote.py.
STATUS_MARK = b"\xff" * 8


@dataclass(frozen=True)
class Later:
    """An answer that is given after `seconds`, while the other ranks go on: what takes time and cannot be hurried."""

    seconds: float
    value: Any = None


class Rank:
    """A runner's two descriptors. Nothing here blocks.

    Attributes
    ----------
    socket : socket
    output : int
        Reading end of what it prints; -1 once closed.
    pid : int
        In the grader's process namespace.
    ended : bool
        It has closed its socket, or told its end.
    status : int or None
        As `os.waitpid` gives it.
    """

    NOTHING = object()

    def __init__(self, channel: socket.socket, output: int, pid: int) -> None:
        channel.setblocking(False)
        os.set_blocking(output, False)
        self.socket, self.output, self.pid = channel, output, pid
        self.ended = False
        self.status: int | None = None
        self.unsent = bytearray()
        self._received = bytearray()

    def queue(self, data: bytes) -> None:
        """Append to what is to be sent."""
        self.unsent += data

    def send(self) -> None:
        """Send what fits."""
        try:
            sent = self.socket.send(self.unsent[: 1 << 20])
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.ended = True
            return
        del self.unsent[:sent]

    def receive(self, limit: int) -> None:
        """Take what has come; more than `limit` bytes that are not yet a message are not taken."""
        while len(self._received) <= limit + wire.HEADER.size:
            try:
                piece = self.socket.recv(1 << 20)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                piece = b""
            if not piece:
                self.ended = True
                return
            self._received += piece

    def message(self, limit: int) -> Any:
        """The next whole message, or `NOTHING`.

        Raises
        ------
        Exceeded
            It is too large, or not in the format.
        """
        size = wire.HEADER.size
        if len(self._received) < size:
            return self.NOTHING
        header = bytes(self._received[:size])
        if header.startswith(STATUS_MARK):
            self.status = int.from_bytes(header[8:], "big") & 0xFFFF
            self.ended = True
            return self.NOTHING
        try:
            text, blob = wire.lengths(header, limit)
            if len(self._received) < size + text + blob:
                return self.NOTHING
            whole = bytes(self._received[size : size + text + blob])
            del self._received[: size + text + blob]
            return wire.decode(whole[:text], whole[text:])
        except wire.TooLargeError as error:
            raise Exceeded("answer", str(error)) from None
        except wire.WireError as error:
            raise Exceeded("protocol", str(error)) from None

    def close_output(self) -> None:
        """Close the pipe."""
        if self.output >= 0:
            os.close(self.output)
            self.output = -1

    def close(self) -> None:
        """Close both."""
        self.socket.close()
        self.close_output()

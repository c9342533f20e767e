"""Non-blocking channel to one sandboxed rank: a socket for messages, a pipe for its output. No input is trusted."""

from __future__ import annotations

import os
import select
import socket
from typing import Any

from autograde.sandbox.inside import wire
from autograde.sandbox.limits import Exceeded
from course_lib.system.prefork import ForkedProcess

__all__ = ["RankChannel"]

CONFINED_SECONDS = 300.0  # a machine may be busy; a process that fails ends at once


class RankChannel:
    """A runner's process, its socket and its output pipe. Only `wait_until_confined` waits.

    Attributes
    ----------
    output : int
        Reading end of its output pipe; -1 once closed.
    process : ForkedProcess
        Its process id is that in the grader's process namespace.
    ended : bool
        It has ended, and all that it sent before has been received.
    """

    NOTHING = object()

    def __init__(self, channel: socket.socket, output: int, process: ForkedProcess) -> None:
        channel.setblocking(False)
        os.set_blocking(output, False)
        self.socket, self.output, self.process = channel, output, process
        self.ended = False
        self.unsent = bytearray()
        self._received = bytearray()

    def wait_until_confined(self, seconds: float = CONFINED_SECONDS) -> bool:
        """Wait until the process has given up its privileges, before any student code. False if it could not."""
        readable, _, _ = select.select([self.socket], [], [], seconds)
        return bool(readable) and self.socket.recv(1) == wire.CONFINED

    def queue(self, data: bytes) -> None:
        """Append to the bytes to send."""
        self.unsent += data

    def send(self) -> None:
        """Send as much as the socket takes now."""
        try:
            sent = self.socket.send(self.unsent[: 1 << 20])
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.ended = True
            return
        del self.unsent[:sent]

    def receive(self, limit: int) -> None:
        """Read what has arrived, but at most `limit` bytes before a message is complete."""
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
        """The next whole message, or `NOTHING`. Raises `Exceeded`: it is too large, or not in the format."""
        size = wire.HEADER.size
        if len(self._received) < size:
            return self.NOTHING
        header = bytes(self._received[:size])
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
        """End the process, and close both."""
        self.process.kill()
        self.process.close()
        self.socket.close()
        self.close_output()

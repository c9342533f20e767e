"""Ports for users' servers: one for each, so that no two are given the same.

JupyterHub's own way asks the system for a free port, lets it go, and starts a server that takes it a second or two
later: meanwhile the system may give it to any other program. The ports here are below what the system gives away
(``ip_local_port_range``), and only the hub hands them out.
"""

import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


class NoPortError(RuntimeError):
    """Every port is taken; one line."""


class ServerPorts:
    """Who has which port. A server that starts again has the port it had, unless a program sits on it."""

    def __init__(self, end: int | None = None) -> None:
        """`end`: the first port that is no longer ours; by default where the system's own begin."""
        self.end = end or int(_RANGE.read_text().split()[0])
        self._ports: dict[str, int] = {}

    def of(self, server: str, first: int) -> int:
        """The port of `server`, at least `first`; nothing listens there.

        Raises
        ------
        NoPortError
            All of them are given out or taken.
        """
        port = self._ports.pop(server, None)
        given = set(self._ports.values())
        if port is None or not _is_free(port):
            ports = (one for one in range(first, self.end) if one not in given and one != port and _is_free(one))
            port = next(ports, None)
        if port is None:
            raise NoPortError(f"no port for {server} from {first} to {self.end - 1}; lower [network] server_ports")
        self._ports[server] = port
        return port


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server will: past connections do not count
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True

"""Which addresses are this machine's."""

from __future__ import annotations

import contextlib
import socket

__all__ = ["is_here", "source_address"]


def is_here(host: str) -> bool:
    """Whether `host` (name or address) is an address of this machine."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    for family, kind, protocol, _, address in found:
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
            return True
    return False


def source_address(host: str) -> str | None:
    """The address of this machine from which `host` is reached; None where there is no way."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # sends nothing
            return probe.getsockname()[0]
    except OSError:
        return None

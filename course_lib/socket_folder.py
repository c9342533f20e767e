"""Where temporary Unix sockets lie: the kernel takes paths of 107 bytes at most, and some sites' $TMPDIR is long."""

from __future__ import annotations

import tempfile

__all__ = ["socket_folder"]

_ROOM = 60  # bytes that are left for what is below the temporary folder


def socket_folder() -> str:
    """The folder to make temporary socket folders in: the system's temporary one, or ``/tmp`` where that is too long."""
    usual = tempfile.gettempdir()
    return usual if len(usual.encode()) <= 107 - _ROOM else "/tmp"

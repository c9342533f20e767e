"""The demo's Unix accounts: made for it, marked as its own, and removed with all they have.

Only an account whose comment field holds the mark is ever changed, ended or removed.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

__all__ = ["AccountError", "end_processes", "make", "names_made", "remove", "set_password"]

MARK = "course hub demo"


class AccountError(RuntimeError):
    """An account cannot be made or removed; one line."""


def make(name: str, homes: Path) -> pwd.struct_passwd:
    """An account that nobody can sign in to yet, with a home (0700) below `homes`.

    Raises
    ------
    AccountError
        There is an account of that name that is not the demo's.
    """
    with contextlib.suppress(KeyError):
        account = pwd.getpwnam(name)
        if account.pw_gecos != MARK:
            raise AccountError(f"there is an account {name} that is not the demo's; choose another --prefix")
        return account
    homes.mkdir(parents=True, exist_ok=True)
    home = homes / name
    _run(
        "useradd", "--create-home", "--home-dir", home, "--shell", "/bin/bash", "--user-group", "--comment", MARK, name
    )
    home.chmod(0o700)
    return pwd.getpwnam(name)


def set_password(name: str) -> str:
    """A new random password."""
    password = secrets.token_urlsafe(9)
    _run("chpasswd", told=f"{name}:{password}\n")
    return password


def names_made(prefix: str) -> list[str]:
    """The demo's accounts whose names begin with `prefix`."""
    return [one.pw_name for one in pwd.getpwall() if one.pw_gecos == MARK and one.pw_name.startswith(prefix)]


def end_processes(names: Iterable[str], seconds: float = 5.0) -> None:
    """End every process of the demo's accounts: asked first, killed after `seconds`."""
    wanted = {one.pw_uid for one in pwd.getpwall() if one.pw_gecos == MARK and one.pw_name in set(names)}
    end = time.monotonic() + seconds
    while running := _processes(wanted):
        for pid in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM if time.monotonic() < end else signal.SIGKILL)
        if time.monotonic() > end + 10:
            raise AccountError(f"processes {sorted(running)} of the demo's accounts do not end")
        time.sleep(0.2)


def remove(names: Iterable[str]) -> None:
    """Remove accounts, their processes and homes."""
    names = list(names)
    end_processes(names)
    for name in names:
        if pwd.getpwnam(name).pw_gecos == MARK:
            _run("userdel", "--remove", name)


def _processes(uids: set[int]) -> set[int]:
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
                if int(status["Uid"].split()[0]) in uids and status["State"].split()[0] != "Z":
                    found.add(int(folder.name))
    return found


def _run(*command: object, told: str | None = None) -> None:
    done = subprocess.run([str(word) for word in command], input=told, capture_output=True, text=True)
    if done.returncode:
        raise AccountError(f"{command[0]}: {' '.join(done.stderr.split())}")

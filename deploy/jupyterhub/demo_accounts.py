"""The demo's Unix accounts: made for it, marked as its own, and removed with all they have.

Only an account whose comment field holds the mark is ever changed, ended or removed.
"""

import contextlib
import os
import pwd
import secrets
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

MARK = "course hub demo"
FIRST_NUMBER = 40_000  # useradd would take 1000, as containers do whose processes this machine shows


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
    where = ("--uid", _unused_number(), "--create-home", "--home-dir", home, "--shell", "/bin/bash")
    _run("useradd", *where, "--user-group", "--comment", MARK, name)
    home.chmod(0o700)
    return pwd.getpwnam(name)


def _unused_number() -> int:
    """A user's number that no account and no process has, and that containers seldom take.

    A process in a container, or of an account that was removed, would otherwise be taken for the demo's, and ended.
    """
    taken = {account.pw_uid for account in pwd.getpwall()}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                taken.add(folder.stat().st_uid)
    return next(number for number in range(FIRST_NUMBER, 60_000) if number not in taken)


def set_password(name: str) -> str:
    """A new random password."""
    password = secrets.token_urlsafe(9)
    _run("chpasswd", stdin=f"{name}:{password}\n")
    return password


def names_made(prefix: str) -> list[str]:
    """The demo's accounts whose names begin with `prefix`."""
    return [one.pw_name for one in pwd.getpwall() if one.pw_gecos == MARK and one.pw_name.startswith(prefix)]


def end_processes(names: Iterable[str], seconds: float = 5.0, timeout: float = 60.0) -> None:
    """End every process of the demo's accounts: asked once, after `seconds` killed.

    Raises
    ------
    AccountError
        One is still there after `timeout` more seconds; the line says which, and in what state.
    """
    wanted = {one.pw_uid for one in pwd.getpwall() if one.pw_gecos == MARK and one.pw_name in set(names)}
    for uid in wanted:
        _signal_all(uid, signal.SIGTERM)
    end = time.monotonic() + seconds
    while (running := of_users(wanted)) and time.monotonic() < end:
        time.sleep(0.1)
    while running:
        # Again and again: a hub that is still there starts its service anew, a kernel's server the kernel.
        for uid in wanted:
            _signal_all(uid, signal.SIGKILL)
        if time.monotonic() > end + timeout:
            raise AccountError(f"processes of the demo's accounts do not end: {'; '.join(running.values())}")
        time.sleep(0.2)
        running = of_users(wanted)


def remove(names: Iterable[str]) -> None:
    """Remove accounts, their processes and homes."""
    names = list(names)
    end_processes(names)
    for name in names:
        if pwd.getpwnam(name).pw_gecos == MARK:
            _run("userdel", "--remove", name)


def of_users(uids: set[int]) -> dict[int, str]:
    """The living processes of some users, by number: each in some words. What waits for its parent has ended."""
    living = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                status = _status(folder / "status")
                if int(status["Uid"].split()[0]) in uids:
                    # A thread may continue when the first one has ended.
                    states = {_status(one)["State"].strip() for one in folder.glob("task/*/status")}
                    if running := sorted(one for one in states if one[0] not in "ZX"):
                        living[int(folder.name)] = f"{folder.name} {status['Name'].strip()}, {', '.join(running)}"
    return living


def _status(file: Path) -> dict[str, str]:
    return dict(line.split(":", 1) for line in file.read_text().splitlines())


def _signal_all(uid: int, number: int) -> None:
    """Signal all that a user runs, in one step of the kernel's: none is born or gone between looking and signalling."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(OSError):
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            os.kill(-1, number)  # all that this user may signal, and not the one who does
        os._exit(0)
    os.waitpid(child, 0)


def _run(*command: object, stdin: str | None = None) -> None:
    done = subprocess.run([str(word) for word in command], input=stdin, capture_output=True, text=True)
    if done.returncode:
        raise AccountError(f"{command[0]}: {' '.join(done.stderr.split())}")

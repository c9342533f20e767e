"""A hub on this machine, to try everything in a browser: `make hub`; `make hub-clean` takes it away again.

It installs (hub_install.py), makes four Unix accounts (an instructor, two students, and the course's own), gives the course
to its account, releases lab 01 and starts JupyterHub on loopback. Ctrl-C ends all of it; the accounts and what is in
their homes stay for the next start, until `make hub-clean`.
"""

import argparse
import contextlib
import fcntl
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import demo_accounts as accounts
import hub_install as install
from demo_class import Demo, DemoError, prepare, read_toml, reason_in_log, to_toml
from hub_process import MARK, HubProcess, end_marked


def serve(demo: Demo, passwords: dict[str, str], port: int, say=print) -> int:
    """Start the hub, print its address, and stay until it ends or a signal comes; returns the exit code."""
    end_leftovers(demo)
    site = demo.private / "site.toml"
    ports = free_ports(port, demo.ports())
    site.touch()
    site.chmod(0o600)  # it may hold a secret
    site.write_text(to_toml(demo.site(ports)))
    log = demo.private / "hub.log"
    hub = demo.hub / "hub/bin"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("JUPYTER", "PYTHON"))},
        "PATH": f"{hub}:{os.environ.get('PATH', os.defpath)}",
        "COURSE_HUB_SITE": str(site),
        MARK: str(demo.state),
    }
    stopped = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: stopped.append(number))
    command = [hub / "jupyterhub", "--config", demo.hub / "deploy/jupyterhub_config.py"]
    process = HubProcess(command, demo.private, environment, log)
    address = f"http://127.0.0.1:{ports[0]}/"
    try:
        deadline = time.monotonic() + 360  # more than the server that grades may take (jupyterhub_config.py)
        while not stopped and process.runs() and not answers(f"{address}hub/health"):
            if time.monotonic() > deadline:
                raise DemoError(f"the hub does not answer at {address}; see {log}")
            time.sleep(0.3)
        if not stopped and process.runs():
            say(f"\nJupyterHub: {address}")
            for name, password in passwords.items():
                say(f"  {name:<12} {password}   {'instructor' if name == demo.names[1] else 'student'}")
            say(f"log: {log}\nCtrl-C ends it; `make hub-clean` removes accounts, homes and submissions")
        while not stopped and process.runs():
            time.sleep(0.2)
        if not stopped:
            raise DemoError(f"the hub ended: {reason_in_log(log.read_text(errors='replace'))}; all of it is in {log}")
    finally:
        process.end()
        accounts.end_processes(demo.names[:1] if demo.has_jobs() else demo.names)
    return 0


@contextlib.contextmanager
def only_one(demo: Demo):
    """Keep two demos, or a demo and its removal, out of one folder.

    Raises
    ------
    DemoError
        One is running.
    """
    demo.state.mkdir(parents=True, exist_ok=True)
    with (demo.state / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DemoError(f"a hub is running on {demo.state}; end it first (Ctrl-C where it was started)") from None
        yield


def end_leftovers(demo: Demo) -> None:
    """What is there of a hub that was killed together with its starter; jobs of Slurm stay."""
    end_marked(str(demo.state))
    accounts.end_processes(demo.names[:1] if demo.has_jobs() else demo.names)


def clean(demo: Demo, say=print) -> None:
    """Remove the demo's accounts, homes, exchange, data and secrets. What was installed stays."""
    end_marked(str(demo.state))
    homes = demo.state / "homes"  # whatever number of students there was
    names = [name for name in accounts.names_made(demo.prefix) if Path(pwd.getpwnam(name).pw_dir).parent == homes]
    if demo.has_jobs() and shutil.which("scancel"):
        for name in names:
            subprocess.run(["scancel", "--quiet", f"--user={name}"], capture_output=True)
    accounts.remove(names)
    shutil.rmtree(demo.state, ignore_errors=True)
    say(f"removed: {', '.join(names) or 'no account'}, {demo.state}; what was installed is in {demo.hub}")


def free_ports(first: int, before: list[int]) -> list[int]:
    """Four ports of loopback that are free now: the first as asked for (0: any), all if possible those of `before`.

    A job that runs while the hub is restarted knows one port of the hub's: the old one.
    """
    with contextlib.ExitStack() as held:
        found = []
        for wanted, last in zip((first, 0, 0, 0), before, strict=True):
            for number in (wanted,) if wanted else (last, 0):
                one = held.enter_context(socket.socket())
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    one.bind(("127.0.0.1", number))
                    break
                except OSError as error:
                    if wanted:
                        message = f"port {wanted}: {error.strerror}; make hub HUB_PORT=0 takes a free one"
                        raise DemoError(message) from None
            found.append(one.getsockname()[1])
    return found


def answers(address: str) -> bool:
    """Whether an address answers with success."""
    with contextlib.suppress(OSError, urllib.error.URLError):
        return urllib.request.urlopen(address, timeout=2).status == 200
    return False


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--port", type=int, default=8000, help="of the hub; 0: any that is free (default: %(default)s)")
    parser.add_argument("--hub", type=Path, default=Demo.hub, help="where to install (default: %(default)s)")
    parser.add_argument(
        "--state", type=Path, default=Demo.state, help="homes, exchange, secrets (default: %(default)s)"
    )
    parser.add_argument("--prefix", default=Demo.prefix, help="of the accounts' names (default: %(default)s)")
    parser.add_argument("--students", type=int, default=Demo.students, help="how many there are (default: %(default)s)")
    settings = "a site's file whose settings replace the demo's; site.example.toml has them all"
    parser.add_argument("--settings", type=Path, help=settings)
    parser.add_argument("--clean", action="store_true", help="remove accounts, homes, exchange and secrets, and end")
    options = parser.parse_args(arguments)
    if os.geteuid() != 0:
        need = "each student needs a Unix account of their own here, which only root can make: sudo make hub"
        print(f"error: {need}", file=sys.stderr)
        return 1
    if options.students < 1:
        parser.error("--students: at least 1")
    try:
        settings = read_toml(options.settings) if options.settings else {}
        demo = Demo(options.hub.resolve(), options.state.resolve(), options.prefix, options.students, settings)
        with only_one(demo):
            if options.clean:
                clean(demo)
                return 0
            return serve(demo, prepare(demo), options.port)
    except (DemoError, install.InstallError, accounts.AccountError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())

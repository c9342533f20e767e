"""The hub of `make hub`, started for the tests with accounts, folders and ports of its own."""

import contextlib
import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
READY = "Ctrl-C ends it"


class RunningHub:
    """`make hub`, until `stop`. ``passwords`` has the demo's accounts; ``student_a`` and the like are their names."""

    def __init__(self, seconds: float = 900, students: int = 2, settings: str = "") -> None:
        self.state = Path(tempfile.mkdtemp(prefix="hub-test-"))
        self.state.chmod(0o755)
        self.prefix = f"t{secrets.token_hex(2)}-"
        self.arguments = f"--state {self.state} --prefix {self.prefix} --students {students}"
        if settings:
            (self.state / "settings.toml").write_text(settings)
            self.arguments += f" --settings {self.state / 'settings.toml'}"
        self.keeps_jobs = "slurm" in settings
        self.course, self.instructor, self.student_a, self.student_b = (
            f"{self.prefix}{who}" for who in ("course", "grace", "ada", "ben")
        )
        self.start(seconds)

    def start(self, seconds: float = 900) -> None:
        """`make hub`; again, after it has ended, on the same state."""
        self.said: list[str] = []
        self._process = subprocess.Popen(
            ["make", "--no-print-directory", "hub", "HUB_PORT=0", f"HUB_ARGUMENTS={self.arguments}"],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, args=(self._process, self.said), daemon=True)
        self._reader.start()
        end = time.monotonic() + seconds
        while not any(READY in line for line in self.said):
            if self._process.poll() is not None or time.monotonic() > end:
                self.stop()
                raise RuntimeError("make hub did not start:\n" + "".join(self.said[-20:]))
            time.sleep(0.2)
        text = "".join(self.said)
        self.address = re.search(r"http://127\.0\.0\.1:\d+", text)[0]
        self.passwords = dict(re.findall(rf"^  ({self.prefix}\w+) +(\S+) ", text, re.M))

    @staticmethod
    def _read(process: subprocess.Popen, said: list[str]) -> None:
        with contextlib.suppress(ValueError):  # closed meanwhile
            for line in process.stdout:
                said.append(line)

    def home(self, name: str) -> Path:
        """An account's home folder."""
        return Path(pwd.getpwnam(name).pw_dir)

    repository = ROOT

    @property
    def checkout(self) -> Path:
        """The course's checkout."""
        return self.home(self.course) / "distributed-training"

    def wait_for_file(self, path: Path, seconds: float) -> None:
        """Until a file is there and holds something."""
        end = time.monotonic() + seconds
        while not (path.exists() and path.stat().st_size):
            if time.monotonic() > end:
                raise TimeoutError(f"no {path} after {seconds:g} s")
            time.sleep(0.2)

    def interrupt(self) -> int:
        """Ctrl-C; the exit code."""
        os.killpg(self._process.pid, signal.SIGINT)
        return self._process.wait(90)

    def wait(self, seconds: float) -> int:
        """Until `make hub` ends by itself; the exit code."""
        code = self._process.wait(seconds)
        self._reader.join(10)
        return code

    def processes(self) -> dict[int, str]:
        """The command lines of all that belongs to this hub and lives: by account, folder, or the hub's mark."""
        mark = f"COURSE_HUB_DEMO={self.state}".encode()
        found = {}
        for one in psutil.process_iter(["pid", "username", "cmdline", "status"]):
            with contextlib.suppress(OSError):
                marked = mark in Path(f"/proc/{one.pid}/environ").read_bytes().split(b"\0")
                if self._is_ours(one.info) or (marked and one.info["status"] != psutil.STATUS_ZOMBIE):
                    found[one.pid] = " ".join(one.info["cmdline"] or ())
        return found

    def process_of_hub(self) -> psutil.Process:
        """JupyterHub itself, of which `make hub` is the ancestor."""
        below = psutil.Process(self._process.pid).children(recursive=True)
        [hub] = [one for one in below if "--config" in one.cmdline() and "jupyterhub_config.py" in one.cmdline()[-1]]
        return hub

    def stop(self) -> None:
        """Ctrl-C, then what `make hub-clean` does; nothing of it may be left."""
        code = self.interrupt() if self._process.poll() is None else 0
        running = {} if self.keeps_jobs else self.processes()
        self.clean()
        assert code in (0, -signal.SIGINT), f"make hub ended with {code} after Ctrl-C: {self.said[-3:]}"
        assert not running, running

    def clean(self) -> None:
        """`make hub-clean`."""
        clean = ["make", "--no-print-directory", "hub-clean", f"HUB_ARGUMENTS={self.arguments}"]
        done = subprocess.run(clean, cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert [one.pw_name for one in pwd.getpwall() if one.pw_name.startswith(self.prefix)] == []
        assert not self.state.exists()
        assert self.processes() == {}

    def _is_ours(self, process: dict) -> bool:
        line = " ".join(process["cmdline"] or ())
        if process["status"] == psutil.STATUS_ZOMBIE:  # it has ended, and waits for the machine's init to notice
            return False
        return (process["username"] or "").startswith(self.prefix) or str(self.state) in line


def missing() -> str | None:
    """What this machine lacks for a hub, in a line; None where it has all."""
    if os.geteuid() != 0:
        return "needs root, which makes the demo's accounts"
    for program, package in (("npm", "nodejs npm"), ("useradd", "passwd"), ("runuser", "util-linux")):
        if shutil.which(program) is None:
            return f"needs {program} (Debian: apt-get install {package})"
    return None

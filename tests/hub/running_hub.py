"""The hub of `make hub`, started for the tests with accounts, folders and ports of its own."""

from __future__ import annotations

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

    def __init__(self, seconds: float = 900) -> None:
        self.state = Path(tempfile.mkdtemp(prefix="hub-test-"))
        self.state.chmod(0o755)
        self.prefix = f"t{secrets.token_hex(2)}-"
        self.arguments = f"--state {self.state} --prefix {self.prefix}"
        self.said: list[str] = []
        self._process = subprocess.Popen(
            ["make", "--no-print-directory", "hub", "HUB_PORT=0", f"HUB_ARGUMENTS={self.arguments}"],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        reader = threading.Thread(target=self._read, daemon=True)
        reader.start()
        end = time.monotonic() + seconds
        while not any(READY in line for line in self.said):
            if self._process.poll() is not None or time.monotonic() > end:
                self.stop()
                raise RuntimeError("make hub did not start:\n" + "".join(self.said[-20:]))
            time.sleep(0.2)
        text = "".join(self.said)
        self.address = re.search(r"http://127\.0\.0\.1:\d+", text)[0]
        self.passwords = dict(re.findall(rf"^  ({self.prefix}\w+) +(\S+) ", text, re.M))
        self.course, self.instructor, self.student_a, self.student_b = (
            f"{self.prefix}{who}" for who in ("course", "grace", "ada", "ben")
        )

    def _read(self) -> None:
        for line in self._process.stdout:
            self.said.append(line)

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

    def stop(self) -> None:
        """Ctrl-C, then what `make hub-clean` does; nothing of it may be left."""
        code = self.interrupt() if self._process.poll() is None else 0
        running = [one.info for one in psutil.process_iter(["username", "cmdline"]) if self._is_ours(one.info)]
        clean = ["make", "--no-print-directory", "hub-clean", f"HUB_ARGUMENTS={self.arguments}"]
        done = subprocess.run(clean, cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert code in (0, -signal.SIGINT), f"make hub ended with {code} after Ctrl-C: {self.said[-3:]}"
        assert running == []
        assert [one.pw_name for one in pwd.getpwall() if one.pw_name.startswith(self.prefix)] == []
        assert not self.state.exists()

    def _is_ours(self, process: dict) -> bool:
        line = " ".join(process["cmdline"] or ())
        return (process["username"] or "").startswith(self.prefix) or str(self.state) in line


def missing() -> str | None:
    """What this machine lacks for a hub, in a line; None where it has all."""
    if os.geteuid() != 0:
        return "needs root, which makes the demo's accounts"
    for program, package in (("npm", "nodejs npm"), ("useradd", "passwd"), ("runuser", "util-linux")):
        if shutil.which(program) is None:
            return f"needs {program} (Debian: apt-get install {package})"
    return None

"""What a student tries in a terminal. Reads probe.json, writes said.part: what was possible and should not be."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

closed, places, unwritable, pids, course = json.loads(Path("probe.json").read_text())
OF_THE_GRADER = ("autograde", "rubrics", "gradebook.db", "grading_secret", "cookie_secret", "site.toml")
OWN_OF_NBGRADER = "/site-packages/nbgrader/tests/apps/files"  # its package ships a gradebook for its tests
possible = []


def attempt(what, act, *arguments):
    try:
        found = act(*arguments)
    except (OSError, subprocess.SubprocessError, ImportError):
        return
    possible.append(f"{what}: {str(found)[:200]}")


def look(path):
    if os.path.isdir(path):
        return os.listdir(path) or os.stat("/nothing/there")  # an empty folder tells nothing
    return Path(path).read_bytes()[:20]


def make(path):
    (Path(path) / "mine").write_text("x")
    return "written"


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=30).stdout


for path in closed:
    attempt(f"read {path}", look, path)
for path in unwritable:
    attempt(f"write into {path}", make, path)
    attempt(f"rename {path}", os.rename, path, path + "-gone")
for pid in pids:
    attempt(f"environment of {pid}", look, f"/proc/{pid}/environ")
    attempt(f"signal {pid}", os.kill, pid, signal.SIGURG)
    attempt(f"what {pid} sees", look, f"/proc/{pid}/root/root")
attempt("import autograde", __import__, "autograde")
attempt("lab grade", run, "lab", "grade", "--help")
attempt("become the course", run, "su", "-c", "id", course)
attempt("uncover what is hidden", run, "umount", places[-1])
# Whatever can be reached below these places and belongs to the grader's side.
for place in places:
    for folder, folders, files in os.walk(place):
        for name in [*folders, *files]:
            path = os.path.join(folder, name)
            if name in OF_THE_GRADER and not folder.endswith(OWN_OF_NBGRADER):
                attempt(f"reach {path}", look, path)
            elif name.endswith(".ipynb") and os.access(path, os.R_OK):
                text = Path(path).read_bytes()
                if b"BEGIN SOLUTION" in text and b"course_lib" in text:  # nbgrader ships notebooks of its own
                    possible.append(f"source notebook {path}")
token = os.environ["JUPYTERHUB_API_TOKEN"]
Path("said.part").write_text(json.dumps({"possible": possible, "token": token, "python": sys.executable}))

"""The demo's last words: commands that work."""

import runpy
import shlex
import subprocess
import sys
from pathlib import Path


def test_the_demo_ends_with_commands_that_exist(tmp_path):
    """What the demo says to try next is a target of the Makefile, or a command that runs."""
    root = Path(__file__).resolve()
    while not (root / "demo.py").exists():
        root = root.parent
    namespace = runpy.run_path(str(root / "demo.py"), run_name="demo")
    for line in namespace["NEXT"]:
        words = shlex.split(line, comments=True)
        if words[0] == "make":
            assert f"\n{words[1]}:" in (root / "Makefile").read_text()
        else:
            command = [str(Path(sys.executable).parent / Path(words[0]).name), *words[1:]]
            done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300)
            # `lab doctor` ends with 1 where this machine lacks something, and says what
            assert done.returncode == 0 or (words[1] == "doctor" and "Traceback" not in done.stderr and done.stdout), done

"""Processes of `multiprocessing` that do not run the main script again: a script needs no guard."""

import subprocess
import sys

SCRIPT = """
import math, sys
from course_lib.system.main_script import SpawnWithoutMainScript

print("the script runs", flush=True)
main = sys.modules["__main__"]
process = SpawnWithoutMainScript().Process(target=math.sqrt, args=(4,))
process.start()
process.join()
print(process.exitcode, sys.modules["__main__"] is main)
"""


def test_a_script_without_a_guard_runs_once(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "the script runs\n0 True\n", done.stdout + done.stderr

"""Processes that do not run the main script again: a script needs no guard, whatever it starts."""

import subprocess
import sys

import pytest

PROCESS = """
import math, sys
from course_lib.system.main_script import ForkServerWithoutMainScript
main = sys.modules["__main__"]
process = ForkServerWithoutMainScript().Process(target=math.sqrt, args=(4,))
process.start()
process.join()
print(process.exitcode, sys.modules["__main__"] is main)
"""
GRADING = """
import operator
from autograde.batch import pool
pool.open_context, pool.grade_one = operator.is_, max  # both need nothing
print([finished.verdict for finished in pool.run_local("a", ["b"], 1, 300.0)])
"""


@pytest.mark.parametrize("code, printed", [(PROCESS, "0 True"), (GRADING, "['b']")], ids=["process", "grading"])
def test_a_script_without_a_guard_runs_once(code, printed, tmp_path):
    (tmp_path / "script.py").write_text(f'print("the script runs", flush=True)\n{code}')
    with subprocess.Popen([sys.executable, "script.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        lines = [process.stdout.readline(), process.stdout.readline()]
        process.terminate()  # it may start itself again for ever
    assert lines == ["the script runs\n", f"{printed}\n"]

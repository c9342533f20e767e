"""Where Python's fork server finds its modules and its socket, and what its processes do not share."""

import os
import subprocess
import sys

import numpy
import pytest

from course_lib.distributed import launch

SCRIPT = """
from autograde.batch.worker_server import start_worker_server
from course_lib.system.main_script import ForkServerWithoutMainScript

start_worker_server()
process = ForkServerWithoutMainScript().Process(target=exec, args=({source!r}, {{}}))
process.start()
process.join()
assert process.exitcode == 0
"""
SOURCE = """
import os, sys
assert "PYTHONSAFEPATH" not in os.environ
print("autograde.batch.worker" in sys.modules, flush=True)
"""


@pytest.mark.parametrize("temporary", ["tmp", "t" * 90])
def test_nothing_comes_from_the_current_folder_and_a_socket_fits(tmp_path, temporary):
    for name in ("torch", "nbformat", "psutil", "multiprocessing"):
        (tmp_path / f"{name}.py").write_text(f"open('{name}-executed', 'w')\nraise SystemExit\n")
    (tmp_path / temporary).mkdir()
    done = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT.format(source=SOURCE)], cwd=tmp_path, capture_output=True, text=True,
        env=os.environ | {"TMPDIR": str(tmp_path / temporary)},
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout == "True\n", done.stderr
    assert not list(tmp_path.glob("*-executed"))


def test_ranks_draw_other_numbers_in_each_launch():
    def draw():
        return numpy.random.random()

    assert len({*launch(draw, 2), *launch(draw, 2)}) == 4

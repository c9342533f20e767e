"""`deploy/slurm/`'s scripts as real jobs on a one-machine cluster: a lab, a program that fails, data, a class."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_slurm_grading import LAB, gradebook, lay_out

from autograde.sandbox.bubblewrap import missing_sandbox

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

REPOSITORY = Path(__file__).parents[2]
COMMAND = str(Path(sys.executable).with_name("lab"))
FAILS = """
import os, signal, time
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(60)
"""


@pytest.fixture
def job(slurm, tmp_path):
    """Submits a script and waits for its end; (exit code, what it printed)."""

    def run(script, *words, options=(), cwd=tmp_path, **variables):
        output = tmp_path / f"{script}.out"
        given = {"PYTHON": sys.executable, "LAB": COMMAND, "RANKS_PER_NODE": "2"} | variables
        # The job's own limit is shorter than that of sbatch: Slurm ends it, and its output says where it was.
        done = subprocess.run(
            ["sbatch", "--wait", f"--chdir={cwd}", f"--output={output}", "--cpus-per-task=2", "--time=30",
             *options, REPOSITORY / "deploy" / "slurm" / script, *words],
            env=os.environ | given, capture_output=True, text=True, timeout=2000,
        )  # fmt: skip
        return done.returncode, output.read_text() if output.exists() else done.stderr

    return run


def test_a_lab_runs_into_the_folder_that_was_asked_for(job, tmp_path):
    code, told = job("lab.sbatch", "01", "--profile", "smoke", "-o", str(tmp_path / "run"), cwd=REPOSITORY,
                     options=["--gpus-per-node=0"])  # fmt: skip
    assert code == 0, told
    assert json.loads((tmp_path / "run" / "run.json").read_text())["lab"] == "01_single_gpu"


def test_a_rank_that_is_killed_ends_the_job_with_its_name(job, tmp_path):
    (tmp_path / "program.py").write_text(FAILS)
    code, told = job("train.sbatch", "program.py", options=["--gpus-per-node=0"])
    assert code == 1, told
    assert re.search(r"rank +: 1 \(local_rank: 1\)\n.*exitcode +: -9 .*\n.*\n.*Signal 9 \(SIGKILL\) received", told), (
        told
    )


def test_data_sets_are_staged_by_a_job(job, tmp_path):
    shared = tmp_path / "shared" / "data"
    code, told = job("stage_data.sbatch", "fashion-mnist-small", LAB_DATA=str(shared))
    assert code == 0, told
    assert (shared / "fashion-mnist-small" / "dataset.json").exists() and "fashion-mnist-small" in told
    labels = shared / "fashion-mnist-small" / "test_labels.npy"
    right = labels.read_bytes()
    labels.write_bytes(b"broken")
    assert job("stage_data.sbatch", "fashion-mnist-small", LAB_DATA=str(shared))[0] == 0
    assert labels.read_bytes() == right
    assert job("stage_data.sbatch", "no-such-set", LAB_DATA=str(shared))[0] != 0


def test_a_class_is_graded_in_one_job(job, tmp_path):
    if why := missing_sandbox():
        pytest.skip(why)
    course = lay_out(tmp_path / "repository", ("ada", "gus"))
    code, told = job("grade.sbatch", "1", "--course", str(course), cwd=course.parent)
    assert code == 0, told
    scores = {student: 0.0 for student in ("ada", "gus")}
    for (student, *cell), found in gradebook(course).items():
        if len(cell) == 1 and cell != ["flags"]:
            scores[student] += found[0] or 0.0
    assert scores["ada"] > 10 > scores["gus"], (LAB, scores, told)

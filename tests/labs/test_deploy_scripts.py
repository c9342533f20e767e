"""`deploy/pbs/homework.pbs` beside stand-ins for PBS's commands; tests/slurm has the Slurm script on a real cluster."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[2] / "deploy"
PROGRAM = """
import os, sys, time
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "threads", os.environ["OMP_NUM_THREADS"], *sys.argv[1:], flush=True)
time.sleep(float(sys.argv[1]))
sys.exit(int(sys.argv[2]))
"""


def stand_in(folder, name, text):
    path = folder / name
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def pbs(tmp_path):
    """Runs the PBS script as a job would be run; ``submitted`` is what it gave qsub."""
    (tmp_path / "program.py").write_text(PROGRAM)
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    stand_in(bin_folder, "qsub", f'printf "%s\\n" "$@" "PROGRAM=$PROGRAM" "OPTIONS=$OPTIONS" > {tmp_path}/submitted')
    stand_in(bin_folder, "nvidia-smi", "exit 1")

    def run(**variables):
        environment = {
            **os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", "PYTHON": sys.executable,
            "PBS_O_WORKDIR": str(tmp_path), "PBS_JOBID": "1234.server", **variables,
        }  # fmt: skip
        return subprocess.run(
            ["bash", DEPLOY / "pbs" / "homework.pbs"], env=environment, capture_output=True, text=True, timeout=120
        )

    run.folder, run.bin = tmp_path, bin_folder
    return run


def test_a_job_runs_its_ranks_and_passes_their_exit_code_on(pbs):
    done = pbs(PROGRAM="program.py", OPTIONS="0 0 --epochs 3", RANKS_PER_NODE="2", NCPUS="4")
    assert done.returncode == 0, done.stderr
    lines = sorted(line for line in done.stdout.splitlines() if line.startswith("rank"))
    assert lines == [f"rank {rank} of 2 threads 2 0 0 --epochs 3" for rank in range(2)]
    assert not (pbs.folder / "submitted").exists()


def test_before_the_wall_time_it_is_submitted_again(pbs):
    stand_in(pbs.bin, "python", "exec sleep 60")
    done = pbs(PROGRAM="program.py", OPTIONS="60 0", SECONDS_TO_RUN="0.5", MINUTES="30", PYTHON="python")
    assert done.returncode == 0, done.stderr
    assert "submitting the job again" in done.stdout
    submitted = (pbs.folder / "submitted").read_text().splitlines()
    assert submitted == [
        "-v", "PROGRAM,OPTIONS,MINUTES=30,RANKS_PER_NODE=1,SCRIPT=deploy/pbs/homework.pbs", "deploy/pbs/homework.pbs",
        "PROGRAM=program.py", "OPTIONS=60 0",
    ]  # fmt: skip


def test_a_failure_is_not_submitted_again(pbs):
    stand_in(pbs.bin, "python", "exit 3")
    assert pbs(PROGRAM="program.py", OPTIONS="0 3", PYTHON="python").returncode == 3
    assert not (pbs.folder / "submitted").exists()


@pytest.mark.slow
def test_two_nodes_meet(pbs):
    """Two agents on one machine stand for two nodes; the launcher's stand-in starts both."""
    (pbs.folder / "nodes").write_text("127.0.0.1\n127.0.0.2\n127.0.0.1\n")
    stand_in(pbs.bin, "mpiexec", 'shift 4; "$@" & "$@"; code=$?; wait $! && exit $code')
    done = pbs(PROGRAM="program.py", OPTIONS="0 0", PBS_NODEFILE=str(pbs.folder / "nodes"))
    assert done.returncode == 0, done.stderr
    lines = sorted(line for line in done.stdout.splitlines() if line.startswith("rank"))
    assert lines == [f"rank {rank} of 2 threads 1 0 0" for rank in range(2)]


@pytest.mark.parametrize("script", ["pbs/homework.pbs", "slurm/homework.sbatch"])
def test_without_a_program_the_job_says_what_is_missing(script):
    environment = {name: value for name, value in os.environ.items() if name != "PROGRAM"}
    done = subprocess.run(["bash", DEPLOY / script], env=environment, capture_output=True, text=True, cwd=DEPLOY)
    assert done.returncode != 0 and "which program?" in done.stderr


@pytest.mark.parametrize("script", ["pbs/homework.pbs", "slurm/homework.sbatch"])
def test_the_scripts_are_bash(script):
    assert subprocess.run(["bash", "-n", DEPLOY / script]).returncode == 0

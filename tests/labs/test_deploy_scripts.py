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
        "-l", "walltime=1800",
        "-v", "PROGRAM,OPTIONS,MINUTES=30,RANKS_PER_NODE=1,SCRIPT=deploy/pbs/homework.pbs,PYTHON",
        "deploy/pbs/homework.pbs", "PROGRAM=program.py", "OPTIONS=60 0",
    ]  # fmt: skip


@pytest.mark.parametrize("nodes", ["select=2:ncpus=8:ngpus=1", "nodes=2:ppn=16:xk"])
def test_the_next_job_has_the_first_one_s_nodes_and_wall_time_and_goes_on(pbs, nodes):
    key, _, value = nodes.partition("=")
    stand_in(pbs.bin, "python", "exec sleep 60")
    stand_in(
        pbs.bin, "qstat", f'[ "$*" = "-f 1234.server" ] && printf "Job Id: 1\\n    Resource_List.{key} = {value}\\n"'
    )
    given = {"SECONDS_TO_RUN": "0.5", "MINUTES": "120", "PYTHON": "python", "START": "mpirun -n 2"}
    assert pbs(PROGRAM="program.py", OPTIONS="60 --restart --seed 1", **given).returncode == 0
    submitted = (pbs.folder / "submitted").read_text().splitlines()
    assert submitted[:4] == ["-l", nodes, "-l", "walltime=7200"]
    assert submitted[5].endswith(",PYTHON,START") and submitted[-1] == "OPTIONS=60 --seed 1"


@pytest.mark.parametrize("code", [3, 137])
def test_a_failure_is_not_submitted_again(pbs, code):
    stand_in(pbs.bin, "python", f"exit {code}")
    assert pbs(PROGRAM="program.py", OPTIONS="0 3", PYTHON="python").returncode == code
    assert not (pbs.folder / "submitted").exists()


@pytest.mark.parametrize(("restarts", "options"), [("0", "--seed 1 --restart x"), ("1", "--seed 1 x")])
def test_a_slurm_job_that_is_queued_again_does_not_begin_again(tmp_path, restarts, options):
    stand_in(tmp_path, "srun", 'echo "$@"')
    environment = {
        **os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHON": "python", "SLURM_NNODES": "1",
        "SLURM_CPUS_PER_TASK": "8", "SLURM_GPUS_ON_NODE": "2", "SLURM_RESTART_COUNT": restarts,
    }  # fmt: skip
    script = [DEPLOY / "slurm" / "homework.sbatch", "program.py", "--seed", "1", "--restart", "x"]
    done = subprocess.run(["bash", *script], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == (
        f"--cpus-per-task=8 python -m torch.distributed.run --standalone --nproc-per-node=2 program.py {options}\n"
    ), done.stderr


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

"""The job scripts beside stand-ins for Slurm's, PBS's and the course's commands; tests/slurm has some on a real cluster."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[2] / "deploy"
PROGRAM = """
import os, sys, time
words = ["rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "threads", os.environ["OMP_NUM_THREADS"], *sys.argv[1:]]
os.write(1, (" ".join(words) + "\\n").encode())  # at once: two ranks write to one pipe
time.sleep(float(sys.argv[1]))
sys.exit(int(sys.argv[2]))
"""


def stand_in(folder, name, text):
    path = folder / name
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


def run_script(folder, script, words, **variables):
    """Run a script in `folder` as a job is run; what is in ``commands`` there comes before the machine's programs."""
    free = {"LAB", "LAB_DATA", "PYTHON", "PROGRAM", "OPTIONS", "NUMBER", "SETS", "MIRROR", "STAGE", "PBS_NODEFILE"}
    environment = {name: value for name, value in os.environ.items() if name not in free} | {
        "PATH": f"{folder / 'commands'}:{os.environ['PATH']}", "SLURM_JOB_ID": "12345", "PBS_JOBID": "1234.server",
        "PBS_O_WORKDIR": str(folder), "TMPDIR": str(folder), **variables,
    }  # fmt: skip
    command = ["bash", DEPLOY / script, *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, cwd=folder, timeout=1200)


@pytest.fixture
def pbs(tmp_path):
    """Runs the PBS script as a job would be run; ``submitted`` is what it gave qsub."""
    (tmp_path / "program.py").write_text(PROGRAM)
    commands = tmp_path / "commands"
    commands.mkdir()
    stand_in(commands, "qsub", f'printf "%s\\n" "$@" "PROGRAM=$PROGRAM" "OPTIONS=$OPTIONS" > {tmp_path}/submitted')
    stand_in(commands, "nvidia-smi", "exit 1")

    def run(**variables):
        return run_script(tmp_path, "pbs/train.pbs", (), **{"PYTHON": sys.executable, **variables})

    run.folder, run.bin = tmp_path, commands
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
        "-v", "PROGRAM,OPTIONS,MINUTES=30,RANKS_PER_NODE=1,SCRIPT=deploy/pbs/train.pbs,PYTHON",
        "deploy/pbs/train.pbs", "PROGRAM=program.py", "OPTIONS=60 0",
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


@pytest.mark.slow
def test_two_nodes_meet(pbs):
    """Two agents on one machine stand for two nodes; the launcher's stand-in starts both."""
    (pbs.folder / "nodes").write_text("127.0.0.1\n127.0.0.2\n127.0.0.1\n")
    stand_in(pbs.bin, "mpiexec", 'shift 4; "$@" & "$@"; code=$?; wait $! && exit $code')
    done = pbs(PROGRAM="program.py", OPTIONS="0 0", PBS_NODEFILE=str(pbs.folder / "nodes"))
    assert done.returncode == 0, done.stderr
    lines = sorted(line for line in done.stdout.splitlines() if line.startswith("rank"))
    assert lines == [f"rank {rank} of 2 threads 1 0 0" for rank in range(2)]


SCRIPTS = sorted(str(path.relative_to(DEPLOY)) for kind in ("slurm", "pbs") for path in (DEPLOY / kind).glob("*.*b*"))
ECHO = 'echo "$(basename "$0") $*"'


@pytest.fixture
def job(tmp_path):
    """Runs any of the scripts; ``lab``, ``python``, ``srun`` and ``mpiexec`` say how they are called and do no more."""
    commands = tmp_path / "commands"
    commands.mkdir()
    for name in ("lab", "python", "mpiexec"):
        stand_in(commands, name, ECHO)
    stand_in(commands, "srun", f'{ECHO}; while [[ $1 == -* ]]; do shift; done; "$@"')
    stand_in(commands, "scontrol", "printf 'node7\\nnode8\\n'")
    (tmp_path / "program.py").touch()

    def run(script, *words, code=0, **variables):
        done = run_script(tmp_path, script, words, **variables)
        assert done.returncode == code, done.stderr
        return (done.stderr if code else done.stdout).splitlines()

    run.folder = tmp_path
    return run


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_scripts_are_bash_and_their_options_stand_before_their_commands(script):
    assert subprocess.run(["bash", "-n", DEPLOY / script]).returncode == 0
    lines = (DEPLOY / script).read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
    assert not [line for line in lines[first:] if line.startswith(("#SBATCH", "#PBS"))]
    assert [line for line in lines[:first] if line.startswith(("#SBATCH", "#PBS"))]


def test_the_homework_s_scripts_are_those_for_any_program():
    assert (DEPLOY / "slurm" / "homework.sbatch").resolve() == DEPLOY / "slurm" / "train.sbatch"
    assert (DEPLOY / "pbs" / "homework.pbs").resolve() == DEPLOY / "pbs" / "train.pbs"


@pytest.mark.parametrize(
    "script, words, variables, told",
    [
        ("slurm/train.sbatch", [], {}, "which program?"),
        ("slurm/train.sbatch", ["absent.py"], {}, "no program absent.py in "),
        ("slurm/homework.sbatch", [], {}, "which program?"),
        ("slurm/mpi.sbatch", [], {}, "which program?"),
        ("slurm/mpi.sbatch", ["absent.py"], {}, "no program absent.py in "),
        ("slurm/lab.sbatch", [], {}, "which lab?"),
        ("slurm/lab.sbatch", ["--profile", "gpu"], {}, "which lab?"),
        ("slurm/lab.sbatch", ["01"], {"LAB_DATA": "/no/such"}, "LAB_DATA=/no/such is no folder; stage the data first"),
        ("slurm/stage_data.sbatch", [], {"LAB_DATA": "data"}, "which data sets?"),
        ("slurm/stage_data.sbatch", ["mnist"], {}, "where to? set LAB_DATA"),
        ("slurm/grade.sbatch", [], {}, "which lab?"),
        ("pbs/train.pbs", [], {}, "which program?"),
        ("pbs/train.pbs", [], {"PROGRAM": "absent.py"}, "no program absent.py in "),
        ("pbs/mpi.pbs", [], {}, "which program?"),
        ("pbs/mpi.pbs", [], {"PROGRAM": "absent.py"}, "no program absent.py in "),
        ("pbs/lab.pbs", [], {}, "which lab?"),
        ("pbs/lab.pbs", [], {"NUMBER": "01", "LAB_DATA": "/no/such"}, "LAB_DATA=/no/such is no folder"),
        ("pbs/stage_data.pbs", [], {"LAB_DATA": "data"}, "which data sets?"),
        ("pbs/stage_data.pbs", [], {"SETS": "mnist"}, "where to? set LAB_DATA"),
        ("pbs/grade.pbs", [], {}, "which lab?"),
    ],
)
def test_what_is_missing_is_told_in_a_line(job, script, words, variables, told):
    (line,) = job(script, *words, code=2, **variables)
    assert told in line


@pytest.mark.parametrize(("restarts", "options"), [("0", "--seed 1 --restart x"), ("1", "--seed 1 x")])
def test_a_slurm_job_that_is_queued_again_does_not_begin_again(job, restarts, options):
    given = {"SLURM_NNODES": "1", "SLURM_CPUS_PER_TASK": "8", "SLURM_GPUS_ON_NODE": "2", "PYTHON": "python"}
    words = ["program.py", "--seed", "1", "--restart", "x"]
    assert job("slurm/train.sbatch", *words, **given, SLURM_RESTART_COUNT=restarts)[0] == (
        "srun --kill-on-bad-exit=1 --cpus-per-task=8 python -m torch.distributed.run --standalone --nproc-per-node=2 "
        f"--max-restarts=0 program.py {options}"
    )


def test_several_nodes_meet_at_the_first_at_the_job_s_port(job):
    said = job("slurm/train.sbatch", "program.py", "--seed", "1", SLURM_NNODES="2", SLURM_JOB_NODELIST="node[7-8]",
               SLURM_GPUS_ON_NODE="4", SLURM_CPUS_PER_TASK="8")  # fmt: skip
    assert said[1] == (
        "python -m torch.distributed.run --nnodes=2 --rdzv-backend=c10d --rdzv-id=12345 --rdzv-endpoint=node7:20690 "
        "--nproc-per-node=4 --max-restarts=0 program.py --seed 1"
    )


def test_a_list_of_many_nodes_does_not_end_the_job(job):
    """Whoever reads the first line only and closes the pipe ends the writer by SIGPIPE, and `pipefail` the script."""
    stand_in(job.folder / "commands", "scontrol", "seq -f node%g 7 200000")
    said = job("slurm/train.sbatch", "program.py", SLURM_NNODES="2", SLURM_JOB_NODELIST="node[7-200000]")
    assert "--rdzv-endpoint=node7:20690" in said[1]


def test_the_data_sets_are_copied_to_each_node_and_removed(job):
    for name in ("mnist", "cifar10", "cifar100"):
        (job.folder / "shared" / name).mkdir(parents=True)
    stand_in(job.folder / "commands", "python", 'echo "data $LAB_DATA: $(ls "$LAB_DATA" | xargs)"')
    stand_in(job.folder / "commands", "lab", 'echo "data $LAB_DATA: $(ls "$LAB_DATA" | xargs)"')
    given = {"STAGE": "mnist cifar10", "LAB_DATA": str(job.folder / "shared")}
    own = job.folder / "lab-data-12345"
    for script, word in (("slurm/train.sbatch", "program.py"), ("slurm/lab.sbatch", "01")):
        assert f"data {own}: cifar10 mnist" in job(script, word, **given) and not own.exists()


def test_a_lab_runs_with_its_options_into_a_folder_of_its_own(job):
    options = ["--profile", "gpu", "-p", "num_gpus", "4"]
    assert job("slurm/lab.sbatch", "03", *options, SLURM_CPUS_PER_TASK="32") == [
        "srun --ntasks=1 --cpus-per-task=32 lab run 03 --profile gpu -p num_gpus 4 -o runs/lab03-12345",
        "lab run 03 --profile gpu -p num_gpus 4 -o runs/lab03-12345",
    ]
    assert job("slurm/lab.sbatch", "02_ddp", "-o", "there")[-1] == "lab run 02_ddp -o there"
    assert job("pbs/lab.pbs", NUMBER="03", OPTIONS=" ".join(options)) == [
        "lab run 03 --profile gpu -p num_gpus 4 -o runs/lab03-1234"
    ]
    assert job("pbs/lab.pbs", NUMBER="02_ddp", OPTIONS="-o there") == ["lab run 02_ddp -o there"]


def test_a_student_s_notebook_is_run_by_its_path(job):
    (job.folder / "01_single_gpu").mkdir()
    path = "01_single_gpu/my first try.ipynb"
    (job.folder / path).touch()
    assert job("slurm/lab.sbatch", path)[-1] == f"lab run {path} -o runs/labmy first try-12345"
    path = "01_single_gpu/01_single_gpu.ipynb"
    (job.folder / path).touch()
    assert job("slurm/lab.sbatch", path, "--profile", "gpu")[-1] == f"lab run {path} --profile gpu -o runs/lab01-12345"
    assert job("pbs/lab.pbs", NUMBER=path) == [f"lab run {path} -o runs/lab01-1234"]
    assert "which lab?" in job("slurm/lab.sbatch", "absent.ipynb", code=2)[0]


@pytest.mark.parametrize("where", ["11_scaling_study", "labs/11_scaling_study"])
def test_the_scaling_job_s_program_is_the_student_s_copy_else_the_source(job, where):
    (job.folder / where).mkdir(parents=True)
    (job.folder / where / "resnet_cifar10.py").touch()
    said = job("slurm/scaling.sbatch", SLURM_GPUS_ON_NODE="1")
    assert any(f" {where}/resnet_cifar10.py" in line for line in said if line.startswith("python "))


def test_a_scaling_job_without_its_program_is_one_line(job):
    assert "lab start 11" in job("slurm/scaling.sbatch", code=2)[0]
    assert "no program mine.py" in job("slurm/scaling.sbatch", code=2, PROGRAM="mine.py")[0]


def test_a_lab_without_gpus_in_its_request_sees_none(job):
    stand_in(job.folder / "commands", "lab", 'echo "devices ${CUDA_VISIBLE_DEVICES-all}"')
    given = {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert job("slurm/lab.sbatch", "09", **given)[-1] == "devices "
    assert job("slurm/lab.sbatch", "09", **given, SLURM_GPUS_ON_NODE="2")[-1] == "devices 0,1"


def test_mpi_s_ranks_are_started_by_the_scheduler(job):
    words = ["program.py", "mnist", "0"]
    assert job("slurm/mpi.sbatch", *words, MPI_TYPE="pmi2")[0] == (
        "srun --mpi=pmi2 --cpus-per-task=1 --kill-on-bad-exit=1 python -m mpi4py program.py mnist 0"
    )
    (job.folder / "nodes").write_text("a\na\nb\nb\n")
    given = {"PROGRAM": "program.py", "OPTIONS": "mnist 0", "PBS_NODEFILE": str(job.folder / "nodes")}
    assert job("pbs/mpi.pbs", **given) == ["mpiexec -n 4 python -m mpi4py program.py mnist 0"]
    assert job("pbs/mpi.pbs", RANKS="3", **given) == ["mpiexec -n 3 python -m mpi4py program.py mnist 0"]


def test_mpi4py_is_told_the_library_of_the_loaded_mpi(job):
    for folder in ("bin", "lib"):
        (job.folder / "openmpi" / folder).mkdir(parents=True)
    stand_in(job.folder / "openmpi" / "bin", "mpirun", "exit 1")
    library = job.folder / "openmpi" / "lib" / "libmpi.so"
    stand_in(job.folder / "commands", "python", 'echo "library ${MPI4PY_LIBMPI-none}"')
    path = f"{job.folder / 'commands'}:{job.folder / 'openmpi' / 'bin'}:/usr/bin:/bin"
    assert job("slurm/mpi.sbatch", "program.py", PATH=path)[-1] == "library none"
    library.touch()
    assert job("slurm/mpi.sbatch", "program.py", PATH=path)[-1] == f"library {library}"
    assert job("slurm/mpi.sbatch", "program.py", PATH=path, MPI4PY_LIBMPI="mine")[-1] == "library mine"


@pytest.mark.parametrize("kind", ["slurm", "pbs"])
def test_data_sets_are_staged_and_hashed(job, kind):
    words = ["mnist", "cifar10"] if kind == "slurm" else []
    script = "slurm/stage_data.sbatch" if words else "pbs/stage_data.pbs"
    given = {"LAB_DATA": "new/data", "MIRROR": "/site/my mirror", "SETS": "mnist cifar10"}
    assert job(script, *words, **given) == [
        "lab data fetch mnist cifar10 --root new/data --mirror /site/my mirror", "lab data verify mnist cifar10 --root new/data",
    ]  # fmt: skip
    assert (job.folder / "new" / "data").is_dir()
    stand_in(job.folder / "commands", "lab", "exit 1")
    job(script, *words, code=1, **given)


@pytest.mark.parametrize(("cores", "jobs"), [("16", 8), ("1", 1)])
def test_a_class_is_graded_two_cores_a_submission(job, cores, jobs):
    options = ["--student", "ada"]
    command = f"lab grade 02 --jobs {jobs} --student ada"
    assert job("slurm/grade.sbatch", "02", *options, SLURM_CPUS_PER_TASK=cores)[-1] == command
    assert job("pbs/grade.pbs", NUMBER="02", OPTIONS="--student ada", NCPUS=cores) == [command]


def test_the_lines_that_lab_02_quotes_are_those_of_the_script():
    notebook = json.loads((DEPLOY.parent / "labs" / "02_ddp" / "02_ddp.ipynb").read_text())
    (text,) = ["".join(cell["source"]) for cell in notebook["cells"] if cell["id"] == "cluster"]
    _, quoted = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    lines = [line.split("  #")[0].strip() for line in quoted.splitlines()]
    script = {line.strip() for line in (DEPLOY / "slurm" / "train.sbatch").read_text().splitlines()}
    assert len(lines) == 5 and set(lines) <= script

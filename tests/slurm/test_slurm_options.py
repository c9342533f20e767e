"""``--slurm KEY=VALUE`` of `lab grade` and `lab sweep`: what is taken, what is refused, and the machine without Slurm.

None of it needs a cluster.
"""

import pytest
from click.testing import CliRunner

from autograde.batch.slurm import run_slurm
from autograde.batch.slurm_options import sbatch_parameters, slurm_option, threads_per_task
from autograde.batch.worker import Setting
from autograde.commands.cli import grade
from course_lib.runs.slurm.squeue import SlurmError
from course_lib.runs.sweep.command import sweep


def parameters(*texts, seconds=600.0):
    return sbatch_parameters(dict(slurm_option(text) for text in texts), seconds)


# The forms of sbatch(1), "--time", in minutes; Slurm itself rounds seconds up.
@pytest.mark.parametrize(
    ("text", "minutes"),
    [("90", 90), ("90:30", 91), ("1:30:00", 90), ("1-0", 1440), ("1-2:03", 1563), ("1-2:03:01", 1564), ("0:01", 1)],
)
def test_a_time_limit_in_each_of_sbatch_s_forms(text, minutes):
    assert parameters(f"time={text}")["time"] == minutes


def test_without_a_time_limit_it_is_what_the_students_may_take():
    assert parameters(seconds=601)["time"] == 11


def test_options_are_sbatch_s_under_either_spelling():
    assert parameters("cpus-per-task=4")["cpus_per_task"] == parameters("cpus_per_task=4")["cpus_per_task"] == 4
    assert threads_per_task({}) == 2 and threads_per_task({"cpus_per_task": "4"}) == 4
    others = parameters("partition=short", "mem-per-cpu=2G", "mem=8G", "exclude=n[1-3]")["additional_parameters"]
    assert others == {"partition": "short", "mem_per_cpu": "2G", "mem": "8G", "exclude": "n[1-3]"}


USERS = {"grader": (grade, ["1"]), "sweep": (sweep, ["1", "-g", "num_gpus=1", "--profile", "smoke"])}


def run(user, *words):
    command, always = USERS[user]
    return CliRunner().invoke(command, [*always, *words])


@pytest.mark.parametrize(
    ("text", "why", "users"),
    [
        *[
            (text, "is not KEY=VALUE", USERS)
            for text in ("partition", "=short", "partition=", "--partition=short", "Partition=short", "partition=a b",
                         "partition=a\n#SBATCH --uid=0")
        ],
        ("mem=lots", "memory per node", USERS),
        ("time=0", "minutes", USERS),
        ("time=soon", "minutes", USERS),
        ("cpus-per-gpu=0", "a number of cores", USERS),
        ("cpus-per-task=0", "a number of cores", ["grader"]),
        ("nodes=many", "a number of nodes", ["sweep"]),
        *[(f"{key}=1", "is set by the USER itself", USERS) for key in ("array", "job-name", "output", "ntasks")],
        ("nodes=2", "is set by the USER itself", ["grader"]),
        ("gres=gpu:2", "is set by the USER itself", ["sweep"]),
        ("cpus-per-task=4", "is set by the USER itself", ["sweep"]),
        ("gpus-per-node=4", "num_gpus", ["sweep"]),
        ("gpus-per-node=h100:4", "the type alone", ["sweep"]),
    ],
)  # fmt: skip
def test_anything_else_is_a_bad_argument(text, why, users, tmp_path, repository, monkeypatch):
    monkeypatch.chdir(repository)
    for user in users:
        done = run(user, "--executor", "slurm", "--slurm", text, *["-o", str(tmp_path / "out")] * (user == "sweep"))
        assert done.exit_code == 2 and why.replace("USER", user) in done.output.splitlines()[-1], done.output
    assert not (tmp_path / "out").exists()


def test_options_for_slurm_go_with_its_executor():
    done = run("grader", "--slurm", "partition=short")
    assert done.exit_code == 2 and "--executor slurm" in done.output


@pytest.mark.parametrize("user", USERS)
def test_a_machine_without_slurm_is_one_line_and_nothing_is_written(user, tmp_path, repository, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    out = tmp_path / "out"
    if user == "grader":
        with pytest.raises(SlurmError) as error:
            list(run_slurm(Setting("01_single_gpu", out, out), ["ada"], 1, 60.0))
        line = f"Error: {error.value}"
    else:
        monkeypatch.chdir(repository)
        done = run(user, "--executor", "slurm", "-o", str(out))
        notebook, line = done.output.splitlines()
        assert done.exit_code == 1 and notebook.startswith("notebook: ")
    assert line.startswith("Error: no Slurm here: sbatch is not on PATH; run this on a login node")
    assert len(line.splitlines()) == 1 and not out.exists()

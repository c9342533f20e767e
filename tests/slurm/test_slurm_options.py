"""Requests to Slurm by `lab grade` and `lab sweep`: options taken and refused, GPUs and cores. Needs no cluster."""

import errno
from unittest.mock import Mock

import pytest
from click.testing import CliRunner
from filelock import FileLock

from autograde.batch import slurm
from autograde.batch.worker import GradingJob
from autograde.commands.cli import grade
from course_lib.runs.slurm.options import submitit_parameters
from course_lib.runs.slurm.squeue import SlurmError
from course_lib.runs.sweep.command import sweep
from course_lib.runs.sweep.slurm_request import Request, sweep_option
from course_lib.system.hardware import available_cores


def parameters(*texts):
    return submitit_parameters(dict(slurm.slurm_option(text) for text in texts), 2, 11)


def test_a_job_runs_the_grader_that_submits_it_whatever_the_folder_where_it_starts(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/home/the course/grader")
    assert slurm._setup() == ["export PYTHONSAFEPATH=1", "export PYTHONPATH='/home/the course/grader'"]
    monkeypatch.delenv("PYTHONPATH")
    assert slurm._setup() == ["export PYTHONSAFEPATH=1"]


# The forms of sbatch(1), "--time", in minutes; Slurm itself rounds seconds up.
@pytest.mark.parametrize(
    ("text", "minutes"),
    [("90", 90), ("90:30", 91), ("1:30:00", 90), ("1-0", 1440), ("1-2:03", 1563), ("1-2:03:01", 1564), ("0:01", 1)],
)
def test_a_time_limit_in_each_of_sbatch_s_forms(text, minutes):
    assert parameters(f"time={text}")["time"] == minutes and parameters()["time"] == 11


def test_options_are_sbatch_s_under_either_spelling():
    assert slurm.slurm_option("cpus-per-task=4") == slurm.slurm_option("cpus_per_task=4") == ("cpus_per_task", "4")
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
            list(slurm.run_slurm(GradingJob("01_single_gpu", out, out), ["ada"], 1, 60.0))
        line = f"Error: {error.value}"
    else:
        monkeypatch.chdir(repository)
        done = run(user, "--executor", "slurm", "-o", str(out))
        notebook, line = done.output.splitlines()
        assert done.exit_code == 1 and notebook.startswith("notebook: ")
    assert line.startswith("Error: no Slurm here: sbatch is not on PATH; run this on a login node")
    assert len(line.splitlines()) == 1 and not out.exists()


def test_a_second_grading_of_the_same_lab_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(slurm, "check_slurm", lambda: None)
    (tmp_path / "slurm_logs").mkdir()
    with FileLock(tmp_path / "slurm_logs" / ".01_toy.lock"), pytest.raises(SlurmError, match="is being graded"):
        list(slurm.run_slurm(GradingJob("01_toy", tmp_path, tmp_path), ["ada"], 1, 60.0))
    assert (tmp_path / "slurm_logs" / "01_toy").stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(slurm.fcntl, "flock", Mock(side_effect=OSError(errno.ENOLCK, "No locks available")))
    with slurm._only_batch(tmp_path / "slurm_logs" / "01_toy"):
        pass  # a file system without locks keeps nobody from grading


@pytest.fixture
def sinfo(tmp_path, monkeypatch):
    """A `sinfo` that prints a text, after ``PARTITION|CORES|RESOURCES``; its arguments are in the file it returns."""

    def prints(text):
        command = tmp_path / "sinfo"
        command.write_text(f"#!/bin/sh\necho \"$@\" > {tmp_path / 'asked'}\ncat <<'END'\n{text}\nEND\n")
        command.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        return tmp_path / "asked"

    return prints


def request(*texts):
    return Request.of(dict(sweep_option(text) for text in texts))


def test_ranks_have_gpus_where_the_partition_has_them(sinfo):
    sinfo("cpu|64|(null)\ngpu*|96|gpu:h100:8(S:0-1),nvme:1")
    asked = request("time=1:30:00", "mem-per-gpu=20G").parameters(4)
    assert asked["additional_parameters"] == {"gres": "gpu:4", "mem_per_gpu": "20G"}
    assert (asked["cpus_per_task"], asked["nodes"], asked["ntasks_per_node"], asked["time"]) == (16, 1, 1, 90)
    assert request("gpus-per-node=h100").parameters(2)["additional_parameters"] == {"gres": "gpu:h100:2"}
    assert request("cpus-per-gpu=10").parameters(2)["cpus_per_task"] == 20
    assert request("time=5", "nodes=2").describe(2) == "num_gpus = 2 (2 GPUs, 8 cores on one node, 5 min)"


def test_without_gpus_a_rank_is_a_core(sinfo):
    sinfo("cpu*|64|(null)\ngpu|96|gpu:8")
    asked = request().parameters(4)
    assert asked["cpus_per_task"] == 4 and "gres" not in asked["additional_parameters"]
    sinfo("gpu*|96|gpu:8")
    none = request("gpus-per-node=0", "cpus-per-gpu=2").parameters(4)
    assert none["cpus_per_task"] == 8 and none["additional_parameters"] == {}


def test_the_chosen_partition_counts(sinfo):
    asked = sinfo("gpu|96|gpu:8")
    assert request("partition=gpu").gpus and "--partition gpu" in asked.read_text()


@pytest.mark.parametrize(
    ("nodes", "option", "cores"),
    [
        ("gpu*|8|gpu:4", (), 2), ("gpu*|2|gpu:8", (), 1), ("gpu*|96|gpu:8", (), 4),
        ("gpu*|48+|gpu:a100:12,gpu:l4:4", (), 3), ("gpu*|8|gpu:l4:4\ngpu*|12|gpu:a100:4", (), 2),
        ("gpu*|8|gpu:l4:4\ngpu*|12|gpu:a100:4", ("gpus-per-node=a100",), 3),
    ],
)  # fmt: skip
def test_a_rank_asks_for_no_more_cores_than_its_node_has_for_a_gpu(sinfo, nodes, option, cores):
    sinfo(nodes)
    assert request(*option).cores_per_rank == cores


def test_a_cluster_that_does_not_answer_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlurmError, match=r"^sinfo does not answer \([^\n]+\); is Slurm up\?$"):
        request()


def test_a_job_s_cores_count_where_it_is_not_bound_to_them(monkeypatch):
    monkeypatch.delenv("SLURM_CPUS_ON_NODE", raising=False)
    free = available_cores()
    for granted, cores in ((1, 1), (free + 5, free)):
        monkeypatch.setenv("SLURM_CPUS_ON_NODE", str(granted))
        assert available_cores() == cores

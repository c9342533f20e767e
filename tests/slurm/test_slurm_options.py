"""``--slurm KEY=VALUE``: what is taken, what is refused, and the machine without Slurm. None of it needs a cluster."""

import pytest
from click.testing import CliRunner

from autograde.cli import grade
from autograde.slurm import SlurmError, run_slurm
from autograde.slurm_options import sbatch_parameters, slurm_option, threads_per_task
from autograde.worker import Setting


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


@pytest.mark.parametrize(
    "text",
    [
        "partition",
        "=short",
        "partition=",
        "--partition=short",
        "Partition=short",
        "partition=a b",
        "partition=a\n#SBATCH --uid=0",
        "mem=lots",
        "time=0",
        "time=soon",
        "cpus-per-task=0",
        "array=0-9",
        "job-name=mine",
        "output=/dev/null",
    ],
)
def test_anything_else_is_a_bad_argument(text):
    with pytest.raises(ValueError) as error:
        slurm_option(text)
    assert len(str(error.value).splitlines()) == 1
    done = CliRunner().invoke(grade, ["1", "--executor", "slurm", "--slurm", text])
    assert done.exit_code == 2


def test_options_for_slurm_go_with_its_executor():
    done = CliRunner().invoke(grade, ["1", "--slurm", "partition=short"])
    assert done.exit_code == 2 and "--executor slurm" in done.output


def test_a_machine_without_slurm_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlurmError, match="sbatch is not on PATH; run this on a login node") as error:
        list(run_slurm(Setting("01_single_gpu", tmp_path, tmp_path), ["ada"], 1, 60.0))
    assert len(str(error.value).splitlines()) == 1

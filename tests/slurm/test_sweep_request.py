"""What a sweep asks of Slurm, by what the user says and the partition has. None of it needs a cluster."""

import pytest

from course_lib.runs.slurm.squeue import SlurmError
from course_lib.runs.sweep.on_slurm.slurm_request import Request, sweep_option
from course_lib.system.hardware import available_cores


@pytest.fixture
def sinfo(tmp_path, monkeypatch):
    """A `sinfo` that says what it is told to; its arguments lie in ``asked``."""

    def says(text):
        command = tmp_path / "sinfo"
        command.write_text(f"#!/bin/sh\necho \"$@\" > {tmp_path / 'asked'}\ncat <<'END'\n{text}\nEND\n")
        command.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        return tmp_path / "asked"

    return says


def request(*texts):
    return Request.of(dict(sweep_option(text) for text in texts))


def test_ranks_have_gpus_where_the_partition_has_them(sinfo):
    sinfo("cpu|64|(null)\ngpu*|96|gpu:h100:8(S:0-1),nvme:1")
    asked = request("time=1:30:00", "mem-per-gpu=20G").parameters(4)
    assert asked["additional_parameters"] == {"gres": "gpu:4", "mem_per_gpu": "20G"}
    assert (asked["cpus_per_task"], asked["nodes"], asked["ntasks_per_node"], asked["time"]) == (16, 1, 1, 90)
    assert request("gpus-per-node=h100").parameters(2)["additional_parameters"] == {"gres": "gpu:h100:2"}
    assert request("cpus-per-gpu=10").parameters(2)["cpus_per_task"] == 20


def test_without_gpus_a_rank_is_a_core(sinfo):
    sinfo("cpu*|64|(null)\ngpu|96|gpu:8")
    asked = request().parameters(4)
    assert asked["cpus_per_task"] == 4 and "gres" not in asked["additional_parameters"]
    asked = sinfo("gpu*|96|gpu:8")
    none = request("gpus-per-node=0", "cpus-per-gpu=2").parameters(4)
    assert none["cpus_per_task"] == 8 and none["additional_parameters"] == {}


def test_the_chosen_partition_counts(sinfo):
    asked = sinfo("gpu|96|gpu:8")
    assert request("partition=gpu").gpus
    assert "--partition gpu" in asked.read_text()


@pytest.mark.parametrize(
    ("node", "cores"), [("8|gpu:4", 2), ("2|gpu:8", 1), ("96|gpu:8", 4), ("48+|gpu:a100:12,gpu:l4:4", 3)]
)
def test_a_rank_asks_for_no_more_cores_than_its_node_has_for_a_gpu(sinfo, node, cores):
    sinfo(f"gpu*|{node}")
    assert request().cores_per_rank == cores


def test_a_type_s_own_nodes_count(sinfo):
    sinfo("gpu*|8|gpu:l4:4\ngpu*|12|gpu:a100:4")
    assert request("gpus-per-node=a100").cores_per_rank == 3 and request().cores_per_rank == 2


def test_a_cluster_that_does_not_answer_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SlurmError, match="sinfo does not answer") as error:
        request()
    assert len(str(error.value).splitlines()) == 1


def test_a_job_s_cores_count_where_it_is_not_bound_to_them(monkeypatch):
    monkeypatch.delenv("SLURM_CPUS_ON_NODE", raising=False)
    free = available_cores()
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "1")
    assert available_cores() == 1
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", str(free + 5))
    assert available_cores() == free

"""Lab 08's notebook: what a long profile, and a machine without MPI, ask of its cells."""

import ast
from pathlib import Path

import nbformat
import yaml

from course_lib.runs.parameters import check_values, read_rules

LAB = Path(__file__).resolve().parents[2] / "labs" / "08_parallel_sgd_mpi"
CELLS = {cell.id: cell.source for cell in nbformat.read(LAB / "08_parallel_sgd_mpi.ipynb", as_version=4).cells}


def calls(source, name):
    return [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == name
    ]


def test_launches_that_train_have_no_limit_on_time():
    """`gpu` trains for hours; `mpi_launch` ends ranks after half an hour unless told otherwise."""
    for cell in ("experiment", "study", "recorded"):
        (call,) = calls(CELLS[cell], "mpi_launch")
        limits = [keyword.value for keyword in call.keywords if keyword.arg == "timeout"]
        assert [ast.unparse(limit) for limit in limits] == ["None"], cell


def test_the_graders_cell_starts_no_mpi():
    names = {"find_mpi", "mpi_launch", "mpi_run"}
    assert not [name for name in names if calls(CELLS["setup"], name)]
    assert calls(CELLS["hello"], "find_mpi")


def test_shares_that_differ_by_a_batch_are_an_error_before_the_training():
    for cell in ("experiment", "program"):
        said = CELLS[cell]
        assert said.index("assert len(set(comm.allgather(len(batches)))) == 1") < said.index("local_sgd_worker(comm")


def test_the_profiles_can_be_shared_evenly():
    profiles = yaml.safe_load((LAB / "profiles.yaml").read_text())
    defaults = {}
    exec(CELLS["parameters"], defaults)
    assert profiles["gpu"]["repeats"] == 1 and profiles["gpu"]["num_gpus"] == 5
    for values in profiles.values():
        given = {**defaults, **(values or {})}
        samples = given["study_samples"] or 60_000
        for workers in range(1, given["most_workers"] + 1):
            shares = {len(range(rank, samples, workers)) // given["batch_size"] for rank in range(workers)}
            assert len(shares) == 1, (workers, shares)


def test_one_averaging_at_the_end_can_be_asked_for():
    check_values({"average_every": 0}, read_rules(CELLS["parameters"]))

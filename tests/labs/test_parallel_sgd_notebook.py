"""Lab 08's notebook: what a long profile, and a machine without MPI, ask of its cells."""

import ast
import contextlib

import pytest
import yaml
from notebook_cells import LABS, cells_of

from course_lib.distributed import mpi_run
from course_lib.runs.parameters import check_values, read_rules
from course_lib.system.mpi_command import MPINotFoundError, find_mpi

LAB = "08_parallel_sgd_mpi"
CELLS = cells_of(LAB)


def calls(source, name):
    nodes = ast.walk(ast.parse(source))
    return [node for node in nodes if isinstance(node, ast.Call) and getattr(node.func, "id", "") == name]


def test_launches_that_train_have_no_limit_on_time():
    """`gpu` trains for hours; `mpi_launch` ends ranks after half an hour unless told otherwise."""
    for cell in ("experiment", "recorded"):
        (call,) = calls(CELLS[cell], "mpi_launch")
        limits = [keyword.value for keyword in call.keywords if keyword.arg == "timeout"]
        assert [ast.unparse(limit) for limit in limits] == ["None"], cell
    assert calls(CELLS["study"], "study") and not calls(CELLS["study"], "mpi_launch")


def test_the_graders_cells_start_no_mpi():
    names = {"find_mpi", "mpi_launch", "mpi_run"}
    for cell in ("setup", "pieces"):
        assert not [name for name in names if calls(CELLS[cell], name)]
    assert calls(CELLS["hello"], "find_mpi")
    assert CELLS["setup"].index("mpi4py.rc.initialize = False") < CELLS["setup"].index("from mpi4py import MPI")


def test_every_worker_of_every_profile_has_a_batch():
    profiles = yaml.safe_load((LABS / LAB / "profiles.yaml").read_text())
    defaults = {}
    exec(CELLS["parameters"], defaults)
    assert profiles["gpu"]["repeats"] == 1 and profiles["gpu"]["num_gpus"] == 5
    for values in profiles.values():
        given = {**defaults, **(values or {})}
        samples = given["study_samples"] or 60_000
        for workers in range(1, given["most_workers"] + 1):
            assert samples // workers >= given["batch_size"], workers


def test_one_averaging_at_the_end_can_be_asked_for():
    check_values({"average_every": 0}, read_rules(CELLS["parameters"]))


def program(folder):
    """The file that the notebook's last launch runs, made from its own cells."""
    assigned = [node for node in ast.parse(CELLS["mpirun"]).body if isinstance(node, ast.Assign)]
    values = {getattr(node.targets[0], "id", ""): node.value for node in assigned}
    functions = {}
    for source in CELLS.values():
        with contextlib.suppress(SyntaxError):  # text
            body = ast.parse(source).body
            functions |= {f.name: ast.get_source_segment(source, f) for f in body if isinstance(f, ast.FunctionDef)}
    path = folder / "parallel_sgd.py"
    mine = [functions[each.id] for each in values["mine"].elts]
    path.write_text("\n\n\n".join([values["HEAD"].value, *mine, values["TAIL"].value]))
    return path


def test_the_program_runs_under_mpirun(tmp_path, capsys):
    try:
        find_mpi()
    except MPINotFoundError as missing:
        pytest.skip(str(missing))
    options = ["--dataset", "fashion-mnist-small", "--train-samples", 131, "--epochs", 2, "--batch-size", 22]
    output = mpi_run(program(tmp_path), 3, options, threads=1)  # 44, 44 and 43 images: one rank has a batch less
    lines = [line for line in output.splitlines() if "epoch" in line]
    assert [line.split(":")[0] for line in lines] == ["[rank 0] epoch 1", "[rank 0] epoch 2"]

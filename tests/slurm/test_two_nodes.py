"""Lab 02's program on two nodes by `deploy/slurm/train.sbatch`: a node is lost, the other says so, the same job goes on."""

from __future__ import annotations

import ast
import itertools
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from safetensors import safe_open
from two_nodes import NamespacesNotHere, TwoNodes

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
SCRIPT = REPOSITORY / "deploy" / "slurm" / "train.sbatch"
EPOCHS = 8
OPTIONS = ["--dataset", "fashion-mnist-small", "--train-samples", "512", "--epochs", str(EPOCHS), "--target-accuracy", "0",
           "--num-nodes", "2", "--checkpoint", "state.safetensors"]  # fmt: skip
NUMBERS = itertools.count(1000 + 10 * (os.getpid() % 400))


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    try:
        with TwoNodes(tmp_path_factory.mktemp("stand-ins")) as both:
            yield both
    except NamespacesNotHere as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The folder into which the notebook, with its solutions, has written its script."""
    folder = tmp_path_factory.mktemp("program")
    cells = nbformat.read(REPOSITORY / "labs" / "02_ddp" / "02_ddp.ipynb", as_version=4).cells
    source = {cell.id: cell.source for cell in cells if cell.cell_type == "code"}
    functions = {
        statement.name: ast.get_source_segment(text, statement)
        for text in source.values()
        for statement in ast.parse(text).body
        if isinstance(statement, ast.FunctionDef)
    }
    names = {**functions, "inspect": SimpleNamespace(getsource=str), "folder": folder, "print": lambda *_: None}
    exec(source["torchrun-steps"], names)
    exec(source["ex-script"], names)
    (folder / "scripts" / "train_ddp.py").write_text(names["script"])
    return folder / "scripts"


@pytest.fixture
def begin(nodes, program, tmp_path):
    """Starts the job in this test's folder; the same each time, but for its number."""

    def begin():
        return nodes.start(SCRIPT, str(program / "train_ddp.py"), *OPTIONS, cwd=tmp_path, number=next(NUMBERS))

    yield begin
    for node in (0, 1):
        nodes.kill(node)
        nodes.mend(node)


@pytest.fixture(scope="module")
def uninterrupted(program, tmp_path_factory):
    """The tensors of the last checkpoint of two ranks on one node that nothing happened to."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        program / "train_ddp.py",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, *OPTIONS], cwd=folder, env=environment, check=True, capture_output=True, timeout=300)
    return tensors(folder)


def tensors(folder):
    with safe_open(folder / "state.safetensors", framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (safe_open is no mapping)


def epochs(text):
    return [int(number) for number in re.findall(r"^epoch (\d+):", text, re.MULTILINE)]


def told(job, node):
    """The last line of a node that has ended with an error."""
    assert job.code(node) == 1, job.said(node)
    return job.said(node).splitlines()[-1]


def trains(job):
    job.wait_until(lambda: 2 in epochs(job.said(0) + job.said(1)), "second epoch", 240)


@pytest.mark.parametrize("lost", [1, 0], ids=["the second", "the first, where they meet"])
def test_a_node_is_killed_the_other_says_so_and_the_same_job_goes_on(nodes, begin, uninterrupted, tmp_path, lost):
    job, other = begin(), 1 - lost
    trains(job)
    nodes.kill(lost)
    seconds = job.wait_until(lambda: job.code(other) is not None, "end of the other node", 30)
    print(f"the other node ended after {seconds:.1f} s: {told(job, other)}")
    assert job.end() != 0
    assert re.match(
        rf"node-{'ab'[other]}: the job ends: (rank \d on )?node-{'ab'[lost]}.* is gone: its launcher ended",
        told(job, other),
    )

    again = begin()
    assert again.end() == 0, again.said(0) + again.said(1)
    done, rest = (epochs(each.said(0) + each.said(1)) for each in (job, again))
    assert len(done) >= 2 and done + rest in (list(range(1, EPOCHS + 1)), [*done, *range(len(done) + 2, EPOCHS + 1)])
    assert re.search(rf"going on after epoch {rest[0] - 1}, from state.safetensors", again.said(0) + again.said(1))
    finished = tensors(tmp_path)
    assert finished.keys() == uninterrupted.keys()
    assert all(finished[name].equal(tensor) for name, tensor in uninterrupted.items())


@pytest.mark.parametrize("lost", [1, 0], ids=["the second", "the first, where they meet"])
def test_a_cable_is_pulled_and_each_side_says_whom_it_lost(nodes, begin, lost):
    job = begin()
    trains(job)
    start = time.monotonic()
    nodes.cut(lost)
    job.wait_until(lambda: None not in (job.code(0), job.code(1)), "end of both nodes", 30)
    print(f"both nodes ended after {time.monotonic() - start:.1f} s: {told(job, 0)} | {told(job, 1)}")
    for node, peer in ((0, "node-b"), (1, "node-a")):
        assert re.search(rf"the job ends: .*{peer}.* is gone: it does not answer any more", told(job, node))
    job.end()


def test_a_rank_is_killed_and_both_nodes_name_it(nodes, begin):
    job = begin()
    trains(job)
    (rank,) = nodes.ranks(1)
    number = re.search(rb"\0RANK=(\d)", Path(f"/proc/{rank}/environ").read_bytes())[1].decode()
    os.kill(rank, 9)
    job.wait_until(lambda: None not in (job.code(0), job.code(1)), "end of both nodes", 30)
    for node in (0, 1):
        assert f"the job ends: rank {number} was ended by SIGKILL" in told(job, node) and told(job, node).endswith(
            "on node-b"
        )
    job.end()

"""`launch` in a real kernel: functions and classes that live in cells."""

import nbclient
import nbformat
import pytest

CELLS = [
    """
import time
import torch
import torch.distributed as dist
from course_lib.distributed import LaunchTimeoutError, RankFailedError, launch

class Point:
    def __init__(self, rank, values):
        self.rank, self.values = rank, values

FACTOR = 3

def where(scale, offset=0):
    print("here is", dist.get_rank())
    total = torch.tensor(dist.get_rank() + 1)
    dist.all_reduce(total)
    return Point(dist.get_rank(), FACTOR * scale * torch.full((2,), total.item()) + offset)
""",
    """
for ranks in (1, 2, 4):
    points = launch(where, ranks, (10,), {"offset": 1}, timeout=100)
    assert [type(point) for point in points] == [Point] * ranks
    assert [point.rank for point in points] == list(range(ranks))
    assert all(point.values.tolist() == [30 * ranks * (ranks + 1) // 2 + 1] * 2 for point in points)
""",
    """
FACTOR = 4  # a cell that is run again changes what the next launch sends
assert launch(where, 1, (10,), timeout=100)[0].values.tolist() == [40, 40]
""",
    """
def careless(limit):
    numbers = list(range(limit))
    if dist.get_rank() == 1:
        return numbers[limit + 1]  # one too far
    time.sleep(600)

try:
    launch(careless, 2, (3,), timeout=100)
    raise AssertionError("it should have raised")
except RankFailedError as error:
    assert error.rank == 1
    assert "return numbers[limit + 1]  # one too far" in error.rank_traceback, error.rank_traceback
    assert "IndexError" in error.reason
""",
    """
def forever():
    while True:
        time.sleep(0.1)

try:
    launch(forever, 1, timeout=1)
    raise AssertionError("it should have raised")
except LaunchTimeoutError as error:
    assert "forever (line 3 of its cell)" in error.positions[0], error.positions[0]
""",
]


@pytest.fixture(scope="module")
def executed():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell.strip("\n")) for cell in CELLS])
    nbclient.NotebookClient(notebook, timeout=180, kernel_name="python3").execute()
    return notebook


def printed(cell):
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def test_cells_launch_their_own_functions_and_classes(executed):
    assert all(cell.execution_count for cell in executed.cells)  # each went through: their assertions are the test


def test_printed_lines_reach_the_notebook_with_their_rank(executed):
    lines = printed(executed.cells[1]).splitlines()
    for rank in range(4):
        assert f"[rank {rank}] here is {rank}" in lines

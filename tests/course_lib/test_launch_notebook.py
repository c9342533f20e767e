"""`launch` in a notebook: functions and classes of its cells."""

from pathlib import Path

from notebook_kernel import Kernel
from rank_processes import GENEROUS, survivors
from warm_notebook import execute

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
    points = launch(where, ranks, (10,), {"offset": 1})
    assert [type(point) for point in points] == [Point] * ranks
    assert [point.rank for point in points] == list(range(ranks))
    assert all(point.values.tolist() == [30 * ranks * (ranks + 1) // 2 + 1] * 2 for point in points)
""",
    """
FACTOR = 4  # a cell that is run again changes what the next launch sends
assert launch(where, 1, (10,))[0].values.tolist() == [40, 40]
""",
    """
def careless(limit):
    numbers = list(range(limit))
    if dist.get_rank() == 1:
        return numbers[limit + 1]  # one too far
    time.sleep(600)

try:
    launch(careless, 2, (3,))
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

began = time.monotonic()
launch(where, 1, (10,))
limit = max(2.0, 5 * (time.monotonic() - began))  # long enough for the rank to start
try:
    launch(forever, 1, timeout=limit)
    raise AssertionError("it should have raised")
except LaunchTimeoutError as error:
    assert "forever (line 3 of its cell)" in error.positions[0], error.positions[0]
""",
]


def test_cells_launch_their_own_functions_and_classes(warm_server, tmp_path):
    printed = execute(warm_server, tmp_path, *CELLS)  # the cells' assertions are the test
    for rank in range(4):
        assert f"[rank {rank}] here is {rank}" in printed[1].splitlines()


def test_a_kernel_that_launched_ranks_ends_by_itself(tmp_path):
    """Jupyter kills one that waits for multiprocessing's servers, before it has removed its temporary files."""
    with Kernel(tmp_path) as kernel:
        kernel.run("import atexit, psutil, subprocess\nfrom course_lib.distributed import warm_up\nwarm_up()\n"
                   "child = subprocess.Popen(['sleep', '600'])\n"
                   "from multiprocessing import resource_tracker, shared_memory\n"
                   "left = shared_memory.SharedMemory(create=True, size=10)\n"
                   "open('memory', 'w').write(f'{resource_tracker._resource_tracker._pid} {left.name}')\n"
                   "atexit.register(lambda: open('ended', 'w').write(str([\n"
                   "    child for child in psutil.Process().children()\n"
                   "    if child.pid != resource_tracker._resource_tracker._pid])))")  # fmt: skip
        kernel.manager.shutdown_wait_time = GENEROUS
        kernel.manager.shutdown_kernel()
    assert (tmp_path / "ended").read_text() == "[]"
    tracker, memory = (tmp_path / "memory").read_text().split()
    assert survivors([int(tracker)], GENEROUS) == [] and not Path("/dev/shm", memory).exists()

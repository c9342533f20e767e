"""Every lab's notebook, all code cells, on two pretended GPUs with NCCL's device map: nothing that stops on a GPU machine.

A new lab is found by its folder. Its parameters are those of its smoke profile, made smaller: see `rehearse.parameters`.
"""

from pathlib import Path

import pytest
import rehearse

LABS = Path(__file__).parents[2] / "labs"
NOTEBOOKS = sorted(LABS.glob("[0-9][0-9]_*/[0-9][0-9]_*.ipynb"))
ON_GPUS = [path for path in NOTEBOOKS if rehearse.may_use_gpus(path)]
ON_CORES = [path for path in NOTEBOOKS if path not in ON_GPUS]

AFTERWARDS = """
import json
from pathlib import Path
from course_lib.distributed import mpi_launch

record = json.loads(Path(output_dir, "run.json").read_text())
assert record["device"] == "cpu", record["device"]
seen = mpi_launch(lambda comm: torch.cuda.device_count(), 2)
assert [torch.cuda.device_count(), *seen] == [2, 2, 2], seen
"""


@pytest.mark.parametrize("notebook", ON_GPUS, ids=lambda path: path.stem)
def test_lab_on_two_gpus(two_gpus, notebook):
    ended = two_gpus.run(rehearse.code_cells(notebook, rehearse.parameters(notebook, two_gpus.gpus)))
    assert ended is None, ended


@pytest.mark.parametrize("notebook", ON_CORES, ids=lambda path: path.stem)
def test_lab_stays_on_the_cores_beside_two_gpus(two_unused_gpus, notebook):
    """A tensor on a GPU is an error, in the notebook's process, its fork server's, and the ranks of mpirun."""
    cells = rehearse.code_cells(notebook, rehearse.parameters(notebook, two_unused_gpus.gpus))
    ended = two_unused_gpus.run([*cells, ("afterwards", AFTERWARDS)])
    assert ended is None, ended


@pytest.mark.slow
def test_lab_02_on_one_gpu_takes_gloo(one_gpu):
    notebook = next(path for path in NOTEBOOKS if path.stem.startswith("02"))
    ended = one_gpu.run(rehearse.code_cells(notebook, rehearse.parameters(notebook, 2)))
    assert ended is None, ended

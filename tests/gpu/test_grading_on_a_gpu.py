"""A GPU handed into the sandbox of a grading run. Not run on a GPU so far."""

import pytest

rerun = pytest.importorskip(
    "autograde.grading.rerun", reason="a node of the wheelhouse has no grader", exc_type=ImportError
)

from autograde.sandbox.gpus import one_gpu  # noqa: E402
from autograde.sandbox.limits import Limits  # noqa: E402

pytestmark = pytest.mark.gpu
SEEN = """
def seen(student, given, outside):
    import os
    import torch

    return sorted(name for name in os.listdir("/dev") if "nvidia" in name or name == "dri"), torch.cuda.is_available()
"""


def test_a_grading_run_computes_on_its_one_gpu(real_gpu, warm):
    with one_gpu() as gpu, warm.execute(Limits(seconds=300.0, memory_bytes=8 << 30), gpu=gpu) as execution:
        assert execution.call(rerun.START_CUDA, "start", None) == [{"value": 1}]
        (answer,) = execution.call(SEEN, "seen", None)
    files, available = answer["value"]
    assert available and files == sorted(["nvidia-uvm", "nvidia-uvm-tools", f"nvidia{gpu.minor}", "nvidiactl"])


def test_nothing_of_a_gpu_is_there_unasked(real_gpu, warm):
    with warm.execute(Limits(seconds=300.0)) as execution:
        assert execution.call(SEEN, "seen", None) == [{"value": ([], False)}]

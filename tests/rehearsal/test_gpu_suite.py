"""`make test-gpu`: refused without a GPU, and its tests on pretended ones, as far as these go."""

import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

import leftovers
import pytest
import torch

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.mark.parametrize("gpus", ["1", "2"])
def test_the_suite_on_pretended_gpus(gpus):
    places = os.pathsep.join([str(HERE), str(HERE / "everywhere")])
    environment = {**os.environ, "PYTHONPATH": places, "PRETENDED_GPUS": gpus, "OMP_NUM_THREADS": "1"}
    environment[leftovers.MARK] = (
        uuid.uuid4().hex
    )  # it answers for its own processes, not for those of the tests beside it
    words = ["-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", "-m", "gpu", "tests/gpu"]
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) >= 20, done.stdout[-400:]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(("target", "setting"), [("test-gpu", "MINUTES="), ("results-gpu", "MINUTES=25")])
def test_without_a_gpu_one_line_says_so(target, setting, tmp_path):
    (installed := tmp_path / "installed").touch()  # newer than all that an installation reads
    command = ["make", "--silent", target, setting, f"BIN={Path(sys.executable).parent}", f"STAMP={installed}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    said = [line for line in done.stderr.splitlines() if not re.match(r"make(\[\d+\])?:", line)]
    assert done.returncode != 0 and done.stdout == ""
    assert said == [f"make {target} needs a CUDA GPU, and PyTorch sees none here; `lab doctor` says why"]

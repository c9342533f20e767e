"""One process with pretended GPUs for all rehearsals: it imports PyTorch once and starts one fork server."""

import json
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SECONDS = 900  # a rank that waits for another waits for ever


class Rehearsal:
    """A process with `gpus` pretended GPUs that runs notebooks' cells; see `rehearse`. `unused`: no tensor may be on one."""

    def __init__(self, gpus, unused=False):
        self.gpus = gpus
        path = os.pathsep.join([str(HERE), str(HERE / "everywhere"), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, "PRETENDED_GPUS": str(gpus), "OMP_NUM_THREADS": "1"}
        environment |= {"PRETENDED_GPUS_UNUSED": "1"} if unused else {}
        self.process = subprocess.Popen(
            [sys.executable, "-c", "import rehearse; rehearse.main()"], env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def run(self, cells):
        """Run (id, source) cells in order; None, or where and how they ended."""
        self.process.stdin.write(json.dumps(cells) + "\n")
        self.process.stdin.flush()
        if not select.select([self.process.stdout], [], [], SECONDS)[0]:
            self.process.kill()
            return f"no end after {SECONDS} s: ranks wait for each other?"
        return json.loads(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        self.process.wait(300)


@pytest.fixture(scope="session")
def two_gpus():
    rehearsal = Rehearsal(2)
    yield rehearsal
    rehearsal.end()


@pytest.fixture(scope="session")
def one_gpu():
    rehearsal = Rehearsal(1)
    yield rehearsal
    rehearsal.end()


@pytest.fixture(scope="session")
def two_unused_gpus():
    rehearsal = Rehearsal(2, unused=True)
    yield rehearsal
    rehearsal.end()

import sys
from pathlib import Path

import pytest
import running_hub

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy" / "jupyterhub"
sys.path.insert(0, str(DEPLOY))
sys.path += [str(ROOT / "tests" / "slurm"), str(ROOT / "benchmarks")]  # one_machine_slurm; a student who is a program


@pytest.fixture(scope="session")
def deploy():
    """The folder with the hub's configuration."""
    return DEPLOY


@pytest.fixture(scope="session")
def hub():
    """The hub of `make hub`, for all tests that need one; the first ever start installs for minutes."""
    if lack := running_hub.missing():
        pytest.skip(lack)
    running = running_hub.RunningHub()
    try:
        yield running
    finally:
        running.stop()

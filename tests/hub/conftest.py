import sys
from pathlib import Path

import pytest

DEPLOY = Path(__file__).resolve().parents[2] / "deploy" / "jupyterhub"
sys.path.insert(0, str(DEPLOY))


@pytest.fixture(scope="session")
def deploy():
    """The folder with the hub's configuration."""
    return DEPLOY

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def repository():
    """The repository's root."""
    return Path(__file__).resolve().parents[1]

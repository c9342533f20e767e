import os
from pathlib import Path

import pytest

LONG = ("labs", "hostile")  # folders whose files take minutes

# Read when PyTorch is loaded, here and in every process that a test starts. Elsewhere threads that wait for each other
# spin; where more of them compute than there are cores, that is most of what they do.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def pytest_collection_modifyitems(items):
    """Long files go first: where two processes share the files, neither is left with a long one at the end."""
    items.sort(key=lambda item: item.path.parent.name not in LONG)


@pytest.fixture(scope="session")
def repository():
    """The repository's root."""
    return Path(__file__).resolve().parents[1]

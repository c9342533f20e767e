"""Tests that need a CUDA GPU: `make test-gpu`.

tests/rehearsal/test_gpu_suite.py runs them on pretended GPUs, which have no autocast, no streams and no memory of their
own. A test with the fixture `real_gpu` is not executed there: no machine without a GPU has run it.
"""

import pytest
import torch

PRETENDED = torch.cuda.is_available() and torch.cuda.get_device_name() == "Pretended GPU"


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.parent.name == "gpu":
            item.add_marker(pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"))


@pytest.fixture
def device(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # convolutions as exact as the CPU's
    return torch.device("cuda", 0)


@pytest.fixture
def pretended():
    """Whether the GPU is a pretended one, which computes without autocast."""
    return PRETENDED


@pytest.fixture
def real_gpu(device):
    if PRETENDED:
        pytest.skip("a pretended GPU does not show this")
    torch.cuda.empty_cache()
    yield device
    torch.cuda.empty_cache()


@pytest.fixture(scope="session")
def two_gpus():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    return 2

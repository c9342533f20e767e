import sys

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Small tensors gain nothing from threads, and on a busy machine threads that wait for each other crawl."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def no_figures_left():
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")

"""One warm process for the labs' kernels."""

import pytest

from course_lib.warm_kernels import WarmServer


@pytest.fixture(scope="session")
def warm_server():
    """A process that has imported what labs import; kernels and points of sweeps are its forks."""
    with WarmServer.private() as server:
        yield server

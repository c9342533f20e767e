"""A real Slurm for the tests of this folder, started once."""

from __future__ import annotations

import pytest
from one_machine_slurm import SlurmNotHere, one_machine_slurm


@pytest.fixture(scope="session")
def slurm():
    """A one-machine cluster with 4 cores and 2 GPUs (in name) to give away; `OneMachineSlurm`, found by whatever the test starts."""
    try:
        with one_machine_slurm() as cluster:
            yield cluster
    except SlurmNotHere as error:
        pytest.skip(str(error))

"""A real Slurm for the tests of this folder, started once."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from one_machine_slurm import OneMachineSlurm, SlurmNotHere, install_slurm


@pytest.fixture(scope="session")
def slurm():
    """A one-machine cluster with 4 cores and 2 GPUs (in name) to give away; `OneMachineSlurm`, found by whatever the test starts."""
    # Not pytest's folder: munged wants one above which nobody but root can write (or a sticky one, as /tmp is).
    folder = Path(tempfile.mkdtemp(prefix="one-machine-slurm-"))
    folder.chmod(0o755)
    before = {name: os.environ.get(name) for name in ("SLURM_CONF", "PATH")}
    try:
        install_slurm()
        with OneMachineSlurm(folder) as cluster:
            os.environ.update(cluster.environment)
            yield cluster
    except SlurmNotHere as error:
        pytest.skip(str(error))
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        shutil.rmtree(folder, ignore_errors=True)

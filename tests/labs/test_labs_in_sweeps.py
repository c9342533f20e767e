"""A sweep leaves out the cells tagged `lesson`, and what is left of each lab is a whole run.

On one rank, for an epoch: the whole notebook, executed in test_labs_in_nbgrader, has two, learns, and leaves the network
whose accuracy its curve ends with.
"""

import contextlib
import re
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from click.testing import CliRunner
from finished_run import complete

from course_lib.runs.sweep import local
from course_lib.runs.sweep.command import sweep

NOTEBOOKS = sorted(Path(__file__).resolve().parents[2].glob("labs/[0-9][0-9]_*/*.ipynb"))


@pytest.fixture(scope="module", autouse=True)
def shared(warm_server):
    """Sweeps take the warm process that is there already."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local.WarmServer, "private", lambda: contextlib.nullcontext(warm_server))
        yield


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_left_is_a_whole_run(path, tmp_path, monkeypatch):
    monkeypatch.setenv("LAB_DATA", str(tmp_path / "no data here"))  # the shipped set needs no staging
    done = CliRunner().invoke(
        sweep,
        [path.stem[:2], "-g", "num_gpus=1", "-p", "epochs", "1", "--profile", "smoke", "-o", str(tmp_path / "s")],
        catch_exceptions=False,
    )
    assert done.exit_code == 0, done.output
    table = pd.read_csv(tmp_path / "s" / "results.csv")
    (row,) = table.itertuples()
    assert row.status == "done"
    folder = tmp_path / "s" / row.folder
    _, epochs = complete(folder, path.stem, 1)
    assert row.final_accuracy == float(epochs[-1]["val_accuracy"])
    executed = nbformat.read(folder / path.name, as_version=4)
    for cell in executed.cells:
        if cell.cell_type == "code":
            assert (cell.execution_count is None) == ("lesson" in cell.metadata.get("tags", [])), cell.id


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_checks_teach(path):
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code" and re.search(r"^check\(", cell.source, re.MULTILINE):
            assert "lesson" in cell.metadata.get("tags", []), cell.id

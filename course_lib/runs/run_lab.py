"""Run a lab's notebook headlessly; its results are published only when it succeeds."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from filelock import FileLock, Timeout

from course_lib.runs.execute_notebook import NotebookFailedError, execute_notebook
from course_lib.runs.labs import UnknownLabError, find_lab
from course_lib.runs.parameters import ParameterError
from course_lib.system.extras import need

__all__ = ["check_data", "run_lab"]


def run_lab(
    name: str, profile: str = "laptop", parameters: Mapping[str, Any] | None = None, output: str | Path | None = None
) -> Path:
    """Execute a lab's notebook by papermill; its path is printed first.

    What the kernel prints is shown at once. Until the notebook has succeeded, all files are in ``<output>/unfinished``;
    an earlier run's results stay untouched if this one fails.

    Parameters
    ----------
    name : str
        As `find_lab` takes it.
    parameters : mapping, optional
        Override the profile's.
    output : path, optional
        The run folder; by default the parameter ``output_dir`` if it is given, else ``runs/<lab>`` in the working
        folder.

    Returns
    -------
    Path
        The run folder, with the executed notebook.

    Raises
    ------
    click.UsageError
        Unknown lab, profile or parameter, an invalid value, an output that cannot be written.
    click.ClickException
        Data not staged; the notebook failed.
    MissingExtraError
        papermill is not installed.
    """
    need("sweep", "lab run")
    try:
        lab = find_lab(name)
        values = lab.parameters(profile, parameters or {})
        lab.check(values)
        chosen = {str(Path(path).absolute()) for path in (output, (parameters or {}).get("output_dir")) if path}
        if len(chosen) > 1:
            raise ParameterError(f"the run folder is given twice: -o {output} and -p output_dir {values['output_dir']}")
    except (UnknownLabError, ParameterError) as error:
        raise click.UsageError(str(error)) from None
    check_data(values)

    folder = Path(*chosen or ("runs", lab.name)).absolute()
    unfinished = folder / "unfinished"
    try:
        unfinished.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / ".lock").acquire(timeout=0)
    except Timeout:
        raise click.ClickException(f"another run is writing to {folder}; wait for it or choose -o DIR") from None
    except OSError as error:
        raise click.UsageError(
            f"output {folder} cannot be written ({error.strerror}); choose another by -o DIR"
        ) from None
    with lock:
        values["output_dir"] = str(folder)
        click.echo(f"notebook: {lab.notebook}")
        executed = unfinished / lab.notebook.name
        try:
            execute_notebook(lab.notebook, executed, values)
        except NotebookFailedError as error:
            parts = [f"{lab.name}: {error}"]
            if error.traceback:
                parts.append(f"the traceback is in {executed}")
            if any(path.name not in ("unfinished", ".lock") for path in folder.iterdir()):
                parts.append(f"earlier results in {folder} are untouched")
            if not error.traceback:
                parts.append("try a smaller batch_size or fewer train_samples")
            raise click.ClickException("; ".join(parts)) from None
        os.replace(executed, folder / lab.notebook.name)
        if not any(unfinished.iterdir()):
            unfinished.rmdir()
    return folder


def check_data(parameters: Mapping[str, Any]) -> None:
    """Raise click's error when a data set that the parameters name is unknown or not staged."""
    from data_prep.catalogue import CATALOGUE
    from data_prep.errors import DataError
    from data_prep.made_up import MADE_UP
    from data_prep.novel import NAME
    from data_prep.staged import read

    for dataset in [value for name, value in parameters.items() if name.endswith("dataset")]:
        if dataset == NAME:  # a text, which ships with the course
            continue
        if dataset not in CATALOGUE and dataset not in MADE_UP:
            raise click.UsageError(f"unknown dataset {dataset!r}; known: {', '.join([*CATALOGUE, *MADE_UP, NAME])}")
        try:
            read(dataset)
        except DataError as error:
            raise click.ClickException(str(error)) from None

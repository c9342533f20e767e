"""Release copies of the labs: what a student gets, without solutions, model answers and hidden tests.

A source notebook becomes what ``nbgrader generate_assignment`` makes of it, cell for cell (a test compares them for all
labs). Above them is one cell more, which sets up a machine without the course: `set_up_cell`. nbgrader itself is not used, because ``setup.py`` runs this file while it builds the wheel: with nbgrader every
``pip install .`` would first install JupyterLab into pip's build environment. Only the standard library is imported.
"""

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

__all__ = [
    "PUBLIC", "SOURCES", "WHEEL", "ReleaseError", "release_everything", "release_lab", "release_notebook",
    "release_scripts", "set_up_cell",
]  # fmt: skip

# The course's public address. Who publishes the course writes it here, and in the README's badges (a test compares them).
PUBLIC = "https://github.com/OWNER/COURSE"
WHEEL = "releases/download/v0.1.0/distributed_training_labs-0.1.0-py3-none-any.whl"  # below it

STUBS = {"code": "# YOUR CODE HERE\nraise NotImplementedError()", "markdown": "YOUR ANSWER HERE"}
GRADING_SCRIPTS = "grade.*"  # the instructor's
SOURCES = "sources.md"  # beside the labs, because each notebook links it as ../sources.md
# In each lab under the name that assistants look for. In the sources it has another one: authors may have solutions written.
ASSISTANTS, AGENTS = "assistants.md", "AGENTS.md"
VALIDATE = '''"""nbgrader's settings for Validate: a cell may train for half an hour, not only for 30 s."""

c = get_config()  # noqa: F821  (nbgrader provides it)
c.Execute.timeout = 1800
'''


SET_UP = """\
# Set-up for Colab, Kaggle or a bare machine. Where the course is installed, this does nothing.
import importlib.util
import os
import subprocess
import sys

if importlib.util.find_spec("course_lib") is None:
    if sys.version_info < (3, 11):
        raise RuntimeError(f"Python 3.11 or newer is needed; this is {{sys.version.split()[0]}}")
    wheel = ("{public}/"
             "{wheel}")
    wheel = os.environ.get("LAB_WHEEL", wheel)  # another place, such as file:///…
    print("installing the course (minutes, if PyTorch is not there):", wheel, flush=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*pip, f"distributed-training-labs{extra} @ {{wheel}}"],
                          capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"pip could not install {{wheel}}: {{done.stderr.strip()[-300:]}}")
    importlib.invalidate_caches()
    from course_lib.data.set_up import set_up

    set_up({datasets})  # looks at the machine, and stages the data"""


class ReleaseError(ValueError):
    """No release copy can be made; one line that names the place."""


def release_everything(repository: Path, target: Path) -> None:
    """Write release copies of all labs, and the files beside them, into a new folder `target`.

    Each lab has a note for AI assistants. Beside the labs are the cluster's scripts, nbgrader's settings, and the list of
    sources that the notebooks link.

    Raises
    ------
    ReleaseError
        `repository` has no labs, or a notebook's solution regions are not closed.
    """
    labs = sorted(path.parent for path in (repository / "labs").glob("[0-9][0-9]_*/profiles.yaml"))
    if not labs:
        raise ReleaseError(f"no labs in {repository / 'labs'}: build from a checkout of the repository")
    shutil.rmtree(target, ignore_errors=True)
    for lab in labs:
        release_lab(lab, target / lab.name)
        shutil.copyfile(repository / "labs" / ASSISTANTS, target / lab.name / AGENTS)
    release_scripts(repository / "deploy", target / "deploy")
    (target / "nbgrader_config.py").write_text(VALIDATE)
    shutil.copyfile(repository / "labs" / SOURCES, target / SOURCES)


def release_lab(source: Path, target: Path) -> None:
    """Write the release copy of the lab in the folder `source` into a new folder `target`."""
    target.mkdir(parents=True)
    notebook = json.loads((source / f"{source.name}.ipynb").read_text(encoding="utf-8"))
    try:
        released = release_notebook(notebook)
        released["cells"].insert(0, set_up_cell(notebook))
    except ReleaseError as error:
        raise ReleaseError(f"{source / source.name}.ipynb: {error}") from None
    text = json.dumps(released, indent=1, ensure_ascii=False) + "\n"
    (target / f"{source.name}.ipynb").write_text(text, encoding="utf-8")
    for path in (*source.glob("*.yaml"), *source.glob("*.py")):
        shutil.copyfile(path, target / path.name)


def release_scripts(deploy: Path, target: Path) -> None:
    """Copy the job scripts that a student needs, ``slurm/`` and ``pbs/``, into the folder `target`."""
    for scheduler in ("slurm", "pbs"):
        ignored = shutil.ignore_patterns(GRADING_SCRIPTS)
        shutil.copytree(deploy / scheduler, target / scheduler, ignore=ignored, copy_function=shutil.copyfile)


def release_notebook(notebook: dict[str, Any]) -> dict[str, Any]:
    """The release version of a source notebook, both as parsed JSON; `notebook` itself stays as it is.

    Raises
    ------
    ReleaseError
        A region begins twice or does not end, or a solution is in a cell that is not marked as one.
    """
    released = json.loads(json.dumps(notebook))
    released["metadata"].pop("celltoolbar", None)
    for cell in released["cells"]:
        source = cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])
        source = _released(source, cell)
        cell["source"] = source.splitlines(keepends=True)
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
        _lock_and_sign(cell, source)
    return released


def set_up_cell(notebook: dict[str, Any]) -> dict[str, Any]:
    """The cell on top of a release, which installs the course where it is missing and stages this lab's data.

    The cell is no part of the assignment: it has no mark of nbgrader's, and a sweep leaves it out.

    Parameters
    ----------
    notebook : dict
        Parsed JSON; the data are those that its parameters name.
    """
    cells = [("".join(cell["source"]), cell["metadata"].get("tags", ())) for cell in notebook["cells"]]
    parameters = "".join(text for text, tags in cells if "parameters" in tags)
    datasets = dict.fromkeys(re.findall(r'^\w*dataset *= *(".*?")', parameters, re.MULTILINE))
    extra = "[mpi]" if any("import mpi4py" in text for text, _ in cells) else ""
    source = SET_UP.format(public=PUBLIC, wheel=WHEEL, extra=extra, datasets=", ".join(datasets))
    return {
        "cell_type": "code", "execution_count": None, "id": "set-up", "metadata": {"tags": ["lesson"]}, "outputs": [],
        "source": source.splitlines(keepends=True),
    }  # fmt: skip


def _released(source: str, cell: dict[str, Any]) -> str:
    stub = STUBS.get(cell["cell_type"], STUBS["markdown"])
    text, was_solved = _without("SOLUTION", source, stub)
    is_solution = _marked(cell, "solution")
    if was_solved and not is_solution:
        raise ReleaseError(f"cell {cell.get('id')} has a solution and is not marked as a solution cell")
    if is_solution and not was_solved:
        text = stub  # the whole cell is the answer
    text, _ = _without("HIDDEN TESTS", text)
    text, _ = _without("MARK SCHEME", text)
    return text


def _without(region: str, source: str, stub: str = "") -> tuple[str, bool]:
    """`source` with `stub` in the place of each region; and whether there was one."""
    lines: list[str] = []
    inside = found = False
    for line in source.split("\n"):
        if f"BEGIN {region}" in line:
            if inside:
                raise ReleaseError(f"BEGIN {region} within BEGIN {region}")
            inside = found = True
            indent = re.match(r"\s*", line).group()
            lines += [indent + text for text in stub.split("\n")] if stub else []
        elif f"END {region}" in line:
            inside = False
        elif not inside:
            lines.append(line)
    if inside:
        raise ReleaseError(f"BEGIN {region} without END {region}")
    return "\n".join(lines), found


def _marked(cell: dict[str, Any], key: str) -> bool:
    return bool(cell["metadata"].get("nbgrader", {}).get(key, False))


def _lock_and_sign(cell: dict[str, Any], source: str) -> None:
    """nbgrader's marks: which cells a student can delete and edit, and the checksum that reveals an edit."""
    metadata = cell["metadata"]
    is_solution, is_grade = _marked(cell, "solution"), _marked(cell, "grade")
    is_locked = not is_solution and (is_grade or _marked(cell, "locked"))
    if is_solution or is_locked:
        metadata["deletable"] = False
    if is_locked:
        metadata["editable"] = False
    if not (is_solution or is_locked):
        return
    parts = [source, cell["cell_type"], is_grade, is_solution, is_locked, metadata["nbgrader"]["grade_id"]]
    if is_grade:
        parts.append(float(metadata["nbgrader"]["points"]))
    metadata["nbgrader"]["checksum"] = hashlib.md5("".join(map(str, parts)).encode()).hexdigest()
    metadata["nbgrader"]["cell_type"] = cell["cell_type"]

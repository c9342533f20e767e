"""Lab 01's answers, as somebody would paste them from the source."""

from pathlib import Path

import nbformat
import yaml

from course_lib.runs.release_copy import set_up_cell

LAB = "01_single_gpu"
MARKERS = ("### BEGIN SOLUTION", "### END SOLUTION")


def answers(checkout: Path) -> dict[int, str]:
    """Text by the cell's number: the smoke profile's parameters, and each solution without its markers."""
    smoke = yaml.safe_load((checkout / "labs" / LAB / "profiles.yaml").read_text())["smoke"]
    found = {}
    for number, cell in enumerate(source(checkout).cells):
        if "parameters" in cell.metadata.get("tags", []):
            names = [line.partition("=")[0].strip() for line in cell.source.splitlines()]
            lines = zip(names, cell.source.splitlines(), strict=True)
            found[number] = "\n".join(f"{name} = {smoke[name]!r}" if name in smoke else line for name, line in lines)
        elif cell.metadata.get("nbgrader", {}).get("solution"):
            lines = cell.source.splitlines()
            found[number] = "\n".join(line for line in lines if line.strip() not in MARKERS)
    return found


def number_of(checkout: Path, cell_id: str) -> int:
    """The number of a cell."""
    return [cell.id for cell in source(checkout).cells].index(cell_id)


def source(checkout: Path):
    """The source notebook, of the checkout that the hub serves, with the cell in front that released copies have."""
    notebook = nbformat.read(checkout / "labs" / LAB / f"{LAB}.ipynb", as_version=4)
    notebook.cells.insert(0, nbformat.from_dict(set_up_cell(notebook)))
    return notebook

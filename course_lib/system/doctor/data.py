"""The data root: is it there, readable, and whole?"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from course_lib.system.doctor.finding import Finding
from data_prep.errors import DataError
from data_prep.root import located
from data_prep.staged import DESCRIPTION, read

__all__ = ["staged"]

FIRST = "fashion-mnist"  # what most labs train on


def staged() -> Iterator[Finding]:
    """Every set below the data root opens, and the one that most labs use is among them. Hashes: ``lab data verify``."""
    root, from_where = located()
    given = os.environ.get("LAB_DATA", "")
    if given and not Path(given).expanduser().is_absolute():
        yield Finding(
            "data",
            "problem",
            f"LAB_DATA={given} means another folder wherever a program starts, here {root}",
            f"export LAB_DATA={root}",
        )
    if not root.is_dir():
        yield Finding(
            "data",
            "problem",
            f"there is no folder {root} ({from_where})",
            f"export LAB_DATA=FOLDER (your course says which), or stage it yourself: lab data fetch {FIRST}",
        )
        return
    if not os.access(root, os.R_OK | os.X_OK):
        yield Finding(
            "data", "problem", f"{root} cannot be read ({from_where})", "ask your administrator for read access to it"
        )
        return
    names = sorted(folder.name for folder in root.iterdir() if (folder / DESCRIPTION).is_file())
    fine = []
    for name in names:
        try:
            found = read(name, root)
        except (DataError, OSError, ValueError) as error:
            yield Finding("data", "problem", str(error), f"stage it again: lab data fetch {name}")
        else:
            fine.append(f"{name} ({found.provenance})")
    if FIRST not in names:
        yield Finding(
            "data",
            "problem",
            f"{FIRST} is not staged below {root} ({from_where})" + (f"; there is {', '.join(fine)}" if fine else ""),
            f'lab data fetch {FIRST}; without any network: dataset = "fashion-mnist-small", which came with the course',
        )
    elif fine:
        yield Finding("data", "fine", f"{', '.join(fine)} below {root} ({from_where})")

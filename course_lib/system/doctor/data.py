"""The data root: is it there, readable, and whole?"""

import os
from collections.abc import Iterator
from pathlib import Path

from course_lib.system.doctor.finding import Finding, fine, problem
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
        yield problem(
            "data",
            f"LAB_DATA={given} is a relative path, and depends on where a program starts; here it is {root}",
            f"export LAB_DATA={root}",
        )
    if not root.is_dir():
        yield problem(
            "data",
            f"there is no folder {root} ({from_where})",
            f"export LAB_DATA=FOLDER (your course says which), or stage it yourself: lab data fetch {FIRST}",
        )
        return
    if not os.access(root, os.R_OK | os.X_OK):
        yield problem("data", f"{root} cannot be read ({from_where})", "ask your administrator for read access to it")
        return
    names = sorted(folder.name for folder in root.iterdir() if (folder / DESCRIPTION).is_file())
    whole = []
    for name in names:
        try:
            found = read(name, root)
        except (DataError, OSError, ValueError) as error:
            yield problem("data", str(error), f"stage it again: lab data fetch {name}")
        else:
            whole.append(f"{name} ({found.provenance})")
    if FIRST not in names:
        yield problem(
            "data",
            f"{FIRST} is not staged below {root} ({from_where})" + (f"; there is {', '.join(whole)}" if whole else ""),
            f'lab data fetch {FIRST}; without any network: dataset = "fashion-mnist-small", which came with the course',
        )
    elif whole:
        yield fine("data", f"{', '.join(whole)} below {root} ({from_where})")

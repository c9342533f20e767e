"""A lab as a page: its release copy as Markdown, with the outputs of an executed copy where there is one."""

import base64
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from course_lib.runs.release_copy import release_notebook

__all__ = ["executed_notebooks", "lab_page"]

FENCE = "`" * 6  # longer than any in a cell
LATER_TITLE = re.compile(r"^# (?=Sitting )", re.MULTILINE)  # a page has one title


def executed_notebooks(folder: Path | None, labs: Iterable[Path]) -> dict[str, Path]:
    """Name of a lab's notebook → its newest copy that ran to its end, at any depth below `folder`.

    Raises
    ------
    FileNotFoundError
        There is none.
    """
    if folder is None:
        return {}
    names = {lab.name for lab in labs}
    copies = [path for path in folder.rglob("*.ipynb") if path.name in names and path.parent.name != "unfinished"]
    if not copies:
        raise FileNotFoundError(f"{folder}: no executed notebook of a lab; `lab run 01 -o {folder}/01` makes one")
    return {path.name: path for path in sorted(copies, key=lambda path: path.stat().st_mtime)}


def lab_page(source: Path, executed: Path | None, folder: Path) -> str:
    """Markdown of the release copy of the notebook `source`. Pictures are written into `folder`.

    The code is the release's, also where `executed` has a solution. Of its outputs the page shows printed text, plain
    results and PNG pictures with their alternative text; HTML, standard error and tracebacks are left out.
    """
    notebook = release_notebook(json.loads(source.read_text(encoding="utf-8")))
    run = json.loads(executed.read_text(encoding="utf-8"))["cells"] if executed else []
    outputs = {cell.get("id"): cell.get("outputs", []) for cell in run}
    parts = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        parts.append(LATER_TITLE.sub("## ", text) if cell["cell_type"] == "markdown" else _block("ipython3", text))
        for number, output in enumerate(outputs.get(cell["id"], [])):
            parts += _shown(output, folder / f"{source.stem}-{cell['id']}-{number}.png")
    return "\n\n".join(parts) + "\n"


def _shown(output: dict[str, Any], picture: Path) -> Iterator[str]:
    data = output.get("data", {})
    if output["output_type"] == "stream" and output["name"] == "stdout":
        yield _block("text", "".join(output["text"]))
    elif "image/png" in data:
        picture.write_bytes(base64.b64decode("".join(data["image/png"])))
        alternative = output["metadata"].get("image/png", {}).get("alt") or "figure of the run"
        yield f"![{alternative.translate({ord(mark): None for mark in '[]'})}]({picture.name})"
    elif "text/plain" in data and "text/html" not in data:
        yield _block("text", "".join(data["text/plain"]))


def _block(language: str, text: str) -> str:
    return f"{FENCE}{language}\n{text.rstrip()}\n{FENCE}"

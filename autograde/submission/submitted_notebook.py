"""A student's notebook, read as data.

The file is opened as a run folder's files are (`autograde.submission.run_folder`), and what comes out is built anew from the few
fields that grading uses: a cell's type, text, id, nbgrader fields, pictures pasted into it, and outputs that show
nothing but text and PNG. All else in the JSON is dropped here, so no later step sees it.
"""

from __future__ import annotations

import binascii
import itertools
import json
import os
import re
from base64 import b64decode, b64encode
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from autograde.submission.notebook_size import TooManyTokens, without_outputs
from autograde.submission.run_folder import EvidenceError, open_submission, read_plain
from course_lib.runs.run_evidence.quoting import quote

__all__ = ["MAX_BYTES", "MAX_CELLS", "MAX_IMAGE_BYTES", "MAX_OUTPUT_TEXT", "read_notebook", "safe_outputs"]

MAX_BYTES = 20_000_000
MAX_BYTES_WITH_OUTPUTS = 100_000_000
MAX_CELLS = 2_000
MAX_OUTPUTS = 500
MAX_OUTPUT_TEXT = 20_000
MAX_IMAGE_BYTES = 2_000_000
# A PNG of few bytes can unpack to gigabytes in the browser that shows it.
MAX_IMAGE_PIXELS = 50_000_000

REMEDY = "hand in the notebook as Jupyter saves it"
SMALLER = "clear the outputs of all cells, save the notebook and hand it in again"
NBGRADER_FIELDS = (
    "schema_version", "grade", "solution", "locked", "task", "points", "grade_id", "cell_type", "checksum",
)  # fmt: skip

_CELL_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_SURROGATE = re.compile("[\ud800-\udfff]")
_TERMINAL_CODE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_CUT = "\n[cut here]"


def read_notebook(submission: Path, lab: str) -> NotebookNode:
    """Read a submission's notebook; nothing in it is run or followed.

    Parameters
    ----------
    submission : Path
        ``submitted/STUDENT/LAB``. Neither of the last two components may be a link.
    lab : str
        The lab's full name; the file is ``LAB.ipynb``.

    Returns a valid nbformat 4.5 notebook of code, markdown and raw cells. An id that is missing, malformed or taken is
    replaced by ``unnamed-N``. Metadata is empty but for nbgrader's own fields; outputs are `safe_outputs`. A file above
    `MAX_BYTES` is read without outputs, which ``metadata.left_out`` then says in one line.

    Raises `EvidenceError` for every problem, in one line. Nothing else is raised.
    """
    shown = f"{lab}.ipynb"
    try:
        folder = open_submission(submission)
        try:
            missing = "hand in the notebook under the name that it was released with"
            data = read_plain(folder, shown, MAX_BYTES_WITH_OUTPUTS, shown=shown, missing=missing, remedy=SMALLER)
        finally:
            os.close(folder)
        size = len(data)
        if size > MAX_BYTES:
            data = _small(data, shown)
        notebook = _notebook(_parse(_text(data, shown), shown), shown)
        if size > MAX_BYTES:
            notebook.metadata.left_out = (
                f"{shown} has {size:,} bytes, so it was read without its outputs; no points lost"
            )
        return notebook
    except EvidenceError:
        raise
    except FileNotFoundError:
        raise EvidenceError(f"no submission: expected a folder with {shown}; hand in the notebook") from None
    except Exception as error:  # fails closed: an unexpected error means "no notebook" and does not stop the grading
        raise EvidenceError(f"{shown} could not be read ({type(error).__name__}): {REMEDY}") from None


def _small(data: bytes, shown: str) -> bytes:
    size = len(data)
    try:
        data = without_outputs(data)
    except TooManyTokens:
        raise EvidenceError(f"{shown} has {size:,} bytes in too many pieces: {SMALLER}") from None
    if len(data) > MAX_BYTES:
        raise EvidenceError(
            f"{shown} has {len(data):,} bytes, at most {MAX_BYTES:,} are read without outputs: {SMALLER}"
        )
    return data


def _text(data: bytes, shown: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise EvidenceError(f"{shown} is not UTF-8 text (byte {error.start}): {REMEDY}") from None


def _parse(text: str, shown: str) -> object:
    try:
        return json.loads(text.removeprefix("\ufeff"))
    except RecursionError:
        raise EvidenceError(f"{shown} is nested too deeply for a notebook: {REMEDY}") from None
    except json.JSONDecodeError as error:
        raise EvidenceError(f"{shown} is not JSON ({error.msg}, line {error.lineno}): {REMEDY}") from None
    except ValueError:
        raise EvidenceError(f"{shown} holds a number that is too long: {REMEDY}") from None


def _notebook(document: object, shown: str) -> NotebookNode:
    if not isinstance(document, dict):
        raise EvidenceError(f"{shown} is not a notebook, but {quote(document)}: {REMEDY}")
    version = document.get("nbformat")
    if version == 3 and type(version) is int:
        cells = _from_version_3(document, shown)
    elif version == 4 and type(version) is int:
        cells = _cell_list(document.get("cells"), shown)
    else:
        raise EvidenceError(f"{shown} has nbformat {quote(version)}, not 4 or 3: {REMEDY}")
    ids = _ids(cells)
    read = [_cell(cell, number, shown) for number, cell in enumerate(cells, start=1)]
    for cell, name in zip(read, ids, strict=True):
        cell.id = name
    return NotebookNode(nbformat=4, nbformat_minor=5, metadata=NotebookNode(), cells=read)


def _cell_list(cells: object, shown: str) -> list[dict]:
    if not isinstance(cells, list):
        raise EvidenceError(f"{shown} has no list of cells: {REMEDY}")
    if len(cells) > MAX_CELLS:
        raise EvidenceError(f"{shown} has {len(cells):,} cells, at most {MAX_CELLS:,} are read: remove the rest")
    for number, cell in enumerate(cells, start=1):
        if not isinstance(cell, dict):
            raise EvidenceError(f"{shown} cell {number} is no cell, but {quote(cell)}: {REMEDY}")
    return cells


def _from_version_3(document: dict, shown: str) -> list[dict]:
    """nbformat's own converter, given only what it needs: it trusts types, and a heading's level repeats a string."""
    sheets = document.get("worksheets")
    if not isinstance(sheets, list) or not all(isinstance(sheet, dict) for sheet in sheets):
        raise EvidenceError(f"{shown} has no list of worksheets: {REMEDY}")
    found: list[object] = []
    for sheet in sheets:
        cells = sheet.get("cells")
        found.extend(_cell_list(cells, shown))
        _cell_list(found, shown)
    bare = [_bare_version_3(cell, number, shown) for number, cell in enumerate(found, start=1)]
    old = {"nbformat": 3, "nbformat_minor": 0, "metadata": {"name": ""}, "worksheets": [{"cells": bare}]}
    try:
        cells = nbformat.convert(nbformat.from_dict(old), 4).cells
    except Exception as error:
        raise EvidenceError(
            f"{shown} cannot be converted from nbformat 3 ({type(error).__name__}): open and save it in JupyterLab"
        ) from None
    for cell in cells:
        del cell["id"]  # drawn at random
    return cells


def _bare_version_3(cell: dict, number: int, shown: str) -> dict:
    kind = cell.get("cell_type")
    bare = {"cell_type": kind, "metadata": _metadata(cell)}
    if kind == "code":
        bare |= {"input": _source(cell.get("input", ""), number, shown), "language": "python", "outputs": []}
    elif kind in ("markdown", "raw", "html", "heading"):
        bare["source"] = _source(cell.get("source"), number, shown)
        if kind == "heading":
            level = cell.get("level", 1)
            bare["level"] = level if type(level) is int and 1 <= level <= 6 else 1
    else:
        raise EvidenceError(f"{shown} cell {number} has the type {quote(kind)}: {REMEDY}")
    return bare


def _cell(cell: dict, number: int, shown: str) -> NotebookNode:
    kind = cell.get("cell_type")
    if kind not in ("code", "markdown", "raw"):
        raise EvidenceError(f"{shown} cell {number} has the type {quote(kind)}, not code, markdown or raw: {REMEDY}")
    read = NotebookNode(cell_type=kind, metadata=_metadata(cell), source=_source(cell.get("source"), number, shown))
    if kind == "code":
        read.outputs = safe_outputs(cell)
        read.execution_count = _count(cell.get("execution_count"))
    elif pictures := _attachments(cell.get("attachments")):
        read.attachments = pictures
    return read


def _source(value: object, number: int, shown: str) -> str:
    text = _joined(value)
    if text is None:
        raise EvidenceError(f"{shown} cell {number} has no text as its source, but {quote(value)}: {REMEDY}")
    # JSON can spell half a character, which no file can hold.
    return _SURROGATE.sub("\ufffd", text)


def _joined(value: object) -> str | None:
    """JSON text as notebooks have it, a string or a list of them; None for anything else."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "".join(value)
    return value if isinstance(value, str) else None


def _metadata(cell: dict) -> NotebookNode:
    metadata = cell.get("metadata")
    fields = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    if not isinstance(fields, dict):
        return NotebookNode()
    kept = {name: fields[name] for name in NBGRADER_FIELDS if name in fields and _is_plain(fields[name])}
    return NotebookNode(nbgrader=NotebookNode(kept)) if kept else NotebookNode()


def _is_plain(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= 200 and not _SURROGATE.search(value)
    return value is None or isinstance(value, (bool, int, float))


def _ids(cells: list[dict]) -> list[str]:
    """Unique ids: the cell's own, else the one that Colab keeps in the metadata, else a new one."""
    ids: list[str | None] = []
    taken: set[str] = set()
    for cell in cells:
        metadata = cell.get("metadata")
        wanted = (cell.get("id"), metadata.get("id") if isinstance(metadata, dict) else None)
        usable = (name for name in wanted if isinstance(name, str) and _CELL_ID.fullmatch(name) and name not in taken)
        ids.append(next(usable, None))
        taken.add(ids[-1])
    fresh = (name for number in itertools.count(1) if (name := f"unnamed-{number}") not in taken)
    return [name or next(fresh) for name in ids]


def _attachments(value: object) -> NotebookNode:
    """Pictures pasted into a text cell, PNG only."""
    pictures = NotebookNode()
    for name, data in value.items() if isinstance(value, dict) else ():
        picture = _png(data.get("image/png")) if isinstance(data, dict) else None
        if picture and len(name) <= 200 and not _SURROGATE.search(name):
            pictures[name] = NotebookNode({"image/png": picture})
    return pictures


def safe_outputs(cell: dict) -> list[NotebookNode]:
    """A code cell's outputs, as far as they are safe to look at.

    Parameters
    ----------
    cell : dict
        A cell as JSON has it; nothing is assumed of its shape.

    Valid nbformat 4 outputs with stream text, ``text/plain`` (both without terminal codes and together at most
    `MAX_OUTPUT_TEXT` characters) and ``image/png`` (at most `MAX_IMAGE_BYTES`, with PNG's signature). No error outputs,
    HTML, SVG, JavaScript, widgets or metadata. Never raises.
    """
    outputs = cell.get("outputs") if isinstance(cell, dict) else None
    safe: list[NotebookNode] = []
    room = MAX_OUTPUT_TEXT
    for output in outputs if isinstance(outputs, list) else ():
        if len(safe) == MAX_OUTPUTS:
            break
        if not isinstance(output, dict):
            continue
        kind = output.get("output_type")
        if kind == "stream":
            if text := _shown_text(output.get("text"), room):
                name = "stderr" if output.get("name") == "stderr" else "stdout"
                safe.append(NotebookNode(output_type=kind, name=name, text=text))
                room -= len(text)
        elif kind in ("display_data", "execute_result") and isinstance(data := output.get("data"), dict):
            shown = NotebookNode()
            if text := _shown_text(data.get("text/plain"), room):
                shown["text/plain"] = text
                room -= len(text)
            if picture := _png(data.get("image/png")):
                shown["image/png"] = picture
            if shown:
                safe.append(NotebookNode(output_type=kind, data=shown, metadata=NotebookNode()))
                if kind == "execute_result":
                    safe[-1].execution_count = _count(output.get("execution_count"))
    return safe


def _shown_text(value: object, room: int) -> str:
    text = (_joined(value) or "")[:1_000_000]
    lines = _TERMINAL_CODE.sub("", text).replace("\r\n", "\n").split("\n")
    # A progress bar goes back to the start of its line: what it wrote last stays.
    text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)
    text = _CONTROL.sub("\ufffd", text)
    if len(text) <= room:
        return text
    return text[: room - len(_CUT)] + _CUT if room > len(_CUT) else ""


def _png(value: object) -> str | None:
    """The picture's base64, written anew; None where it is not strictly that, not PNG, or too large."""
    text = (_joined(value) or "").replace("\n", "")
    if not 0 < len(text) <= MAX_IMAGE_BYTES * 4 // 3 + 4:
        return None
    try:
        data = b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    if len(data) > MAX_IMAGE_BYTES or not data.startswith(b"\x89PNG\r\n\x1a\n"):
        return None
    width, height = int.from_bytes(data[16:20]), int.from_bytes(data[20:24])
    if data[12:16] == b"IHDR" and width * height > MAX_IMAGE_PIXELS:
        return None
    return b64encode(data).decode("ascii")


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 31 else None

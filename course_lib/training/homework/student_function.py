"""Save a function that a student wrote in a notebook's cell as a module of its own."""

from __future__ import annotations

import builtins
import dis
import inspect
from pathlib import Path
from types import CodeType
from typing import Any

from course_lib.system.atomic import write_atomically

__all__ = ["write_own_function"]


def write_own_function(function: Any, path: str | Path, head: str) -> str:
    """Write `head` and a function's text, as its cell last defined it, decorators included.

    Parameters
    ----------
    function : callable
        Defined at the top level of a cell; it may be decorated.
    head : str
        The text above it: the imports.

    Returns
    -------
    str
        Empty, or one line that names what the module lacks, such as a function from another cell.
    """
    path = Path(path)
    plain = inspect.unwrap(function)
    try:
        text = inspect.getsource(plain)
    except OSError:
        return (
            f"{plain.__name__} has no text in a cell of this notebook: run its cell again; {path.name} is not written"
        )
    write_atomically(path, f"{head}\n\n\n{text.rstrip()}\n")
    namespace: dict[str, Any] = {"__name__": path.stem}
    try:
        exec(compile(path.read_text(), str(path), "exec"), namespace)
    except Exception as error:  # whatever the student's own lines raise
        return f"{path.name} cannot be imported: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    missing = sorted(_globals_of(plain.__code__) - set(namespace) - set(dir(builtins)))
    if missing:
        return f"{path.name} lacks {', '.join(missing)}: define or import what the function needs inside the function"
    return ""


def _globals_of(code: CodeType) -> set[str]:
    """Names that a function and the functions inside it look up in the module."""
    names = {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}
    return names.union(*(_globals_of(inner) for inner in code.co_consts if isinstance(inner, CodeType)))

"""The cells of a lab's source notebook, and single ones of them executed in a test."""

import ast
import linecache
from pathlib import Path

import nbformat

LABS = Path(__file__).parents[2] / "labs"


def cells_of(lab: str) -> dict[str, str]:
    """Id → source."""
    return {cell.id: cell.source for cell in nbformat.read(LABS / lab / f"{lab}.ipynb", as_version=4).cells}


def run_cell(source: str, namespace: dict, only: tuple[type[ast.stmt], ...] = ()) -> None:
    """Run a cell, or of it the statements of certain kinds; tracebacks and `inspect` find its source."""
    name = f"<cell {hash(source):x}>"
    tree = ast.parse(source)
    tree.body = [node for node in tree.body if not only or isinstance(node, only)]
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    exec(compile(tree, name, "exec"), namespace)

"""The reference answers, taken from the solution cells of a lab's source notebook."""

import linecache
from pathlib import Path

import nbformat

LABS = Path(__file__).resolve().parents[2] / "labs"


def answers(lab):
    """Run the notebook's import statements and its exercises' function cells in a fresh namespace."""
    import ast

    notebook = nbformat.read(LABS / lab / f"{lab}.ipynb", as_version=4)
    namespace = {"__name__": "answers"}
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        tree = ast.parse(cell.source)
        is_exercise = cell.metadata.get("nbgrader", {}).get("solution", False)
        if not is_exercise:  # only what it imports
            tree.body = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        name = f"<{lab} {cell.id}>"
        linecache.cache[name] = (len(cell.source), None, cell.source.splitlines(True), name)
        exec(compile(tree, name, "exec"), namespace)
    return namespace

"""Lab 07's comparison: what a whole data set is, and accuracies at the very end."""

import ast
import linecache

import matplotlib
import nbformat
from test_notebook_form import NOTEBOOKS

matplotlib.use("Agg")
CELLS = {
    cell.id: cell.source
    for cell in nbformat.read(next(path for path in NOTEBOOKS if path.stem == "07_sync_async_sgd"), as_version=4).cells
}
GIVEN = dict(
    dataset="fashion-mnist-small", train_samples=0, study_samples=0, study_epochs=1, study_batch=450, repeats=1
)


def run(id, namespace, only=None):
    """A cell, or of it the statements of certain kinds."""
    tree = ast.parse(CELLS[id])
    if only:
        tree.body = [node for node in tree.body if isinstance(node, only)]
    name = f"<lab 07 {id}>"
    linecache.cache[name] = (len(CELLS[id]), None, CELLS[id].splitlines(True), name)
    exec(compile(tree, name, "exec"), namespace)


def test_the_comparison_takes_all_images_where_none_are_counted(capsys):
    namespace = {"__name__": "notebook"}
    run("parameters", namespace)
    namespace.update(GIVEN)
    run("setup", namespace, (ast.Import, ast.ImportFrom))
    for id in ("ex-initial", "ex-average", "study", "staleness-run", "straggler-run"):
        run(id, namespace, (ast.FunctionDef,))
    run("compare", namespace)
    assert namespace["batches_in_all"] == 5000 // 450 == 11
    # Evaluated after 2, 4, … and after the last; two ranks make five steps, and look after each.
    assert [len(curve["time"]) for curve in namespace["curves"].values()] == [6, 5, 6, 6]
    assert all(score > 0.1 for scores in namespace["ways"].values() for score in scores)
    assert "one process" in capsys.readouterr().out

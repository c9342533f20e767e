"""Lab 07's comparison: what a whole data set is."""

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


def test_the_comparison_takes_all_images_where_none_are_counted():
    namespace = {"__name__": "notebook"}
    run("parameters", namespace)
    namespace.update(GIVEN)
    run("setup", namespace, (ast.Import, ast.ImportFrom))
    namespace["data"] = namespace["load"]("fashion-mnist-small")
    cells = ("ex-initial", "ex-average", "experiment", "ex-statistics", "study", "messages", "ex-worker", "ex-server",
             "by-hand", "ex-stale-step", "straggler-run")  # fmt: skip
    for id in cells:
        run(id, namespace, None if id == "messages" else (ast.FunctionDef,))
    run("compare", namespace)
    assert namespace["batches_in_all"] == 5000 * 5 // 6 // 450 == 9
    assert len(namespace["scores"]) == 5
    assert all(score > 0.1 for scores in namespace["scores"].values() for score in scores)

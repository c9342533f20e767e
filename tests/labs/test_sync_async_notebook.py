"""Lab 07's comparison: what a whole data set is."""

import ast

import matplotlib
from notebook_cells import cells_of, run_cell

matplotlib.use("Agg")
CELLS = cells_of("07_sync_async_sgd")
GIVEN = dict(
    dataset="fashion-mnist-small", train_samples=0, study_samples=0, study_epochs=1, study_batch=450, repeats=1
)


def test_the_comparison_takes_all_images_where_none_are_counted():
    namespace = {"__name__": "notebook"}
    run_cell(CELLS["parameters"], namespace)
    namespace.update(GIVEN)
    run_cell(CELLS["setup"], namespace, (ast.Import, ast.ImportFrom))
    namespace["data"] = namespace["load"]("fashion-mnist-small")
    cells = ("ex-initial", "ex-average", "experiment", "ex-statistics", "study", "messages", "ex-worker", "ex-server",
             "by-hand", "ex-stale-step", "straggler-run")  # fmt: skip
    for id in cells:
        run_cell(CELLS[id], namespace, () if id == "messages" else (ast.FunctionDef,))
    run_cell(CELLS["compare"], namespace)
    assert namespace["batches_in_all"] == 5000 * 5 // 6 // 450 == 9
    assert len(namespace["scores"]) == 5
    assert all(score > 0.1 for scores in namespace["scores"].values() for score in scores)

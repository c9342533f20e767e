"""The row of zeros with which a learning curve's file begins is not drawn as a measurement."""

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from course_lib.plots import curves as plots
from course_lib.runs.sweep.outcome.figures import _curves

CURVE = pd.DataFrame({"epoch": [0, 1, 2], "time": [0.0, 3.0, 6.0], "val_accuracy": [0.0, 0.5, 0.6]})


@pytest.mark.parametrize("columns", [CURVE, CURVE.to_dict("list")], ids=["table", "lists"])
@pytest.mark.parametrize("against, first", [("time", 3.0), ("epoch", 1)])
def test_a_labs_curve_begins_at_its_first_epoch(columns, against, first):
    (line,) = plots.learning_curves({"a": columns}, "t", against=against).get_lines()
    assert line.get_xdata()[0] == first and list(line.get_ydata()) == [0.5, 0.6]
    plt.close("all")


def test_a_curve_without_an_epoch_is_an_empty_one():
    (line,) = plots.learning_curves({"a": CURVE[:1]}, "t").get_lines()
    assert len(line.get_xdata()) == 0
    plt.close("all")


def test_a_sweeps_curves_begin_at_the_first_epoch(tmp_path):
    (tmp_path / "one").mkdir()
    CURVE.to_csv(tmp_path / "one" / "learning_curve.csv", index=False)
    done = pd.DataFrame([{"ranks": 1, "variant": "", "batch_size": 8, "folder": "one", "final_accuracy": 0.6}])
    figure = _curves(tmp_path, done, [], "about")
    assert [list(line.get_xdata()) for line in figure.axes[0].get_lines()] == [[1, 2]]
    assert list(pd.read_csv(tmp_path / "one" / "learning_curve.csv").time) == [0.0, 3.0, 6.0]

"""From points to tables, figures and estimates: closed forms."""

import math

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from course_lib.runs.parameters import ParameterError
from course_lib.runs.sweep import run_point
from course_lib.runs.sweep.folder import Outcome, read_outcome, write_outcome
from course_lib.runs.sweep.local import Machine, shares
from course_lib.runs.sweep.outcome.estimate import makespan, past_runs, point_seconds
from course_lib.runs.sweep.outcome.figures import draw_results, scaling_table
from course_lib.runs.sweep.outcome.results import collect, write_results
from course_lib.runs.sweep.points import Point


def runs(rates, batch=64, variant="", effective=None):
    """Rows of a results table: ``rates`` maps ranks to the images/s of each repeat."""
    return [
        {"ranks": ranks, "num_gpus": ranks, "batch_size": effective // ranks if effective else batch, "seed": seed,
         "effective_batch": effective or batch * ranks, "images_per_sec": rate, "variant": variant, "status": "done",
         "final_accuracy": 0.9 - 0.01 * ranks + 0.001 * seed, "dataset": "none", "provenance": "synthetic", "device": "cpu", "folder": "nowhere"}
        for ranks, values in rates.items() for seed, rate in enumerate(values)
    ]  # fmt: skip


def test_weak_speedup_is_the_ratio_of_throughputs_at_the_same_batch_a_rank():
    table = scaling_table(pd.DataFrame(runs({1: [100, 100], 2: [180, 180], 4: [320, 320]})), "weak")
    assert list(table["ranks"]) == [1, 2, 4]
    assert list(table["speedup"]) == [1, 1.8, 3.2] and list(table["efficiency"]) == [1, 0.9, 0.8]
    assert list(table["speedup_sd"]) == [0, 0, 0] and list(table["runs"]) == [2, 2, 2]


def test_strong_series_have_the_same_batch_in_all():
    rows = runs({1: [100], 2: [150]}, effective=128) + runs({1: [90], 2: [170]}, batch=32)
    strong = scaling_table(pd.DataFrame(rows), "strong")
    assert list(strong["batch"]) == [128, 128] and list(strong["speedup"]) == [1, 1.5]
    weak = scaling_table(pd.DataFrame(rows), "weak")
    assert list(weak["batch"]) == [32, 32] and weak["speedup"].tolist() == [1, pytest.approx(170 / 90)]


def test_without_one_rank_the_fewest_are_taken_for_ideal():
    table = scaling_table(pd.DataFrame(runs({2: [200], 4: [300], 8: [400]})), "weak")
    assert (
        list(table["speedup"]) == [2, 3, 4]
        and list(table["efficiency"]) == [1, 0.75, 0.5]
        and set(table["base"]) == {2}
    )


def test_the_error_of_a_ratio_counts_both_spreads():
    table = scaling_table(pd.DataFrame(runs({1: [90, 110], 2: [190, 210]})), "weak")
    sd = math.sqrt(200)  # of 90 and 110, and of 190 and 210
    assert table["speedup_sd"][1] == pytest.approx(2 * math.hypot(sd / 100, sd / 200))
    assert table["efficiency_sd"][1] == pytest.approx(math.hypot(sd / 100, sd / 200))


def test_variants_are_not_mixed():
    rows = runs({1: [100], 2: [200]}, variant="lr 0.1") + runs({1: [50], 2: [60]}, variant="lr 0.2")
    table = scaling_table(pd.DataFrame(rows), "weak").set_index(["variant", "ranks"])
    assert table.loc[("lr 0.1", 2), "speedup"] == 2 and table.loc[("lr 0.2", 2), "speedup"] == 1.2


def test_one_number_of_ranks_is_no_scaling():
    assert scaling_table(pd.DataFrame(runs({2: [100, 110]})), "weak").empty


def test_figures_are_drawn_from_what_there_is(tmp_path):
    frame = pd.DataFrame(runs({1: [100, 104], 2: [180, 190]}) + runs({1: [120, 125], 2: [210, 220]}, batch=128))
    files = draw_results(tmp_path, frame, ["num_gpus", "batch_size"], "01_toy")
    assert [path.name for path in files] == [
        "throughput.png",
        "speedup.png",
        "efficiency.png",
        "accuracy.png",
    ]  # no curves there
    for path in files:
        picture = np.asarray(Image.open(path).convert("L"))
        assert picture.shape[0] > 400 and 0.01 < (picture < 250).mean() < 0.5
    # A sweep of one point has nothing to set against each other; figures of an earlier state do not stay.
    assert draw_results(tmp_path, pd.DataFrame(runs({1: [100]})), ["num_gpus"], "01_toy") == []
    assert list(tmp_path.glob("*.png")) == []
    failed = frame.assign(status="failed")
    assert draw_results(tmp_path, failed, ["num_gpus"], "01_toy") == []


def test_a_lab_without_a_batch_size_has_no_figure_that_needs_one(tmp_path):
    frame = pd.DataFrame(runs({1: [100, 104], 2: [180, 190]})).drop(columns="batch_size").assign(effective_batch=None)
    assert draw_results(tmp_path, frame, ["num_gpus"], "01_toy") == []


@pytest.mark.parametrize("name, other", [("device", "cuda:0"), ("provenance", "official"), ("dataset", "mnist")])
def test_runs_on_another_device_or_other_data_are_not_one_series(tmp_path, name, other):
    rows = runs({1: [100, 104]}) + [row | {name: other} for row in runs({2: [180, 190]})]
    files = draw_results(tmp_path, pd.DataFrame(rows), ["num_gpus"], "01_toy")
    assert "speedup.png" not in [path.name for path in files]  # of one number of ranks each


def test_many_series_and_odd_words_can_be_drawn(tmp_path):
    rows = [row for index in range(9) for row in runs({1: [100], 2: [180 + index]}, batch=2**index)]
    frame = pd.DataFrame(rows).assign(rule="$a_1$ & <b>")
    assert len(draw_results(tmp_path, frame, ["num_gpus", "batch_size", "rule"], "01_toy")) == 4


def point(ranks=1, folder=None, **parameters):
    values = {
        "num_gpus": ranks,
        "batch_size": 64,
        "seed": 0,
        "epochs": 2,
        "train_samples": 0,
        "width": 1,
        "dataset": "d",
        **parameters,
    }
    return Point(values, folder or f"{ranks}ranks-{len(parameters)}/seed-{values['seed']}")


class Ended:
    """A sweep of which these points have ended."""

    def __init__(self, path, outcomes):
        self.path, self.outcomes = path, outcomes


def done(seconds=1.0, **parameters):
    return Outcome("done", "01_toy", "laptop", dict(point(**parameters).parameters), seconds, "2026-01-01")


def test_a_table_of_nothing_can_be_written(tmp_path):
    table = collect(Ended(tmp_path, {}), [point()], ["batch_size"])
    write_results(tmp_path / "results.csv", table)
    assert pd.read_csv(tmp_path / "results.csv").empty


def test_a_point_without_a_learning_curve_still_has_a_row(tmp_path):
    table = collect(Ended(tmp_path, {point().folder: done()}), [point()], ["batch_size"])
    assert len(table) == 1 and table["status"][0] == "done" and pd.isna(table["final_accuracy"][0])


def test_outcomes_survive_the_disk_and_nonsense_is_none(tmp_path):
    write_outcome(tmp_path, done())
    assert read_outcome(tmp_path) == done()
    for text in ("", "{", "[]", '{"status": "done"}', '{"status": 1, "what": 2}'):
        (tmp_path / "point.json").write_text(text)
        assert read_outcome(tmp_path) is None


def test_estimates_take_the_runs_most_alike(tmp_path):
    place = tmp_path / "sweep-01_toy" / "a"
    for index, outcome in enumerate(
        [done(10, batch_size=64), done(30, batch_size=64, seed=1), done(50, batch_size=128), done(7, epochs=1)]
    ):
        (place / f"seed-{index}").mkdir(parents=True)
        write_outcome(place / f"seed-{index}", outcome)
    past = past_runs(tmp_path, "01_toy")
    assert len(past) == 4 and past_runs(tmp_path, "02_other") == []
    assert point_seconds(point(base_lr=0.5), past) == 20  # the same sizes, whatever the rate: the median of 10 and 30
    assert point_seconds(point(batch_size=128), past) == 50
    assert point_seconds(point(batch_size=256), past) == 30  # no such batch: any
    assert point_seconds(point(ranks=2), past) == 30
    assert point_seconds(point(epochs=9), past) is None


@pytest.mark.parametrize(
    "cores, jobs, ranks, expected",
    [
        (2, 1, [1], {1: 2}), (2, 2, [1, 2], {1: 1, 2: 2}), (2, 1, [1, 2], {1: 1, 2: 2}), (16, 4, [1, 2, 4], {1: 4, 2: 8, 4: 16}),
        (16, 1, [1, 2, 4], {1: 4, 2: 8, 4: 16}), (16, 8, [1], {1: 2}), (4, 3, [1], {1: 1}), (2, 8, [1, 2], {1: 1, 2: 2}), (3, 1, [2], {2: 2}),
    ],
)  # fmt: skip
def test_every_rank_has_the_same_cores_and_no_core_is_given_twice(cores, jobs, ranks, expected):
    points = [point(n) for n in ranks]
    found = shares(points, Machine(range(cores)), jobs)
    assert {p.ranks: found[p.folder] for p in points} == expected
    assert len({found[p.folder] / p.ranks for p in points}) == 1 and max(found.values()) <= cores


def test_gpus_are_what_counts_where_there_are_gpus():
    machine = Machine(range(16), ("0", "1", "2", "3"))
    assert shares([point(1), point(4)], machine, 1) == {point(1).folder: 4, point(4).folder: 16}
    assert shares([point(1), point(4)], Machine(range(2), machine.gpus), 1) == {point(1).folder: 1, point(4).folder: 2}
    with pytest.raises(ParameterError, match="num_gpus = 8: this machine has 4 GPUs"):
        shares([point(8)], machine, 1)


def test_the_notebook_on_record_is_the_one_that_ran(tmp_path, monkeypatch):
    notebook = tmp_path / "01_toy.ipynb"
    notebook.write_text("as it was")
    before = run_point.digest(notebook)

    def execute(notebook, executed, *words, **more):
        executed.write_text("executed")
        notebook.write_text("edited meanwhile")

    monkeypatch.setattr(run_point, "execute_notebook", execute)
    outcome = run_point.run_point(run_point.Task(str(notebook), str(tmp_path / "point"), "01_toy", "laptop", {}))
    assert outcome.status == "done" and outcome.notebook == before


def test_makespan_of_a_schedule_done_by_hand():
    points = [point(1, "a"), point(1, "b"), point(2, "c"), point(1, "d")]
    share = {"a": 1, "b": 1, "c": 2, "d": 1}
    seconds = {"a": 3.0, "b": 5.0, "c": 2.0, "d": 4.0}
    assert makespan(seconds, points, share, cores=2, jobs=2) == 2 + 3 + 4  # c alone; a beside b; d after a
    assert makespan(seconds, points, share, cores=2, jobs=1) == 14
    assert makespan({}, [], {}, cores=2, jobs=1) == 0

"""Tables, figures and estimates of a sweep, compared with closed forms."""

import json
import math
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from course_lib.runs.parameters import ParameterError
from course_lib.runs.sweep import run_trial
from course_lib.runs.sweep.folder import Outcome, SweepFolder, SweepFolderError, read_outcome, write_outcome
from course_lib.runs.sweep.local import Machine, core_budget
from course_lib.runs.sweep.outcome import figures
from course_lib.runs.sweep.outcome.estimate import makespan, past_runs, trial_seconds
from course_lib.runs.sweep.outcome.figures import draw_results, scaling_table
from course_lib.runs.sweep.outcome.publish import publish_again
from course_lib.runs.sweep.outcome.results import collect, write_results
from course_lib.runs.sweep.outcome.summary import summarise
from course_lib.runs.sweep.trials import Trial


def runs(rates, batch=64, variant="", effective=None):
    """Rows of a results table: ``rates`` maps ranks to the images/s of each repeat."""
    return [
        {"ranks": ranks, "num_gpus": ranks, "batch_size": effective // ranks if effective else batch, "seed": seed,
         "effective_batch": effective or batch * ranks, "images_per_sec": rate, "variant": variant, "status": "done",
         "final_accuracy": 0.9 - 0.01 * ranks + 0.001 * seed, "dataset": "none", "provenance": "synthetic", "device": "cpu", "folder": "nowhere"}
        for ranks, values in rates.items() for seed, rate in enumerate(values)
    ]  # fmt: skip


SD = math.hypot(math.sqrt(200) / 100, math.sqrt(200) / 200)  # relative, of 90 and 110 over 190 and 210


@pytest.mark.parametrize(
    ("kind", "rows", "expected"),
    [
        ("weak", runs({1: [100, 100], 2: [180, 180], 4: [320, 320]}),
         {"ranks": [1, 2, 4], "speedup": [1, 1.8, 3.2], "efficiency": [1, 0.9, 0.8], "speedup_sd": [0, 0, 0], "runs": [2, 2, 2]}),
        # of the same effective batch; without one rank the fewest ranks are the ideal
        ("strong", runs({1: [100], 2: [150]}, effective=128) + runs({1: [90], 2: [170]}, batch=32),
         {"batch": [128, 128], "speedup": [1, 1.5]}),
        ("weak", runs({1: [100], 2: [150]}, effective=128) + runs({1: [90], 2: [170]}, batch=32),
         {"batch": [32, 32], "speedup": [1, 170 / 90]}),
        ("weak", runs({2: [200], 4: [300], 8: [400]}), {"speedup": [2, 3, 4], "efficiency": [1, 0.75, 0.5], "base": [2, 2, 2]}),
        # the error of a ratio counts the spreads of both
        ("weak", runs({1: [90, 110], 2: [190, 210]}), {"speedup_sd": [0, 2 * SD], "efficiency_sd": [0, SD]}),
        ("weak", runs({1: [100], 2: [200]}, variant="lr 0.1") + runs({1: [50], 2: [60]}, variant="lr 0.2"),
         {"variant": ["lr 0.1"] * 2 + ["lr 0.2"] * 2, "speedup": [1, 2, 1, 1.2]}),
    ],
)  # fmt: skip
def test_speedup_is_the_ratio_of_throughputs(kind, rows, expected):
    table = scaling_table(pd.DataFrame(rows), kind)
    for column, values in expected.items():
        assert table[column].tolist() == (values if column == "variant" else pytest.approx(values)), column


def test_one_number_of_ranks_is_no_scaling():
    assert scaling_table(pd.DataFrame(runs({2: [100, 110]})), "weak").empty


def test_memory_is_that_of_the_fullest_rank_and_the_best_is_one_variant_s(tmp_path, monkeypatch):
    titles, made = [], figures._figure
    monkeypatch.setattr(
        figures, "_figure", lambda panels, title, about: titles.append(title) or made(panels, title, about)
    )
    rows = []
    for stage, (rate, state) in enumerate([(100, 8e6), (300, 1e6)]):
        for row in runs({1: [rate], 2: [rate]}):
            row |= {"stage": stage, "folder": f"{stage}-{row['ranks']}"}
            (tmp_path / row["folder"]).mkdir()
            ledger = [
                {"rank": rank, "parameters": 1e6, "gradients": 1e6, "state": state - rank}
                for rank in range(row["ranks"])
            ]
            pd.DataFrame(ledger).to_csv(tmp_path / row["folder"] / "ledger.csv")
            rows.append(row)
    assert "memory.png" in {
        path.name for path in draw_results(tmp_path, pd.DataFrame(rows), ["num_gpus", "stage"], "13_toy")
    }
    assert "At least 3 MB (stage 1, 1 rank), at most 10 MB" in titles
    assert any(title.startswith("At best 300 images/s: stage 1") for title in titles)
    assert (
        draw_results(tmp_path, pd.DataFrame(rows[:1]), ["num_gpus", "stage"], "13_toy") == []
    )  # nothing to compare with


def test_figures_are_drawn_where_there_are_data(tmp_path):
    frame = pd.DataFrame(runs({1: [100, 104], 2: [180, 190]}) + runs({1: [120, 125], 2: [210, 220]}, batch=128))
    files = draw_results(tmp_path, frame, ["num_gpus", "batch_size"], "01_toy")
    names = [path.stem for path in files]
    assert names == ["throughput", "speedup", "efficiency", "accuracy"]  # there are no learning curves
    for path in files:
        picture = np.asarray(Image.open(path).convert("L"))
        assert picture.shape[0] > 400 and 0.01 < (picture < 250).mean() < 0.5
        assert ElementTree.parse(path.with_suffix(".svg")).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    draw_results(tmp_path, frame, ["num_gpus", "batch_size"], "01_toy")
    assert before == {path: path.read_bytes() for path in tmp_path.iterdir()}  # no date, no random ids
    # One trial has nothing to be compared with; figures of an earlier state are removed.
    assert draw_results(tmp_path, pd.DataFrame(runs({1: [100]})), ["num_gpus"], "01_toy") == []
    assert list(tmp_path.iterdir()) == []
    without_batch = frame.drop(columns="batch_size").assign(effective_batch=None)
    for nothing in (frame.assign(status="failed"), without_batch):
        assert draw_results(tmp_path, nothing, ["num_gpus"], "01_toy") == []


@pytest.mark.parametrize("name, other", [("device", "cuda:0"), ("provenance", "official"), ("dataset", "mnist")])
def test_runs_on_another_device_or_other_data_are_not_one_series(tmp_path, name, other):
    rows = runs({1: [100, 104]}) + [row | {name: other} for row in runs({2: [180, 190]})]
    files = draw_results(tmp_path, pd.DataFrame(rows), ["num_gpus"], "01_toy")
    assert "speedup.png" not in [path.name for path in files]  # of one number of ranks each


def test_many_series_and_odd_words_can_be_drawn_in_the_course_s_look(tmp_path, monkeypatch):
    frames = []
    monkeypatch.setattr(figures, "_legend", lambda axes: frames.append(axes.spines["top"].get_visible()))
    rows = [row for index in range(9) for row in runs({1: [100], 2: [180 + index]}, batch=2**index)]
    frame = pd.DataFrame(rows).assign(rule="$a_1$ & <b>")
    assert len(draw_results(tmp_path, frame, ["num_gpus", "batch_size", "rule"], "01_toy")) == 4
    assert frames and not any(frames)


def drawn_bars(monkeypatch, tmp_path, rows):
    """The x positions of each series of the throughput figure, and whether it has bars."""
    found = {}

    def errorbar(axes, x, y, yerr, label, **look):
        found.setdefault(label, (list(x), bool(np.isfinite(yerr).all())))

    monkeypatch.setattr("matplotlib.axes.Axes.errorbar", errorbar)
    draw_results(tmp_path, pd.DataFrame(rows), ["num_gpus", "batch_size"], "01_toy")
    return found


def test_bars_that_share_a_place_are_beside_each_other(tmp_path, monkeypatch):
    both = runs({1: [100, 104], 2: [180, 190], 4: [300, 310]}) + runs({1: [101, 103], 2: [181, 191]}, batch=128)
    found = drawn_bars(monkeypatch, tmp_path, both)
    (first, _), (second, _) = found["64 images per rank"], found["128 images per rank"]
    assert first == pytest.approx([0.95, 1.95, 3.95]) and second == pytest.approx([1.05, 2.05])  # 0.2 / 2 apart


def test_one_run_has_no_bar_and_its_own_place(tmp_path, monkeypatch):
    found = drawn_bars(monkeypatch, tmp_path, runs({1: [100], 2: [180]}) + runs({1: [101], 2: [181]}, batch=128))
    assert found["64 images per rank"] == found["128 images per rank"] == ([1.0, 2.0], False)
    assert not any(bars for _, bars in found.values())


def test_means_are_of_the_trials_that_are_done_and_have_a_value():
    rows = runs({1: [90, 110, 100], 2: [200]}) + runs({1: [1]}, batch=128)
    rows[2] |= {"status": "failed", "images_per_sec": None}
    rows[0] |= {"seconds_to_target": 7.0}
    table = summarise(pd.DataFrame(rows).reindex(columns=[*rows[0], "train_seconds", "core_seconds", "gpu_seconds"]), ["num_gpus", "batch_size"])  # fmt: skip
    one, two, _ = table.to_dict("records")
    assert (one["num_gpus"], one["batch_size"], one["n"], one["failed"]) == (1, 64, 2, 1)
    assert (one["images_per_sec_mean"], one["images_per_sec_n"]) == (100, 2)
    assert one["images_per_sec_sd"] == pytest.approx(math.sqrt(200))
    assert (one["seconds_to_target_mean"], one["seconds_to_target_n"]) == (7, 1)
    assert two["n"] == 1 and math.isnan(two["images_per_sec_sd"]) and two["seconds_to_target_n"] == 0
    assert "gpu_seconds_mean" not in table


def write_run(folder, accuracies, device="cpu", **outcome):
    """A trial that is done, and took 10 s per epoch to train."""
    folder.mkdir(parents=True)
    header = "epoch,time,images_per_sec,train_loss,train_accuracy,val_loss,val_accuracy,lr\n0,0.0,0,0,0,0,0.0,0.1\n"
    rows = [f"{epoch},{10 * epoch},100,1,1,1,{accuracy},0.1\n" for epoch, accuracy in enumerate(accuracies, 1)]
    (folder / "learning_curve.csv").write_text(header + "".join(rows))
    record = {"device": device, "data": {"name": "none", "provenance": "synthetic"}}
    (folder / "run.json").write_text(json.dumps(record))
    write_outcome(folder, replace(done(60.0, ranks=2, target_accuracy=0.8), **outcome))


@pytest.mark.parametrize(
    ("accuracies", "target", "seconds"),
    [([0.5, 0.8, 0.7, 0.9], None, 20), ([0.5, 0.8, 0.7, 0.9], 0.85, 40), ([0.5, 0.7], None, None)],
)
def test_time_to_the_target_is_that_of_the_first_epoch_that_has_it(tmp_path, accuracies, target, seconds):
    write_run(tmp_path / "a" / "b", accuracies)
    outcomes = {"a/b": read_outcome(tmp_path / "a" / "b")}
    (row,) = collect(SweepFolder(tmp_path, outcomes), [trial(2, "a/b", target_accuracy=0.8)], [], target).to_dict(
        "records"
    )
    assert row["target"] == (target or 0.8)
    assert row["seconds_to_target"] == seconds or (seconds is None and math.isnan(row["seconds_to_target"]))


def test_the_cost_is_in_seconds_of_cores_and_of_gpus(tmp_path):
    write_run(tmp_path / "a" / "b", [0.5], device="cuda:0", cores=8)
    write_run(tmp_path / "a" / "c", [0.5])
    outcomes = {f"a/{name}": read_outcome(tmp_path / "a" / name) for name in "bc"}
    gpu, cpu = collect(SweepFolder(tmp_path, outcomes), [trial(2, "a/b"), trial(2, "a/c")], []).to_dict("records")
    assert (gpu["core_seconds"], gpu["gpu_seconds"]) == (60 * 8, 60 * 2)
    assert math.isnan(cpu["gpu_seconds"]) and math.isnan(cpu["core_seconds"])  # an old sweep did not write its cores


def test_no_cell_of_the_table_is_a_formula(tmp_path):
    outcomes = {trial().folder: replace(done(), status="failed", error='=HYPERLINK("http://x")')}
    write_results(tmp_path / "results.csv", collect(SweepFolder(tmp_path, outcomes), [trial()], []))
    assert pd.read_csv(tmp_path / "results.csv")["error"][0] == '\'=HYPERLINK("http://x")'


def test_a_folder_is_drawn_again_in_the_grid_s_order(tmp_path):
    for ranks in (2, 1):
        for seed in (1, 0):
            parameters = dict(trial(ranks, seed=seed).parameters)
            write_run(tmp_path / f"{3 - ranks}" / f"{seed}", [0.5, 0.6 + 0.01 * seed], parameters=parameters)
    (tmp_path / "sweep.json").write_text(json.dumps({"lab": "01_toy", "axes": {"num_gpus": [2, 1]}}))
    result = publish_again(tmp_path, target=0.6)
    assert (result.done, result.failed) == (4, 0)
    assert [path.stem for path in result.figures] == [
        "throughput",
        "speedup",
        "efficiency",
        "accuracy",
        "learning_curves",
    ]
    found = pd.read_csv(tmp_path / "results.csv")
    assert list(zip(found["num_gpus"], found["seed"], strict=True)) == [(2, 0), (2, 1), (1, 0), (1, 1)]
    text = (tmp_path / "summary.md").read_text()
    assert "| 2 | 0.6050 ± 0.0071 (n = 2) | 100 ± 0 (n = 2) | 20.0 ± 0.0 (n = 2) | 20.0 ± 0.0 (n = 2) |" in text
    assert "01_toy; none (synthetic); cpu." in text


@pytest.mark.parametrize(
    ("description", "told"),
    [
        (None, "is no sweep's folder: it has no readable sweep.json"),
        ("{", "is no sweep's folder"),
        ('{"lab": "01_toy", "axes": 3}', "is no sweep's folder"),
        ('{"lab": "01_toy", "axes": {"num_gpus": [1]}}', "no trial has ended in"),
    ],
)
def test_a_folder_without_trials_is_refused_in_one_line(tmp_path, description, told):
    if description:
        (tmp_path / "sweep.json").write_text(description)
    with pytest.raises(SweepFolderError, match=told) as raised:
        publish_again(tmp_path)
    assert "\n" not in str(raised.value) and {path.name for path in tmp_path.iterdir()} <= {"sweep.json"}


def trial(ranks=1, folder=None, **parameters):
    values = dict(num_gpus=ranks, batch_size=64, seed=0, epochs=2, train_samples=0, width=1, dataset="d") | parameters
    return Trial(values, folder or f"{ranks}ranks-{len(parameters)}/seed-{values['seed']}")


def done(seconds=1.0, **parameters):
    return Outcome("done", "01_toy", "laptop", dict(trial(**parameters).parameters), seconds, "2026-01-01")


def test_a_trial_that_has_ended_has_a_row_even_without_a_learning_curve(tmp_path):
    table = collect(SweepFolder(tmp_path), [trial()], ["batch_size"])
    write_results(tmp_path / "results.csv", table)
    assert pd.read_csv(tmp_path / "results.csv").empty
    table = collect(SweepFolder(tmp_path, {trial().folder: done()}), [trial()], ["batch_size"])
    assert len(table) == 1 and table["status"][0] == "done" and pd.isna(table["final_accuracy"][0])


def test_outcomes_survive_the_disk_and_nonsense_is_none(tmp_path):
    write_outcome(tmp_path, done())
    assert read_outcome(tmp_path) == done()
    for text in ("", "{", "[]", '{"status": "done"}', '{"status": 1, "what": 2}'):
        (tmp_path / "point.json").write_text(text)
        assert read_outcome(tmp_path) is None


def test_estimates_take_the_runs_most_alike(tmp_path):
    place = tmp_path / "sweep-01_toy" / "a"
    runs = [done(10), done(30, seed=1), done(50, batch_size=128), done(90, ranks=2), done(7, epochs=1)]
    for index, outcome in enumerate(runs):
        (place / f"seed-{index}").mkdir(parents=True)
        write_outcome(place / f"seed-{index}", outcome)
    past = past_runs(tmp_path, "01_toy")
    assert len(past) == 5 and past_runs(tmp_path, "02_other") == []
    assert trial_seconds(trial(base_lr=0.5), past) == 20  # the same sizes, whatever the rate: the median of 10 and 30
    assert trial_seconds(trial(batch_size=128), past) == 50
    assert trial_seconds(trial(batch_size=256), past) == 30  # no such batch: any of the same ranks
    assert trial_seconds(trial(ranks=3), past) == 40  # no such ranks: any
    assert trial_seconds(trial(epochs=9), past) is None


@pytest.mark.parametrize(
    "cores, jobs, ranks, expected",
    [
        (2, 1, [1], {1: 2}), (2, 2, [1, 2], {1: 1, 2: 2}), (2, 1, [1, 2], {1: 1, 2: 2}), (16, 4, [1, 2, 4], {1: 4, 2: 8, 4: 16}),
        (16, 1, [1, 2, 4], {1: 4, 2: 8, 4: 16}), (16, 8, [1], {1: 2}), (4, 3, [1], {1: 1}), (2, 8, [1, 2], {1: 1, 2: 2}), (3, 1, [2], {2: 2}),
    ],
)  # fmt: skip
def test_every_rank_has_the_same_cores_and_no_core_is_given_twice(cores, jobs, ranks, expected):
    trials = [trial(n) for n in ranks]
    found = core_budget(trials, Machine(range(cores)), jobs)
    assert {p.ranks: found[p.folder] for p in trials} == expected
    assert len({found[p.folder] / p.ranks for p in trials}) == 1 and max(found.values()) <= cores


def test_gpus_are_what_counts_where_there_are_gpus():
    machine, trials = Machine(range(16), ("0", "1", "2", "3")), [trial(1), trial(4)]
    assert list(core_budget(trials, machine, 1).values()) == [4, 16]
    assert list(core_budget(trials, Machine(range(2), machine.gpus), 1).values()) == [1, 2]
    with pytest.raises(ParameterError, match="num_gpus = 8: this machine has 4 GPUs"):
        core_budget([trial(8)], machine, 1)


def test_the_notebook_on_record_is_the_one_that_ran(tmp_path, monkeypatch):
    notebook = tmp_path / "01_toy.ipynb"
    notebook.write_text("as it was")
    before = run_trial.digest(notebook)

    def execute(notebook, executed, *words, **more):
        executed.write_text("executed")
        notebook.write_text("edited meanwhile")

    monkeypatch.setattr(run_trial, "execute_notebook", execute)
    outcome = run_trial.run_trial(run_trial.TrialTask(str(notebook), str(tmp_path / "trial"), "01_toy", "laptop", {}))
    assert outcome.status == "done" and outcome.notebook == before


def test_makespan_of_a_schedule_done_by_hand():
    trials = [trial(1, "a"), trial(1, "b"), trial(2, "c"), trial(1, "d")]
    budget = {"a": 1, "b": 1, "c": 2, "d": 1}
    seconds = {"a": 3.0, "b": 5.0, "c": 2.0, "d": 4.0}
    assert makespan(seconds, trials, budget, cores=2, jobs=2) == 2 + 3 + 4  # c alone; a beside b; d after a
    assert makespan(seconds, trials, budget, cores=2, jobs=1) == 14
    assert makespan({}, [], {}, cores=2, jobs=1) == 0

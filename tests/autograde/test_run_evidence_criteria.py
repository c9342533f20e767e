"""Each criterion, with runs that meet it and runs that miss it."""

import os
from dataclasses import replace

import pytest
from fake_runs import RECORD

from autograde.grading.evidence import read_evidence
from autograde.grading.run_judging import judge_run
from course_lib.runs.records import EpochRecord, RunFolder, TrainingDivergedError


@pytest.fixture
def judge(tmp_path, folder_rubric):
    """The verdict on a run folder's text files; criteria that need the weights are left out (see test_held_out.py)."""

    def judge(lab):
        submission = tmp_path / "submitted" / "ada" / lab
        flags = []
        (rules,) = folder_rubric(lab).runs
        results = judge_run(rules, read_evidence(submission, lab), flags)
        assert flags == []
        return {result.kind: result for result in results}

    return judge


@pytest.fixture
def grade(tmp_path, judge):
    def grade(run, lab="01_single_gpu"):
        run.write(tmp_path / "submitted" / "ada" / lab)
        return judge(lab)

    return grade


def missed(results):
    return {kind for kind, result in results.items() if not result.passed}


def test_an_honest_run_has_full_marks(grade, make_run):
    results = grade(make_run())
    assert missed(results) == set()
    assert sum(result.points for result in results.values()) == 8  # the other 2 are for the weights


def test_a_run_that_never_reached_its_target_loses_only_the_accuracies(grade, make_run):
    results = grade(make_run([0.5, 0.6, 0.7, 0.7, 0.7, 0.7, 0.7, 0.8], stopped_early=False))
    assert missed(results) == {"final_accuracy"}
    assert "0.8000 (epoch 8) is below 0.85" in results["final_accuracy"].reason


def test_every_miss_has_no_points_a_reason_and_a_remedy(grade, make_run):
    run = make_run([0.5], lab="02_ddp")
    for result in grade(run).values():
        assert result.points == (result.max_points if result.passed else 0)
        assert result.reason and "\n" not in result.reason
        assert bool(result.remedy) == (not result.passed)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"ended": None}, "was not finished"),
        ({"lab": "02_ddp"}, "is of lab '02_ddp'"),
        ({"data": {"name": "x", "provenance": "synthetic", "source": "synth"}}, "synthetic data"),
        ({"data": {"name": "x", "provenance": "trust me", "source": "y"}}, "provenance is 'trust me'"),
        ({"data": None}, "data is None"),
        ({"world_size": True}, "world_size is True"),
        ({"world_size": 0}, "world_size"),
        ({"started": "yesterday"}, "started is 'yesterday'"),
        ({"started": "2020-01-01T00:00:00"}, "a time with its zone"),
        ({"ended": "2020-01-01T00:00:00+00:00"}, "ended before it started"),
        ({"stopped_early": "no"}, "stopped_early is 'no'"),
        ({"parameters": []}, "parameters is a list"),
        ({"device": "<b>" * 100}, None),
    ],
)
def test_the_run_record(grade, make_run, change, expected):
    result = grade(make_run(**change))["run_record"]
    assert result.passed == (expected is None)
    assert (expected or "finished") in result.reason


def test_a_copy_of_the_data_is_accepted(grade, make_run):
    run = make_run()
    run.record["data"]["provenance"] = "copy"
    assert grade(run)["run_record"].passed


@pytest.mark.parametrize(("ranks", "passed"), [(1, False), (2, True), (4, True)])
def test_lab_02_asks_for_two_ranks(grade, make_run, ranks, passed):
    results = grade(make_run(lab="02_ddp", world_size=ranks), "02_ddp")
    assert results["world_size"].passed is passed
    assert missed(results) == (set() if passed else {"world_size"})


@pytest.mark.parametrize(
    ("row", "column", "value", "expected"),
    [
        (3, 1, "24.0", "line 5: time 24 after 24.6912"),
        (3, 1, "24.6912", "cumulative seconds can only grow"),
        (1, 1, "0", "line 3: time 0 after 0"),
        (3, 0, "2", "line 5: epoch 2 after 2; expected 3"),
        (3, 0, "4", "line 5: epoch 4 after 2; expected 3"),
    ],
)
def test_time_and_epochs_must_grow(grade, make_run, row, column, value, expected):
    run = make_run()
    run.rows[row][column] = value
    results = grade(run)
    assert expected in results["monotone"].reason
    assert "monotone" in missed(results)
    assert "curve_schema" not in missed(results)


@pytest.mark.parametrize(
    ("accuracies", "stopped_early", "asked", "expected"),
    [
        ([0.5] * 8, False, 8, None),
        ([0.5] * 7, False, 8, "7 of 8 epochs, and run.json records no early stop"),
        ([0.5] * 9, False, 8, "has 9 epochs, run.json asked for 8"),
        ([0.9, 0.9], True, 8, None),
        ([0.5], False, 0, "epochs is 0"),
        ([0.5], False, None, "epochs is None"),
        ([0.5], False, 1.5, "epochs is 1.5"),
        ([0.5], False, True, "epochs is True"),
        ([0.5], False, 10**400, "beyond"),
    ],
)
def test_the_number_of_epochs(grade, make_run, accuracies, stopped_early, asked, expected):
    run = make_run(accuracies, stopped_early=stopped_early)
    run.record["parameters"]["epochs"] = asked
    result = grade(run)["epochs"]
    assert result.passed == (expected is None)
    assert (expected or "epochs") in result.reason


@pytest.mark.parametrize(
    ("accuracies", "stopped_early", "expected"),
    [
        ([0.8, 0.85, 0.85], True, None),
        ([0.8, 0.85, 0.84, 0.86, 0.87], True, None),
        ([0.8] * 6 + [0.9, 0.9], True, None),  # on the last epoch: the tutorial prints its line there
        ([0.8] * 6 + [0.9, 0.9], False, None),
        ([0.8] * 8, False, None),
        (
            [0.86, 0.86, 0.87],
            True,
            "should have stopped after epoch 2 (2 epochs in a row at 0.85 or more) and continued",
        ),
        ([0.86] * 8, False, "should have stopped after epoch 2"),
        ([0.8, 0.86], True, "stopped too soon, after epoch 2"),
        ([0.8, 0.86], False, "ended after epoch 2 of 8"),
        ([0.86, 0.86], False, "run.json records no early stop"),
        ([0.8499, 0.86], True, "stopped too soon"),
    ],
)
def test_the_early_stop(grade, make_run, accuracies, stopped_early, expected):
    result = grade(make_run(accuracies, stopped_early=stopped_early))["early_stop"]
    assert result.passed == (expected is None), result.reason
    assert (expected or "") in result.reason


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("target_accuracy", None, "target_accuracy is None"),
        ("target_accuracy", 85, "a fraction in 0...1"),
        ("target_accuracy", "0.85", "target_accuracy is '0.85'"),
        ("patience", 0, "patience is 0"),
        ("patience", "<img src=x onerror=alert(1)>", "patience is '<img"),
    ],
)
def test_an_early_stop_without_a_usable_rule_has_no_points(grade, make_run, name, value, expected):
    run = make_run()
    run.record["parameters"][name] = value
    result = grade(run)["early_stop"]
    assert not result.passed
    assert expected in result.reason


def test_best_and_final_accuracy_differ(tmp_path, make_run, folder_rubric):
    (rules,) = folder_rubric().runs
    (other,) = folder_rubric("09_hogwild").runs
    best = [criterion for criterion in other.criteria if criterion.kind == "best_accuracy"]
    make_run([0.9, 0.8, 0.9, 0.8, 0.9, 0.8, 0.9, 0.8499], stopped_early=False).write(tmp_path / "01_single_gpu")
    evidence = read_evidence(tmp_path / "01_single_gpu", "01_single_gpu")
    judged = judge_run(replace(rules, criteria=(*rules.criteria, *best)), evidence, [])
    results = {result.kind: result for result in judged}
    assert results["best_accuracy"].passed
    assert "(epoch 1)" in results["best_accuracy"].reason
    assert not results["final_accuracy"].passed


def test_the_transcript_must_tell_of_the_same_stop(grade, make_run):
    silent = make_run()
    silent.lines.pop()
    assert "no early-stopping line" in grade(silent)["transcript"].reason
    run = make_run()
    run.record["stopped_early"] = False
    assert "run.json does not" in grade(run)["transcript"].reason


def test_a_file_of_the_library_s_own_run_folder_is_met_in_full(tmp_path, make_run, monkeypatch, judge):
    records = pytest.importorskip("course_lib.runs.records")
    run = make_run()
    monkeypatch.delenv("ASSESSMENT_OUT", raising=False)
    submission = tmp_path / "submitted" / "ada" / "01_single_gpu"
    folder = records.RunFolder(str(submission / "run"), "01_single_gpu", run.record["parameters"], run.record["data"])
    folder.start(1, None, "cpu")
    for epoch, accuracy in enumerate([0.7, 0.86, 0.8571], start=1):
        row = records.EpochRecord(epoch, 12.34567 * epoch, 4321.098765, 0.9, accuracy, 0.8, accuracy, 0.01)
        folder.append(row, 12.34567)
    folder.early_stop(3)
    folder.finish(stopped_early=True)
    assert missed(judge("01_single_gpu")) == set()


@pytest.mark.parametrize("moved_up", [False, True], ids=["as it was left", "its files moved up"])
def test_the_folder_of_a_diverged_training_is_no_finished_run(judge, tmp_path, moved_up):
    folder = tmp_path / "submitted" / "ada" / "01_single_gpu" / "run"
    run = RunFolder(str(folder), "01_single_gpu", {"dataset": "fashion-mnist"}, RECORD["data"]).start(1, None, "cpu")
    with pytest.raises(TrainingDivergedError):
        run.append(EpochRecord(1, 1.0, 1.0, float("nan"), 0.1, float("inf"), 0.1, 0.1), 1.0)
    os.environ.pop("ASSESSMENT_OUT", None)
    if moved_up:
        for path in (folder / "unfinished").iterdir():
            path.rename(folder / path.name)
    results = judge("01_single_gpu")
    assert {"run_record", "final_accuracy"} <= missed(results)

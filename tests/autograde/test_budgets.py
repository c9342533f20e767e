"""The budgets of time and of training images, in agreement with the transcript, the record and the wall clock."""

import pytest
from fake_runs import LAB

from autograde.grading.evidence import read_evidence
from course_lib.runs.run_evidence.criteria import KINDS


@pytest.fixture
def found(tmp_path):
    """What a criterion finds in a run."""

    def found(kind, run, **settings):
        submission = tmp_path / "submitted" / "ada" / LAB
        run.write(submission)
        return KINDS[kind].check(read_evidence(submission, LAB), settings)

    return found


@pytest.fixture
def judge(found):
    return lambda run, seconds=100, **more: found("time_budget", run, seconds=seconds, **more)


@pytest.fixture
def judge_images(found):
    return lambda run, images=4000, **more: found("accuracy_within_images", run, threshold=0.85, images=images, **more)


def lasting(make_run, seconds, wall, device="cpu"):
    """A run of four epochs of so many seconds each, whose wall clock shows `wall` seconds."""
    minutes, rest = divmod(wall, 60)
    record = {"started": "2026-11-20T10:00:00+00:00", "ended": f"2026-11-20T10:{minutes:02d}:{rest:02d}+00:00"}
    return make_run((0.2, 0.4, 0.6, 0.8), seconds=seconds, device=device, stopped_early=False, **record)


@pytest.mark.parametrize(("budget", "passed", "relation"), [(50, True, "at most"), (49.99, False, "more than")])
def test_the_last_row_s_time_counts(judge, make_run, budget, passed, relation):
    result = judge(lasting(make_run, 12.5, 60), budget)
    assert result.passed == passed
    assert result.reason == (
        f"training took 50 s until epoch 4, the last row of learning_curve.csv: {relation} the {budget:g} s "
        "allowed on 'cpu'"
    )


@pytest.mark.parametrize(
    ("device", "passed"),
    [("cpu", True), ("CPU (2 threads a rank)", True), ("cuda", False), ("cuda:0", False), ("mps", False), ("", False)],
)
def test_another_device_than_a_cpu_has_the_gpu_s_budget(judge, make_run, device, passed):
    run = lasting(make_run, 12.5, 60, device)
    assert judge(run, 100, seconds_gpu=20).passed == passed
    assert judge(run, 100).passed
    assert judge(run, 20, seconds_gpu=100).passed != passed


@pytest.mark.parametrize(("wall", "passed"), [(50, True), (49, True), (48, False), (0, False)])
def test_training_is_not_longer_than_the_run(judge, make_run, wall, passed):
    result = judge(lasting(make_run, 12.5, wall))
    assert result.passed == passed
    if not passed:
        assert result.reason == (
            f"learning_curve.csv adds up to 50 s of training until epoch 4, run.json has {wall} s from started to "
            "ended: hand in the files of one run"
        )


@pytest.mark.parametrize(("ended", "passed"), [("23:59:57", False), ("23:59:58", True)])
def test_six_significant_digits_of_a_long_time_are_rounding(judge, make_run, ended, passed):
    # 345,600 s in six digits may be 1.7 s less, and run.json's times are cut to whole seconds.
    run = make_run((0.2, 0.4, 0.6, 0.8), seconds=86_400, stopped_early=False)
    run.record |= {"started": "2026-11-20T00:00:00+00:00", "ended": f"2026-11-23T{ended}+00:00"}
    assert judge(run, 1e6).passed == passed


def test_a_run_without_an_end_has_no_wall_clock(judge, make_run):
    run = lasting(make_run, 12.5, 60)
    run.record["ended"] = None
    result = judge(run)
    assert not result.passed and "was not finished" in result.reason


def test_a_transcript_of_another_time_does_not_back_the_curve_up(judge, make_run):
    run = lasting(make_run, 12.5, 60)
    run.rows[-1][1] = "20"  # the CSV alone is made shorter, and grows no more
    assert "cumulative seconds can only grow" in judge(run).reason
    run.rows[1][1], run.rows[2][1], run.rows[3][1] = "5", "10", "15"
    result = judge(run)
    assert not result.passed and "cumulative time is 12.5 in assessment.out (line 1) and 5 in" in result.reason


def test_the_tutorial_s_two_columns_are_enough(judge, make_run):
    run = lasting(make_run, 12.5, 49)
    run.csv = lambda: "time,val_accuracy\n0.0,0.0\n12.5,0.2\n25.0,0.4\n37.5,0.6\n50.0,0.8\n"
    assert judge(run, 50).passed


GOOD = (0.2, 0.6, 0.86, 0.87)  # accuracies


def of_images(make_run, accuracies, images=1000):
    """A run whose epochs have so many images, in ten seconds each."""
    run = make_run(accuracies, seconds=10.0, speed=images / 10, stopped_early=False)
    run.record["data"] |= {"train_samples": images}
    run.record |= {"started": "2026-11-20T10:00:00+00:00", "ended": "2026-11-20T10:02:00+00:00"}
    return run


@pytest.mark.parametrize(("budget", "passed", "relation"), [(4000, True, "at most"), (3999, False, "more than")])
def test_the_images_until_the_second_good_epoch_count(judge_images, make_run, budget, passed, relation):
    found = judge_images(of_images(make_run, GOOD), budget)
    assert found.passed == passed, found.reason
    assert (
        found.reason == f"0.85 in 2 epochs in a row after epoch 4, from 4,000 images: {relation} the {budget:,} allowed"
    )


@pytest.mark.parametrize(
    ("accuracies", "said"),
    [((0.2, 0.6, 0.8, 0.86), "reached once, and not"), ((0.86, 0.8, 0.86, 0.8), "reached once, and not"),
     ((0.2, 0.6, 0.8, 0.84), "never reached")],
)  # fmt: skip
def test_once_is_not_enough(judge_images, make_run, accuracies, said):
    found = judge_images(of_images(make_run, accuracies))
    assert not found.passed and found.reason == f"0.85 was {said} in 2 epochs in a row"


def test_more_than_two_may_be_asked_for(judge_images, make_run):
    assert not judge_images(of_images(make_run, GOOD), in_a_row=3).passed
    assert judge_images(of_images(make_run, (0.86, 0.87, 0.88, 0.9)), in_a_row=3).passed


def test_the_curve_s_own_images_are_no_more_than_the_record_s(judge_images, make_run):
    run = of_images(make_run, GOOD)
    run.record["data"] |= {"train_samples": 10}
    found = judge_images(run)
    assert not found.passed and "hand in the files of one run" in found.reason

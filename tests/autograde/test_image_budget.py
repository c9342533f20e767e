"""The budget of training images: two epochs in a row, in agreement with the transcript, the record and the wall clock."""

import pytest
from fake_runs import LAB

from autograde.grading.evidence import read_evidence
from course_lib.runs.run_evidence.criteria import KINDS

GOOD = (0.2, 0.6, 0.86, 0.87)


@pytest.fixture
def judge(tmp_path):
    """What a budget makes of a run."""

    def judge(run, images=4000, **more):
        submission = tmp_path / "submitted" / "ada" / LAB
        run.write(submission)
        evidence = read_evidence(submission, LAB)
        return KINDS["accuracy_within_images"].check(evidence, {"threshold": 0.85, "images": images, **more})

    return judge


def of_images(make_run, accuracies, images=1000):
    """A run whose epochs have so many images, in ten seconds each."""
    run = make_run(accuracies, seconds=10.0, speed=images / 10, stopped_early=False)
    run.record["data"] |= {"train_samples": images}
    run.record |= {"started": "2026-11-20T10:00:00+00:00", "ended": "2026-11-20T10:02:00+00:00"}
    return run


@pytest.mark.parametrize(("budget", "passed", "relation"), [(4000, True, "at most"), (3999, False, "more than")])
def test_the_images_until_the_second_good_epoch_count(judge, make_run, budget, passed, relation):
    found = judge(of_images(make_run, GOOD), budget)
    assert found.passed == passed, found.reason
    assert (
        found.reason == f"0.85 in 2 epochs in a row after epoch 4, from 4,000 images: {relation} the {budget:,} allowed"
    )


@pytest.mark.parametrize(
    ("accuracies", "said"),
    [((0.2, 0.6, 0.8, 0.86), "reached once, and not"), ((0.86, 0.8, 0.86, 0.8), "reached once, and not"),
     ((0.2, 0.6, 0.8, 0.84), "never reached")],
)  # fmt: skip
def test_once_is_not_enough(judge, make_run, accuracies, said):
    found = judge(of_images(make_run, accuracies))
    assert not found.passed and found.reason == f"0.85 was {said} in 2 epochs in a row"


def test_more_than_two_may_be_asked_for(judge, make_run):
    assert not judge(of_images(make_run, GOOD), in_a_row=3).passed
    assert judge(of_images(make_run, (0.86, 0.87, 0.88, 0.9)), in_a_row=3).passed


def test_the_curve_s_own_images_are_no_more_than_the_record_s(judge, make_run):
    run = of_images(make_run, GOOD)
    run.record["data"] |= {"train_samples": 10}
    found = judge(run)
    assert not found.passed and "hand in the files of one run" in found.reason

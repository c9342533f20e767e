"""Weights that are handed in more than once: points are given once, and copies are flagged."""

from autograde.grading.run_judging import count_once
from autograde.grading.same_weights import flag_copies, repeated_weights
from autograde.rubric.form import Criterion
from autograde.rubric.schema import RunEvidence
from autograde.rubric.verdict import CriterionResult, Flag, RunSummary, Verdict, load_verdict, verdict_path

OWN, ALPHA, BETA = "", "alpha", "beta"


def judged(name, points, weights):
    rules = RunEvidence(f"run-{name}", 5.0, (Criterion("all", "monotone", 5.0, "All", {}),), id=name, folder=name)
    result = CriterionResult(f"run-{name}", "all", "monotone", "All", points > 0, float(points), 5.0, "as it was")
    return rules, [result], RunSummary(name, weights)


def points(*runs):
    return [sum(result.points for result in results) for results in count_once([judged(*run) for run in runs])]


def test_the_same_weights_count_where_they_earn_most():
    assert points((OWN, 3, "a"), (ALPHA, 5, "a"), (BETA, 4, "b")) == [0, 5, 4]
    assert points((OWN, 5, "a"), (ALPHA, 5, "a"), (BETA, 5, "a")) == [5, 0, 0]  # the first of them
    assert points((OWN, 5, None), (ALPHA, 5, None)) == [5, 5]


def test_the_reason_names_the_other_run_and_one_that_earned_nothing_keeps_its_own():
    own, alpha, beta = count_once([judged(OWN, 5, "a"), judged(ALPHA, 2, "a"), judged(BETA, 0, "a")])
    assert own[0].reason == beta[0].reason == "as it was"
    assert alpha[0].reason.startswith("its weights are those of the notebook's run, where they count")
    assert not alpha[0].passed


def test_a_flag_names_all_runs_with_the_same_weights():
    runs = [
        RunSummary("", "a"),
        RunSummary(ALPHA, "b"),
        RunSummary(BETA, "a"),
        RunSummary("gamma"),
        RunSummary("delta"),
    ]
    assert repeated_weights(runs) == [Flag("copy", "the notebook's run and beta have the same weights")]


def test_copies_between_students_labs_and_runs_are_flagged_once_however_often_one_looks(tmp_path):
    def verdict(student, lab, *runs, flags=()):
        Verdict(lab, "t", student, "2026-01-01", (), tuple(RunSummary(*run) for run in runs), flags).save(tmp_path)

    verdict("ada", "05_resnet_hw", ("resnet_cifar100", "x"), ("", "y"))
    crash = Flag("crash", "kept")
    verdict("ada", "07_sync_async_sgd", (ALPHA, "x"), (BETA, "x"), flags=(crash, Flag("copy", "of an earlier look")))
    verdict("bob", "07_sync_async_sgd", (ALPHA, "y"), ("", None))  # Ada's of the other lab: not looked for
    verdict("eve", "07_sync_async_sgd", ("", "x"))
    verdict("ian", "05_resnet_hw", ("", "z"))
    for _ in range(2):
        found = flag_copies(tmp_path, "07_sync_async_sgd", ["ada", "bob", "eve", "ian", "nobody"])
        assert {name: [flag.detail for flag in each.flags] for name, each in found.items()} == {
            "ada": [
                "kept",
                "alpha and beta have the same weights",
                "alpha: the same model.safetensors as eve",
                "alpha: the same model.safetensors as in 05_resnet_hw, resnet_cifar100",
                "beta: the same model.safetensors as eve",
                "beta: the same model.safetensors as in 05_resnet_hw, resnet_cifar100",
            ],
            "bob": [],
            "eve": ["the same model.safetensors as ada"],
        }
    assert load_verdict(verdict_path(tmp_path, "ada", "07_sync_async_sgd")) == found["ada"]

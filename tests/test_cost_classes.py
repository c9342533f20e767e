"""The rules of cost_classes.py name tests that exist, and put each where it says."""

from pathlib import Path

import cost_classes
import pytest

HERE = Path(__file__).parent
RULES = [
    *(rule for rules in cost_classes.RULES.values() for rule in rules),
    *cost_classes.SAMPLE, *cost_classes.CI_SAMPLE, *cost_classes.QUICK,
]  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_names_a_test_that_exists(rule):
    files, _, test = rule.partition("::")
    texts = [path.read_text() for path in HERE.glob(files)]
    assert texts and any(f"def {test.split('*')[0].split('[')[0]}" in text for text in texts)


def test_a_test_that_no_rule_names_is_quick_and_a_marked_one_is_not():
    assert cost_classes.classes("course_lib/test_new.py::test_it", None, set()) == {"quick"}
    assert cost_classes.classes("course_lib/test_new.py::test_it", None, {"slow"}) == set()


def test_the_sample_is_quick_and_in_its_class():
    name = "hostile/test_hostile_corpus.py::test_exhibit"
    assert cost_classes.classes(name, "network", set()) == {"quick", "exhibits"}
    assert cost_classes.classes(name, "zombies", set()) == {"exhibits"}
    lab = "labs/test_labs_in_nbgrader.py::test_the_source_validates_and_leaves_a_run"
    assert cost_classes.classes(lab, "01_single_gpu", set()) == {"quick", "labs"}
    assert cost_classes.classes(lab, "03_batch_size_scaling", set()) == {"labs"}


def test_cases_that_ci_leaves_out_are_slow_and_no_quick_one_is_left_out():
    name = "exercises/test_in_the_sandbox.py::test_through_the_sandbox"
    assert cost_classes.classes(name, "lab06-six", set()) == {"thorough"}
    assert cost_classes.classes(name, "lab06-join", set()) == {"slow"}
    for test, cases in cost_classes.CI_SAMPLE.items():
        assert set(cost_classes.SAMPLE.get(test, ())) <= set(cases)


def test_two_dozen_exhibits_of_all_themes_are_a_sample(monkeypatch):
    monkeypatch.syspath_prepend(HERE / "hostile")
    import test_hostile_corpus as corpus

    chosen = [corpus.EXHIBITS[name] for name in cost_classes.SAMPLE["hostile/test_hostile_corpus.py::test_exhibit"]]
    assert len({exhibit.student for exhibit in chosen}) == 24
    assert {exhibit.build.__module__ for exhibit in chosen} == {theme.__name__ for theme in corpus.THEMES}

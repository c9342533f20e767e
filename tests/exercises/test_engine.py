"""The engine's own rules, on exercises made up here."""

import math
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from autograde.checks import described
from autograde.checks.registry import AnswerError
from autograde.sandbox.inside.wire import Opaque
from autograde.sandbox.limits import Exceeded
from course_lib.exercises import Answers, Exercise, Mistake, Part, visible
from course_lib.exercises.comparing import contrast, equal, short
from course_lib.exercises.judging import Expectation, judge, observe_here
from course_lib.exercises.labs import lab01

SOURCE = Path(__file__).read_text()


def part(**more):
    return Part("about", "wrong", **more)


def observe_value(case, function):
    return function(case)


def exercise(parts, **more):
    return Exercise(("f",), lambda random: {"one": [1, 2], "two": [5]}, observe_value, parts, "hint", **more)


def judged(described_exercise, answers, function):
    known = Expectation.of(described_exercise, answers, described_exercise.draw(None))
    return judge(
        described_exercise,
        known,
        lambda kind: [observe_here(described_exercise, case, (function,)) for case in known.cases[kind]],
    )


ANSWERS = Answers((lambda x: 2 * x,), {"square": Mistake("it is squared", lambda x: x * x)})


def test_a_part_is_lost_for_the_reason_of_what_it_needs():
    findings = judged(exercise({"one": part(), "two": part(needs="one")}), ANSWERS, lambda x: x * x if x < 5 else 10)
    assert not findings["two"].passed and findings["two"].reason == findings["one"].reason == "it is squared"


def test_a_part_is_about_the_only_kind_of_cases_whatever_its_name():
    only = Exercise(("f",), lambda random: {"one": [1, 2]}, observe_value, {"first": part(), "second": part()}, "hint")
    assert all(finding.passed for finding in judged(only, ANSWERS, lambda x: 2 * x).values())
    assert not any(finding.passed for finding in judged(only, ANSWERS, lambda x: x).values())


def test_a_mistake_is_named_only_if_every_wrong_case_is_its():
    findings = judged(exercise({"one": part(cases="one two")}), ANSWERS, lambda x: x * x if x < 5 else 11)
    assert findings["one"].reason == "wrong" and (findings["one"].kind, findings["one"].place) == ("one", 0)


def test_a_forgiven_mistake_counts_as_right():
    findings = judged(exercise({"one": part(forgives="square"), "two": part()}), ANSWERS, lambda x: x * x)
    assert findings["one"].passed and not findings["two"].passed


def test_no_mistake_is_tried_on_a_guarded_kind():
    def never(x):
        assert x != 5
        return -x

    answers = Answers(ANSWERS.reference, {"never": Mistake("never", never)})
    findings = judged(exercise({"two": part()}, guarded="two"), answers, lambda x: 0)
    assert findings["two"].reason == "wrong"


def test_a_mistake_that_raises_is_not_what_returns_nothing():
    answers = Answers(ANSWERS.reference, {"raises": Mistake("it raises", lambda x: 1 / 0)})
    reason = judged(exercise({"one": part()}), answers, lambda x: None)["one"].reason
    assert "is there a return?" in reason


def test_a_judge_that_fails_on_something_odd_finds_it_wrong():
    judging = exercise({"one": part(judge=lambda case, seen, right: "" if seen["x"] == right else "no")})
    assert judged(judging, ANSWERS, lambda x: {"x": 2 * x})["one"].passed
    assert judged(judging, ANSWERS, lambda x: {"x": x})["one"].reason == "no"
    assert judged(judging, ANSWERS, lambda x: x)["one"].reason == "wrong"


@pytest.mark.parametrize(
    "a, b",
    [
        (True, 1), (1.0, 1), (True, 1.0), (math.nan, 1.0), (None, 0.0), ("1", 1.0), (Opaque("float"), 1.0), ([1.0], 1.0),
        (torch.tensor([1.0]), torch.tensor([[1.0]])), (torch.tensor([True]), torch.tensor([1.0])),
        (torch.tensor(math.inf), torch.tensor(1.0)), (torch.tensor(math.inf), torch.tensor(-math.inf)), ([1], [1, 2]),
        ({"a": 1}, {"b": 1}), (1.0, None), (1.001, 1.0), (torch.tensor([1.001]), torch.tensor([1.0])),
    ],
)  # fmt: skip
def test_what_is_not_equal(a, b):
    assert not equal(a, b)


@pytest.mark.parametrize(
    "a, b",
    [
        (1, 1.0), (torch.tensor(1.0), 1.0), (1.00005, 1.0), ((1, 2), [1, 2]), (None, None), (math.nan, math.nan),
        (np.array([1.0]), torch.tensor([1.0])), (torch.tensor(math.inf), torch.tensor(math.inf)),
        ({"a": (1.0, None)}, {"a": [1.0, None]}), (math.inf, math.inf),
    ],
)  # fmt: skip
def test_what_is_equal(a, b):
    assert equal(a, b)


def test_values_are_short():
    assert short([1 / 3, None, torch.ones(3)]) == "[0.333333, None, [1, 1, 1]]"
    assert short(torch.ones(10, 10)) == "a tensor of shape (10, 10) and norm 10"


@pytest.mark.parametrize(
    "a, b, says",
    [
        (2.0, 1.0, "expected 1, yours gives 2"),
        (None, 1.0, "expected 1, yours gives nothing (None): is there a return?"),
        (torch.tensor(3), 3, "expected 3, yours gives a number"),
        ([1, 2, 3], [1, 5, 3], "place 1, expected 5, yours gives 2"),
        (
            {"w": torch.zeros(2, 4), "k": 1},
            {"w": torch.eye(2, 4) * 3, "k": 1},
            "w, entry (0, 0): expected 3, yours gives 0",
        ),
        (torch.zeros(3), torch.ones(4), "expected [1, 1, 1, 1], yours gives [0, 0, 0]"),
    ],
)
def test_a_difference_is_shown(a, b, says):
    assert contrast(a, b) == says


class Counter:
    def __init__(self, case):
        self.count = 0

    def answer(self, name, rank, amount):
        self.count += amount
        return rank

    def evidence(self):
        return {"count": self.count}


class Ask:
    """Calls without a sandbox; `fails` is raised in the place of the last."""

    def __init__(self, source, function, fails=None):
        self.names, self.function, self.fails = {}, function, fails
        exec(source, self.names)

    def call(self, name, given, answers=None):
        if self.fails is not None and given.get("cases") == [5]:
            raise self.fails

        def on(rank, one):
            return self.names[name](lambda _: self.function, one, lambda what, *args: answers[what](rank, *args))

        return [on(rank, one) for rank, one in enumerate(given)] if isinstance(given, list) else on(0, given)


def observe_on_ranks(case, rank, outside, function):
    return [function(case, rank), outside("add", 10)]


def observe_counted(case, outside, function):
    outside("add", 3)
    return {"value": function(case), "count": "a lie"}


def source_of(observe):
    return described.sliced(SOURCE, observe.__name__) + described._CALLS.format(observe=observe.__name__)


def test_ranks_are_observed_and_the_watch_has_the_last_word():
    several = Exercise(("f",), None, observe_on_ranks, {}, "hint", watch=Counter, ranks=3, world=lambda case: case)
    ask = Ask(source_of(observe_on_ranks), lambda case, rank: case + rank)
    assert described._observed(ask, several, [2]) == [{"ranks": [[2, 0], [3, 1]], "count": 20}]
    sharing = replace(several, share=lambda case, rank: 10 * rank, world=lambda case: 3)
    assert described._observed(ask, sharing, [2])[0]["ranks"] == [[0, 0], [11, 1], [22, 2]]
    one = Exercise(("f",), None, observe_counted, {}, "hint", watch=Counter)
    assert described._observed(Ask(source_of(observe_counted), lambda x: x), one, [4]) == [{"value": 4, "count": 3}]
    assert observe_here(one, 4, (lambda x: x,)) == {"value": 4, "count": 3}


@pytest.mark.parametrize(
    "fails", [AnswerError("raised", flag="crash"), Exceeded("memory", "too much"), Exceeded("time", "too long")]
)
def test_a_limit_on_a_guarded_kind_costs_its_own_parts_only(monkeypatch, fails):
    parts = {"one": part(), "two": part()}
    monkeypatch.setattr(described, "answers_of", lambda lab: {"made-up": ANSWERS})
    for guarded in ("two", ""):
        guarding = exercise(parts, guarded=guarded)
        monkeypatch.setattr(described, "exercises_of", lambda lab, guarding=guarding: {"made-up": guarding})
        ask = Ask(source_of(observe_value), lambda x: 2 * x, fails)
        ask.random = None
        if guarded:
            findings = described._judge("lab99", "made-up", ask)
            assert findings["one"].passed and not findings["two"].passed
            assert (findings["two"].reason == "raised") is isinstance(fails, AnswerError)
        else:
            with pytest.raises(type(fails)):
                described._judge("lab99", "made-up", ask)


def test_a_slice_holds_what_is_referred_to_and_nothing_else():
    text = described.sliced(SOURCE, "observe_counted")
    assert "def observe_counted" in text and "import" not in text and "ANSWERS" not in text
    assert "class Counter" in described.sliced("import a, b.c\n" + SOURCE + "\ndef g(): return Counter, b", "g")


def test_what_two_modules_import_comes_before_its_first_use():
    text = described.sliced("import a\nclass B(a.C): ...\nimport a\ndef f(): return B, a", "f")
    assert text.startswith("import a\n") and text.count("import") == 1


def test_a_local_variable_of_a_definitions_name_brings_nothing():
    source = "def b(): ...\ndef c(): ...\nD = 1\ndef f(x: D, c=D):\n    b = [c for c in x]\n    return lambda: b\n"
    text = described.sliced(source, "f")
    assert "def b" not in text and "def c" not in text and "D = 1" in text
    assert "def b" in described.sliced(source + "def g():\n    global b\n    return lambda: b\n", "g")


def test_a_case_may_be_shown_with_what_was_counted():
    assert visible._shown(lambda case, seen: f"{case}: {seen}", 1, 2) == "1: 2"
    assert visible._shown("{0} of {1}", (1, 2), None) == "1 of 2" and visible._shown("{a}", {"a": 1}, None) == "1"


FAST_DEVICE = {"warmup": 2, "steps": 12, "batch_size": 50, "fast": 0.007, "slow": 0.04}


@pytest.mark.parametrize("stalls, right", [([0.0], True), ([1.0, 0.0], True), ([0.3], False)])
def test_a_machine_that_stops_the_process_at_the_wrong_moment_takes_no_points(stalls, right):
    """`stalls` are the seconds that each measurement loses between the last wait and the reading of the clock."""
    left = list(stalls)

    def images_per_second(step, batch_size, steps, warmup, synchronize):
        for _ in range(warmup):
            step()
        synchronize()
        start = time.perf_counter()
        for _ in range(steps):
            step()
        synchronize()
        time.sleep(left.pop(0) if len(left) > 1 else left[0])
        return batch_size * steps / (time.perf_counter() - start)

    exercise = lab01.EXERCISES["throughput"]
    seen = observe_here(exercise, FAST_DEVICE, (images_per_second,))
    assert (exercise.parts["rate"].judge(FAST_DEVICE, seen, None) == "") is right


def shown_by(monkeypatch, described_exercise, answers, function):
    """What the visible check raises for a function."""
    known = Expectation.of(described_exercise, answers, described_exercise.draw(None))
    monkeypatch.setattr(visible, "expectation_of", lambda lab, name: known)
    with pytest.raises(Exception) as raised:
        visible.check_described("lab00", "f", described_exercise, function)
    return raised.value


def test_what_an_answer_raises_names_the_case(monkeypatch):
    one = Exercise(
        ("f",), lambda random: {"one": [(3, 4)]}, lambda case, f: f(*case), {"one": part()}, "hint", "a={0}, b={1}"
    )
    answers = Answers((lambda a, b: a + b,))
    error = shown_by(monkeypatch, one, answers, lambda a, b: a.missing)
    assert isinstance(error, AttributeError) and error.__notes__ == ["raised for this case: a=3, b=4"]


def test_an_observation_in_words_is_shown(monkeypatch):
    """`observe` says in words why there is nothing to compare: those words are the message, not "nothing (None)"."""
    one = Exercise(
        ("f",), lambda random: {"one": [1]}, observe_value, {"one": part(keys="a b")}, "hint", lambda case, seen: "case"
    )
    answers = Answers((lambda x: {"a": 1, "b": 2},))
    error = shown_by(monkeypatch, one, answers, lambda x: "no part named a: set self.a")
    assert str(error).startswith("case: no part named a: set self.a. Wrong") and "None" not in str(error)


def test_a_mistake_of_ours_warns_nobody(recwarn):
    def warns(x):
        warnings.warn("of the mistake", stacklevel=1)
        return x * x

    answers = Answers((lambda x: 2 * x,), {"square": Mistake("it is squared", warns)})
    judged(exercise({"one": part(), "two": part()}), answers, lambda x: x * x)
    assert not [one for one in recwarn if "of the mistake" in str(one.message)]

"""One right and one wrong answer of each described exercise, through the sandbox; `test_generic.py` has the rest."""

import sys
from pathlib import Path

import pytest
from test_generic import EXERCISES, TABLES

from autograde.sandbox.bubblewrap import missing_sandbox
from autograde.sandbox.warm import WarmInterpreter
from course_lib.exercises import exercises_of
from course_lib.runs.run_evidence.course import full_name

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "autograde"))
from graded_lab import GradedLab

MISSING = missing_sandbox()


@pytest.fixture(scope="module")
def warm():
    if MISSING:
        pytest.skip(MISSING)
    with WarmInterpreter() as interpreter:
        yield interpreter


@pytest.mark.parametrize("lab, name", EXERCISES)
def test_through_the_sandbox(warm, lab, name):
    graded = GradedLab(warm, full_name(lab))
    judged = graded.judge(name, seed=3)
    assert judged.points == judged.max_points and not judged.flags, judged.reasons
    source, lost, words = next(rest for exercise, *rest in TABLES[lab].WRONG.values() if exercise == name)
    judged = graded.judge(name, source, seed=3)
    assert judged.lost == set(lost.split()) and "grader" not in judged.flags
    assert any(words in judged.reasons[part] for part in judged.lost), judged.reasons


ODD = """
class Anything(float):
    def __eq__(self, other): return True
    def __hash__(self): return 0
    __ne__ = __lt__ = __gt__ = lambda self, other: False
    __le__ = __ge__ = lambda self, other: True
    __sub__ = __rsub__ = __add__ = __radd__ = __mul__ = __truediv__ = lambda self, other: self

torch.equal = torch.allclose = lambda *a, **k: True
"""


@pytest.mark.parametrize("lab, name", EXERCISES)
def test_what_equals_everything_and_a_blank_earn_nothing(warm, lab, name):
    graded, functions = GradedLab(warm, full_name(lab)), exercises_of(lab)[name].functions
    odd = "\n".join(f"def {function}(*a, **k): return [Anything(0)] * 2" for function in functions)
    judged = graded.judge(name, ODD + odd)
    assert judged.points == 0 and "grader" not in judged.flags, judged.reasons
    judged = graded.judge(name, graded.starter[f"ex-{name}"])
    assert judged.points == 0 and judged.flags == ["missing"]
    assert all("not answered" in reason for reason in judged.reasons.values())


LOOK = """
import os, sys
import course_lib
{signature}:
    folder = os.path.dirname(course_lib.__file__) + "/exercises"
    try:
        from course_lib.exercises import answers
        return "imported"
    except ImportError:
        pass
    known = [name for name in sys.modules if name.startswith("course_lib.exercises.")]
    raise LookupError(str([os.listdir(folder), known]))
"""


def test_nothing_of_the_descriptions_is_in_a_sandbox(warm):
    lab, name = EXERCISES[0]
    function = exercises_of(lab)[name].functions[0]
    judged = GradedLab(warm, full_name(lab)).judge(name, LOOK.format(signature=f"def {function}(*question)"), seed=3)
    assert all("LookupError" in reason and "[[], []]" in reason for reason in judged.reasons.values()), judged.reasons


def test_an_answer_that_raises_is_told_where(warm):
    answer = "def saved_bytes(function):\n    return {}['one']\n\nforward_checkpointed = saved_bytes\n"
    judged = GradedLab(warm, "01_single_gpu").judge("memory", answer)
    assert judged.points == 0 and judged.flags == ["crash"]
    assert all("KeyError" in reason and "line 2" in reason for reason in judged.reasons.values())


def test_a_huge_answer_gets_nothing(warm):
    answer = "def saved_bytes(*given):\n    return torch.zeros(30_000_000)\n\nforward_checkpointed = saved_bytes\n"
    judged = GradedLab(warm, "01_single_gpu").judge("memory", answer)
    assert judged.points == 0 and "grader" not in judged.flags, judged.reasons

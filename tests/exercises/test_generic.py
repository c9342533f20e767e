"""Every described exercise: right answers earn everything, each mistake loses its parts, in both checks.

Nothing of a mistake needs a sandbox: it is judged here, on one seed in `make test` and on 20 others in CI. Where a judgement is
costly, CI has 3 seeds for a right answer, 1 for a wrong one, and `make test-all` 20; `make test` has the first mistake and wrong
answer of an exercise on ranks, and none of those in a table's COSTLY. The cases of the visible check are always the same, so it
is called once, beside the fewer seeds that judge the answer. On ranks it starts processes, which takes longest: there `make test`
calls it for each solution, and for a wrong answer to a lab's first exercise on ranks; CI for the others.
`test_in_the_sandbox.py` judges one right and one wrong answer of each exercise there. `tables/labNN_answers.py` says what is lost.
"""

import contextlib
import importlib
import io
import math
import os
import sys
from functools import cache
from pathlib import Path
from unittest import mock

import nbformat
import pytest
import torch

from autograde.checks.described import find_check, observer_source
from autograde.rubric.schema import find_rubric
from course_lib.checks import CheckFailed, check
from course_lib.distributed import launch
from course_lib.exercises import Finding, answers_of, exercises_of, known_labs
from course_lib.exercises.expected import computed, up_to_date
from course_lib.exercises.judging import Raised, judge, observe_here
from course_lib.exercises.labs.lab09 import own_process
from course_lib.runs.run_evidence.course import full_name

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "tables"), str(HERE.parent / "autograde")]
impatient = importlib.import_module("impatient")
threaded_ranks = importlib.import_module("threaded_ranks")

FEW = range(20, 21)  # none of CI's
THREE = range(3)  # CI's for a right answer that is costly
TABLES = {lab: importlib.import_module(f"{lab}_answers") for lab in known_labs()}
EXERCISES = [(lab, name) for lab in known_labs() for name in exercises_of(lab)]
LOST = {
    (lab, name, mistake): lost
    for lab, table in TABLES.items() for name, some in table.LOSES.items() for lost, names in some.items()
    for mistake in names.split(", ")
}  # fmt: skip
WRONG = [(lab, name) for lab, table in TABLES.items() for name in table.WRONG]
RIGHT = [
    (lab, name, n) for lab, table in TABLES.items() for name, some in table.RIGHT.items() for n in range(len(some))
]


def costly(lab, name):
    """Whether one judgement takes long."""
    return on_ranks(lab, name) or name in getattr(TABLES[lab], "COSTLY", ())


def on_ranks(lab, name):
    return exercises_of(lab)[name].ranks > 1


def shown_early(lab, name):
    """Whether `make test` calls the visible check of a wrong answer."""
    return name not in [each for each in exercises_of(lab) if on_ranks(lab, each)][1:]


def with_seeds(names, rows, exercise_of=lambda lab, name, *_: (lab, name), soon=lambda *row: True, costly_in_ci=THREE):
    """Parametrize with rows, each of them with several numbers of seeds; `soon`: whether `make test` has the row."""
    params = []
    for row in rows:
        lab, name = exercise_of(*row)
        thorough, slow = pytest.mark.thorough, pytest.mark.slow
        classes = [(FEW, ())] * soon(*row) + (
            [(costly_in_ci, thorough), (range(20), slow)] if costly(lab, name) else [(range(20), thorough)]
        )
        for seeds, marks in classes:
            params.append(
                pytest.param(
                    *row,
                    seeds,
                    marks=marks,
                    id=f"{'-'.join(map(str, row))}-{'one seed' if seeds == FEW else f'{len(seeds)} seeds'}",
                )
            )
    return pytest.mark.parametrize(f"{names}, seeds", params)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@cache
def expected(lab, name, seed):
    return computed(lab, name, seed)


def verdicts(lab, name, functions, seeds):
    """The findings of parts that earn points, for each seed."""
    exercise = exercises_of(lab)[name]
    if on_ranks(lab, name):
        yield from (threaded_ranks.judged_in_threads(lab, name, functions, seed) for seed in seeds)
        return
    for seed in seeds:
        known = expected(lab, name, seed)

        @cache
        def found(kind, known=known):
            try:
                return [observe_here(exercise, case, functions) for case in known.cases[kind]]
            except Exception as error:
                if kind not in exercise.guarded.split():
                    raise
                return Raised(f"your function raised: {error.__context__ or error}")

        try:
            findings = judge(exercise, known, found)
        except Exception as error:  # as the hidden check, where the answer raises
            said = f"your function raised: {error.__context__ or error}"  # a transport's own words show the case
            findings = dict.fromkeys(exercise.parts, Finding(False, said, "call it yourself"))
        yield {part: findings[part] for part, each in exercise.parts.items() if each.about}


@cache
def code(text):
    return compile(text, "<string>", "exec")


@cache
def sources(lab):
    notebook = nbformat.read(HERE.parents[1] / "labs" / full_name(lab) / f"{full_name(lab)}.ipynb", as_version=4)
    return notebook.cells


def functions_of(lab, name, source=None):
    """The functions of an answer, or of the notebook's own, beside the notebook's own cells and answers."""
    rules = find_rubric(full_name(lab)).execution
    namespace = {"__name__": "notebook"}
    for cell in sources(lab):
        if cell.cell_type != "code":
            continue
        text = source if source is not None and cell.id == f"ex-{name}" else cell.source
        if "parameters" in cell.metadata.get("tags", []):
            exec(code(text), namespace)
            namespace.update(rules.parameters)
        elif cell.id in rules.run or cell.id.startswith("ex-"):
            with contextlib.redirect_stdout(io.StringIO()), threaded_ranks.unpacked_once():
                exec(code(text), namespace)
    return tuple(namespace[function] for function in exercises_of(lab)[name].functions)


@cache
def warm_ranks():
    """The fork server has imported PyTorch: a visible check's timeout is for the ranks alone."""
    launch(os.getpid, 1, process_group=False, threads=1)


def visible(lab, name, functions):
    if on_ranks(lab, name):
        warm_ranks()
    check(f"{lab}.{name}", functions if len(functions) > 1 else functions[0])


def barriers_given_up():
    """Processes of a wrong answer wait for those that never come in less time, too."""
    return mock.patch.object(own_process, "_observe", impatient.observe)


def loses(lab, name, functions, lost, words, seeds, look):
    """`look`: whether the visible check is called, too. A reason tells nothing of the inputs: it is the same for all seeds.

    A table's VARYING are parts whose reason depends on which of several processes is the first to fail.
    """
    with barriers_given_up():
        found = list(verdicts(lab, name, functions, seeds))
    for findings in found:
        assert {part for part, finding in findings.items() if not finding.passed} == set(lost.split())
    reasons = [{part: finding.reason for part, finding in findings.items()} for findings in found]
    varying = getattr(TABLES[lab], "VARYING", ())
    assert all(each[part] == reasons[0][part] for each in reasons for part in each if part not in varying)
    assert any(words in reasons[0][part] for part in lost.split()), reasons[0]
    assert all(finding.hint for finding in found[0].values() if not finding.passed)
    if not look:
        return
    with pytest.raises(CheckFailed) as refused, barriers_given_up():
        visible(lab, name, functions)
    assert words.lower() in str(refused.value).lower()


@with_seeds("lab, name", EXERCISES)
def test_the_solution_and_the_reference_earn_everything(lab, name, seeds, capsys):
    for functions in filter(None, (functions_of(lab, name), answers_of(lab)[name].reference)):
        for findings in verdicts(lab, name, functions, seeds):
            assert all(finding.passed for finding in findings.values()), findings
        if seeds == FEW:
            assert visible(lab, name, functions) is None
            printed = capsys.readouterr()
            assert printed.out.count("\n") == 1 and not printed.err


@with_seeds("lab, name, which", RIGHT, soon=lambda lab, name, which: which == 0 or not costly(lab, name))
def test_another_style_earns_everything(lab, name, which, seeds):
    functions = functions_of(lab, name, TABLES[lab].RIGHT[name][which])
    for findings in verdicts(lab, name, functions, seeds):
        assert all(finding.passed for finding in findings.values()), findings
    if seeds == (THREE if on_ranks(lab, name) else FEW):
        visible(lab, name, functions)


def early(lab, name, mistake):
    """Whether `make test` has a known mistake."""
    first = next(iter(answers_of(lab)[name].mistakes))
    return not costly(lab, name) or (mistake == first and on_ranks(lab, name))


@with_seeds("lab, name, mistake", LOST, soon=early, costly_in_ci=range(1))
def test_a_known_mistake_loses_its_parts_and_is_named(lab, name, mistake, seeds):
    answers = answers_of(lab)[name]
    known = answers.mistakes[mistake]
    functions = [
        mine or right for mine, right in zip(known.functions, answers.reference or known.functions, strict=True)
    ]
    words = TABLES[lab].SAYS.get(mistake, known.diagnosis)
    look = (early(lab, name, mistake) and shown_early(lab, name)) == (seeds == FEW)
    loses(lab, name, tuple(functions), LOST[lab, name, mistake], words, seeds, look=look)


def test_the_tables_have_every_mistake():
    known = {(lab, name, mistake) for lab, name in EXERCISES for mistake in answers_of(lab)[name].mistakes}
    assert known == set(LOST)


def soon(lab, mistake):
    """Whether `make test` has the mistake, too."""
    name = TABLES[lab].WRONG[mistake][0]
    first = next(other for other, (about, *_) in TABLES[lab].WRONG.items() if about == name)
    return not costly(lab, name) or (mistake == first and on_ranks(lab, name))


@with_seeds(
    "lab, mistake", WRONG, lambda lab, mistake: (lab, TABLES[lab].WRONG[mistake][0]), soon, costly_in_ci=range(1)
)
def test_another_mistake_loses_its_parts(lab, mistake, seeds):
    name, source, lost, words = TABLES[lab].WRONG[mistake]
    look = (soon(lab, mistake) and shown_early(lab, name)) == (seeds == FEW)
    loses(lab, name, functions_of(lab, name, source), lost, words, seeds, look=look)


@pytest.mark.parametrize(
    "lab", [pytest.param(lab, marks=[pytest.mark.thorough] * hasattr(TABLES[lab], "COSTLY")) for lab in known_labs()]
)
def test_the_stored_expectations_are_those_of_the_answers(lab):
    assert up_to_date(lab), f"run python -m course_lib.exercises.expected {lab}"


@pytest.mark.parametrize("lab, name", EXERCISES)
def test_a_sandbox_gets_no_answer(lab, name):
    source = observer_source(f"{lab}.{name}")
    assert "course_lib.exercises" not in source and "Exercise(" not in source and "Part(" not in source


@pytest.mark.parametrize("value", [None, math.nan, math.inf, True, [math.nan] * 2, (math.inf,) * 2, [True] * 2, "text"])
@pytest.mark.parametrize(
    "lab, name",
    [
        pytest.param(*each, marks=[pytest.mark.thorough] * (each[1] in getattr(TABLES[each[0]], "COSTLY", ())))
        for each in EXERCISES
    ],
)
def test_odd_values_earn_nothing(lab, name, value):
    functions = tuple([lambda *question, **options: value] * len(exercises_of(lab)[name].functions))
    (findings,) = verdicts(lab, name, functions, FEW)
    assert not any(finding.passed for finding in findings.values()), findings


def test_the_points_are_of_the_parts():
    for lab, name in EXERCISES:
        rubric = next(each for each in find_rubric(full_name(lab)).exercises if each.check == f"{lab}.{name}")
        assert set(rubric.points) == set(find_check(f"{lab}.{name}").parts)

"""Every described exercise: right answers earn everything, each mistake loses its parts, in both checks.

Nothing of a mistake needs a sandbox: it is judged here, on one seed in `make test`, on two others in CI, on 20 in `make test-all`.
Where a judgement is costly, on ranks or in a table's COSTLY, `make test` judges the solution and the reference alone, and CI
every other answer on one seed. The cases of the visible check are always the same, so it is called once, beside the fewest
seeds. On ranks it starts processes, which takes longest: there `make test` calls it for the solution of a lab's first such
exercise, CI for every right answer, `make test-all` for wrong ones. `test_in_the_sandbox.py` judges one right and one wrong
answer of each exercise. `tables/labNN_answers.py` says what is lost.
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

ONE = range(20, 21)  # none of the others'
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


def with_seeds(names, rows, exercise_of=lambda lab, name, *_: (lab, name), always=False):
    """Parametrize with rows, each of them with several numbers of seeds; `always`: `make test` has costly ones, too."""
    params = []
    for row in rows:
        late = costly(*exercise_of(*row))
        some = range(1 if late else 2)
        for seeds, marks in (
            [(ONE, ())] * (always or not late) + [(some, pytest.mark.thorough), (range(20), pytest.mark.slow)]
        ):
            number = "one seed" if seeds == ONE else f"{len(seeds)} seeds"
            params.append(pytest.param(*row, seeds, marks=marks, id=f"{'-'.join(map(str, row))}-{number}"))
    return pytest.mark.parametrize(f"{names}, seeds", params)


def shown(lab, name, seeds, wrong=True):
    """Whether the visible check is called, too: once, with the first seeds; on ranks with `make test-all`'s if wrong."""
    if wrong and on_ranks(lab, name):
        return seeds == range(20)
    return seeds == (range(1) if costly(lab, name) else ONE)


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


def loses(lab, name, functions, lost, words, seeds):
    """A reason tells nothing of the inputs: it is the same for all seeds.

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
    if not shown(lab, name, seeds):
        return
    with pytest.raises(CheckFailed) as refused, barriers_given_up():
        visible(lab, name, functions)
    assert words.lower() in str(refused.value).lower()


@with_seeds("lab, name", EXERCISES, always=True)
def test_the_solution_and_the_reference_earn_everything(lab, name, seeds, capsys):
    for functions in filter(None, (functions_of(lab, name), answers_of(lab)[name].reference)):
        for findings in verdicts(lab, name, functions, seeds):
            assert all(finding.passed for finding in findings.values()), findings
        first = next((each for each in exercises_of(lab) if on_ranks(lab, each)), name)
        if seeds == (ONE if name == first or not on_ranks(lab, name) else range(1)):
            assert visible(lab, name, functions) is None
            printed = capsys.readouterr()
            assert printed.out.count("\n") == 1 and not printed.err


@with_seeds("lab, name, which", RIGHT)
def test_another_style_earns_everything(lab, name, which, seeds):
    functions = functions_of(lab, name, TABLES[lab].RIGHT[name][which])
    for findings in verdicts(lab, name, functions, seeds):
        assert all(finding.passed for finding in findings.values()), findings
    if shown(lab, name, seeds, wrong=False):
        visible(lab, name, functions)


@with_seeds("lab, name, mistake", LOST)
def test_a_known_mistake_loses_its_parts_and_is_named(lab, name, mistake, seeds):
    answers = answers_of(lab)[name]
    known = answers.mistakes[mistake]
    functions = [
        mine or right for mine, right in zip(known.functions, answers.reference or known.functions, strict=True)
    ]
    words = TABLES[lab].SAYS.get(mistake, known.diagnosis)
    loses(lab, name, tuple(functions), LOST[lab, name, mistake], words, seeds)


def test_the_tables_have_every_mistake():
    known = {(lab, name, mistake) for lab, name in EXERCISES for mistake in answers_of(lab)[name].mistakes}
    assert known == set(LOST)


@with_seeds("lab, mistake", WRONG, lambda lab, mistake: (lab, TABLES[lab].WRONG[mistake][0]))
def test_another_mistake_loses_its_parts(lab, mistake, seeds):
    name, source, lost, words = TABLES[lab].WRONG[mistake]
    loses(lab, name, functions_of(lab, name, source), lost, words, seeds)


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
    (findings,) = verdicts(lab, name, functions, ONE)
    assert not any(finding.passed for finding in findings.values()), findings


def test_the_points_are_of_the_parts():
    for lab, name in EXERCISES:
        rubric = next(each for each in find_rubric(full_name(lab)).exercises if each.check == f"{lab}.{name}")
        assert set(rubric.points) == set(find_check(f"{lab}.{name}").parts)

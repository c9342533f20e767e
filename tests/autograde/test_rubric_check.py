"""`lab grade --check-rubrics`: whether a rubric and its lab's notebook fit together."""

import copy
from dataclasses import replace

import nbformat
import pytest
from click.testing import CliRunner
from fake_runs import AUTOMATIC, CHECKS, LAB, lab_path
from msgspec import structs

from autograde.commands.cli import grade
from autograde.grading.rubric_check import rubric_problems
from autograde.rubric.schema import RUBRICS, Execution, Exercise, find_rubric, rubric_names

SOURCE = nbformat.read(lab_path(), as_version=4)


@pytest.mark.parametrize("name", rubric_names())
def test_every_rubric_of_ours_fits_its_notebook(name):
    rubric = find_rubric(name)
    assert rubric_problems(rubric, nbformat.read(lab_path(name), as_version=4)) == []


CRITERIA = len(find_rubric(LAB).runs[0].criteria)


def changed(cell_id, **settings):
    notebook = copy.deepcopy(SOURCE)
    (cell,) = [cell for cell in notebook.cells if cell.id == cell_id]
    cell.metadata.nbgrader.update(settings)
    return notebook


def with_exercise(**changes):
    rubric = find_rubric(LAB)
    first, *others = rubric.exercises
    return replace(rubric, exercises=(replace(first, **changes), *others))


def with_network(name):
    (run,) = find_rubric(LAB).runs
    return replace(find_rubric(LAB), runs=(replace(run, model=structs.replace(run.model, network=name)),))


def with_execution(**fields):
    return replace(find_rubric(LAB), execution=Execution(**{"run": ("setup",)} | fields))


EXTRA_PART = {"update": 3.0, "repeat": 2.0, "returns": 0.5, "style": 0.5}
OURS = find_rubric(LAB)
DIFFER = [
    (OURS, changed("check-evaluate", points=5), "cell 'check-evaluate' is worth 5 points in the notebook, 7 in the rubric"),
    (OURS, changed("check-evaluate", grade_id="other"), "the notebook has no grade cell 'check-evaluate'"),
    (OURS, changed("check-evaluate", grade_id="other"), "grade cell 'other' of the notebook is not in [exercises]"),
    (OURS, changed("run-evidence", points=19), "cell 'run-evidence' is worth 19 points in the notebook, 10 in the rubric"),
    (OURS, changed("run-evidence", solution=True), "cell 'run-evidence' is an answer that is graded by hand"),
    (with_exercise(check="lab01.nothing"), SOURCE, "exercise 'check-train-step': there is no check 'lab01.nothing'"),
    (with_exercise(points={"update": 5.0}), SOURCE, "part 'repeat' of check 'lab01.train-step' has no points"),
    (with_exercise(points=EXTRA_PART), SOURCE, "check 'lab01.train-step' has no part 'style'"),
    (with_execution(run=("set-up",)), SOURCE, "[execution] run: the notebook has no code cell 'set-up'"),
    (
        with_execution(parameters={"data_set": "x"}), SOURCE,
        "[execution] parameters: the notebook's parameters cell has no 'data_set'",
    ),
    (
        with_execution(withheld=("course_lib.metrix",)), SOURCE,
        "[execution] withheld: 'course_lib.metrix': there is no module course_lib.metrix",
    ),
    (with_network("course_lib:resnet"), SOURCE, "[model] network is 'course_lib:resnet'"),
]  # fmt: skip


@pytest.mark.parametrize(("rubric", "notebook", "expected"), DIFFER)
def test_a_rubric_and_a_notebook_that_differ_are_told(rubric, notebook, expected):
    problems = rubric_problems(rubric, notebook)
    assert any(expected in line for line in problems), problems


def test_a_rubric_without_exercises_leaves_the_other_cells_to_nbgrader():
    assert rubric_problems(replace(find_rubric(LAB), exercises=()), SOURCE) == []
    assert rubric_problems(
        replace(find_rubric(LAB), exercises=(Exercise("check-evaluate", "lab01.evaluate", {}),)), SOURCE
    )


def test_the_command_says_what_fits_and_what_does_not(new_lab_course):
    def check(*arguments):
        return CliRunner().invoke(grade, [*arguments, "--check-rubrics", "--course", str(new_lab_course)])

    done = check("1")
    assert done.exit_code == 0
    assert (
        done.output
        == f"{LAB}: fits its notebook ({len(CHECKS)} exercises, {CRITERIA} criteria, {AUTOMATIC:g} points)\n"
    )
    # All of them: this course has the source of the first lab only.
    done = check()
    assert done.exit_code == 1
    assert f"{LAB}: fits" in done.output and "02_ddp: source notebook" in done.output
    ours = len(list(RUBRICS.glob("*.toml")))
    assert done.output.splitlines()[-1] == f"Error: {ours - 1} problems in {ours} rubrics"
    nbformat.write(changed("check-evaluate", points=5), new_lab_course.parent / "labs" / LAB / f"{LAB}.ipynb")
    done = check("1")
    assert done.exit_code == 1 and "is worth 5 points in the notebook" in done.output
    assert not (new_lab_course / "gradebook.db").exists()  # it only looks


def test_rubrics_of_one_s_own_are_the_ones_that_are_checked(new_lab_course, tmp_path):
    text = (RUBRICS / f"{LAB}.toml").read_text()
    (tmp_path / f"{LAB}.toml").write_text(text.replace('run = ["setup"]', 'run = ["elsewhere"]'))
    arguments = ["--check-rubrics", "--course", str(new_lab_course), "--rubrics", str(tmp_path)]
    for lab in ([], ["1"]):
        done = CliRunner().invoke(grade, [*lab, *arguments])
        assert done.exit_code == 1 and "has no code cell 'elsewhere'" in done.output
        assert done.output.splitlines()[-1] == "Error: 1 problem in 1 rubric"

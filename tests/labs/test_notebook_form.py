"""The source notebooks are clean, valid nbgrader sources, and their release version gives nothing away."""

import ast
import copy
import json
import re
from functools import cache
from pathlib import Path

import nbformat
import pytest
import yaml
from nbgrader import preprocessors
from nbgrader.nbgraderformat import MetadataValidator

from course_lib.runs.release_copy import release_notebook

NOTEBOOKS = sorted(Path(__file__).resolve().parents[2].glob("labs/[0-9][0-9]_*/*.ipynb"))
REQUIRED = {"num_gpus", "epochs", "batch_size", "base_lr", "seed", "train_samples", "output_dir"}
BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def path(request):
    return request.param


@cache
def source(path):
    return nbformat.read(path, as_version=4)


@pytest.fixture
def notebook(path):
    return copy.deepcopy(source(path))


def nbgrader_cells(notebook):
    return [(cell, cell.metadata["nbgrader"]) for cell in notebook.cells if "nbgrader" in cell.metadata]


def test_there_are_labs():
    assert len(NOTEBOOKS) >= 12 and all(path.parent.name == path.stem for path in NOTEBOOKS)


def test_it_is_valid_and_stripped(path, notebook):
    nbformat.validate(notebook)
    raw = json.loads(path.read_text())
    assert raw["nbformat"] == 4 and raw["nbformat_minor"] >= 5  # cell ids
    for cell in raw["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None, cell["id"]
        assert set(cell["metadata"]) <= {"tags", "nbgrader"}, cell["id"]
    assert set(raw["metadata"]) <= {"kernelspec", "language_info"}
    assert raw["metadata"]["kernelspec"]["name"] == "python3"


def test_cell_ids_are_unique_names(notebook):
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", id) for id in ids)  # named by hand, so they stay
    assert not [id for id in ids if re.fullmatch(r"[0-9a-f]{8}", id)]


def test_code_cells_parse(notebook):
    for cell in notebook.cells:
        if cell.cell_type == "code":
            ast.parse(cell.source, cell.id)


def test_one_parameters_cell_with_the_common_parameters(path, notebook):
    cells = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    assert len(cells) == 1
    names = {target.id for node in ast.parse(cells[0].source).body for target in node.targets}
    assert names >= REQUIRED
    profiles = yaml.safe_load((path.parent / "profiles.yaml").read_text())
    assert set(profiles) >= {"smoke", "laptop", "gpu"}
    for profile, values in profiles.items():
        assert set(values) <= names - {"output_dir"}, profile
    assert profiles["smoke"]["dataset"] in (
        "fashion-mnist-small", "cifar10-synthetic", "austen-persuasion",  # none needs staging
    )  # fmt: skip


def test_papermill_understands_every_parameter(path, notebook, caplog):
    """A comment that looks like code makes it warn, and take the parameter for unknown."""
    from papermill import inspect_notebook

    cell = next(cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", []))
    names = {target.id for node in ast.parse(cell.source).body for target in getattr(node, "targets", [])}
    assert set(inspect_notebook(str(path))) == names
    assert not caplog.records


def test_every_parameter_has_a_rule_that_all_profiles_keep(path, notebook):
    """Beside the parameter, in its comment: one without a rule would not be checked, and nobody would notice."""
    from course_lib.runs.labs import Lab
    from course_lib.runs.parameters import ParameterError, check_values

    lab = Lab(path.stem, path)
    defaults, rules = lab.defaults(), lab.rules()
    free = {"output_dir"} | {name for name, value in defaults.items() if isinstance(value, bool)}
    assert set(rules) == set(defaults) - free
    for name, rule in rules.items():
        values = defaults[name] if isinstance(defaults[name], list) else [defaults[name]]
        assert all(isinstance(value, str if rule.words else int if rule.whole else float) for value in values), name
        for wrong in ("nope" if rule.words else -1, None):
            with pytest.raises(ParameterError, match=name):
                check_values({**defaults, name: wrong}, rules, machine=False)
    for profile in ("smoke", "laptop", "gpu"):
        check_values(lab.parameters(profile, {}), rules, machine=False)
    (setup,) = [cell.source for cell in notebook.cells if cell.id == "setup"]
    (given,) = re.findall(r"^given = dict\((.*?)\)$", setup, re.M | re.S)
    assert set(re.findall(r"(\w+)=", given)) == set(defaults) - {"output_dir"}
    assert setup.index("check_parameters(**given)") < setup.find("load(dataset") % len(setup)


def test_nbgrader_takes_it(path, notebook):
    validator = MetadataValidator()
    for cell in notebook.cells:
        validator.validate_cell(cell)
    nbgrader_ids = [meta["grade_id"] for _, meta in nbgrader_cells(notebook)]
    assert len(set(nbgrader_ids)) == len(nbgrader_ids)
    assert all(cell.id == meta["grade_id"] for cell, meta in nbgrader_cells(notebook))
    preprocessors.CheckCellMetadata().preprocess(notebook, {})


def test_points_and_the_runs_evidence(notebook):
    graded = [(cell, meta) for cell, meta in nbgrader_cells(notebook) if meta["grade"]]
    evidence = [(cell, meta) for cell, meta in graded if meta["grade_id"] == "run-evidence"]
    assert len(evidence) == 1 and evidence[0][1]["points"] in (10, 20) and evidence[0][1]["locked"]
    assert all(meta["points"] > 0 for _, meta in graded)
    assert notebook.cells[-1] is evidence[0][0]


def test_points_in_the_headings_are_those_of_the_cells(notebook):
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    told = [int(number) for number in re.findall(r"\((\d+) points\)", text)]
    graded = [meta["points"] for _, meta in nbgrader_cells(notebook) if meta["grade"]]
    assert told in (graded, graded[:-1])  # the last is the run's, which a heading need not tell


def test_every_exercise_is_followed_by_its_check(notebook):
    """An exercise `ex-NAME` of code has a locked cell `check-NAME`, or is graded with the run."""
    order = [cell.id for cell in notebook.cells]
    for cell, meta in nbgrader_cells(notebook):
        if meta["solution"] and cell.cell_type == "code" and cell.id != "ex-script":
            name = cell.id.removeprefix("ex-")
            check = notebook.cells[order.index(f"check-{name}")]
            assert order.index(check.id) == order.index(cell.id) + 1
            assert check.metadata["nbgrader"]["locked"] and re.search(rf'"lab\d\d\.{name}"', check.source)


def test_solution_markers_are_balanced_and_only_in_solution_cells(notebook):
    for cell in notebook.cells:
        markers = re.findall(r"### (BEGIN|END) SOLUTION", cell.source)
        assert markers == ["BEGIN", "END"] * (len(markers) // 2), cell.id
        assert "### BEGIN HIDDEN" not in cell.source and "### BEGIN MARK" not in cell.source
        solution = cell.metadata.get("nbgrader", {}).get("solution", False)
        if cell.cell_type == "code":
            assert bool(markers) == solution, cell.id


def test_no_path_of_a_machine(path):
    text = path.read_text()
    found = re.findall(r"(?<![\w.])/(?:home|root|work|Users|tmp|mnt|opt|usr)/[\w./-]*|[A-Z]:\\\\[\w\\]+", text)
    assert found == []


@pytest.fixture
def released(path):
    """What `lab start` gives, and `nbgrader generate_assignment` too: test_labs_in_nbgrader.py compares them."""
    return nbformat.reads(json.dumps(release_notebook(json.loads(path.read_text()))), as_version=4)


def test_the_release_holds_no_solution(notebook, released):
    nbformat.validate(released)
    text = "\n".join(cell.source for cell in released.cells)
    assert BEGIN not in text and END not in text and "Model answer" not in text
    cleared = 0
    for before, after in zip(notebook.cells, released.cells, strict=True):
        if not before.metadata.get("nbgrader", {}).get("solution"):
            assert before.source == after.source  # nothing else changes
            continue
        cleared += 1
        solution, inside = [], before.cell_type == "markdown" and BEGIN not in before.source
        for line in before.source.splitlines():
            if line.strip() in (BEGIN, END):
                inside = line.strip() == BEGIN
            elif inside and line.strip():
                solution.append(line.strip())
        assert solution, before.id
        left = [line.strip() for line in after.source.splitlines()]
        assert not set(solution) & set(left), before.id
        if after.cell_type == "code":
            ast.parse(after.source)
            assert "NotImplementedError" in after.source
        else:
            assert "YOUR ANSWER HERE" in after.source
    # what `lab new` writes, and marks TODO, has an exercise and a question
    assert cleared >= (2 if any("TODO" in cell.source for cell in notebook.cells) else 5)


def test_a_question_is_still_asked_in_the_release(released):
    """nbgrader replaces a hand-graded Markdown cell as a whole, its question included."""
    texts = [cell for cell in released.cells if cell.cell_type == "markdown"]
    graded = [cell for cell in texts if cell.metadata.get("nbgrader", {}).get("grade")]
    for number, cell in enumerate(graded, 1):
        assert any(f"Question {number}" in text.source for text in texts), f"{cell.id}: it says only {cell.source!r}"

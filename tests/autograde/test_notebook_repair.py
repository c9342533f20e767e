"""The instructor's cells with the student's answers in them, whatever was done to the notebook in between."""

import base64
import copy
import json
import random
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output
from nbgrader.converters import GenerateAssignment
from nbgrader.preprocessors import IncludeHeaderFooter, InstantiateTests, SaveCells

from autograde.submission.notebook_repair import MAX_REPAIRS, autograded_notebook, repair, starter_answers
from autograde.submission.submitted_notebook import read_notebook

LABS = sorted(path.name for path in Path(__file__).parents[2].glob("labs/[0-9][0-9]_*"))
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n, and no more").decode()


@pytest.fixture(scope="module", params=LABS)
def source(request, repository):
    return nbformat.read(repository / "labs" / request.param / f"{request.param}.ipynb", 4)


@pytest.fixture(scope="module")
def lab1(repository):
    return nbformat.read(repository / "labs" / LABS[0] / f"{LABS[0]}.ipynb", 4)


def generated(source):
    """The release by nbgrader's own list of steps, without those that need the gradebook or other files."""
    notebook, resources = copy.deepcopy(source), {}
    for step in GenerateAssignment().preprocessors:
        if step not in (IncludeHeaderFooter, InstantiateTests, SaveCells):
            notebook, resources = step().preprocess(notebook, resources)
    return notebook


def solved(source):
    """The release with the instructor's own solutions pasted into it, run once."""
    notebook = generated(source)
    for ours, theirs in zip(source.cells, notebook.cells, strict=True):
        if is_answer(ours):
            theirs.source = ours.source
        if theirs.cell_type == "code":
            theirs.outputs = [new_output("stream", text=f"from {theirs.id}")]
            theirs.execution_count = 7
    return notebook


def is_answer(cell):
    return cell.metadata.get("nbgrader", {}).get("solution", False)


def cell_of(notebook, name):
    (found,) = [cell for cell in notebook.cells if cell.id == name]
    return found


def place_of(notebook, name):
    return [cell.id for cell in notebook.cells].index(name)


@pytest.fixture
def hand_in(tmp_path):
    """Write a notebook as a submission and read it back."""

    def hand_in(notebook):
        folder = tmp_path / "submitted" / "ada" / "lab"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "lab.ipynb").write_text(json.dumps(notebook))
        return read_notebook(folder, "lab")

    return hand_in


@pytest.fixture
def mend(hand_in):
    """Hand in and repair, with all that must hold of any repair."""

    def mend(notebook, source):
        submitted = hand_in(notebook)
        before = copy.deepcopy((submitted, source))
        repaired = repair(submitted, source)
        shown = autograded_notebook(submitted, repaired)
        assert (submitted, source) == before
        for result in (repaired.notebook, shown):
            nbformat.validate(result)
            json.dumps(result, ensure_ascii=False).encode()
        kept = [cell for cell in repaired.notebook.cells if "added" not in cell.metadata]
        assert [cell.id for cell in kept] == [cell.id for cell in source.cells]
        for cell, ours in zip(kept, source.cells, strict=True):
            assert (cell.cell_type, cell.metadata) == (ours.cell_type, ours.metadata)
            assert is_answer(ours) or cell.source == ours.source
        assert repaired.notebook.metadata == source.metadata
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in repaired.notebook.cells)
        assert len(repaired.repairs) <= MAX_REPAIRS
        names = {cell.id for cell in source.cells}
        for entry in repaired.repairs:
            assert entry.detail.isascii() and entry.detail.isprintable() and len(entry.detail) < 800
            assert entry.cell in names
        return repaired

    return mend


def kinds(repaired):
    return [(entry.kind, entry.cell) for entry in repaired.repairs]


class TestNothingToRepair:
    def test_a_release_untouched_or_solved(self, source, mend):
        release = generated(source)
        starter = {cell.metadata.nbgrader.grade_id: cell.source for cell in release.cells if is_answer(cell)}
        assert starter_answers(source) == starter
        assert all("SOLUTION" not in text for text in starter.values())
        assert all("YOUR CODE HERE" in text or "YOUR ANSWER HERE" in text for text in starter.values())
        untouched = mend(release, source)
        assert {cell.id: cell.source for cell in untouched.notebook.cells if is_answer(cell)} == starter
        pasted = mend(solved(source), source)
        assert [cell.source for cell in pasted.notebook.cells] == [cell.source for cell in source.cells]
        without_ids = solved(source)  # as some editors leave it
        without_ids.nbformat_minor = 4
        for cell in without_ids.cells:
            del cell["id"]
        for repaired in (untouched, pasted, mend(without_ids, source)):
            assert (repaired.repairs, repaired.added, repaired.edited) == ((), (), {})

    def test_line_ends_and_trailing_space_are_no_change(self, lab1, mend):
        notebook = solved(lab1)
        for cell in notebook.cells:
            cell.source = cell.source.replace("\n", " \t\r\n") + "\n\n"
        assert mend(notebook, lab1).repairs == mend(lab1, lab1).repairs == ()

    def test_hidden_tests_are_no_change_and_are_put_back(self, lab1, mend):
        source = copy.deepcopy(lab1)
        check = cell_of(source, "check-evaluate")
        check.source += "\n### BEGIN HIDDEN TESTS\nassert hidden\n### END HIDDEN TESTS"
        notebook = solved(source)
        assert "hidden" not in cell_of(notebook, "check-evaluate").source
        repaired = mend(notebook, source)
        assert repaired.repairs == ()
        assert "assert hidden" in cell_of(repaired.notebook, "check-evaluate").source


class TestAnswers:
    @pytest.mark.parametrize("text", ["def evaluate():\n    return 7", ""])
    def test_the_students_text_and_nothing_else_of_the_cell(self, lab1, mend, text):
        notebook = solved(lab1)
        answer = cell_of(notebook, "ex-evaluate")
        answer.source = text
        answer.metadata["tags"] = ["evil"]
        answer.id = "another"
        repaired = mend(notebook, lab1)
        assert repaired.repairs == ()
        assert cell_of(repaired.notebook, "ex-evaluate").source == text

    @pytest.mark.parametrize("name", ["ex-evaluate", "q-knee"])
    def test_missing(self, lab1, mend, name):
        notebook = solved(lab1)
        notebook.cells.remove(cell_of(notebook, name))
        repaired = mend(notebook, lab1)
        assert kinds(repaired) == [("missing-answer", name)]
        assert cell_of(repaired.notebook, name).source == starter_answers(lab1)[name]

    @pytest.mark.parametrize("texts", [("mine", "later"), (None, "mine"), ("", "mine"), (None, "", "mine", "later")])
    def test_of_duplicates_the_first_that_was_worked_on(self, lab1, mend, texts):
        notebook = generated(lab1)
        place = place_of(notebook, "ex-evaluate")
        for number, text in reversed(list(enumerate(texts[1:]))):
            twin = copy.deepcopy(notebook.cells[place])
            twin.id, twin.source = f"twin-{number}", twin.source if text is None else text
            notebook.cells.insert(place + 1, twin)
        if texts[0] is not None:
            notebook.cells[place].source = texts[0]
        repaired = mend(notebook, lab1)
        assert kinds(repaired) == [("duplicate", "ex-evaluate")]
        assert cell_of(repaired.notebook, "ex-evaluate").source == "mine"
        assert repaired.added == ()

    @pytest.mark.parametrize(
        ("name", "kind"), [("ex-evaluate", "markdown"), ("ex-evaluate", "raw"), ("q-knee", "code")]
    )
    def test_of_the_wrong_type(self, lab1, mend, name, kind):
        notebook = solved(lab1)
        new = new_code_cell if kind == "code" else new_markdown_cell
        turned = new("my text", id=name, metadata=cell_of(notebook, name).metadata)
        turned.cell_type = kind
        notebook.cells[place_of(notebook, name)] = turned
        repaired = mend(notebook, lab1)
        assert kinds(repaired) == [("cell-type", name)]
        assert cell_of(repaired.notebook, name).source == "my text"

    def test_found_by_its_id_where_nbgrader_s_metadata_are_lost(self, lab1, mend):
        notebook = solved(lab1)
        cell_of(notebook, "ex-evaluate").source = "mine"
        del cell_of(notebook, "ex-evaluate").metadata["nbgrader"]
        repaired = mend(notebook, lab1)
        assert kinds(repaired) == [("metadata", "ex-evaluate")] and "taken away" in repaired.repairs[0].detail
        assert cell_of(repaired.notebook, "ex-evaluate").source == "mine"

    def test_a_picture_pasted_into_an_answer_stays(self, lab1, mend):
        notebook = solved(lab1)
        cell_of(notebook, "q-knee").attachments = {"a.png": {"image/png": PNG}, "b.svg": {"image/svg+xml": "<svg>"}}
        assert cell_of(mend(notebook, lab1).notebook, "q-knee").attachments == {"a.png": {"image/png": PNG}}


class TestTrustedCells:
    @pytest.mark.parametrize("name", ["check-evaluate", "run-evidence"])
    def test_a_locked_cell_that_was_changed(self, lab1, mend, hand_in, name):
        notebook = solved(lab1)
        cell_of(notebook, name).source = "print('<b>passed</b>\u202e')"
        repaired = mend(notebook, lab1)
        assert kinds(repaired) == [("restored-locked", name)]
        assert "line 1 is \"print('<b>passed</b>\\u202e')\"" in repaired.repairs[0].detail
        assert repaired.edited == {}
        shown = autograded_notebook(hand_in(notebook), repaired)
        assert cell_of(shown, name).outputs == []  # another program's

    def test_a_locked_text_that_was_changed(self, lab1, mend):
        source = copy.deepcopy(lab1)
        cell_of(source, "title").metadata["nbgrader"] = {
            "schema_version": 3, "grade": False, "solution": False, "locked": True, "task": False, "grade_id": "title"
        }  # fmt: skip
        notebook = solved(source)
        cell_of(notebook, "title").source += "!"
        assert kinds(mend(notebook, source)) == [("restored-locked", "title")]

    def test_a_plain_code_cell_that_was_changed(self, lab1, mend):
        notebook = solved(lab1)
        cell_of(notebook, "setup").source += "\nimport math"
        cell_of(notebook, "parameters").source = ""
        repaired = mend(notebook, lab1)
        assert kinds(repaired) == [("restored-plain", "parameters"), ("restored-plain", "setup")]
        assert repaired.edited == {"parameters": "", "setup": cell_of(lab1, "setup").source + "\nimport math"}
        assert "'import math'" in repaired.repairs[1].detail


def other(name, **fields):
    """An edit: other fields of a cell."""
    return lambda notebook: cell_of(notebook, name).update(fields)


def without(*names):
    return lambda notebook: [notebook.cells.remove(cell_of(notebook, name)) for name in names]


def reordered(notebook):
    notebook.cells.insert(0, notebook.cells.pop(place_of(notebook, "check-evaluate")))
    notebook.cells.append(notebook.cells.pop(place_of(notebook, "title")))  # texts do not matter


ANSWER = {"nbgrader": {"grade_id": "x", "solution": True, "grade": False, "schema_version": 3}}
FIELDS = [
    ("points", 500, "points 7 is 500"),
    ("points", float("nan"), "points 7 is nan"),
    ("grade", False, "grade True is False"),
    ("solution", True, "solution False is True"),
    ("locked", False, "locked True is False"),
    ("checksum", "<b>\u202e", "is '<b>\\u202e'"),
    ("cell_type", "markdown", "cell_type 'code' is 'markdown'"),
    ("grade_id", "other", "grade_id 'check-evaluate' is 'other'"),
]
# Name → edit, repairs, and what one of them says.
CHANGES = {
    "plain code switched off": (other("experiment", cell_type="raw"), "restored-plain experiment", "from code into 'raw'"),
    "plain text": (other("title", source="# Mine"), "", ""),
    "plain code cut and pasted": (other("setup", id="0123abcd"), "", ""),
    "plain code made an answer": (
        other("setup", source="evil", metadata=ANSWER), "metadata setup, restored-plain setup", "added",
    ),
    "a locked cell made a plain one": (
        other("check-evaluate", source="evil", metadata={}),
        "metadata check-evaluate, restored-locked check-evaluate", "taken away",
    ),
    "cells removed": (
        without("title", "experiment", "check-evaluate"),
        "restored-locked check-evaluate, restored-plain experiment", "the submission lacks this cell",
    ),
    "a copy beside the unchanged cell": (
        lambda notebook: notebook.cells.insert(0, cell_of(notebook, "check-evaluate") | {"id": "twin", "source": "pass"}),
        "duplicate check-evaluate", "2 cells are this one",
    ),
    "another order": (reordered, "moved check-evaluate", "1 code cells"),
} | {
    f"{field} {value}": (
        lambda notebook, field=field, value=value: cell_of(notebook, "check-evaluate").metadata.nbgrader.update({field: value}),
        f"{'earlier-release' if field in ('points', 'checksum') else 'metadata'} check-evaluate", shown,
    )
    for field, value, shown in FIELDS
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_reported_and_has_no_effect(lab1, mend, name):
    edit, repairs, shown = CHANGES[name]
    notebook = solved(lab1)
    edit(notebook)
    repaired = mend(notebook, lab1)
    assert ", ".join(f"{entry.kind} {entry.cell}" for entry in repaired.repairs) == repairs
    assert shown in " ".join(entry.detail for entry in repaired.repairs)
    assert repaired.added == () and repaired.edited == (
        {"setup": "evil"} if name == "plain code made an answer" else {}
    )


@pytest.mark.parametrize(
    ("more", "kind"), [({}, "earlier-release"), ({"locked": False}, "metadata"), ({"grade_id": "mine"}, "metadata")]
)
def test_a_notebook_fetched_before_other_points_is_told_from_one_whose_checks_are_opened(lab1, mend, more, kind):
    notebook = solved(lab1)
    source = copy.deepcopy(lab1)
    for cell in source.cells:
        if "points" in cell.metadata.get("nbgrader", {}):
            cell.metadata.nbgrader.points += 3
    cell_of(notebook, "check-evaluate").metadata.nbgrader.update(more)
    repaired = mend(notebook, source)
    found = {entry.cell: entry for entry in repaired.repairs}
    assert found.pop("check-evaluate").kind == kind
    assert len(found) > 5 and {entry.kind for entry in found.values()} == {"earlier-release"}
    assert all("points" in entry.detail and "checksum" in entry.detail for entry in found.values())


class TestAddedCells:
    def test_they_stay_behind_the_cell_that_they_followed(self, lab1, mend):
        notebook = solved(lab1)
        for name in ("setup", "check-evaluate"):
            place = place_of(notebook, name) + 1
            notebook.cells[place:place] = [new_code_cell(f"{name} 1"), new_markdown_cell(f"{name} 2")]
        notebook.cells.insert(0, new_code_cell("first", metadata={"tags": ["parameters"], "added": False}))
        repaired = mend(notebook, lab1)
        assert repaired.repairs == ()
        assert [cell.source for cell in repaired.notebook.cells] == [cell.source for cell in notebook.cells]
        assert [cell.source for cell in repaired.added] == [
            "first", "setup 1", "setup 2", "check-evaluate 1", "check-evaluate 2"
        ]  # fmt: skip
        assert all(cell.metadata == {"added": True} for cell in repaired.added)
        assert all(any(cell is own for cell in repaired.notebook.cells) for own in repaired.added)

    def test_an_unknown_grade_id_is_an_added_cell(self, lab1, mend):
        notebook = solved(lab1)
        fields = {"grade_id": "bonus", "grade": True, "points": 100, "solution": False, "schema_version": 3}
        notebook.cells.append(new_code_cell("1", metadata={"nbgrader": fields}))
        (added,) = mend(notebook, lab1).added
        assert added.metadata == {"added": True}

    def test_behind_a_cell_that_was_moved(self, lab1, mend):
        notebook = solved(lab1)
        notebook.cells.insert(0, notebook.cells.pop(place_of(notebook, "check-evaluate")))
        notebook.cells.insert(1, new_code_cell("mine", id="mine"))
        repaired = mend(notebook, lab1)
        assert place_of(repaired.notebook, "mine") == place_of(repaired.notebook, "check-evaluate") + 1

    def test_in_place_of_a_plain_cell_that_was_deleted(self, lab1, mend):
        notebook = solved(lab1)
        notebook.cells[place_of(notebook, "setup")] = new_code_cell("mine", id="mine")
        repaired = mend(notebook, lab1)
        assert kinds(repaired) == [("restored-plain", "setup")] and repaired.edited == {}
        assert [cell.id for cell in repaired.added] == ["mine"]

    def test_a_plain_cell_that_was_copied(self, lab1, mend):
        notebook = solved(lab1)
        again = new_code_cell(cell_of(notebook, "setup").source)
        notebook.cells.append(again)
        repaired = mend(notebook, lab1)
        assert repaired.repairs == () and [cell.id for cell in repaired.added] == [again.id]


def test_without_ids_a_plain_cell_that_was_changed_is_known_by_its_place(lab1, mend):
    notebook = solved(lab1)
    cell_of(notebook, "setup").source = "mine"
    cell_of(notebook, "title").source = "# Mine"
    notebook.cells.append(new_code_cell("own"))
    for cell in notebook.cells:
        del cell["id"]
    repaired = mend(notebook, lab1)
    assert kinds(repaired) == [("restored-plain", "setup")] and repaired.edited == {"setup": "mine"}
    assert [cell.source for cell in repaired.added] == ["own"]


class TestOutputsToLookAt:
    def test_the_students_own_safe_ones(self, lab1, mend, hand_in):
        notebook = solved(lab1)
        data = {"text/plain": "<Figure>", "text/html": "<script>", "image/png": PNG}
        cell_of(notebook, "experiment").outputs = [new_output("display_data", data=data)]
        cell_of(notebook, "setup").source += "\nimport math"
        notebook.cells.append(new_code_cell("mine", id="mine", outputs=[new_output("stream", text="hello")]))
        repaired = mend(notebook, lab1)
        shown = autograded_notebook(hand_in(notebook), repaired)
        assert cell_of(shown, "experiment").outputs[0].data == {"text/plain": "<Figure>", "image/png": PNG}
        assert cell_of(shown, "experiment").execution_count == 7
        assert cell_of(shown, "setup").outputs[0].text == "from setup"
        assert cell_of(shown, "mine").outputs[0].text == "hello"
        assert [cell.source for cell in shown.cells] == [cell.source for cell in repaired.notebook.cells]


def test_repairs_are_bounded_and_the_rest_counted(mend):
    cells = [new_code_cell(f"x = {number}", id=f"c{number}") for number in range(MAX_REPAIRS + 50)]
    source = nbformat.v4.new_notebook(cells=cells)
    notebook = copy.deepcopy(source)
    for cell in notebook.cells:
        cell.source += " + 1"
    repaired = mend(notebook, source)
    assert (len(repaired.repairs), repaired.more_repairs, len(repaired.edited)) == (MAX_REPAIRS, 50, MAX_REPAIRS + 50)


def test_any_mixture_of_damage_leaves_the_lab_that_was_set(lab1, mend):
    draw = random.Random(7)
    seen = set()
    for _ in range(40):
        notebook = solved(lab1)
        for _ in range(draw.randrange(1, 30)):
            place = draw.randrange(len(notebook.cells))
            cell, other = notebook.cells[place], draw.choice(notebook.cells)
            match draw.randrange(9):
                case 0:
                    del notebook.cells[place]
                case 1:
                    notebook.cells.insert(draw.randrange(len(notebook.cells)), copy.deepcopy(cell))
                case 2:
                    cell.source = draw.choice(["", "evil\ud800\x00", other.source, cell.source + "\n#"])
                case 3:
                    cell.cell_type = draw.choice(["code", "markdown", "raw"])
                case 4:
                    cell.metadata = copy.deepcopy(other.metadata)
                case 5:
                    cell.id = draw.choice([other.id, "x", None, 7])
                case 6:
                    notebook.cells.insert(place, new_code_cell("own"))
                case 7:
                    fields = cell.metadata.setdefault("nbgrader", {})
                    name = draw.choice(["grade_id", "points", "solution", "locked", "checksum"])
                    fields[name] = draw.choice([None, True, "x" * 100, "q-knee", 1e308, [], {"a": 1}])
                case 8:
                    draw.shuffle(notebook.cells)
        repaired = mend(notebook, lab1)
        seen.update(entry.kind for entry in repaired.repairs)
    assert seen == {
        "missing-answer", "duplicate", "cell-type", "metadata", "earlier-release", "moved", "restored-plain",
        "restored-locked",
    }  # fmt: skip

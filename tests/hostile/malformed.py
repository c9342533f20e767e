"""Submissions that are no notebooks, or not the lab's."""

from __future__ import annotations

import json

from exhibits import EXERCISES, LAB, NONE_OF_THEM, Submission, World, exhibit, hostile_text
from nbformat.v4 import new_code_cell, new_output

# fmt: off

hostile_text("not_json", "A file of another program.",
    **NONE_OF_THEM, flags="missing", reason="is not JSON", text="PK\x03\x04 a word processor's file")


@exhibit(**NONE_OF_THEM, reason="no submission|is missing|hand in")
def nothing_at_all(submission: Submission, world: World) -> None:
    """A folder with nothing in it."""
    submission.save = lambda: None


@exhibit(**NONE_OF_THEM, flags="missing", reason="is not a plain file")
def notebook_is_a_folder(submission: Submission, world: World) -> None:
    """A folder in the notebook's place."""
    submission.path.mkdir()


@exhibit(flags="limit")
def outputs_of_25_megabytes(submission: Submission, world: World) -> None:
    """An honest notebook whose outputs are large: points stay, and the size is told."""
    plot = new_output("display_data", {"image/png": "iVBORw0KGgo" + "A" * 1_000_000, "text/plain": "<Figure>"})
    submission.cell("ex-train-step").outputs = [plot] * 25


hostile_text("nested_json", "JSON that is nested 100,000 deep.",
    **NONE_OF_THEM, flags="missing", reason="nested too deeply",
    text='{"nbformat": 4, "cells": ' + "[" * 100_000 + "]" * 100_000 + "}")


@exhibit()
def old_format(submission: Submission, world: World) -> None:
    """nbformat 3, as notebooks were ten years ago: read, and the answers count."""
    cells = []
    for cell in submission.notebook.cells:
        old = {"cell_type": cell.cell_type, "metadata": cell.metadata}
        if cell.cell_type == "code":
            cells.append(old | {"input": cell.source, "language": "python", "outputs": [], "collapsed": False})
        else:
            cells.append(old | {"source": cell.source})
    old = {"nbformat": 3, "nbformat_minor": 0, "metadata": {}, "worksheets": [{"cells": cells}]}
    submission.path.write_text(json.dumps(old))


@exhibit(flags="tampered")
def points_of_one_s_own(submission: Submission, world: World) -> None:
    """Every grade cell is worth 1000 points, and every answer is declared a grade cell."""
    for cell in submission.notebook.cells:
        if "nbgrader" in cell.metadata:
            cell.metadata["nbgrader"] |= {"points": 1000, "grade": True, "locked": False}


@exhibit(flags="tampered")
def grade_cells_rewritten(submission: Submission, world: World) -> None:
    """Grade cells that check nothing, and one that is deleted; the answers are right and keep their points."""
    for name in ("check-train-step", "check-evaluate", "run-evidence"):
        submission.cell(name).source = "print('5 of 5 points')"
    submission.notebook.cells.remove(submission.cell("check-throughput"))


@exhibit(**NONE_OF_THEM, flags="tampered missing", reason="not answered|NotImplementedError")
def answers_in_locked_cells(submission: Submission, world: World) -> None:
    """Answers are deleted, and the code stands in the locked grade cells, where it is not looked for."""
    for exercise in EXERCISES.values():
        answer = submission.cell(exercise.cell.replace("check-", "ex-"))
        submission.cell(exercise.cell).source = answer.source
        submission.notebook.cells.remove(answer)


@exhibit(train_step=0, flags="tampered", reason="returned nothing|weights are where they were|raised")
def duplicated_ids(submission: Submission, world: World) -> None:
    """A grade id that is there fifty times, with another answer each time: the first counts."""
    first = submission.cell("ex-train-step")
    place = submission.notebook.cells.index(first)
    for number in range(50):
        copy = new_code_cell(f"def train_step(*a):\n    return {number}")
        copy.metadata = first.metadata
        submission.notebook.cells.insert(place, copy)


@exhibit(flags="tampered")
def cells_of_other_types(submission: Submission, world: World) -> None:
    """Answers turned to raw and text, grade cells turned to text: their text is taken as what it should be."""
    for cell in submission.notebook.cells:
        if cell.cell_type == "code" and "nbgrader" in cell.metadata:
            cell.cell_type = "raw" if cell.metadata["nbgrader"].get("solution") else "markdown"
            del cell["outputs"], cell["execution_count"]


@exhibit(
    train_step=0, flags="crash", reason="SyntaxError|did not execute|null bytes|there is no function|exit code 70: "
)
def code_that_hurts_the_parser(submission: Submission, world: World) -> None:
    """Code with zero bytes, a hundred thousand brackets, and an expression nested as deep as it gets."""
    submission.answer("train-step", "x = \x00 1\n" + "(" * 100_000)
    submission.add("x = " + "-" * 100_000 + "1")
    submission.add("x = " + "+".join(["1"] * 100_000))
    submission.add("x = " + "a." * 50_000 + "b")


@exhibit()
def two_thousand_long_cells(submission: Submission, world: World) -> None:
    """As many cells of one's own as are read, alike and long, so that whatever compares them has much to do."""
    for number in range(1_500):
        submission.add("# " + "alike and long " * 100 + str(number), at=5)

@exhibit(**NONE_OF_THEM, flags="missing", reason="lacks this answer|not answered|NotImplementedError")
def notebook_of_another_lab(submission: Submission, world: World) -> None:
    """The notebook of another lab, under this one's name."""
    other = submission.notebook
    other.cells = [new_code_cell("print('hello')")]
    assert LAB in submission.path.name


@exhibit()
def time_stamp_that_is_none(submission: Submission, world: World) -> None:
    """A time of submission in digits that only some functions take for digits: graded all the same."""
    (submission.folder / "timestamp.txt").write_text("²⁰²⁶-11-20 22:00:00 /etc/passwd")

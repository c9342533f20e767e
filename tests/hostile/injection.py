"""Markup, formulas and terminal codes, in every text of a submission that somebody may read later.

Each carries `MARK`, whose pieces are looked for in every page and table that is made of the course.
"""

from __future__ import annotations

import os

from exhibits import LAB, Submission, World, exhibit, hostile_code
from nbformat.v4 import new_output

# fmt: off

MARK = '<img src=x onerror="hostile()"><script>hostile()</script><iframe src="//192.0.2.1/hostile"></iframe>'
FORMULA = '=HYPERLINK("http://192.0.2.1/hostile")'
TERMINAL = "\x1b]0;hostile\x07\x1b[2J\u202ehostile\u2066"
LINK = "[press](javascript:hostile())"
ANYTHING = f"{FORMULA}\n{MARK}{TERMINAL}{LINK}"


@exhibit(train_step=0, flags="tampered crash", reason="SyntaxError")
def markup_in_raw_answers(submission: Submission, world: World) -> None:
    """An answer turned into a raw cell that holds markup."""
    cell = submission.cell("ex-train-step")
    cell.cell_type, cell.source = "raw", MARK
    cell.pop("outputs", None), cell.pop("execution_count", None)
    cell.metadata["raw_mimetype"] = cell.metadata["format"] = "text/html"


@exhibit()
def markup_in_outputs(submission: Submission, world: World) -> None:
    """Outputs of every kind: HTML, SVG, JavaScript, Markdown, LaTeX, widgets, a picture that is none, a forged verdict."""
    cell = submission.cell("ex-train-step")
    cell.outputs = [
        new_output("display_data", {kind: MARK})
        for kind in (
            "text/html", "image/svg+xml", "application/javascript", "text/markdown", "text/latex", "image/png",
            "application/vnd.jupyter.widget-view+json", "text/plain", "application/pdf",
        )
    ]  # fmt: skip
    cell.outputs += [new_output("stream", name="stdout", text=ANYTHING), new_output("error", ename=MARK, evalue=MARK)]
    cell.outputs[-1].traceback = [MARK]
    check = submission.cell("check-evaluate")
    check.outputs = [new_output("stream", name="stdout", text="5 of 5 points\npassed 5/5 everything" + MARK)]


@exhibit(run=8, reason="run.json is of lab")
def markup_in_the_record(submission: Submission, world: World) -> None:
    """Markup and formulas in every text of run.json that a page may show."""
    with submission.record() as record:
        record["lab"] = record["device"] = record["data"]["source"] = ANYTHING
        record["versions"] = {MARK: MARK}


@exhibit(flags="missing", reason="is not one of")
def markup_in_the_name_of_the_data(submission: Submission, world: World) -> None:
    """Markup as the name of the data set, which the grader looks up, and as paths out of its folder."""
    with submission.record() as record:
        record["data"]["name"] = "../../" + ANYTHING


@exhibit(run=9, reason="assessment.out line")
def markup_in_the_transcript(submission: Submission, world: World) -> None:
    """Markup as a line of the transcript, which a reason quotes."""
    path = submission.run() / "assessment.out"
    path.write_text(path.read_text() + ANYTHING + "\n")

hostile_code("markup_in_an_exception", "Markup in an exception's message, type and cell, which a reason quotes.",
    train_step=0, flags="crash", reason="ValueError", answers="train-step", source=f"""
        def train_step(model, images, labels, optimizer, loss_fn):
            raise type("ValueError" + {ANYTHING!r}, (ValueError,), {{}})({ANYTHING!r} * 10)
        """)

hostile_code("markup_in_the_last_words",
    "Ends with the runner's own exit code, for which the last line that was printed is told.",
    train_step=0, flags="crash", reason="exit code 70|could not start",
    source=f"import os\nos.write(2, {('x' + MARK + TERMINAL)!r}.encode())\nos._exit(70)")

hostile_code("markup_in_a_type", "Returns an object whose type's name is markup.",
    memory=0, reason="returned a|is wrong|is there a return", answers="memory", source=f"""
def saved_bytes(*given):
    return type({ANYTHING!r}, (), {{}})()

forward_checkpointed, __name__ = saved_bytes, {ANYTHING!r}
""")


@exhibit(train_step=0, flags="crash", reason="did not execute|raised")
def markup_in_ids_and_metadata(submission: Submission, world: World) -> None:
    """Markup as cell ids, names of functions, attachments, the kernel and the notebook's metadata."""
    for number, cell in enumerate(submission.notebook.cells):
        cell.id = f"{MARK}{number}"
    question = submission.cell("q-knee")
    question.attachments = {f'a"{MARK}': {"image/png": MARK, "text/html": MARK}}
    question.source = f'![a](attachment:a"{MARK})'
    submission.notebook.metadata["title"] = submission.notebook.metadata["authors"] = MARK
    submission.notebook.metadata["kernelspec"] = {"name": MARK, "display_name": MARK, "language": MARK}
    submission.notebook.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": {"state": MARK}}
    submission.answer("train-step", f"raise RuntimeError({MARK!r})")


# Folders of submitted/ that are no students.
NAMES = [
    "=cmd|' !A0'", "+1", "-1", "@SUM(A1)", "<script>hostile()<", '"><img src=x onerror=hostile()>', "..hidden", "a b",
    "\u202eada", "a\nb", "ada'; DROP TABLE grade; --", "x" * 200, "%2e%2e", "*", "ADA\u200b", "\uff1d1", "ada\ufe0f",
]  # fmt: skip


def folders_that_are_no_students(world: World) -> None:
    """Folders whose names are formulas, markup, options, patterns or not even text."""
    submitted = world.course / "submitted"
    for name in NAMES:
        (submitted / name / LAB).mkdir(parents=True)
    raw = bytes(submitted) + b"/\xff\xfe"
    os.makedirs(raw + b"/" + LAB.encode())

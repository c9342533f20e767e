"""A class's verdicts as the grader saves them, and a reader of the pages about it."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from autograde.rubric.schema import Rubric, find_rubric
from autograde.rubric.verdict import CriterionResult, RunSummary, Verdict

LAB, OTHER = "01_single_gpu", "02_ddp"
RUBRIC = """
lab = "{lab}"
title = "{title}"
mode = "evidence"
cell = "run-evidence"
max_points = 6

[[criterion]]
id = "run-record"
kind = "monotone"
points = 2
description = "The run is told"

[[criterion]]
id = "final"
kind = "final_accuracy"
points = 4
description = "Final accuracy reaches 0.85"
threshold = 0.85

[exercises]
train-step = {{ update = 3, returns = 1 }}
"""
UPDATE, RETURNS, RECORD, FINAL = (
    ("check-train-step", "update"),
    ("check-train-step", "returns"),
    ("run-evidence", "run-record"),
    ("run-evidence", "final"),
)
WORTH = {UPDATE: 3.0, RETURNS: 1.0, RECORD: 2.0, FINAL: 4.0}
RUN = RunSummary(
    curve=[[0, 0.0, 0.0], [1, 12.0, 0.7], [2, 24.0, 0.876]],
    epochs=2,
    seconds=24.0,
    best_accuracy=0.876,
    final_accuracy=0.876,
    world_size=1,
    device="cpu (2 threads a rank)",
    data_name="fashion-mnist",
    data_provenance="official",
    data_source="Debian package",
    held_out_accuracy=0.862,
    held_out_images=2000,
)


def write_rubrics(folder: Path) -> dict[str, Rubric]:
    """Two labs' rubrics, each worth 10 points: 4 of an exercise, 6 of run evidence."""
    folder.mkdir()
    for lab, title in ((LAB, "On one GPU"), (OTHER, "On many")):
        (folder / f"{lab}.toml").write_text(RUBRIC.format(lab=lab, title=title))
    return {lab: find_rubric(lab, folder) for lab in (LAB, OTHER)}


def verdict(student: str, missed=(), lab: str = LAB, run: RunSummary = RUN, **fields) -> Verdict:
    """A verdict that has every point but those of the criteria in `missed`."""
    results = tuple(
        CriterionResult(
            cell=cell,
            id=name,
            kind="final_accuracy",
            description=f"What {name} is about",
            passed=(cell, name) not in missed,
            points=0.0 if (cell, name) in missed else worth,
            max_points=worth,
            reason=f"{name} as {student} did it",
            remedy=f"look at {name}" if (cell, name) in missed else "",
        )
        for (cell, name), worth in WORTH.items()
    )
    common = {"flags": (), "sandbox": "bubblewrap", "digests": {"submission": "5ab" * 10}, "seconds": 12.25}
    return Verdict(lab, "t", student, "2026-11-20T10:04:00+00:00", results, (run,), **common | fields)


class Page(HTMLParser):
    """Tags in order, text, and whether every element is closed where it should be."""

    INLINE = frozenset({"a", "b", "code", "i", "small", "span"})
    VOID = frozenset({"meta", "link", "br", "img", "input", "hr"})

    def __init__(self, path: Path):
        super().__init__()
        self.path, self.open, self.tags, self.pieces = path, [], [], []
        self.html = path.read_text(encoding="utf-8")
        self.feed(self.html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, tuple(attributes)))
        self.pieces.append("" if tag in self.INLINE else " ")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, tuple(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.pieces.append(data)

    def handle_comment(self, data):
        raise AssertionError(f"a comment: {data}")

    def handle_decl(self, decl):
        assert decl == "DOCTYPE html"

    @property
    def text(self) -> str:
        """All text, white space as a browser shows it, a space between blocks."""
        return " ".join("".join(self.pieces).split())

    def all(self, tag: str, **wanted) -> list[dict]:
        """The attributes of every element with this tag and these attributes."""
        found = [dict(attributes) for name, attributes in self.tags if name == tag]
        return [attributes for attributes in found if wanted.items() <= attributes.items()]

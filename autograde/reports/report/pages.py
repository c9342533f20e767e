"""The environment of the templates, the similarity page, and which pages in a folder are ours."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from autograde.gradebook.extensions import how_late
from autograde.reports.similarity.blind_spots import EVERYWHERE
from autograde.reports.similarity.comparison import FLOOR, LENGTH, AnswerMatch, Pair, Similarity, cut
from autograde.rubric.verdict import FLAGS
from course_lib.runs.run_evidence.quoting import printable

__all__ = ["Compared", "environment", "remove_stale", "similarity_page"]

HERE = Path(__file__).parent
_BREAKS = re.compile(r"[\t\r\n]+")
LONGEST = 2000  # characters of one text that are shown
LONGEST_TEXT = 20_000  # of an answer in words
LONGEST_LINE = 300  # characters of a line of code that are shown
# Marks a page as ours to remove: a folder given with -o may hold other pages.
STUDENT_PAGE = '<meta name="generator" content="lab report: a student\'s page">'


def environment(*folders: Path) -> Environment:
    """The templates' environment: everything is escaped, unknown names are errors, unprintable characters are shown.

    `folders` hold more templates, which may extend those here.
    """
    jinja = Environment(
        loader=FileSystemLoader([HERE, *folders]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.filters |= {"points": "{:g}".format, "share": "{:.3f}".format, "duration": _duration}
    jinja.filters |= {"how_late": how_late, "address": quote, "as_typed": _as_typed}
    jinja.globals |= {
        "css": Markup((HERE / "page.css").read_text(encoding="utf-8")),
        "student_page": Markup(STUDENT_PAGE),
        "FLAGS": FLAGS,
    }
    return jinja


@dataclass(frozen=True)
class Compared:
    """One comparison for the page of similar submissions.

    `answers` is student → grade_id → source, the texts that `similarity` is of; `blind` has a line for each thing that it
    could not see.
    """

    similarity: Similarity
    answers: Mapping[str, Mapping[str, str]]
    blind: Sequence[str] = ()
    in_words: bool = False


def similarity_page(jinja: Environment, *compared: Compared) -> str:
    """The page that shows the flagged pairs of each comparison side by side, with the lines that match marked."""
    parts = [(each, _pairs(each.similarity, each.answers)) for each in compared]
    template = jinja.get_template("similarity.html")
    return template.render(parts=parts, floor=FLOOR, length=LENGTH, everywhere=EVERYWHERE)


def _pairs(similarity: Similarity, answers: Mapping[str, Mapping[str, str]]) -> list[tuple[Pair, list]]:
    pairs = []
    for pair in similarity.flagged:
        matches = []
        for match in pair.answers:
            sides = ((pair.left, "left"), (pair.right, "right"))
            lines = (_lines(answers.get(student, {}).get(match.grade_id, ""), match, side) for student, side in sides)
            matches.append((match, list(zip((pair.left, pair.right), lines, strict=True))))
        pairs.append((pair, matches))
    return pairs


def _lines(source: str, match: AnswerMatch, side: str) -> list[dict[str, Any]]:
    """The lines of an answer as shown; `marks` are the numbers of the fragments that a line is in."""
    spans = [getattr(fragment, side) for fragment in match.fragments]
    lines = []
    for number, text in enumerate(cut(source).split("\n"), 1):
        shown = text[:LONGEST_LINE].expandtabs(4)[:LONGEST_LINE] + (" …" if len(text) > LONGEST_LINE else "")
        marks = [mark for mark, (first, last) in enumerate(spans, 1) if first <= number <= last]
        lines.append({"number": number, "text": shown, "marks": marks})
    return lines


def remove_stale(folder: Path, keep: Set[str]) -> None:
    """Remove students' pages that we once wrote into a folder, except those named in `keep`; other files stay.

    Raises `OSError` if one cannot be read or removed.
    """
    for path in sorted(folder.glob("*.html")):
        if path.name in keep or not path.is_file():
            continue
        with open(path, encoding="utf-8", errors="replace") as file:
            ours = STUDENT_PAGE in file.read(1000)
        if ours:
            path.unlink()


def _shown(value: Any) -> Any:
    # Markup is the templates' own. A lone surrogate cannot be written to a file, and must not prevent the report.
    return printable(_BREAKS.sub(" ", value), LONGEST) if type(value) is str else value


def _as_typed(text: str) -> Markup:
    """A text of many lines, escaped, for a place that keeps white space; `_shown` would make it one line."""
    shown = text[:LONGEST_TEXT] + (
        f"\n… and {len(text) - LONGEST_TEXT:,} more characters" if len(text) > LONGEST_TEXT else ""
    )
    lines = shown.expandtabs(4).replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return Markup("\n").join(escape(printable(line, len(line))) for line in lines)


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes = seconds / 60
    return f"{minutes:.1f} min" if minutes < 100 else f"{minutes / 60:.1f} h"

"""The instructor's page on similar submissions: one file, no scripts, nothing fetched from anywhere.

Everything that came from a student passes through Jinja's escaping; the page's own policy forbids scripts and loading.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from autograde.reports.similarity.comparison import FLOOR, LENGTH, AnswerMatch, Pair, Similarity, cut
from autograde.submission.quoting import printable
from course_lib.system.atomic import write_atomically

__all__ = ["pair_html", "write_similarity_page"]

LONGEST_LINE = 300
LONGEST_NAME = 80


@dataclass(frozen=True)
class Line:
    """A line of an answer as shown; `marks` are the numbers of the fragments that it is in."""

    number: int
    text: str
    marks: list[int]


PAIR = """\
<article aria-labelledby="{{ id }}">
<h2 id="{{ id }}">{{ left }} and {{ right }}</h2>
<p>Score <b>{{ "%.2f" % pair.score }}</b>, {{ "%.0f" % pair.shared }} bits shared.</p>
{% for match, sides in answers %}
<h3>{{ match.grade_id | name }} <small>score {{ "%.2f" % match.score }}, {{ "%.1f" % match.shared }} bits</small></h3>
<ol class="fragments">
{% for part in match.fragments %}
<li>{{ part.left | lines }} and {{ part.right | lines }}, {{ part.tokens }} tokens:
 {% if part.students == 2 %}nobody else wrote this{% else %}its rarest part is in {{ part.students }} submissions{% endif %}</li>
{% endfor %}
</ol>
<div class="sides">
{% for student, side in sides %}
<table>
<caption>{{ student }}</caption>
<thead><tr><th scope="col">Line</th><th scope="col">Match</th><th scope="col">Code</th></tr></thead>
<tbody>
{% for line in side %}
<tr{% if line.marks %} class="match"{% endif %}><th scope="row">{{ line.number }}</th><td>{{ line.marks | join(" ") }}</td>
<td>{% if line.marks %}<mark>{{ line.text }}</mark>{% else %}<span>{{ line.text }}</span>{% endif %}</td></tr>
{% endfor %}
</tbody>
</table>
{% endfor %}
</div>
{% endfor %}
</article>
"""

PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'">
<meta name="referrer" content="no-referrer">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
body { margin: 0 auto; max-width: 1180px; padding: 28px; color: #1b1b1f; background: #fff;
  font: 15px/1.5 -apple-system, "Segoe UI", "Helvetica Neue", "DejaVu Sans", Arial, sans-serif; }
h1 { line-height: 1.2; }
h2 { margin: 0 0 4px; overflow-wrap: anywhere; }
h3 { margin: 22px 0 4px; overflow-wrap: anywhere; }
small { color: #5c5f66; font-weight: 400; }
p { max-width: 76ch; }
.notice { padding: 4px 16px; border-left: 4px solid #a02c1c; background: #f4f5f6; max-width: 76ch; }
article { margin-top: 40px; padding-top: 24px; border-top: 3px solid #1b1b1f; }
.fragments { margin: 0 0 10px; padding-left: 24px; color: #5c5f66; font-size: 14px; }
.sides { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); gap: 24px; align-items: start; }
.sides table { width: 100%; border-collapse: collapse; table-layout: fixed; border: 1px solid #d9dbdf;
  font: 12px/1.5 ui-monospace, "DejaVu Sans Mono", Menlo, monospace; }
caption { padding-bottom: 4px; text-align: left; font: 600 14px/1.5 "DejaVu Sans", Arial, sans-serif; overflow-wrap: anywhere; }
thead th { color: #5c5f66; font: 12px/1.5 "DejaVu Sans", Arial, sans-serif; text-align: left; border-bottom: 1px solid #d9dbdf; }
th, td { padding: 0 6px; vertical-align: top; }
thead th:nth-child(1) { width: 36px; } thead th:nth-child(2) { width: 48px; }
tbody th { color: #5c5f66; font-weight: 400; text-align: right; }
tbody td:nth-child(2) { font-weight: 700; }
tbody td:nth-child(3) { white-space: pre-wrap; overflow-wrap: anywhere; }
.match { background: #fff3c4; }
mark { background: none; color: inherit; font-weight: 700; }
</style>
</head>
<body>
<h1>{{ title }}</h1>
<div class="notice">
<p><b>A flag is a reason to look and to talk, not a verdict.</b> Two people may write the same short answer, learn from the
same page, or work side by side where that is allowed. No grade depends on this page.</p>
</div>
<p><b>How the score is made.</b> Comments, white space and the names a student chose are left out. What the starter code or
the course's solution has does not count, nor what many in the class wrote; any other stretch of {{ length }} tokens counts
the more, the fewer wrote it. The score is the part of what two students wrote on their own that both have: 0 is nothing, 1
is everything. A pair is flagged from {{ floor }} on, if it shares more than chance gives some pair of so large a class, and
lies far beyond the other pairs. A copy of what everybody writes is not seen.</p>
<p>{{ found.students }} submissions, {{ found.compared }} with something of their own to compare.
The median score of two of them is {{ "%.2f" % found.median }}{% if found.fence %}, and far beyond the others begins at
{{ "%.2f" % found.fence }}{% endif %}.
{% if pairs %}
<b>{{ pairs | length }} {{ "pair is" if pairs | length == 1 else "pairs are" }} flagged</b>{% if found.left_out %}, and
{{ found.left_out }} more with lower scores are not shown{% endif %}. In the code a marked line is part of the match whose
number stands beside it.
{% elif found.compared < 2 %}
<b>Similarity cannot flag anything in this class</b>: there are no two answers to compare.
{% elif found.fence >= 1 %}
<b>Similarity cannot flag anything in this class</b>: no score is above 1. Its members' own code is too alike for a pair to
stand out, so a copy would not be seen here. The same weights are still found (flag "copy" in the class report).
{% else %}
<b>No pair is flagged.</b>
{% endif %}
</p>
{{ pairs | join }}
</body>
</html>
"""


def pair_html(pair: Pair, answers: Mapping[str, Mapping[str, str]], number: int = 1) -> Markup:
    """One flagged pair side by side, matching lines marked, as an HTML fragment with the students' text escaped.

    Parameters
    ----------
    pair : Pair
    answers : mapping
        Student → grade_id → source, as given to `autograde.reports.similarity.comparison.compare`.
    number : int
        Which pair of its page it is; makes the heading's id.

    Returns
    -------
    Markup
        An ``article`` element. It has no style of its own: lines of a match have class ``match`` and a ``mark``.
    """
    shown = []
    for match in pair.answers:
        sides = []
        for student, side in ((pair.left, "left"), (pair.right, "right")):
            source = answers.get(student, {}).get(match.grade_id, "")
            sides.append((printable(student, LONGEST_NAME), _lines(source, match, side)))
        shown.append((match, sides))
    html = _environment().from_string(PAIR).render(
        id=f"pair-{int(number)}",
        pair=pair,
        left=printable(pair.left, LONGEST_NAME),
        right=printable(pair.right, LONGEST_NAME),
        answers=shown,
    )  # fmt: skip
    return Markup(html)  # rendered with autoescape just above


def write_similarity_page(
    similarity: Similarity,
    answers: Mapping[str, Mapping[str, str]],
    out: Path,
    title: str = "Similar submissions",
) -> Path:
    """Write the flagged pairs with their evidence as one self-contained page, whole or not at all.

    Parameters
    ----------
    similarity : Similarity
    answers : mapping
        Student → grade_id → source, as given to `autograde.reports.similarity.comparison.compare`.
    out : path
        The page; its folder is made if need be.
    title : str
        Its heading, with the lab's name for instance.

    Returns
    -------
    Path
        `out`.

    Raises
    ------
    OSError
        If the page cannot be written.
    """
    out = Path(out)
    html = _environment().from_string(PAGE).render(
        title=printable(title, 200),
        found=similarity,
        floor=FLOOR,
        length=LENGTH,
        pairs=[pair_html(pair, answers, number) for number, pair in enumerate(similarity.flagged, 1)],
    )  # fmt: skip
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, html)
    return out


def _environment() -> Environment:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"name": lambda text: printable(text, LONGEST_NAME), "lines": _in_words}
    return environment


def _in_words(lines: tuple[int, int]) -> str:
    first, last = lines
    return f"line {first}" if first == last else f"lines {first}–{last}"


def _lines(source: str, match: AnswerMatch, side: str) -> list[Line]:
    marks: dict[int, list[int]] = {}
    for number, fragment in enumerate(match.fragments, 1):
        first, last = getattr(fragment, side)
        for line in range(first, last + 1):
            marks.setdefault(line, []).append(number)
    lines = []
    for number, text in enumerate(cut(source).split("\n"), 1):
        shown = printable(text[:LONGEST_LINE].expandtabs(4), LONGEST_LINE)
        lines.append(Line(number, shown + (" …" if len(text) > LONGEST_LINE else ""), marks.get(number, [])))
    return lines

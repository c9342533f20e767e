"""The instructor's HTML page: one file, no scripts, nothing fetched from anywhere.

Everything that came from a student passes through Jinja's escaping; the page's own policy forbids scripts and loading.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ..batch import is_student_id
from ..gradebook import CourseError, LabPoints, lab_points, nbgrader_settings
from ..rubric import Rubric, find_rubric
from ..verdict import FOLDER, Verdict, load_verdict
from .curves import Chart, class_chart, class_median, student_chart

__all__ = ["ReportError", "write_report"]

HERE = Path(__file__).parent


class ReportError(RuntimeError):
    """The report cannot be written; one line that names the thing and the remedy."""


@dataclass(frozen=True)
class LabPage:
    """What the template shows of one lab."""

    rubric: Rubric
    verdicts: list[Verdict]
    unreadable: list[str]
    points: LabPoints | None
    provenance: list[str]
    median_score: float
    pass_counts: list[int]
    chart: Chart
    student_charts: list[Chart | None]


def write_report(labs: list[str], course: str | os.PathLike[str], out: str | os.PathLike[str]) -> Path:
    """Write one page about the class from the verdicts that `grade_lab` saved.

    Parameters
    ----------
    labs : list of str
        Each ``1``, ``01`` or ``01_single_gpu``; the page has one part for each.
    course : path
        The course folder.
    out : path
        The page; replaced as a whole.

    Returns
    -------
    Path
        `out`.

    Raises
    ------
    RubricError
        A lab without a usable rubric.
    ReportError
        No verdicts on a lab, or the page cannot be written.
    """
    course, out = Path(course), Path(out)
    pages = [_lab_page(find_rubric(lab), course) for lab in dict.fromkeys(labs)]
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"points": "{:g}".format, "share": "{:.3f}".format, "duration": _duration}
    html = environment.get_template("page.html").render(
        pages=pages,
        css=Markup((HERE / "page.css").read_text(encoding="utf-8")),
        written=datetime.now(UTC).strftime("%d %B %Y, %H:%M UTC"),
    )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=out.parent, prefix=".report-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(html)
            os.chmod(temporary, 0o644)
            os.replace(temporary, out)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ReportError(f"{out} cannot be written ({error.strerror}); choose another place with -o FILE") from None
    return out


def _lab_page(rubric: Rubric, course: Path) -> LabPage:
    verdicts, unreadable = [], []
    for path in sorted((course / FOLDER).glob(f"*/{rubric.lab}/verdict.json")):
        if not is_student_id(path.parent.parent.name):
            continue
        try:
            verdicts.append(load_verdict(path))
        except ValueError as error:
            unreadable.append(str(error))
    if not verdicts:
        raise ReportError(f"no verdicts on {rubric.lab} in {course / FOLDER}; run `lab grade {rubric.lab}` first")
    middle = class_median(verdicts)
    return LabPage(
        rubric=rubric,
        verdicts=verdicts,
        unreadable=unreadable,
        points=_points(course, rubric),
        provenance=_provenance(verdicts),
        median_score=median(verdict.score for verdict in verdicts),
        pass_counts=[
            sum(result.id == criterion.id and result.passed for verdict in verdicts for result in verdict.results)
            for criterion in rubric.criteria
        ],
        chart=class_chart(verdicts, rubric.threshold),
        student_charts=[
            student_chart(verdict, middle, rubric.threshold) if verdict.run.curve else None for verdict in verdicts
        ],
    )


def _points(course: Path, rubric: Rubric) -> LabPoints | None:
    # The page is about the evidence: a course whose gradebook is elsewhere still gets its page, without the total.
    try:
        if not (course / "gradebook.db").exists():
            return None
        return lab_points(nbgrader_settings(course), rubric)
    except CourseError:
        return None


def _provenance(verdicts: list[Verdict]) -> list[str]:
    counts = Counter(
        (run.data_name, run.data_provenance, run.data_source) if run.data_provenance else None
        for run in (verdict.run for verdict in verdicts)
        if run.curve or run.data_provenance
    )
    lines = []
    for data, count in counts.most_common():
        runs = f"{count} run{'s' * (count != 1)}"
        lines.append(f"{data[0]}, {data[1]}, source {data[2]} ({runs})" if data else f"not told ({runs})")
    return lines


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes = seconds / 60
    return f"{minutes:.1f} min" if minutes < 100 else f"{minutes / 60:.1f} h"

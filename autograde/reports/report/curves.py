"""Learning curves as inline SVG, drawn from our own numbers only.

The drawing stretches with the page while its lines keep their width. The labels are HTML beside it, so that they stay
legible on a phone. Lines differ by weight and dashes, not by colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from markupsafe import Markup

from autograde.rubric.verdict import RunSummary

__all__ = ["Chart", "Points", "class_chart", "class_median", "spacing", "student_chart"]

WIDTH, HEIGHT = 1000, 400
MOST_POINTS = 200  # per line: more could not be seen, and a class has many lines
Points = list[tuple[float, float]]  # epoch, validation accuracy


@dataclass(frozen=True)
class Chart:
    """A drawing, and its labels with their places in per cent of its width (from the left) and height (from the top)."""

    svg: Markup
    x_labels: list[tuple[float, str]]
    y_labels: list[tuple[float, str]]


def class_median(summaries: Sequence[RunSummary]) -> Points:
    """Median validation accuracy per epoch of a class's runs of the same task.

    A run that ended earlier counts with its last accuracy, so that the median is of the same runs at every epoch. Runs
    on synthetic data, or on data of unknown origin, are not counted: their accuracy is of another task.
    """
    real = [run for run in summaries if run.data_provenance in ("official", "copy")]
    runs = [points for run in real if (points := _points(run))]
    if not runs:
        return []
    last = min(MOST_POINTS, max(len(run) for run in runs))
    return [(float(e + 1), median(run[min(e, len(run) - 1)][1] for run in runs)) for e in range(last)]


def class_chart(summaries: Sequence[RunSummary], threshold: float | None) -> Chart:
    """Every run's curve in light lines under the class median."""
    runs = [_points(run) for run in summaries if run.curve]
    right = _axis(runs)
    lines = [_line("each", run, right) for run in runs]
    lines.append(_line("median", class_median(summaries), right))
    return _chart(lines, right, threshold, "Learning curves of the class")


def student_chart(summary: RunSummary, middle: Points, threshold: float | None) -> Chart | None:
    """One student's curve in front of the class median; None where there is none."""
    if not summary.curve:
        return None
    run = _points(summary)
    right = _axis([run], middle) if middle else max(1.0, run[-1][0])
    return _chart([_line("behind", middle, right), _line("own", run, right)], right, threshold, "Learning curve")


def spacing(length: float, most: int) -> int:
    """The least of 1, 2, 5, 10, 20, … that divides an axis of this length into at most `most` parts."""
    scale = 1
    while True:
        for step in (scale, 2 * scale, 5 * scale):
            if length / step <= most:
                return step
        scale *= 10


def _points(run: RunSummary) -> Points:
    # By position: epochs are checked by a criterion, and a wrong number must not stretch the axis for everyone.
    # The row of zeros before the first epoch is no measurement.
    rows = run.curve[1:] if run.curve and not any(run.curve[0][1:]) else run.curve
    return [(float(position), min(max(row[2], 0.0), 1.0)) for position, row in enumerate(rows, start=1)]


def _axis(runs: Sequence[Points], middle: Points = ()) -> float:
    """The last epoch that is drawn: of the longest run, but no more than three times that of the median run.

    One run of thousands of epochs would press the others into a line at the left.
    """
    lengths = [run[-1][0] for run in runs]
    usual = middle[-1][0] if middle else median(lengths or [1.0])
    return max(1.0, min(max([usual, *lengths]), 3 * usual))


def _line(kind: str, points: Points, right: float) -> str:
    points = [point for point in points if point[0] <= right]
    if not points:
        return ""
    step = max(1, -(-len(points) // MOST_POINTS))
    kept = points[::step] if points[::step][-1] == points[-1] else [*points[::step], points[-1]]
    where = " ".join(f"{WIDTH * x / right:.1f},{HEIGHT * (1 - y):.1f}" for x, y in kept)
    return f'<polyline class="{kind}" points="{where}"/>'


def _chart(lines: list[str], right: float, threshold: float | None, label: str) -> Chart:
    grid = "".join(f'<line class="grid" x1="0" x2="{WIDTH}" y1="{y}" y2="{y}"/>' for y in range(0, HEIGHT + 1, 100))
    rule = ""
    if threshold is not None:
        y = f"{HEIGHT * (1 - threshold):.1f}"
        rule = f'<line class="threshold" x1="0" x2="{WIDTH}" y1="{y}" y2="{y}"/>'
    svg = (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{label}">'
        f"{grid}{''.join(lines)}{rule}</svg>"
    )
    every = spacing(right, 8)
    return Chart(
        svg=Markup(svg),
        x_labels=[(100 * epoch / right, str(epoch)) for epoch in range(0, int(right) + 1, every)],
        y_labels=[(100 * (1 - y), f"{y:.2f}") for y in (0.0, 0.25, 0.5, 0.75, 1.0)],
    )

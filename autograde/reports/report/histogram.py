"""The distribution of a class's scores, as inline SVG."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median

from markupsafe import Markup

from autograde.reports.report.curves import HEIGHT, WIDTH, Chart, spacing

__all__ = ["score_histogram"]

MOST_BARS = 41
STEPS = (1, 2, 5, 10, 20, 25, 50, 100, 200, 500, 1000)


def score_histogram(scores: Sequence[float], most: float) -> Chart:
    """Draw how many students have each score.

    Parameters
    ----------
    most : float
        The points that there are. The axis goes from 0 to there, or to the highest score if that is more.

    A bar covers the scores from its label up to, but not including, the next bar's; where a point is a bar and scores
    are whole, a bar is a score. The dashed line is the median.
    """
    top = max(most, *scores)
    step = next((step for step in STEPS if top / step < MOST_BARS), top / (MOST_BARS - 1))
    bars = int(top // step) + 1
    counts = Counter(int(score // step) for score in scores)
    highest = max(counts.values())
    every = spacing(highest, 5)
    ceiling = every * -(-highest // every)

    def left(score: float) -> float:
        # Half a point to the right: a whole score is in the middle of its bar.
        return (score + min(step, 1) / 2) / (bars * step)

    grid = "".join(
        f'<line class="grid" x1="0" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>'
        for y in (HEIGHT * (1 - count / ceiling) for count in range(0, ceiling + 1, every))
    )
    wide, gap = WIDTH / bars, min(4.0, 0.15 * WIDTH / bars)
    drawn = "".join(
        f'<rect class="count" x="{wide * bar + gap / 2:.1f}" y="{HEIGHT * (1 - counts[bar] / ceiling):.1f}" '
        f'width="{wide - gap:.1f}" height="{HEIGHT * counts[bar] / ceiling:.1f}">'
        f"<title>{_range(bar, step)}: {counts[bar]}</title></rect>"
        for bar in range(bars)
        if counts[bar]
    )
    x = f"{WIDTH * left(median(scores)):.1f}"
    counted = "; ".join(f"{_range(bar, step)}: {counts[bar]}" for bar in sorted(counts))
    label = f"Students by score. {counted}. Median {median(scores):g} of {most:g}."
    svg = (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{label}">'
        f'{grid}{drawn}<line class="middle" x1="{x}" x2="{x}" y1="0" y2="{HEIGHT}"/></svg>'
    )
    apart = max(1, int(spacing(bars * step, 10) // step))
    marks = [*range(0, bars - (apart + 1) // 2, apart), bars - 1]  # the last bar, full marks, always
    return Chart(
        svg=Markup(svg),
        x_labels=[(100 * left(bar * step), f"{bar * step:g}") for bar in marks],
        y_labels=[(100 * (1 - count / ceiling), str(count)) for count in range(0, ceiling + 1, every)],
    )


def _range(bar: int, step: float) -> str:
    first = bar * step
    return f"{first:g} points" if step == 1 else f"{first:g} to under {first + step:g} points"

"""Learning curves as SVG, drawn by hand: a fraction of a millisecond, a few kilobytes, nothing imported.

Its greys and colours are readable on white and on black: an image cannot see the page's theme.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from course_lib.live_view.progress import Point

__all__ = ["COLOURS", "draw_curves", "nice_ticks"]

# course_lib.plots' "measured" and "other"; matplotlib is not worth importing for two strings.
COLOURS = {"validation": "#0072B2", "training": "#D55E00"}
GREY = "#808080"
WIDTH, HEIGHT = 700, 210
TOP, BOTTOM, LEFT, PANEL = 26, 172, 44, 290  # of a panel: its upper and lower edge, its left margin, its width
MOST_POINTS = 300


def draw_curves(points: Sequence[Point], epochs: int) -> str:
    """Accuracy and loss against the epoch, training dashed, validation solid; the axis has room for all `epochs`."""
    points = _thin(points)
    last = max(2, epochs, points[-1].epoch if points else 0)
    accuracies = [value for point in points for value in (point.train_accuracy, point.val_accuracy)]
    losses = [value for point in points for value in (point.train_loss, point.val_loss)]
    lowest = min((value for value in accuracies if math.isfinite(value)), default=0.0)
    highest_loss = max((value for value in losses if math.isfinite(value)), default=1.0)
    panels = [
        ("accuracy", "accuracy", nice_ticks(0.0 if lowest < 0.5 else 0.5 if lowest < 0.8 else 0.8, 1.0), lambda y: f"{y:.0%}"),
        ("loss", "loss", nice_ticks(0.0, max(highest_loss, 1e-6)), lambda y: f"{y:g}"),
    ]  # fmt: skip
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="sans-serif" font-size="11">'
    ]
    for number, (title, quantity, ticks, label) in enumerate(panels):
        left = LEFT + number * (WIDTH // 2)
        drawn += _frame(title, left, last, ticks, label)
        for split, dash in (("training", ' stroke-dasharray="5 3"'), ("validation", "")):
            name = f"{'train' if split == 'training' else 'val'}_{quantity}"
            places = [(_x(left, point.epoch, last), _y(getattr(point, name), ticks)) for point in points]
            drawn += _line(places, COLOURS[split], dash, len(points) <= 40)
    drawn += _legend()
    return "".join([*drawn, "</svg>"])


def nice_ticks(lowest: float, highest: float, about: int = 4) -> list[float]:
    """Round numbers, evenly spaced, from at most `lowest` to at least `highest`."""
    span = max(highest - lowest, 1e-9)
    size = 10 ** math.floor(math.log10(span / about))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if span / (size * factor) <= about)
    first = math.floor(lowest / step + 1e-9)
    count = math.ceil((highest - first * step) / step - 1e-9)
    return [round((first + i) * step, 12) for i in range(count + 1)]


def _thin(points: Sequence[Point]) -> list[Point]:
    """At most about `MOST_POINTS` of them, the last one always."""
    stride = -(-len(points) // MOST_POINTS) or 1
    return [*points[:-1:stride], *points[-1:]]


def _x(left: int, epoch: float, last: int) -> float:
    return left + PANEL * (epoch - 1) / (last - 1)


def _y(value: float, ticks: Sequence[float]) -> float:
    if not math.isfinite(value):
        return math.nan
    share = (value - ticks[0]) / (ticks[-1] - ticks[0])
    return BOTTOM - (BOTTOM - TOP) * min(1.0, max(0.0, share))


def _frame(title: str, left: int, last: int, ticks: Sequence[float], label: Callable[[float], str]) -> list[str]:
    drawn = [f'<text x="{left}" y="14" fill="{GREY}" font-size="12">{title}</text>']
    for tick in ticks:
        y = _y(tick, ticks)
        drawn.append(
            f'<line x1="{left}" x2="{left + PANEL}" y1="{y:.1f}" y2="{y:.1f}" stroke="{GREY}" stroke-opacity="0.3"/>'
            f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end" fill="{GREY}">{label(tick)}</text>'
        )
    for epoch in sorted({max(1, round(tick)) for tick in nice_ticks(1, last, 8) if tick <= last} | {1}):
        drawn.append(
            f'<text x="{_x(left, epoch, last):.1f}" y="{BOTTOM + 16}" text-anchor="middle" fill="{GREY}">{epoch}</text>'
        )
    drawn.append(f'<text x="{left + PANEL / 2}" y="{BOTTOM + 32}" text-anchor="middle" fill="{GREY}">epoch</text>')
    return drawn


def _line(places: Sequence[tuple[float, float]], colour: str, dash: str, dots: bool) -> list[str]:
    """A polyline that has a gap where there is no number."""
    pieces: list[list[str]] = [[]]
    for x, y in places:
        if math.isnan(y):
            pieces.append([])
        else:
            pieces[-1].append(f"{x:.1f},{y:.1f}")
    drawn = [
        f'<polyline points="{" ".join(piece)}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'
        for piece in pieces
        if len(piece) > 1
    ]
    alone = [piece[0] for piece in pieces if len(piece) == 1]
    for place in [place for piece in pieces for place in piece] if dots else alone:
        x, y = place.split(",")
        drawn.append(f'<circle cx="{x}" cy="{y}" r="2.5" fill="{colour}"/>')
    return drawn


def _legend() -> list[str]:
    y, drawn = 10, []
    for x, split, dash in (
        (WIDTH // 2 + 170, "training", ' stroke-dasharray="5 3"'),
        (WIDTH // 2 + 248, "validation", ""),
    ):
        drawn.append(
            f'<line x1="{x}" x2="{x + 18}" y1="{y}" y2="{y}" stroke="{COLOURS[split]}" stroke-width="2"{dash}/>'
            f'<text x="{x + 23}" y="{y + 4}" fill="{GREY}">{split}</text>'
        )
    return drawn

"""A training as HTML: a line of numbers, a bar, the learning curves, what was printed.

Styles stand in the elements and the drawing in an image: both survive JupyterLab's sanitising of notebooks that it does
not trust, and need nothing from outside. Text takes the page's colour, so that it is readable in light and dark themes.
"""

from __future__ import annotations

import base64
from html import escape

from course_lib.live_view.curve_drawing import COLOURS, draw_curves
from course_lib.live_view.progress import Progress

__all__ = ["PRE", "training_html", "training_text"]

EARLIER = 20  # lines of earlier trainings shown
PRE = "margin:4px 0 0 0; padding:0; background:transparent; font-size:12px; line-height:1.4; white-space:pre-wrap;"


def training_html(progress: Progress) -> str:
    """The view of a training; everything that is text is escaped."""
    number = f"training {len(progress.earlier) + 1}: " if progress.earlier else ""
    colour = COLOURS["training" if progress.phase in ("interrupted", "failed", "ended") else "validation"]
    parts = [
        '<div style="max-width:720px; margin-left:8px; font-family:sans-serif; font-size:13px; line-height:1.5;">',
        f"<div><b>{escape(number + progress.headline())}</b>{escape(_after(progress.details()))}</div>",
        '<div style="height:6px; margin:4px 0 8px 0; border-radius:3px; background-color:rgba(128,128,128,0.3);">'
        f'<div style="height:6px; width:{100 * progress.share:.1f}%; border-radius:3px; background-color:{colour};"></div></div>',
    ]
    if progress.points:
        drawing = base64.b64encode(draw_curves(progress.points, progress.epochs).encode()).decode()
        parts.append(
            f'<img alt="learning curves: {escape(progress.summary())}" style="max-width:100%; width:700px;" '
            f'src="data:image/svg+xml;base64,{drawing}">'
        )
    for lines in (progress.lines, _earlier(progress)):
        if lines:
            parts.append(f'<pre style="{PRE}">{escape(chr(10).join(lines))}</pre>')
    return "\n".join([*parts, "</div>"])


def training_text(progress: Progress) -> str:
    """The same without HTML: the printed lines, or, where nothing was printed, the state."""
    return "\n".join([*_earlier(progress), *(progress.lines or [progress.summary()])])


def _earlier(progress: Progress) -> list[str]:
    lines = [f"training {number}: {line}" for number, line in enumerate(progress.earlier, 1)]
    left_out = len(lines) - EARLIER
    return [f"({left_out} earlier trainings)", *lines[-EARLIER:]] if left_out > 0 else lines


def _after(details: str) -> str:
    return f" · {details}" if details else ""

"""One output below the cell for all its trainings, updated in place: a bar, learning curves, the transcript.

Styles are inline and the curves are an image: both survive JupyterLab's sanitising of untrusted notebooks. The text has
the page's colour, and the image is dark on white as every figure, so that both are readable in light and dark themes.
"""

from __future__ import annotations

import base64
import dataclasses
import io
import time
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from course_lib.live_view.interactive import running_cell, running_shell
from course_lib.live_view.progress import Progress, ProgressListener

__all__ = [
    "CellOutput",
    "CellTrainings",
    "cell_display",
    "cell_trainings",
    "draw_curves",
    "preformatted",
    "training_html",
]

PRE = "margin:4px 0 0 0; padding:0; background:transparent; font-size:12px; line-height:1.4; white-space:pre-wrap;"
EARLIER = 20  # lines of earlier trainings shown
GREY = "#555555"  # on white
FIRST = 4.0  # seconds until the first curves, unless the training ends before
DRAWING = 60  # the pause between two drawings, in multiples of a drawing's time: 2 % of the time


def cell_display() -> ProgressListener:
    """The listener of a training in a cell that a notebook's page sent."""
    return ProgressListener(cell_trainings())


def cell_trainings() -> CellTrainings:
    """One object for all trainings of one execution of a cell; the shell keeps it, and closes it after the cell."""
    shell, cell = running_shell(), running_cell()
    kept = shell.meta.get("trainings")
    if kept is None or kept[0] != cell:
        trainings = CellTrainings()

        def cell_has_run(result: Any) -> None:
            shell.events.unregister("post_run_cell", cell_has_run)
            trainings.close(result.error_in_exec)

        shell.events.register("post_run_cell", cell_has_run)
        shell.meta["trainings"] = kept = (cell, trainings)
    return kept[1]


class CellOutput:
    """An output below the running cell: each `show` replaces what it showed."""

    def __init__(self) -> None:
        self.handle: Any = None  # nothing is shown yet

    def show(self, html: str, text: str) -> None:
        """Show `html`; programs that show no HTML take `text`."""
        from IPython.display import display

        bundle = {"text/html": html, "text/plain": text}
        if self.handle is None:
            self.handle = display(bundle, raw=True, display_id=True)
        else:
            self.handle.update(bundle, raw=True)


class CellTrainings:
    """Shows the current training; earlier ones become text."""

    keeps_lines = True

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._output, self._clock = CellOutput(), clock
        self._earlier: list[str] = []
        self._last: Progress | None = None
        self._curves, self._drawn, self._next = "", 0, clock() + FIRST  # the image, its epochs, when the next is due

    def begin(self, progress: Progress | None = None) -> None:
        """A training begins, or a launch that may hold several."""
        if self._last is not None:
            self._earlier += [*self._last.earlier, self._last.text()]
        self._last, self._curves, self._drawn, self._next = None, "", 0, self._clock() + FIRST

    def show(self, progress: Progress) -> None:
        self._last = progress
        began = self._clock()
        if len(progress.records) != self._drawn and (progress.phase or began >= self._next):
            self._curves, self._drawn = draw_curves(progress.records, progress.epochs), len(progress.records)
            self._next = self._clock() + DRAWING * (self._clock() - began)
        shown = dataclasses.replace(progress, earlier=[*self._earlier, *progress.earlier])
        text = [*_earlier(shown), *(shown.lines or [shown.text()])]
        self._output.show(training_html(shown, self._curves), "\n".join(text))

    def close(self, error: BaseException | None) -> None:
        """The cell has run; a training that did not report its end has ended with the cell."""
        if self._last is not None and not self._last.phase:
            stopped = isinstance(error, KeyboardInterrupt)
            self._last.phase = "interrupted" if stopped else "failed" if error else "finished"
            self.show(self._last)


def training_html(progress: Progress, curves: str = "") -> str:
    """The view of a training; `curves` is an SVG. Everything that is text is escaped."""
    number = f"training {len(progress.earlier) + 1}: " if progress.earlier else ""
    parts = ['<div style="max-width:960px; margin-left:8px;">', preformatted([number + progress.bar()])]
    if curves:
        said = f"learning curves: accuracy and loss of training and validation. {progress.bar()}"
        image = "data:image/svg+xml;base64," + base64.b64encode(curves.encode()).decode()
        parts.append(f'<img alt="{escape(said)}" width="700" style="max-width:100%;" src="{image}">')
    parts += [preformatted(lines) for lines in (progress.lines, _earlier(progress)) if lines]
    return "\n".join([*parts, "</div>"])


def preformatted(lines: Sequence[str], style: str = "") -> str:
    """Lines as they are, escaped."""
    return f'<pre style="{PRE}{style}">{escape(chr(10).join(lines))}</pre>'


def draw_curves(records: Sequence[Mapping[str, float]], epochs: int) -> str:
    """Accuracy and loss against the epoch as SVG; training dashed, validation solid, with room for all `epochs`."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    from course_lib.plots.curves import COLOURS

    grey = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "grid.color")
    style = {"svg.fonttype": "none", "font.size": 8, **dict.fromkeys(grey, GREY)}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(700 / 96, 210 / 96))
        figure.subplots_adjust(left=0.06, right=0.98, bottom=0.2, top=0.88)
        for axes, quantity in zip(figure.subplots(1, 2), ("accuracy", "loss"), strict=True):
            for split, colour, dashes in (("train", "other", "--"), ("val", "measured", "-")):
                axes.plot(
                    [record["epoch"] for record in records], [record[f"{split}_{quantity}"] for record in records],
                    dashes, marker="." if len(records) <= 40 else "", color=COLOURS[colour],
                    label={"train": "training", "val": "validation"}[split],
                )  # fmt: skip
            axes.set_title(quantity, loc="left", fontsize=9)
            axes.set_xlim(0.8, max(2, epochs) + 0.2)
            axes.set_xlabel("epoch")
            axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
            axes.yaxis.set_major_locator(MaxNLocator(5))
            axes.grid(alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, ncols=2, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.1)
        drawing = io.StringIO()
        figure.savefig(drawing, format="svg", facecolor="white")
    return drawing.getvalue()


def _earlier(progress: Progress) -> list[str]:
    lines = [f"training {number}: {line}" for number, line in enumerate(progress.earlier, 1)]
    left_out = len(lines) - EARLIER
    return [f"({left_out} earlier trainings)", *lines[-EARLIER:]] if left_out > 0 else lines

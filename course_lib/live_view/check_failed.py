"""What a visible check raises, and how a notebook shows it."""

import re
import textwrap

__all__ = ["CheckFailed", "wrapped"]

COLUMNS = 96  # JupyterLab shows about so many at 1280 pixels
_OUR_FRAMES = re.compile(
    r'^ +File "[^"\n]*[/\\]course_lib[/\\].*\n(?: {4}.*\n)*', re.MULTILINE
)  # in a rank's traceback


class CheckFailed(AssertionError):
    """The answer is not right yet; the message says what was expected, what came, and the likeliest reason."""

    def _render_traceback_(self) -> list[str]:
        # IPython calls this instead of rendering the frames: those of the checker's code help nobody.
        return [f"✗ {line}" if n == 0 else f"  {line}" for n, line in enumerate(wrapped(str(self)))]


def wrapped(text: str) -> list[str]:
    """Lines of a notebook's width, without the course library's own frames."""
    lines = _OUR_FRAMES.sub("", text).splitlines() or [""]
    return [part for line in lines for part in textwrap.wrap(line, COLUMNS - 2, replace_whitespace=False) or [""]]

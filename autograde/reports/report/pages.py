"""The templates and what they may show, and which pages in a folder are ours."""

from __future__ import annotations

import re
from collections.abc import Set
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from autograde.gradebook.late_penalties import how_late
from autograde.rubric.verdict import FLAGS
from autograde.submission.quoting import printable

__all__ = ["environment", "remove_stale"]

HERE = Path(__file__).parent
_BREAKS = re.compile(r"[\t\r\n]+")
LONGEST = 2000  # characters of one text: more is no reason, and nobody's to read
# What says that a page is ours to remove: a folder given with -o may hold others'.
STUDENT_PAGE = '<meta name="generator" content="lab report: a student\'s page">'


def environment() -> Environment:
    """The templates' environment: everything is escaped, unknown names are errors, unprintable characters are shown."""
    jinja = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.filters |= {"points": "{:g}".format, "share": "{:.3f}".format, "duration": _duration}
    jinja.filters |= {"how_late": how_late, "address": quote}
    jinja.globals |= {
        "css": Markup((HERE / "page.css").read_text(encoding="utf-8")),
        "student_page": Markup(STUDENT_PAGE),
        "FLAGS": FLAGS,
    }
    return jinja


def remove_stale(folder: Path, keep: Set[str]) -> None:
    """Remove students' pages that we once wrote into a folder, except those named in `keep`; other files stay.

    Raises
    ------
    OSError
        If one cannot be read or removed.
    """
    for path in sorted(folder.glob("*.html")):
        if path.name in keep or not path.is_file():
            continue
        with open(path, encoding="utf-8", errors="replace") as file:
            ours = STUDENT_PAGE in file.read(1000)
        if ours:
            path.unlink()


def _shown(value: Any) -> Any:
    # Markup is the templates' own. A lone surrogate, which no file can hold, must not keep a class from its report.
    return printable(_BREAKS.sub(" ", value), LONGEST) if type(value) is str else value


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes = seconds / 60
    return f"{minutes:.1f} min" if minutes < 100 else f"{minutes / 60:.1f} h"

"""The whole page of a notebook, as inert HTML; `page_process` calls it in a process of its own."""

from __future__ import annotations

import html
import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import nbformat
from nbconvert.exporters import HTMLExporter
from nbformat import NotebookNode
from nbgrader.server_extensions.formgrader import handlers
from pygments.formatters import HtmlFormatter
from traitlets.config import Config

from autograde.reports.reading.inert_html import POLICY, clean_page
from autograde.reports.reading.student_content import StudentContent

__all__ = ["KINDS", "read_page", "render"]

KINDS = ("course_feedback", "course_formgrade")  # names of the templates
TEMPLATES = Path(__file__).with_name("templates")

# For highlighted code, and for what a terminal would show in colours.
CODE_CSS = (
    HtmlFormatter().get_style_defs(".highlight")
    + """
.ansi-bold { font-weight: bold; } .ansi-underline { text-decoration: underline; }
.ansi-black-fg { color: #3e424d; } .ansi-red-fg { color: #c01c28; } .ansi-green-fg { color: #1c7a3c; }
.ansi-yellow-fg { color: #8a6100; } .ansi-blue-fg { color: #1a5fb4; } .ansi-magenta-fg { color: #813d9c; }
.ansi-cyan-fg { color: #1b7a80; } .ansi-white-fg { color: #8b8e95; }
.ansi-red-intense-fg { color: #a51d2d; } .ansi-green-intense-fg { color: #14602d; }
"""
)

_content = StudentContent()


@cache
def exporter(kind: str) -> HTMLExporter:
    """nbconvert's exporter with one of our templates; texts pass through the page's `StudentContent`."""
    settings = {
        "template_name": kind,
        "extra_template_basedirs": [str(TEMPLATES), handlers.template_path],
        "sanitize_html": True,
        "extra_template_paths": [handlers.template_path],
        "mathjax_url": "",
        "filters": {
            "markdown2html": StudentContent.markdown.__get__(_content),
            "highlight_code": _content.code,
            "ansi2html": _content.terminal,
        },
    }
    made = HTMLExporter(config=Config({"HTMLExporter": settings, "Exporter": {"default_preprocessors": []}}))
    made.template  # noqa: B018  (compiles it, once for all pages)
    return made


def read_page(kind: str, path: str, resources: dict[str, Any], preprocessors: list[str]) -> str:
    """The page of a notebook file. Raises `Exception` of any kind: a student wrote the file."""
    return render(kind, nbformat.read(path, as_version=4), resources, preprocessors)


def render(kind: str, notebook: NotebookNode, resources: dict[str, Any], preprocessors: list[str]) -> str:
    """The page of a notebook.

    Parameters
    ----------
    resources : dict
        nbgrader's of the page. Texts at its top level are escaped here; the templates do not do so.
    preprocessors : list of str
        Import names of nbgrader's preprocessors, run in this order before anything is shown.
    """
    _content.__init__()
    resources = {name: html.escape(value) if isinstance(value, str) else value for name, value in resources.items()}
    resources["policy"] = POLICY
    resources["code_css"] = CODE_CSS
    for name in preprocessors:
        module, _, attribute = name.rpartition(".")
        notebook, resources = getattr(import_module(module), attribute)()(notebook, resources)
    page, _ = exporter(kind).from_notebook_node(_content.notebook(notebook), resources=resources)
    # The head and formgrader's bar are the template's own; the student's texts are between the marks.
    head, _, rest = page.partition("<!--notebook-->")
    body, _, foot = rest.rpartition("<!--end of notebook-->")
    if nonce := resources.get("nonce"):
        head, foot = (re.sub(r"<script\b", f'<script nonce="{nonce}"', part) for part in (head, foot))
    # A table's empty heading is none.
    return head + clean_page(body).replace("<th></th>", "<td></td>") + foot

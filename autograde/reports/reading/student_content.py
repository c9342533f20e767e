"""A student's Markdown, code, outputs and pictures as inert HTML, each within bounds.

A cell that takes too long to lay out is shown as it was typed. After the third such cell, so are all that follow.
"""

from __future__ import annotations

import base64
import binascii
import html
import io
import re
import signal
import threading
from collections.abc import Callable
from urllib.parse import unquote

import nbconvert.filters
from jinja2 import pass_context
from jinja2.runtime import Context
from nbconvert.filters.highlight import Highlight2HTML
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output, new_raw_cell
from PIL import Image

from autograde.reports.reading.inert_html import clean_fragment

__all__ = ["StudentContent"]

CELL_SECONDS = 1.0  # of processor time, to lay out a cell's text; an honest one takes milliseconds
OVERRUNS = 3  # cells that may take too long before the rest is shown as typed
LONGEST = 60_000  # characters of a cell that are laid out
LONGEST_SHOWN = 200_000  # characters of one text that are shown
TEXT = 1_000_000  # characters of all texts
LONGEST_ALTERNATIVE = 500  # characters of a picture's alternative text
CELLS = 1_000  # cells that are not graded
PICTURE_BYTES, PICTURE_PIXELS = 4 << 20, 20_000_000
ALL_PICTURE_BYTES, ALL_PICTURE_PIXELS = 16 << 20, 100_000_000
# A browser needs time by the square of the length where letters combine: 60,000 Thai vowels keep it busy for minutes.
# Latin, Greek and Cyrillic letters, Chinese, Japanese and Korean ones do not.
_ALONE = r"\x21-\u02ff\u0370-\u052f\u3000-\u3098\u309b-\u30ff\u3400-\u9fff\uac00-\ud7af\uff00-\uffef"
_UNBROKEN = re.compile(rf"(?:[{_ALONE}]{{0,8}}[^\x00-\x20{_ALONE}]){{100}}")
_FORMATS = {"image/png": "PNG", "image/jpeg": "JPEG"}
_NBGRADER = ("grade", "solution", "task", "locked", "grade_id", "points", "score", "comment", "unread")


class _TooLong(BaseException):
    """The time for a cell is over. Not an `Exception`: no library may catch it as an error of its own."""


class StudentContent:
    """What one page shows of a student: the filters of the page's template, and the page's budgets."""

    def __init__(self) -> None:
        self._overruns = 0
        self._text = TEXT
        self._bytes, self._pixels = ALL_PICTURE_BYTES, ALL_PICTURE_PIXELS

    # --- the notebook ------------------------------------------------------------------------------------------------

    def notebook(self, notebook: NotebookNode) -> NotebookNode:
        """A new notebook that holds only what a page shows: texts, numbers, real pictures, nbgrader's fields."""
        cells, others = [], 0
        for cell in notebook.cells:
            graded = cell.metadata.get("nbgrader", {})
            metadata = {"nbgrader": {name: graded[name] for name in _NBGRADER if name in graded}} if graded else {}
            others += not graded
            if others == CELLS + 1 and not graded:
                cells.append(new_markdown_cell(f"Only the first {CELLS} cells without points are shown."))
            if others > CELLS and not graded:
                continue
            left, check = self._text, graded.get("grade") and not graded.get("solution")
            if check:  # its output is the reasons for the points, whatever the student printed before
                self._text = LONGEST_SHOWN
            text = self._cut(cell.source)
            if cell.cell_type == "code":
                count = cell.get("execution_count")
                new = new_code_cell(text, execution_count=count if type(count) is int else None)
                new.outputs = [self._output(output) for output in cell.get("outputs", [])[:1000]]
            elif cell.cell_type == "raw":
                new = new_raw_cell(text)
            else:
                new = new_markdown_cell(text)
                new.attachments = cell.get("attachments") or {}
            if check:
                self._text = left
            new.metadata.update(metadata)
            cells.append(new)
        for number, cell in enumerate(cells):
            cell.id = f"cell-{number}"  # not drawn: two pages of the same verdict are equal
        return new_notebook(cells=cells, metadata={"language_info": {"name": "python", "pygments_lexer": "ipython3"}})

    def _output(self, output: NotebookNode) -> NotebookNode:
        kind = output.get("output_type")
        if kind == "stream":
            name = "stderr" if output.get("name") == "stderr" else "stdout"
            return new_output("stream", name=name, text=self._cut(_text(output.get("text"))))
        if kind == "error":
            lines = [self._cut(_text(line)) for line in output.get("traceback", [])[:200]]
            return new_output("error", ename="", evalue="", traceback=lines)
        data = output.get("data", {})
        for mime in _FORMATS:
            if mime in data:
                address, problem = self._picture(mime, _text(data[mime]))
                if not problem:
                    said = self._cut(_text(data.get("text/plain"))[:LONGEST_ALTERNATIVE])  # of the course's own figures
                    named = {mime: {"alt": said if said and said[0] != "<" else "a picture that the cell printed"}}
                    return new_output("display_data", {mime: address.partition(",")[2]}, metadata=named)
                return new_output("display_data", {"text/plain": f"[{problem}]"})
        if "text/plain" in data:
            return new_output("display_data", {"text/plain": self._cut(_text(data["text/plain"]))})
        return new_output("display_data", {"text/plain": "[an output that is neither text nor a picture is not shown]"})

    def _cut(self, text: object) -> str:
        text = _text(text)
        limit = min(LONGEST_SHOWN, self._text)
        self._text -= min(len(text), limit)
        more = f"\n[{len(text) - limit:,} more characters are not shown]" if len(text) > limit else ""
        return _UNBROKEN.sub(r"\g<0>\n", text[:limit]) + more

    # --- filters of the template -------------------------------------------------------------------------------------

    @pass_context
    def markdown(self, context: Context, source: str) -> str:
        """``markdown2html``: tags are shown as they were typed, formulas as their TeX."""
        attachments = context.get("cell", {}).get("attachments", {})
        renderer = _Renderer(self, attachments)
        return self._laid_out(source, lambda: MarkdownWithMath(renderer=renderer).render(source))

    def code(self, source: str, **_: object) -> str:
        """``highlight_code``."""
        return self._laid_out(source, lambda: Highlight2HTML(pygments_lexer="ipython3")(source))

    def terminal(self, source: str) -> str:
        """``ansi2html``: a program's output with its colours."""
        return self._within(source, lambda: clean_fragment(nbconvert.filters.ansi2html(source))) or _escaped(source)

    def _laid_out(self, source: str, layout: Callable[[], str]) -> str:
        if (laid_out := self._within(source, lambda: clean_fragment(layout()))) is not None:
            return laid_out
        return clean_fragment(
            '<div class="as-typed"><p class="note">Shown as typed: this cell could not be laid out in time.</p>'
            f"<pre>{_escaped(source)}</pre></div>"
        )

    def _within(self, source: str, layout: Callable[[], str]) -> str | None:
        """What `layout` returns; None where it fails or needs more than its time."""
        if len(source) > LONGEST or self._overruns >= OVERRUNS:
            return None
        try:
            return _in_time(layout)
        except _TooLong:
            self._overruns += 1
            return None
        except Exception:  # MemoryError and RecursionError are among them
            return None

    # --- pictures ----------------------------------------------------------------------------------------------------

    def attached(self, address: str, attachments: dict) -> tuple[str, str]:
        """The ``data:`` address of a picture in Markdown, or why there is none."""
        prefix, _, name = address.partition(":")
        if prefix == "attachment":
            attachment = attachments.get(name) or attachments.get(unquote(name))
            if not isinstance(attachment, dict):
                return "", f"a picture that is not attached: {name[:80]}"
            for mime in _FORMATS:
                if mime in attachment:
                    return self._picture(mime, _text(attachment[mime]))
            return "", f"an attachment that is neither PNG nor JPEG: {name[:80]}"
        for mime in _FORMATS:
            if address.startswith(f"data:{mime};base64,"):
                return self._picture(mime, address.partition(",")[2])
        return "", f"a picture from elsewhere: {address[:200]}"

    def _picture(self, mime: str, encoded: str) -> tuple[str, str]:
        if len(encoded) * 3 // 4 > PICTURE_BYTES:
            return "", f"a picture of more than {PICTURE_BYTES:,} bytes is not shown"
        try:
            data = base64.b64decode("".join(encoded.split()), validate=True)
            with Image.open(io.BytesIO(data), formats=[_FORMATS[mime]]) as picture:
                pixels = picture.width * picture.height
        except Image.DecompressionBombError:
            pixels = PICTURE_PIXELS + 1
        except (binascii.Error, OSError, ValueError, SyntaxError):
            return "", "a picture that cannot be read"
        if pixels > PICTURE_PIXELS:
            return "", f"a picture of more than {PICTURE_PIXELS:,} pixels is not shown"
        if len(data) > self._bytes or pixels > self._pixels:
            return "", "a picture is not shown: this page has too many"
        self._bytes -= len(data)
        self._pixels -= pixels
        return f"data:{mime};base64,{base64.b64encode(data).decode()}", ""


class _Renderer(IPythonRenderer):
    def __init__(self, content: StudentContent, attachments: dict) -> None:
        super().__init__(escape=True, allow_harmful_protocols=False, exclude_anchor_links=True)
        self.content, self.attached = content, attachments

    def block_html(self, html: str) -> str:
        return self.inline_html(html)

    def inline_html(self, html: str) -> str:
        text = self.escape_html(html)
        for tag in ("details", "summary"):  # the labs' hints fold; without attributes these do nothing else
            text = text.replace(f"&lt;{tag}&gt;", f"<{tag}>").replace(f"&lt;/{tag}&gt;", f"</{tag}>")
        return text

    def block_mermaidjs(self, code: str) -> str:
        return f"<pre>{self.escape_html(code)}</pre>"

    def image(self, text: str, url: str, title: str | None = None) -> str:
        address, problem = self.content.attached(url, self.attached)
        if problem:
            return f"<em>[{html.escape(problem)}]</em>"
        return f'<img src="{address}" alt="{html.escape(text)}">'


def _text(value: object) -> str:
    """A text of a notebook; the format also allows a list of lines."""
    if isinstance(value, list):
        return "".join(line for line in value if isinstance(line, str))
    return value if isinstance(value, str) else ""


def _escaped(text: str) -> str:
    return clean_fragment(html.escape(text, quote=False))


def _in_time(work: Callable[[], str]) -> str:
    """Call `work` for at most `CELL_SECONDS` of processor time.

    The interpreter looks for signals between its steps, and within a regular expression's search.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()  # the pages that show scores alone, whose texts are short

    def stop(*_: object) -> None:
        raise _TooLong

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, CELL_SECONDS)
    try:
        return work()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)

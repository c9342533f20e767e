"""Submissions that attack who reads them: in feedback, in formgrader, in the report, in exported tables.

Each changes a small notebook of lab 01, which is then where nbgrader's own ``autograde`` would have put it, unrepaired.
What `HOSTILE` runs would set ``window.pwned``; `REMOTE` is an address that no page may ask for.
"""

from __future__ import annotations

import base64
import io
import zlib
from collections.abc import Callable

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output, new_raw_cell
from PIL import Image

REMOTE = "http://192.0.2.1/hostile"
RUN = "window.pwned=1"
MARK = (
    f"</pre></textarea><img src=x onerror={RUN}><script>{RUN}</script><svg onload={RUN}></svg><iframe src='{REMOTE}'>"
)
READING: dict[str, Callable[[NotebookNode], None]] = {}
SHOWS: dict[str, str] = {}  # what the page must still say


def reading(shows: str = "") -> Callable:
    """Register an exhibit; `shows` is a text that its pages must have."""

    def register(change: Callable[[NotebookNode], None]) -> Callable[[NotebookNode], None]:
        assert change.__doc__
        READING[change.__name__] = change
        SHOWS[change.__name__] = shows
        return change

    return register


def cell(notebook: NotebookNode, name: str) -> NotebookNode:
    """The cell with a grade id."""
    return next(each for each in notebook.cells if each.metadata.nbgrader.grade_id == name)


def write(notebook: NotebookNode, text: str) -> None:
    """The text as an answer in words, and in a cell of the student's own."""
    cell(notebook, "q-knee").source = text
    notebook.cells.append(new_markdown_cell(text))


def output(notebook: NotebookNode, data: dict, **metadata: object) -> None:
    """An output of an answer's cell and of a cell of the student's own."""
    mine = new_code_cell("1")
    for each in (cell(notebook, "ex-train-step"), mine):
        each.outputs.append(new_output("display_data", data, metadata=metadata))
    notebook.cells.append(mine)


def picture(kind: str, width: int = 4, height: int = 3) -> str:
    """An honest picture, base64."""
    file = io.BytesIO()
    Image.new("RGB", (width, height), "blue").save(file, kind)
    return base64.b64encode(file.getvalue()).decode()


def png_that_says(width: int, height: int) -> str:
    """A PNG of some bytes whose header announces a size."""
    head = b"IHDR" + width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x02\0\0\0"
    data = b"IDAT" + zlib.compress(bytes(10_000))
    parts = (len(part[4:]).to_bytes(4, "big") + part + zlib.crc32(part).to_bytes(4, "big") for part in (head, data))
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(parts)).decode()


# --- markup ------------------------------------------------------------------------------------------------------------


@reading("window.pwned=1")
def mermaid_in_backticks(notebook):
    """A fenced diagram, which nbconvert puts into the page as it is."""
    write(notebook, f"```mermaid\n{MARK}\n```")


@reading("window.pwned=1")
def mermaid_in_tildes(notebook):
    """The same, fenced otherwise, in a quotation and a list, and by a longer name."""
    write(notebook, f"~~~mermaid\n{MARK}\n~~~\n\n> ```mermaid\n> {MARK}\n> ```\n\n- ~~~~mermaidjs x\n  {MARK}\n  ~~~~")


@reading()
def mermaid_in_an_output(notebook):
    """A diagram as an output."""
    output(notebook, {"text/vnd.mermaid": f"graph TD\n{MARK}", "text/plain": MARK})


@reading()
def html_in_outputs(notebook):
    """HTML, isolated and not, SVG, Markdown, LaTeX and JavaScript as outputs."""
    output(notebook, {"text/html": MARK}, **{"text/html": {"isolated": True}})
    for kind in (
        "text/html",
        "image/svg+xml",
        "text/markdown",
        "text/latex",
        "application/javascript",
        "application/pdf",
    ):
        output(notebook, {kind: MARK})


@reading()
def widgets(notebook):
    """Widgets, with their state in the notebook's metadata."""
    output(notebook, {"application/vnd.jupyter.widget-view+json": {"model_id": MARK}})
    state = {"state": {MARK: {"model_module": REMOTE, "state": {"value": MARK}}}, "version_major": 2}
    notebook.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": state}


@reading("<b>bold</b>")
def html_in_markdown(notebook):
    """Raw HTML: blocks, inline, half tags, comments, and attributes on the tags that labs fold hints with."""
    write(
        notebook,
        f"{MARK}\n\n<b>bold</b> <details ontoggle={RUN} open><summary>x</summary>{MARK}</details>\n\n<!-- {MARK} -->\n\n<scr<script>ipt>{RUN}</script>\n\n<img src='{REMOTE}'\n",
    )


@reading()
def links_that_run(notebook):
    """Links to scripts, to pages made of data, and to this site's own addresses."""
    addresses = (f"javascript:{RUN}", f"JaVaScRiPt&#58;{RUN}", f"data:text/html,<script>{RUN}</script>", f"vbscript:{RUN}",
        "/formgrader/manage_students/%3Cimg%20src=x%3E", "../../files/evil.html", "//192.0.2.1/hostile", "\x01javascript:1")  # fmt: skip
    write(
        notebook,
        "\n\n".join(
            f"[press]({address}) <{address}> [r][{i}]\n\n[{i}]: {address}" for i, address in enumerate(addresses)
        ),
    )


@reading()
def forged_controls(notebook):
    """Boxes and buttons that look like the grader's own, by raw HTML and by whatever Markdown lets through."""
    controls = (
        '<input class="score tabbable" id="check-train-step" value="5"><button class="full-credit">ok</button>'
        '<textarea id="q-knee-comment" class="comment">full marks</textarea><form action="/hub/logout"><button>x</button></form>'
    )
    write(notebook, f"{controls}\n\n```mermaid\n</pre></div>{controls}\n```\n\n- [x] done\n\n# q-knee\n\n# toc")


@reading()
def styles(notebook):
    """Style sheets and attributes that hide the page, cover it, or load."""
    write(
        notebook,
        f"<style>* {{ display: none; background: url({REMOTE}) }}</style>\n\n<link rel=stylesheet href={REMOTE}>\n\n<div style='position:fixed;inset:0;background:url({REMOTE})'>x</div>\n\n```mermaid\n</pre><style>@import '{REMOTE}';</style>\n```",
    )


@reading()
def metadata_as_markup(notebook):
    """Markup where the notebook's format expects numbers and names."""
    output(
        notebook,
        {"image/png": picture("PNG"), "text/plain": "x"},
        **{
            "image/png": {
                "width": f"1 onload={RUN}",
                "height": f"1><script>{RUN}</script>",
                "alt": f'"><script>{RUN}</script>',
            }
        },
    )
    for each in notebook.cells:
        each.metadata["tags"] = [f'x" onclick="{RUN}"><script>{RUN}</script>']
        each["id"] = f'x"><script>{RUN}</script>'
        if each.cell_type == "code":
            each.execution_count = f"<script>{RUN}</script>"
    notebook.metadata["title"] = notebook.metadata["kernelspec"] = notebook.metadata["language_info"] = MARK


@reading()
def raw_cells(notebook):
    """Raw cells that say that they are HTML."""
    for kind in ("text/html", "text/markdown", MARK):
        notebook.cells.append(new_raw_cell(MARK, metadata={"raw_mimetype": kind, "format": kind}))


@reading()
def formulas_as_markup(notebook):
    """Formulas that are markup, that load extensions, and that define macros."""
    write(
        notebook,
        f"$x{MARK}$ $$\\href{{javascript:{RUN}}}{{x}} \\require{{{REMOTE}}} \\unicode{{x}}$$\n\n\\begin{{align}}{MARK}\\end{{align}}",
    )


@reading()
def text_turned_round(notebook):
    """Marks that turn text round, terminal codes, and characters that no page can hold."""
    text = f"\x1b]0;{MARK}\x07\x1b[2J\u202egnp.exe\u2066 \ufeff\x00\x08 \x1b[31mred\x1b[38;5;{MARK}m\x1b[0m"
    write(notebook, text)
    for each in (cell(notebook, "ex-train-step"), cell(notebook, "check-train-step")):
        each.outputs.append(new_output("stream", text=text))
        each.outputs.append(new_output("error", ename=MARK, evalue=MARK, traceback=[text, MARK]))


@reading()
def code_as_markup(notebook):
    """Markup in code, and in the language of a block of code."""
    cell(notebook, "ex-train-step").source += f"\n# {MARK}\n'''{MARK}'''\n%%html\n{MARK}"
    write(notebook, f'```python"><script>{RUN}</script>\n{MARK}\n```\n\n```html\n{MARK}\n```\n\n``{MARK}``')


# --- pictures ----------------------------------------------------------------------------------------------------------


@reading("not attached: missing.png")
def a_missing_attachment(notebook):
    """A picture whose attachment is not there, which ended the command for the class."""
    write(notebook, "before ![x](attachment:missing.png) after")


@reading("data:image/jpeg;base64,")
def a_jpeg_attachment(notebook):
    """An honest photograph."""
    notebook.cells.append(new_markdown_cell("![x](attachment:a%20b.jpg)"))
    notebook.cells[-1]["attachments"] = {"a b.jpg": {"image/jpeg": picture("JPEG")}}


@reading()
def attachments_that_are_no_pictures(notebook):
    """SVG, HTML, markup as base64, as a kind, as a name; a list, a number and nothing as attachments."""
    svg = base64.b64encode(f'<svg xmlns="http://www.w3.org/2000/svg" onload="{RUN}"/>'.encode()).decode()
    found = {"s": {"image/svg+xml": svg}, "h": {"text/html": MARK}, "p": {"image/png": MARK}, "q": {"image/png": f'x" onerror="{RUN}'},
        "k": {f'image/png" onerror="{RUN}': "x"}, "l": [MARK], "n": 5, "e": {}, f'm" onerror="{RUN}': {"image/png": "x"}}  # fmt: skip
    write(notebook, " ".join(f"![a](attachment:{name})" for name in found))
    for each in notebook.cells:
        if each.cell_type == "markdown":
            each["attachments"] = found


@reading()
def pictures_from_elsewhere(notebook):
    """Pictures by address: remote, of this site, of this machine, by reference, in a title, as data that is none."""
    addresses = (REMOTE, "//192.0.2.1/x.png", "/formgrader/api/students", "file:///etc/passwd", "x.png", "data:image/svg+xml;base64,PHN2Zz4=", f"data:image/png;base64,{base64.b64encode(MARK.encode()).decode()}")  # fmt: skip
    write(
        notebook,
        "\n\n".join(f'![a]({address} "{RUN}") ![b][{i}]\n\n[{i}]: {address}' for i, address in enumerate(addresses)),
    )


@reading("more than 20,000,000 pixels is not shown")
def a_picture_of_sixty_thousand_by_sixty_thousand(notebook):
    """A few hundred bytes that a browser would need 14 GB for, printed and attached."""
    huge = png_that_says(60_000, 60_000)
    output(notebook, {"image/png": huge})
    write(notebook, f"![x](attachment:x.png)\n\n![y](data:image/png;base64,{huge})")
    cell(notebook, "q-knee")["attachments"] = {"x.png": {"image/png": huge}}


@reading("this page has too many")
def many_pictures(notebook):
    """Forty pictures of 4 million pixels, each small as a file."""
    large = picture("PNG", 2000, 2000)
    for _ in range(40):
        output(notebook, {"image/png": large})


@reading("bytes is not shown")
def a_picture_of_many_bytes(notebook):
    """Six megabytes that begin as a PNG does."""
    output(notebook, {"image/png": base64.b64encode(base64.b64decode(picture("PNG")) + bytes(6 << 20)).decode()})


@reading()
def a_picture_as_tall_as_a_tower(notebook):
    """One pixel wide, nineteen million high: whatever comes after it is far away."""
    for _ in range(3):
        output(notebook, {"image/png": png_that_says(1, 19_000_000)})


# --- time and memory ---------------------------------------------------------------------------------------------------


@reading()
def a_bomb_of_formulas(notebook):
    """Formulas that begin and never end: each makes the search go to the end of the text."""
    write(notebook, "\\begin{a}" * 3000 + "$" * 3001 + "\\\\[" * 3000 + "\\\\(" * 3000)


@reading()
def a_bomb_of_escapes(notebook):
    """Escapes, brackets and half links."""
    write(notebook, "\\" * 20_001 + "\n\n" + "[" * 5000 + "![" * 2000 + "](" * 2000 + "\n\n" + "[a](<b" * 3000)


@reading()
def a_bomb_of_emphasis(notebook):
    """Marks of emphasis that open and never close."""
    write(
        notebook,
        "*a **b _c __d ~~" * 2500 + "\n\n" + "`" * 5000 + "a" + "` ``" * 5000 + "\n\n" + "<a " * 5000 + "<!--" * 5000,
    )


@reading()
def a_bomb_of_code(notebook):
    """Code on which lexers go back and forth."""
    text = "f'{" * 8000 + "\n" + '"' * 10_001 + "\\" * 5000 + "(" * 5000
    cell(notebook, "ex-train-step").source = text
    notebook.cells.append(new_code_cell("%%" + "x" * 20_000 + "\n!" + "?" * 20_000))
    fences = (
        f"```{language}\n{body * 3000}\n```"
        for language in ("perl", "html", "rst", "js", "ruby", "scheme")
        for body in ("<a ", "s{", '"\\')
    )
    write(notebook, "\n\n".join(fences)[:60_000])


@reading()
def a_bomb_of_tables_and_lists(notebook):
    """A table of ten thousand columns, and lists, quotations and folds within each other."""
    write(notebook, "|" * 10_000 + "\n" + "|-" * 10_000 + "|\n" + "|" * 10_000)
    write(
        notebook, "> " * 3000 + "x\n\n" + "- " * 3000 + "x\n\n" + "".join(" " * (2 * i) + "- x\n" for i in range(150))
    )
    write(notebook, "<details>" * 5000)


@reading()
def a_bomb_of_colours(notebook):
    """Terminal codes in tens of thousands."""
    text = "".join(f"\x1b[{i % 108};{i % 50}m" for i in range(8000)) + "\x1b[38;2;1;2" * 5000 + "x"
    for kind in ("stdout", "stderr"):
        cell(notebook, "ex-train-step").outputs.append(new_output("stream", name=kind, text=text))


@reading("more characters are not shown")
def a_long_output(notebook):
    """Eight megabytes of text in one line."""
    cell(notebook, "ex-train-step").outputs.append(new_output("stream", text="x" * (8 << 20)))


@reading("Only the first 1000 cells")
def many_cells(notebook):
    """Six thousand cells of the student's own."""
    notebook.cells += [new_markdown_cell("*x*") for _ in range(6000)]


@reading("This notebook cannot be shown here")
def parts_of_a_wrong_kind(notebook):
    """Numbers, lists and nothing in the places of texts and of whole parts."""
    output(notebook, {"image/png": 5, "text/plain": [1, None]})
    notebook.cells[-1].outputs += [{"output_type": "stream", "name": [], "text": 7}, {"output_type": MARK}, {}]
    notebook.cells.append(NotebookNode(cell_type=MARK, source=5, metadata={}))
    notebook.cells.append(NotebookNode(cell_type="markdown", source=None, metadata=None))


@reading("more characters are not shown")
def endless_empty_lines(notebook):
    """Pages of 30 million pixels: above that, a browser puts everything at the same place."""
    for _ in range(20):
        cell(notebook, "ex-train-step").outputs.append(new_output("stream", text="\n" * 199_999))
    notebook.cells += [new_markdown_cell("> " * 60 + "x" * 59_000) for _ in range(60)]  # a letter a line


@reading()
def letters_that_combine(notebook):
    """Words without an end of accents, of vowels that combine, of joined pictures: minutes for a browser."""
    for text in ("\u0301" * 190_000, "\u0e33" * 190_000, "ab\u0e33" * 60_000, "\U0001f468\u200d" * 90_000):
        cell(notebook, "ex-train-step").outputs.append(new_output("stream", text=text))
        write(notebook, text[:20_000])

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
SHOWS: dict[str, tuple[str, ...]] = {}  # what the page must still say


def reading(*shows: str) -> Callable:
    """Register an exhibit; `shows` are texts that its pages must have."""

    def register(change: Callable[[NotebookNode], None]) -> Callable[[NotebookNode], None]:
        assert change.__doc__
        READING[change.__name__] = change
        SHOWS[change.__name__] = shows
        return change

    return register


def cell(notebook: NotebookNode, name: str) -> NotebookNode:
    """The cell with a grade id."""
    return next(each for each in notebook.cells if each.metadata.nbgrader.grade_id == name)


def answer(notebook: NotebookNode, text: str) -> None:
    """The text as an answer in words."""
    cell(notebook, "q-knee").source = text


def write(notebook: NotebookNode, text: str) -> None:
    """The text as an answer in words, and in a cell of the student's own."""
    answer(notebook, text)
    notebook.cells.append(new_markdown_cell(text))


def printed(notebook: NotebookNode, text: str, name: str = "stdout") -> None:
    """A text that an answer's cell printed."""
    cell(notebook, "ex-train-step").outputs.append(new_output("stream", name=name, text=text))


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
def diagrams(notebook):
    """Mermaid, which nbconvert puts into the page as it is: fenced in all ways, by a longer name, and as an output."""
    write(notebook, f"```mermaid\n{MARK}\n```")
    write(notebook, f"~~~mermaid\n{MARK}\n~~~\n\n> ```mermaid\n> {MARK}\n> ```\n\n- ~~~~mermaidjs x\n  {MARK}\n  ~~~~")
    output(notebook, {"text/vnd.mermaid": f"graph TD\n{MARK}", "text/plain": MARK})


@reading()
def outputs_as_markup(notebook):
    """HTML, isolated and not, SVG, Markdown, LaTeX, JavaScript and widgets as outputs, and raw cells that are HTML."""
    output(notebook, {"text/html": MARK}, **{"text/html": {"isolated": True}})
    applications = ("application/javascript", "application/pdf")
    for kind in ("text/html", "image/svg+xml", "text/markdown", "text/latex", *applications):
        output(notebook, {kind: MARK})
    output(notebook, {"application/vnd.jupyter.widget-view+json": {"model_id": MARK}})
    state = {"state": {MARK: {"model_module": REMOTE, "state": {"value": MARK}}}, "version_major": 2}
    notebook.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": state}
    for kind in ("text/html", "text/markdown", MARK):
        notebook.cells.append(new_raw_cell(MARK, metadata={"raw_mimetype": kind, "format": kind}))


@reading("<b>bold</b>")
def markup_in_markdown(notebook):
    """Raw HTML, half tags, attributes on tags that labs fold hints with; style sheets; formulas; forged controls."""
    tags = f"<b>bold</b> <details ontoggle={RUN} open><summary>x</summary>{MARK}</details>"
    write(notebook, f"{MARK}\n\n{tags}\n\n<!-- {MARK} -->\n\n<scr<script>ipt>{RUN}</script>\n\n<img src='{REMOTE}'\n")
    cover = f"<div style='position:fixed;inset:0;background:url({REMOTE})'>x</div>"
    sheet = f"<style>* {{ display: none; background: url({REMOTE}) }}</style>\n\n<link rel=stylesheet href={REMOTE}>"
    write(notebook, f"{sheet}\n\n{cover}\n\n```mermaid\n</pre><style>@import '{REMOTE}';</style>\n```")
    formula = f"$x{MARK}$ $$\\href{{javascript:{RUN}}}{{x}} \\require{{{REMOTE}}} \\unicode{{x}}$$"
    write(notebook, f"{formula}\n\n\\begin{{align}}{MARK}\\end{{align}}")
    controls = (
        '<input class="score tabbable" id="check-train-step" value="5"><button class="full-credit">ok</button>'
        '<textarea id="q-knee-comment" class="comment">full marks</textarea>'
        '<form action="/hub/logout"><button>x</button></form>'
    )
    write(notebook, f"{controls}\n\n```mermaid\n</pre></div>{controls}\n```\n\n- [x] done\n\n# q-knee\n\n# toc")


@reading()
def addresses(notebook):
    """Links to scripts, to pages made of data and to this site; pictures: remote, of this machine, and no pictures."""
    encoded = base64.b64encode(MARK.encode()).decode()
    links = (
        *(f"javascript:{RUN}", f"JaVaScRiPt&#58;{RUN}", f"data:text/html,<script>{RUN}</script>", f"vbscript:{RUN}"),
        *("/formgrader/manage_students/%3Cimg%20src=x%3E", "../../files/evil.html", "\x01javascript:1"),
        *(REMOTE, "//192.0.2.1/hostile", "/formgrader/api/students", "file:///etc/passwd", "x.png"),
        *("data:image/svg+xml;base64,PHN2Zz4=", f"data:image/png;base64,{encoded}"),
    )
    for link in ("[press]({0}) <{0}> [r][{1}]", '![a]({0} "window.pwned=1") ![b][{1}]'):
        lines = (f"{link.format(address, i)}\n\n[{i}]: {address}" for i, address in enumerate(links))
        write(notebook, "\n\n".join(lines))


@reading()
def metadata_as_markup(notebook):
    """Markup where the notebook's format expects numbers and names."""
    script = f"<script>{RUN}</script>"
    size = {"width": f"1 onload={RUN}", "height": f"1>{script}", "alt": f'">{script}'}
    said = f'x" onerror="{RUN}">{script}'  # feedback's alternative text
    output(notebook, {"image/png": picture("PNG"), "text/plain": said}, **{"image/png": size})
    for each in notebook.cells:
        each.metadata["tags"] = [f'x" onclick="{RUN}"><script>{RUN}</script>']
        each["id"] = f'x"><script>{RUN}</script>'
        if each.cell_type == "code":
            each.execution_count = f"<script>{RUN}</script>"
    notebook.metadata["title"] = notebook.metadata["kernelspec"] = notebook.metadata["language_info"] = MARK


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


@reading("not attached: missing.png", "data:image/jpeg;base64,")
def attachments(notebook):
    """A photograph; none, which ended the command for the class; SVG, HTML and markup where a picture should be."""
    svg = base64.b64encode(f'<svg xmlns="http://www.w3.org/2000/svg" onload="{RUN}"/>'.encode()).decode()
    attached = {
        "a b.jpg": {"image/jpeg": picture("JPEG")}, "s": {"image/svg+xml": svg}, "h": {"text/html": MARK},
        "p": {"image/png": MARK}, "q": {"image/png": f'x" onerror="{RUN}'}, "k": {f'image/png" onerror="{RUN}': "x"}, "e": {},
        f'm" onerror="{RUN}': {"image/png": "x"},
    }  # fmt: skip
    write(notebook, " ".join(f"![a](attachment:{name})" for name in ("a%20b.jpg", "missing.png", *attached)))
    for each in notebook.cells:
        if each.cell_type == "markdown":
            each["attachments"] = attached


@reading("This notebook cannot be shown here")
def attachments_of_a_wrong_kind(notebook):
    """A list and a number as attachments."""
    write(notebook, "![a](attachment:l) ![a](attachment:n)")
    cell(notebook, "q-knee")["attachments"] = {"l": [MARK], "n": 5}


@reading("more than 20,000,000 pixels is not shown", "bytes is not shown")
def large_pictures(notebook):
    """A few hundred bytes that a browser would need 14 GB for, six megabytes, one pixel wide and 19 million high."""
    huge = png_that_says(60_000, 60_000)
    output(notebook, {"image/png": huge})
    write(notebook, f"![x](attachment:x.png)\n\n![y](data:image/png;base64,{huge})")
    cell(notebook, "q-knee")["attachments"] = {"x.png": {"image/png": huge}}
    output(notebook, {"image/png": base64.b64encode(base64.b64decode(picture("PNG")) + bytes(6 << 20)).decode()})
    for _ in range(3):
        output(notebook, {"image/png": png_that_says(1, 19_000_000)})


@reading("this page has too many")
def many_pictures(notebook):
    """Forty pictures of 4 million pixels, each small as a file."""
    large = picture("PNG", 2000, 2000)
    for _ in range(40):
        output(notebook, {"image/png": large})


# --- time and memory ---------------------------------------------------------------------------------------------------


@reading()
def a_bomb_of_formulas(notebook):
    """Formulas that begin and never end: each makes the search go to the end of the text."""
    answer(notebook, "\\begin{a}" * 3000 + "$" * 3001 + "\\\\[" * 3000 + "\\\\(" * 3000)


@reading()
def a_bomb_of_escapes(notebook):
    """Escapes, brackets and half links."""
    answer(notebook, "\\" * 20_001 + "\n\n" + "[" * 5000 + "![" * 2000 + "](" * 2000 + "\n\n" + "[a](<b" * 3000)


@reading()
def a_bomb_of_emphasis(notebook):
    """Marks of emphasis that open and never close."""
    marks = ("*a **b _c __d ~~" * 2500, "`" * 5000 + "a" + "` ``" * 5000, "<a " * 5000 + "<!--" * 5000)
    answer(notebook, "\n\n".join(marks))


@reading()
def a_bomb_of_code(notebook):
    """Code on which lexers go back and forth."""
    cell(notebook, "ex-train-step").source = "f'{" * 8000 + "\n" + '"' * 10_001 + "\\" * 5000 + "(" * 5000
    notebook.cells.append(new_code_cell("%%" + "x" * 20_000 + "\n!" + "?" * 20_000))
    languages, bodies = ("perl", "html", "rst", "js", "ruby", "scheme"), ("<a ", "s{", '"\\')
    fences = (f"```{language}\n{body * 3000}\n```" for language in languages for body in bodies)
    answer(notebook, "\n\n".join(fences)[:60_000])


@reading()
def a_bomb_of_tables_and_lists(notebook):
    """A table of ten thousand columns, and lists, quotations and folds within each other."""
    answer(notebook, "|" * 10_000 + "\n" + "|-" * 10_000 + "|\n" + "|" * 10_000)
    lists = "".join(" " * (2 * i) + "- x\n" for i in range(150))
    for text in ("> " * 3000 + "x\n\n" + "- " * 3000 + "x\n\n" + lists, "<details>" * 5000):
        notebook.cells.append(new_markdown_cell(text))


@reading()
def a_bomb_of_colours(notebook):
    """Terminal codes in tens of thousands."""
    text = "".join(f"\x1b[{i % 108};{i % 50}m" for i in range(8000)) + "\x1b[38;2;1;2" * 5000 + "x"
    for kind in ("stdout", "stderr"):
        printed(notebook, text, kind)


@reading("more characters are not shown")
def a_long_output(notebook):
    """Eight megabytes of text in one line."""
    printed(notebook, "x" * (8 << 20))


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
        printed(notebook, "\n" * 199_999)
    notebook.cells += [new_markdown_cell("> " * 60 + "x" * 59_000) for _ in range(20)]  # a letter a line


@reading()
def letters_that_combine(notebook):
    """Words without an end of accents, of vowels that combine, of joined pictures: minutes for a browser."""
    for text in ("\u0301" * 190_000, "\u0e33" * 190_000, "ab\u0e33" * 60_000, "\U0001f468\u200d" * 90_000):
        printed(notebook, text)
        write(notebook, text[:20_000])

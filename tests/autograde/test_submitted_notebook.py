"""A student's notebook is read as data: what is no notebook is refused in one line, what is not needed is left out."""

import base64
import json
import random
import struct
import zlib

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from autograde.submission.notebook_size import without_outputs
from autograde.submission.run_folder import EvidenceError
from autograde.submission.submitted_notebook import (
    MAX_BYTES,
    MAX_BYTES_WITH_OUTPUTS,
    MAX_CELLS,
    MAX_IMAGE_BYTES,
    read_notebook,
    safe_outputs,
)

LAB = "01_single_gpu"


@pytest.fixture
def submission(tmp_path):
    folder = tmp_path / "submitted" / "mallory" / LAB
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def read(submission, in_seconds, capfd):
    """Write `content` (text, bytes or JSON), if any, and read it: within seconds, and without a word on stderr."""

    def read(content=None):
        path = submission / f"{LAB}.ipynb"
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif content is not None:
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        try:
            found = in_seconds(read_notebook, submission, LAB)
        finally:
            assert capfd.readouterr() == ("", "")
        nbformat.validate(found)
        json.dumps(found, ensure_ascii=False).encode()  # it can be written
        return found

    return read


@pytest.fixture
def refused(read):
    """The line with which something is refused."""

    def refused(content=None):
        with pytest.raises(EvidenceError) as caught:
            read(content)
        line = str(caught.value)
        assert line.isascii() and line.isprintable() and len(line) < 400
        return line

    return refused


def document(*cells, **fields):
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": list(cells)} | fields


def code(source="1", **fields):
    return {"cell_type": "code", "source": source, "metadata": {}, "outputs": [], "execution_count": None} | fields


def png(width=2, height=2):
    """A picture, made after the PNG specification."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + b"\0" * min(width, 10) for _ in range(min(height, 10))))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


PICTURE = base64.b64encode(png()).decode()


def replaced(value):
    """A JSON value without outputs, by the plain way."""
    if isinstance(value, dict):
        return {
            name: type(below)() if name in CUT and isinstance(below, (list, dict)) else replaced(below)
            for name, below in value.items()
        }
    return [replaced(below) for below in value] if isinstance(value, list) else value


CUT = ("outputs", "attachments", "widgets")


def test_cutting_outputs_leaves_every_other_value_of_any_json():
    chance = random.Random(5)
    names = [*CUT, "a", "", 'q"uote', "back\\", "[", '"outputs":[', "\u00e9\n"]

    def value(depth):
        kind = chance.choice("lldds" if depth < 5 else "sn")
        if kind == "l":
            return [value(depth + 1) for _ in range(chance.randrange(4))]
        if kind == "d":
            return {chance.choice(names): value(depth + 1) for _ in range(chance.randrange(4))}
        return chance.choice(names) if kind == "s" else chance.choice([1, None, True, -2.5])

    for _ in range(2000):
        whole = value(0)
        text = json.dumps(whole, indent=chance.choice([None, 1]), ensure_ascii=chance.random() < 0.5).encode()
        assert json.loads(without_outputs(text)) == replaced(whole)


class TestFiles:
    def test_missing(self, refused):
        assert f"{LAB}.ipynb is missing" in refused()

    def test_no_submission(self, refused, submission):
        submission.rmdir()
        assert "no submission" in refused()

    def test_a_link(self, refused, submission, tmp_path):
        (tmp_path / "other.ipynb").write_text(json.dumps(document()))
        (submission / f"{LAB}.ipynb").symlink_to(tmp_path / "other.ipynb")
        assert "is a symbolic link" in refused()

    @pytest.mark.parametrize("level", [0, 1])
    def test_a_link_in_place_of_a_folder(self, refused, submission, tmp_path, level):
        (submission / f"{LAB}.ipynb").write_text(json.dumps(document()))
        path = [submission, submission.parent][level]
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
        assert "is not a plain folder" in refused()

    def test_the_limit_itself(self, read, refused):
        text = json.dumps(document(code("x = 1")))
        assert len(read(text + " " * (MAX_BYTES - len(text))).cells) == 1
        assert "bytes, at most" in refused(text + " " * (MAX_BYTES + 1 - len(text)))

    def test_large_outputs_are_left_out_and_the_rest_is_read(self, read):
        big = [{"output_type": "stream", "name": "stdout", "text": ['{"outputs": [1]} \\ "'] * 800_000}]
        cells = [code('x = {"outputs": ["\\"]"]}', outputs=big, id="a"), code("y", id="b")]
        cells.append({"cell_type": "markdown", "source": "z", "attachments": {"a": {"image/png": "A" * 10**7}}})
        text = json.dumps(document(*cells, metadata={"widgets": {"state": "A" * 10**7}}), indent=1)
        assert len(text) > 2 * MAX_BYTES
        notebook = read(text)
        assert [cell.source for cell in notebook.cells] == ['x = {"outputs": ["\\"]"]}', "y", "z"]
        assert notebook.cells[0].outputs == []
        assert notebook.metadata == {
            "left_out": f"{LAB}.ipynb has {len(text):,} bytes, so it was read without its outputs; no points lost"
        }
        assert read(json.dumps(document(code("1", outputs=big[:0])))).metadata == {}

    @pytest.mark.parametrize(
        ("begin", "piece", "end", "expected"),
        [
            ('{"cells": "', '\\"', "", "is not JSON"),
            ('{"cells": ', '"outputs":', "", "is not JSON"),
            ('{"nbformat": 4, "cells": [', "[],", "1]}", "too many pieces"),
            ('{"outputs": ', '{"outputs":[', "", "too many pieces"),
            ("", "[", "", "too many pieces"),
        ],
    )
    def test_a_large_file_of_odd_pieces_takes_seconds(self, refused, begin, piece, end, expected):
        text = begin + piece * (25_000_000 // len(piece)) + end
        line = refused(text)
        assert expected in line or f"at most {MAX_BYTES:,} are read without outputs" in line

    def test_the_limit_with_outputs(self, refused):
        assert f"at most {MAX_BYTES_WITH_OUTPUTS:,} are read: clear the outputs" in refused(
            b" " * (MAX_BYTES_WITH_OUTPUTS + 1)
        )

    def test_not_utf8(self, refused):
        assert "is not UTF-8 text (byte 0)" in refused(b"\xff\xfe")

    def test_what_nobody_thought_of(self, refused, monkeypatch):
        monkeypatch.setattr("autograde.submission.submitted_notebook.safe_outputs", lambda cell: 1 / 0)
        assert "could not be read (ZeroDivisionError)" in refused(document(code()))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[" * 200_000, "nested too deeply"),
        ('{"a":' * 200_000, "nested too deeply"),
        ('{"nbformat": ' + "9" * 10_000 + "}", "a number that is too long"),
        ('{"nbformat": ' + "9" * 4_000 + "}", "has nbformat 999"),
        ("[]", "is not a notebook, but a list"),
        ('"' + "<script>" * 100 + '"', "is not a notebook"),
        ("{}", "has nbformat None"),
        (document(nbformat=2), "has nbformat 2"),
        (document(nbformat=5), "has nbformat 5"),
        (document(nbformat=True), "has nbformat True"),
        (document(nbformat=4.0), "has nbformat 4.0"),
        (document(nbformat=[4]), "has nbformat a list"),
        (document(nbformat="<b>\x1b[2J\u202e\ud800"), "has nbformat '<b>"),
        (document(cells={}), "has no list of cells"),
        ({"nbformat": 4}, "has no list of cells"),
        (document(code(), 7), "cell 2 is no cell, but 7"),
        (document({"cell_type": "heading", "source": ""}), "cell 1 has the type 'heading'"),
        (document({"cell_type": ["code"], "source": ""}), "cell 1 has the type a list"),
        (document(code(None)), "cell 1 has no text as its source"),
        (document(code(["a", 1])), "cell 1 has no text as its source"),
        (document(code({"a": 1})), "cell 1 has no text as its source"),
        (document({"cell_type": "code"}), "cell 1 has no text as its source"),
        (document(*[code()] * (MAX_CELLS + 1)), "2,001 cells"),
        ({"nbformat": 3}, "no list of worksheets"),
        ({"nbformat": 3, "worksheets": [7]}, "no list of worksheets"),
        ({"nbformat": 3, "worksheets": [{"cells": [code()] * 1001}] * 2}, "2,002 cells"),
        ({"nbformat": 3, "worksheets": [{"cells": [{"cell_type": "x"}]}]}, "cell 1 has the type 'x'"),
        ({"nbformat": 3, "worksheets": [{"cells": [{"cell_type": "code", "input": 7}]}]}, "no text as its source"),
    ],
)
def test_what_is_no_notebook_is_refused(refused, content, says):
    assert says in refused(content)


def test_what_an_honest_notebook_holds_comes_out(read):
    fields = {"grade_id": "q", "solution": True, "grade": True, "points": 5, "schema_version": 3, "locked": False}
    cells = [
        new_code_cell("a = 1\nprint(a)", id="one", execution_count=3, outputs=[new_output("stream", text="1\n")]),
        new_markdown_cell("![](attachment:p.png)", id="q", metadata={"nbgrader": fields, "deletable": False}),
    ]
    cells[1].attachments = {"p.png": {"image/png": PICTURE, "text/html": "<b>"}}
    notebook = read(nbformat.writes(new_notebook(cells=cells)))
    assert notebook.cells[0] == cells[0]
    assert notebook.cells[1].metadata == {"nbgrader": fields}
    assert notebook.cells[1].attachments == {"p.png": {"image/png": PICTURE}}


def test_everything_else_is_left_behind(read):
    cell = code(
        ["a\n", "b\ud800"], id="x", metadata={"tags": ["parameters"], "nbgrader": {"points": {"a": 1}}}, extra={"a": 1}
    )
    notebook = read(document(cell, metadata={"kernelspec": {"name": "evil"}, "widgets": {}}, extra=1))
    assert notebook.cells[0].source == "a\nb\ufffd"
    assert notebook.metadata == {}
    assert set(notebook.cells[0]) == {"cell_type", "metadata", "source", "outputs", "execution_count", "id"}
    assert notebook.cells[0].metadata == {}


def test_ids_are_unique_and_the_first_keeps_its_own(read):
    ids = ["a", "a", None, "", "x" * 65, "<b>", ["l"], "unnamed-1", "a b"]
    cells = [code(id=name) for name in ids] + [code(metadata={"id": "colab"}), code(metadata=7)]
    found = [cell.id for cell in read(document(*cells)).cells]
    assert found[0] == "a" and found[7] == "unnamed-1" and found[9] == "colab"
    assert len(set(found)) == len(found)
    assert sorted(found[1:3] + found[3:7]) == sorted(f"unnamed-{n}" for n in range(2, 8))


@pytest.mark.parametrize("count", [None, True, "7", -1, 1 << 40, 2.0, {}])
def test_an_execution_count_is_a_number_or_none(read, count):
    assert read(document(code(execution_count=count))).cells[0].execution_count is None


def test_nbformat_4_4_has_no_ids(read):
    assert read(document(code(), code(), nbformat_minor=4)).cells[1].id == "unnamed-2"


def test_nbformat_3_is_converted(read):
    cells = [
        {"cell_type": "heading", "level": 2, "source": "Title", "metadata": {}},
        {"cell_type": "heading", "level": 10**12, "source": "Bomb"},
        {"cell_type": "html", "source": ["<b>"]},
        {"cell_type": "code", "input": ["a\n", "b"], "outputs": [{"output_type": "pyout"}], "language": "python"},
    ]
    cells[3]["metadata"] = {"nbgrader": {"grade_id": "e"}}
    notebook = read({"nbformat": 3, "nbformat_minor": 0, "metadata": {}, "worksheets": [{"cells": cells}]})
    assert [cell.source for cell in notebook.cells] == ["## Title", "# Bomb", "<b>", "a\nb"]
    assert [cell.cell_type for cell in notebook.cells] == ["markdown"] * 3 + ["code"]
    assert notebook.cells[3].metadata.nbgrader.grade_id == "e"


def test_a_conversion_that_fails_is_no_notebook(refused, monkeypatch):
    monkeypatch.setattr(nbformat, "convert", lambda *_: 1 / 0)
    assert "cannot be converted from nbformat 3 (ZeroDivisionError)" in refused({"nbformat": 3, "worksheets": []})


class TestSafeOutputs:
    def out(self, **data):
        return {"output_type": "display_data", "data": {k.replace("_", "/", 1): v for k, v in data.items()}}

    def test_text_and_pictures_only(self):
        bad = {"text_html": "<script>", "image_svg+xml": "<svg>", "application_javascript": "x", "image_gif": PICTURE}
        bad["application_vnd.jupyter.widget-view+json"] = {"model_id": "x"}
        outputs = [
            {"output_type": "stream", "name": "evil", "text": ["a\n", "b"], "extra": 1},
            self.out(**bad),
            self.out(text_plain="<b>", image_png=PICTURE, **bad) | {"metadata": {"image/png": {"width": 1e9}}},
            {"output_type": "error", "ename": "E", "evalue": "<b>", "traceback": ["<script>"]},
            {"output_type": "execute_result", "data": {"text/plain": "7"}, "execution_count": "<b>"},
            {"output_type": "stream"}, {"output_type": ["stream"]}, 7, None, {"output_type": "display_data", "data": []},
        ]  # fmt: skip
        assert safe_outputs(code(outputs=outputs)) == [
            {"output_type": "stream", "name": "stdout", "text": "a\nb"},
            {"output_type": "display_data", "data": {"text/plain": "<b>", "image/png": PICTURE}, "metadata": {}},
            {"output_type": "execute_result", "data": {"text/plain": "7"}, "metadata": {}, "execution_count": None},
        ]

    @pytest.mark.parametrize("cell", [None, 7, [], {}, {"outputs": None}, {"outputs": {"a": 1}}, {"outputs": "stream"}])
    def test_no_outputs(self, cell):
        assert safe_outputs(cell) == []

    def test_text_is_bounded_in_all(self):
        outputs = [{"output_type": "stream", "name": "stdout", "text": "x" * 15_000}] * 5 + [self.out(text_plain="y")]
        texts = [output.get("text", "") for output in safe_outputs(code(outputs=outputs))]
        assert 19_000 < sum(map(len, texts)) <= 20_000
        assert texts[1].endswith("[cut here]")

    def test_terminal_codes_and_directions_of_text_do_not_reach_the_reader(self):
        text = "\x1b[31mred\x1b[0m \x1b]0;title\x07 \u202eabc\x00\ud800\tö\r\n10%\r100%\r\nend"
        shown = safe_outputs(code(outputs=[{"output_type": "stream", "text": text}]))[0].text
        assert shown == "red \ufffd]0;title\ufffd \ufffdabc\ufffd\ufffd\tö\n100%\nend"

    @pytest.mark.parametrize(
        "data",
        [
            "", 7, None, [1], "<svg>", PICTURE[:-1], PICTURE + "!", "!" + PICTURE, PICTURE + "\u00e9", PICTURE + " x",
            base64.b64encode(b"<svg onload=alert(1)>").decode(),
            base64.b64encode(b" " + png()).decode(),
            base64.b64encode(png() + bytes(MAX_IMAGE_BYTES + 1 - len(png()))).decode(),
            "A" * 10_000_000,
            base64.b64encode(png(100_000, 100_000)).decode(),
        ],
    )  # fmt: skip
    def test_what_is_not_a_small_png_is_left_out(self, data):
        assert safe_outputs(code(outputs=[self.out(image_png=data)])) == []

    def test_a_picture_of_the_largest_size_and_in_lines(self):
        picture = base64.encodebytes(png() + bytes(MAX_IMAGE_BYTES - len(png()))).decode()
        shown = safe_outputs(code(outputs=[self.out(image_png=picture.splitlines(keepends=True))]))
        assert shown[0].data["image/png"] == picture.replace("\n", "")


def spoil(value, draw):
    """The JSON value with one part of it replaced, removed, doubled or nested."""
    odd = [None, True, -1, 1e308, float("nan"), "", "\ud800", "x" * 5000, [], {}, [[]], {"a": {}}, ["a", 1], 10**30]
    if isinstance(value, dict) and value and draw.random() < 0.85:
        key = draw.choice(list(value))
        if draw.random() < 0.1:
            return {name: part for name, part in value.items() if name != key}
        return value | {key: spoil(value[key], draw)}
    if isinstance(value, list) and value and draw.random() < 0.85:
        place = draw.randrange(len(value))
        if draw.random() < 0.1:
            return value[:place] + value[place:] * 2
        return [*value[:place], spoil(value[place], draw), *value[place + 1 :]]
    return draw.choice(odd)


@pytest.mark.parametrize("version", [4, 3])
def test_spoilt_notebooks_are_read_or_refused(submission, capfd, version):
    outputs = [{"output_type": "stream", "name": "stdout", "text": ["a"]}]
    outputs.append({"output_type": "display_data", "metadata": {}, "data": {"text/plain": "x", "image/png": PICTURE}})
    cells = [
        code(["a\n"], id="a", outputs=outputs, input="a"),
        {"cell_type": "markdown", "id": "b", "source": "t", "metadata": {"nbgrader": {"grade_id": "q", "points": 1}}},
    ]
    cells[1]["attachments"] = {"p.png": {"image/png": PICTURE}}
    good = document(*cells, nbformat=version, worksheets=[{"cells": cells}])
    draw, seen = random.Random(version), {True: 0, False: 0}
    path = submission / f"{LAB}.ipynb"
    for _ in range(800):
        spoilt = spoil(good, draw)
        for _ in range(draw.randrange(3)):
            spoilt = spoil(spoilt, draw)
        path.write_text(json.dumps(spoilt))
        try:
            notebook = read_notebook(submission, LAB)
        except EvidenceError as error:
            assert str(error).isprintable() and "could not be read (" not in str(error)
            seen[False] += 1
        else:
            nbformat.validate(notebook)
            seen[True] += 1
    assert min(seen.values()) > 20
    assert capfd.readouterr() == ("", "")

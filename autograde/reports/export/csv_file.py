"""A CSV file that an instructor downloaded: single cells of it change, and every other cell keeps its text.

The file keeps its encoding, byte-order mark, separator and line ends. Quotes are `csv.writer`'s: no importer reads them
differently.

Formulas. A spreadsheet computes a cell whose text begins with ``= + - @``, or with a tab or a carriage return before one
of them, quoted or not (OWASP, *CSV Injection*). Names, addresses and ids come from students, so such a text gets an
apostrophe in front, which spreadsheets show as text. A spreadsheet's separator is its locale's, not the file's. Where the
two differ, a cell is cut at the spreadsheet's: quotes protect only a cell that begins with one *after that separator*, so
``1,"a;=B"`` opens a formula in a second column. An apostrophe therefore also goes in front of what would be a formula
after any separator or line end within a cell.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Iterable
from pathlib import Path

__all__ = ["LIMIT", "CsvFile", "ExportError", "neutral", "plain"]

LIMIT = 20 * 2**20
_SEPARATORS = (",", ";", "\t")
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))

# The full-width forms are formulas to spreadsheets in East Asian locales.
_FORMULA = "=+-@＝＋－＠"
_BLANKS = "\t\r\n"
# A comma within a sentence may be followed by a number ("0.1, -1"): a number alone is no formula.
_WITHIN = re.compile(rf"([,;\t\r\n][\s\"]*+)(?=[{re.escape(_FORMULA)}])(?![+-][0-9.]+(?:[\s,;)]|\Z))")

_GUARDED = re.compile(_WITHIN.pattern.replace("*+)", "*+)'", 1))


class ExportError(RuntimeError):
    """The scores cannot be exported; one line that names the file, the place in it and the remedy."""


def neutral(text: str) -> str:
    """A text as a cell that no spreadsheet computes.

    Returns the text without NUL, with an apostrophe in front of what begins as a formula does: the text itself, blanks apart,
    and what follows a separator or a line end in it. Applying this twice is the same as once.
    """
    text = _WITHIN.sub(r"\1'", text.replace("\0", ""))
    first = text.lstrip()[:1]
    return "'" + text if text[:1] and (text[0] in _BLANKS or (first and first in _FORMULA)) else text


def plain(text: str) -> str:
    """A cell's text without the apostrophes that `neutral` put there: ``plain(neutral(text))`` is the text.

    Of a text that had such an apostrophe itself, it is lost; so is NUL.
    """
    text = text[1:] if text[:1] == "'" and neutral(text[1:]) == text else text
    return _GUARDED.sub(r"\1", text)


class CsvFile:
    """A CSV file with a header row, in memory.

    Parameters
    ----------
    path : Path
        Of at most 20 MiB: UTF-8, UTF-16 with a byte-order mark, or Windows-1252.
    known : iterable of str
        Column headings. The separator (comma, semicolon or tab) is the one that yields most of them.

    Attributes
    ----------
    header : list of str
        The first row's cells, without blanks around them.
    rows : list of list of str
        All rows, the header's included, as `csv.reader` reads them.

    Raises `ExportError`: the file cannot be read, is too large, is not text, has a quote that is never closed, or none
    of `known`.
    """

    def __init__(self, path: Path, known: Iterable[str]):
        self.path = path
        self._mark, self._encoding, text = _decode(path)
        known = {name.casefold() for name in known}

        def known_headings(separator: str) -> int:
            return sum(cell.strip().casefold() in known for cell in _rows(text, separator)[0][0])

        self._separator = max(_SEPARATORS, key=known_headings)
        self.rows, closed = _rows(text, self._separator)
        self.header = [cell.strip() for cell in self.rows[0]]
        if not known.intersection(map(str.casefold, self.header)):
            raise ExportError(
                f"{path}: row 1 names no column that is expected there; give the file as it was downloaded"
            )
        if not closed:
            raise ExportError(f"{path}: row {len(self.rows)} has a quote that is never closed; download the file again")
        self._end = re.search(r"\r\n|\r|\n|\Z", text).group() or "\n"

    def column(self, name: str) -> int | None:
        """Index of the first column with this heading, in capital or small letters; None where there is none."""
        headings = [heading.casefold() for heading in self.header]
        return headings.index(name.casefold()) if name.casefold() in headings else None

    def get(self, row: int, column: int) -> str:
        """Text of a cell; empty where the row ends before it."""
        cells = self.rows[row]
        return cells[column] if column < len(cells) else ""

    def set(self, row: int, column: int, text: str) -> None:
        """Change a cell. The text is written as it is; see `neutral`."""
        cells = self.rows[row]
        cells.extend([""] * (column + 1 - len(cells)))
        cells[column] = text

    def neutralise(self, names: Iterable[str]) -> None:
        """Make every cell `neutral` in the columns with these headings, where they exist."""
        for column in filter(lambda column: column is not None, map(self.column, names)):
            for row in range(1, len(self.rows)):
                if (text := self.get(row, column)) != (safe := neutral(text)):
                    self.set(row, column, safe)

    def to_bytes(self) -> bytes:
        """The whole file. Raises `ExportError`: a changed cell has a character that the file's encoding lacks."""
        text = "".join(self._line(cells) + self._end for cells in self.rows)
        try:
            return self._mark + text.encode(self._encoding)
        except UnicodeEncodeError as error:
            what = f"U+{ord(error.object[error.start]):04X}"
            raise ExportError(f"{self.path}: {self._encoding} has no {what}; save the template as UTF-8") from None

    def _line(self, cells: list[str]) -> str:
        # With both characters in its line end, the writer quotes cells that have either of them.
        line = io.StringIO(newline="")
        csv.writer(line, delimiter=self._separator, lineterminator="\r\n").writerow(cells)
        return line.getvalue().removesuffix("\r\n")


def _decode(path: Path) -> tuple[bytes, str, str]:
    try:
        if not path.is_file():
            raise ExportError(f"{path} is not a file; give the CSV that was downloaded")
        with path.open("rb") as file:
            data = file.read(LIMIT + 1)
    except OSError as error:
        raise ExportError(f"{path} cannot be read ({error.strerror}); give the CSV that was downloaded") from None
    if len(data) > LIMIT:
        raise ExportError(f"{path} is larger than {LIMIT // 2**20} MiB; give the CSV of one course")
    mark, encoding = next(((mark, encoding) for mark, encoding in _MARKS if data.startswith(mark)), (b"", "utf-8"))
    for attempt in (encoding,) if mark else (encoding, "cp1252"):
        try:
            # No character of a gradebook is NUL, and readers differ in what they make of one.
            return mark, attempt, data[len(mark) :].decode(attempt).replace("\0", "")
        except UnicodeDecodeError as error:
            place = len(mark) + error.start
    raise ExportError(f"{path}: byte {place} is not text in {encoding}; save it as CSV UTF-8")


def _rows(text: str, separator: str) -> tuple[list[list[str]], bool]:
    """Rows, at least one, and whether the last quote is closed: then a line added at the end is a row of its own."""
    csv.field_size_limit(max(csv.field_size_limit(), LIMIT))  # an online text may be longer than the module's default
    rows = list(csv.reader(io.StringIO(text + "\nend", newline=""), delimiter=separator))
    closed = rows[-1] == ["end"]
    if closed:
        rows.pop()
        if rows and not rows[-1]:  # after the last line end
            rows.pop()
    return rows or [[]], closed

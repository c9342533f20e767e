"""The CSV that an instructor downloaded: single cells of it change, and every other cell keeps its text.

Encoding, byte-order mark, separator and ends of lines are the template's. Quotes are `csv.writer`'s: no importer reads
them differently.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Iterable
from pathlib import Path

from autograde.reports.export.cells import neutral

__all__ = ["LIMIT", "ExportError", "Template"]

LIMIT = 20 * 2**20
_SEPARATORS = (",", ";", "\t")
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


class ExportError(RuntimeError):
    """The scores cannot be exported; one line that names the file, the place in it and the remedy."""


class Template:
    """A CSV file with a header row.

    Parameters
    ----------
    path : Path
        Of at most 20 MiB: UTF-8, UTF-16 with a byte-order mark, or Windows-1252.
    known : iterable of str
        Names of columns, by which the separator (comma, semicolon or tab) is found.

    Attributes
    ----------
    path : Path
    header : list of str
        The first row's cells, without blanks around them.
    rows : list of list of str
        All rows, the header's included, as `csv.reader` reads them.

    Raises
    ------
    ExportError
        The file cannot be read, is too large, is not text, has a quote that is never closed, or none of `known`.
    """

    def __init__(self, path: Path, known: Iterable[str]):
        self.path = path
        self._mark, self._encoding, text = _decode(path)
        known = {name.casefold() for name in known}
        read = {separator: _rows(text, separator) for separator in _SEPARATORS}
        names = {separator: [cell.strip() for cell in rows[0]] for separator, (rows, _) in read.items()}
        found = {separator: sum(name.casefold() in known for name in names[separator]) for separator in _SEPARATORS}
        self._separator = max(_SEPARATORS, key=found.__getitem__)
        if not found[self._separator]:
            raise ExportError(
                f"{path}: row 1 names no column that is expected there; give the file as it was downloaded"
            )
        self.rows, closed = read[self._separator]
        if not closed:
            raise ExportError(f"{path}: row {len(self.rows)} has a quote that is never closed; download the file again")
        self.header = names[self._separator]
        self._end = re.search(r"\r\n|\r|\n|\Z", text).group() or "\n"

    def column(self, name: str) -> int | None:
        """Index of the first column of a heading, in capital or small letters; None where there is none."""
        wanted = name.casefold()
        return next((index for index, heading in enumerate(self.header) if heading.casefold() == wanted), None)

    def get(self, row: int, column: int) -> str:
        """Text of a cell; empty where the row ends before it."""
        cells = self.rows[row]
        return cells[column] if column < len(cells) else ""

    def set(self, row: int, column: int, text: str) -> None:
        """Change a cell. The text is written as it is; see `autograde.reports.export.cells.neutral`."""
        cells = self.rows[row]
        cells.extend([""] * (column + 1 - len(cells)))
        cells[column] = text

    def neutralise(self, names: Iterable[str]) -> None:
        """Make sure that no spreadsheet takes a cell in the columns of these names, where they exist, for a formula."""
        for column in filter(lambda column: column is not None, map(self.column, names)):
            for row in range(1, len(self.rows)):
                if (text := self.get(row, column)) != (safe := neutral(text)):
                    self.set(row, column, safe)

    def to_bytes(self) -> bytes:
        """The whole file.

        Raises
        ------
        ExportError
            A changed cell has a character that the file's encoding lacks.
        """
        text = "".join(self._line(cells) + self._end for cells in self.rows)
        try:
            return self._mark + text.encode(self._encoding)
        except UnicodeEncodeError as error:
            what = f"U+{ord(error.object[error.start]):04X}"
            raise ExportError(f"{self.path}: {self._encoding} has no {what}; save the template as UTF-8") from None

    def _line(self, cells: list[str]) -> str:
        # With both characters in its end of line, the writer quotes cells that have either of them.
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
    """Rows, at least one, and whether the last quote is closed: a line added at the end is a row of its own then."""
    csv.field_size_limit(max(csv.field_size_limit(), LIMIT))  # an online text may be longer than the module's default
    rows = list(csv.reader(io.StringIO(text + "\nend", newline=""), delimiter=separator))
    closed = rows[-1] == ["end"]
    if closed:
        rows.pop()
        if rows and not rows[-1]:  # after the last end of line
            rows.pop()
    return rows or [[]], closed

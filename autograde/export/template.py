"""The CSV that an instructor downloaded: single cells of it change, every other byte stays.

Python's csv module reads what a cell says and forgets how it was written: which cells were quoted, how each line ended.
So the file is cut here into raw cells, and what was not changed is written back as it was: encoding, byte-order mark,
separator, quotes, ends of lines. What the cells say is what `csv.reader` says; changed cells are written by
`csv.writer`, in quotes where they were in quotes.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Iterable
from pathlib import Path

from .cells import neutral

__all__ = ["LIMIT", "ExportError", "Template"]

LIMIT = 20 * 2**20
_SEPARATORS = (",", ";", "\t")
_QUOTED = re.compile(r'"((?:[^"]++|"")*+)"(.*)', re.DOTALL)
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

    Raises
    ------
    ExportError
        The file cannot be read, is too large, is not text, has a quote that is never closed, or none of `known`.
    """

    def __init__(self, path: Path, known: Iterable[str]):
        self.path = path
        self._mark, self._encoding, text = _decode(path)
        known = {name.casefold() for name in known}
        first = {separator: next(_rows(path, text, separator), ([], ""))[0] for separator in _SEPARATORS}
        names = {separator: [_value(raw).strip() for raw in cells] for separator, cells in first.items()}
        found = {separator: sum(name.casefold() in known for name in names[separator]) for separator in _SEPARATORS}
        self._separator = max(_SEPARATORS, key=found.__getitem__)
        if not found[self._separator]:
            raise ExportError(
                f"{path}: row 1 names no column that is expected there; give the file as it was downloaded"
            )
        self.header = names[self._separator]
        self._rows = list(_rows(path, text, self._separator))

    def __len__(self) -> int:
        """How many rows there are, the header's included."""
        return len(self._rows)

    def column(self, name: str) -> int | None:
        """Where a column is.

        Parameters
        ----------
        name : str
            Its heading, in capital or small letters.

        Returns
        -------
        int or None
            The first column of that heading, None where there is none.
        """
        wanted = name.casefold()
        return next((index for index, heading in enumerate(self.header) if heading.casefold() == wanted), None)

    def row(self, row: int) -> list[str]:
        """What the cells of a row say.

        Parameters
        ----------
        row : int
            0 is the header.

        Returns
        -------
        list of str
        """
        return [_value(raw) for raw in self._rows[row][0]]

    def get(self, row: int, column: int) -> str:
        """What a cell says; empty where the row ends before it.

        Parameters
        ----------
        row, column : int

        Returns
        -------
        str
        """
        cells = self._rows[row][0]
        return _value(cells[column]) if column < len(cells) else ""

    def set(self, row: int, column: int, text: str) -> None:
        """Change a cell, in quotes where it was in quotes or needs them.

        Parameters
        ----------
        row, column : int
        text : str
            Written as it is; see `autograde.export.cells.neutral`.
        """
        cells = self._rows[row][0]
        cells.extend([""] * (column + 1 - len(cells)))
        quoting = csv.QUOTE_ALL if cells[column].startswith('"') else csv.QUOTE_MINIMAL
        line = io.StringIO()
        csv.writer(line, delimiter=self._separator, quoting=quoting).writerow([text])
        cells[column] = line.getvalue().removesuffix("\r\n")

    def neutralise(self, names: Iterable[str]) -> None:
        """Make sure that no cell in the columns of these names is taken for a formula.

        Parameters
        ----------
        names : iterable of str
            Those that the file has not are passed over.
        """
        for column in filter(lambda column: column is not None, map(self.column, names)):
            for row in range(1, len(self)):
                text = self.get(row, column)
                if (safe := neutral(text)) != text:
                    self.set(row, column, safe)

    def to_bytes(self) -> bytes:
        """The whole file.

        Returns
        -------
        bytes

        Raises
        ------
        ExportError
            A changed cell has a character that the file's encoding lacks.
        """
        text = "".join(self._separator.join(cells) + end for cells, end in self._rows)
        try:
            return self._mark + text.encode(self._encoding)
        except UnicodeEncodeError as error:
            what = f"U+{ord(error.object[error.start]):04X}"
            raise ExportError(f"{self.path}: {self._encoding} has no {what}; save the template as UTF-8") from None


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


def _rows(path: Path, text: str, separator: str):
    """Rows as (raw cells, end of line); possessive, so that no text takes more than one pass."""
    cell = re.compile(
        rf'("(?:[^"]++|"")*+"[^{separator}\r\n]*+|[^"{separator}\r\n][^{separator}\r\n]*+|)({separator}|\r\n|\r|\n|\Z)'
    )
    position, cells, number = 0, [], 1
    while position < len(text) or cells:
        found = cell.match(text, position)
        if found is None:
            raise ExportError(f"{path}: row {number} has a quote that is never closed; download the file again")
        raw, end = found.groups()
        cells.append(raw)
        position = found.end()
        if end != separator:
            yield cells, end
            cells, number = [], number + 1


def _value(raw: str) -> str:
    if not raw.startswith('"'):
        return raw
    inner, rest = _QUOTED.fullmatch(raw).groups()
    return inner.replace('""', '"') + rest

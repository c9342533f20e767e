"""Trials from a file: ``-g @trials.csv``, whose header has the parameters' names and whose rows are trials."""

import csv
from itertools import islice
from pathlib import Path
from typing import Any

from course_lib.runs.parameters import ParameterError
from course_lib.runs.sweep.grid import LONGEST_AXIS, parse_value

__all__ = ["read_trials"]


def read_trials(path: Path) -> dict[str, list[Any]]:
    """The values of each parameter, those of a trial at the same place in each list.

    The file is CSV in UTF-8, with or without a byte-order mark. Values are read as those of an axis are; empty lines are
    skipped.

    Raises
    ------
    ParameterError
        One line that names the file, the line and the column.
    """
    place = f"-g @{path}"
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            rows = ((reader.line_num, [cell.strip() for cell in row]) for row in islice(reader, LONGEST_AXIS + 2))
            lines = [(number, row) for number, row in rows if any(row)]
    except (OSError, ValueError, csv.Error) as error:  # a UnicodeDecodeError is a ValueError
        why = getattr(error, "strerror", None) or ("it is not UTF-8" if isinstance(error, UnicodeError) else error)
        raise ParameterError(f"{place} cannot be read: {why}") from None
    if not lines:
        raise ParameterError(f"{place} is empty; its first line needs names of parameters, such as num_gpus,batch_size")
    (_, names), *trials = lines
    for name in names:
        if not name.isidentifier():
            remedy = "; separate the columns by commas" if ";" in name or "\t" in name else ""
            raise ParameterError(f"{place}: the first line has {name[:60]!r}, which is no parameter's name{remedy}")
    if twice := [name for name in names if names.count(name) > 1]:
        raise ParameterError(f"{place}: the first line has {twice[0]} twice")
    if not trials:
        raise ParameterError(f"{place} has names of parameters and no trials; each further line is a trial")
    if len(trials) > LONGEST_AXIS:
        raise ParameterError(f"{place} has more than {LONGEST_AXIS:,} trials")
    for number, row in trials:
        if len(row) != len(names):
            raise ParameterError(f"{place}, line {number} has {len(row)} values for {len(names)} parameters")
    return {
        name: [_cell(f"{place}, line {number}, {name}", row[column]) for number, row in trials]
        for column, name in enumerate(names)
    }


def _cell(place: str, text: str) -> Any:
    if not text:
        raise ParameterError(f"{place}: the value is missing")
    value = parse_value(place, text) if text[0] not in "=@" else text
    if isinstance(value, str) and text[0] in "=+-@":
        raise ParameterError(f"{place}: {text[:40]!r} is a formula; save the file with values")
    return value

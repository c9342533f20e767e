"""Single cells: text that no spreadsheet takes for a formula, and numbers in the file's own notation.

A spreadsheet computes a cell whose text begins with ``= + - @``, or with a tab or a carriage return before one of them,
quoted or not (OWASP, *CSV Injection*). Names, addresses and ids come from students, so such a text gets an apostrophe
in front, which spreadsheets show as text.

The separator of a spreadsheet is its locale's, not the file's. Where it is another, a cell is cut at it: quotes protect
only a cell that begins with one *after that separator*, so ``1,"a;=B"`` opens a formula in a second column. So an
apostrophe goes in front of what would be a formula after any separator or end of line within a cell, too.
"""

from __future__ import annotations

import re

__all__ = ["neutral", "number", "parse_number"]

# The full-width forms are formulas to spreadsheets in East Asian locales.
_FORMULA = "=+-@＝＋－＠"
_BLANKS = "\t\r\n"
# A comma within a sentence is followed by a number now and then ("0.1, -1"): a number alone is no formula.
_WITHIN = re.compile(rf"([,;\t\r\n][\s\"]*+)(?=[{re.escape(_FORMULA)}])(?![+-][0-9.]+(?:[\s,;)]|\Z))")
_NUMBER = re.compile(r"[0-9]{1,9}(?:[.,][0-9]{1,9})?", re.ASCII)


def neutral(text: str) -> str:
    """A text as a cell that is only ever shown.

    Parameters
    ----------
    text : str

    Returns
    -------
    str
        Without NUL; with an apostrophe in front where it begins, blanks apart, as a formula does, and where what follows
        a separator or an end of line does. Twice is as once.
    """
    text = _WITHIN.sub(r"\1'", text.replace("\0", ""))
    first = text.lstrip()[:1]
    return "'" + text if text[:1] and (text[0] in _BLANKS or (first and first in _FORMULA)) else text


def number(value: float, mark: str = ".") -> str:
    """A score with two decimals, as Canvas and Moodle show theirs.

    Parameters
    ----------
    value : float
        Finite and not negative.
    mark : str
        The decimal mark.

    Returns
    -------
    str
    """
    return f"{value:.2f}".replace(".", mark)


def parse_number(text: str) -> float | None:
    """A number of points as Canvas and Moodle write it, with a decimal point or comma; None for anything else.

    Parameters
    ----------
    text : str

    Returns
    -------
    float or None
    """
    text = text.strip()
    return float(text.replace(",", ".")) if _NUMBER.fullmatch(text) else None

"""Cutting the outputs out of a notebook that is too large with them, before it is parsed.

Parsing 100 MB of JSON can take many gigabytes of memory. Outputs are never needed for a grade, and they are what makes
an honest notebook large. So one pass over the bytes finds the values of the keys that hold outputs, pictures and
widgets, and leaves them out. The pass takes time in proportion to the bytes and builds no objects.
"""

from __future__ import annotations

import re

__all__ = ["TooManyTokens", "without_outputs"]

MAX_TOKENS = 4_000_000  # some seconds; a notebook of 100 MB that Jupyter wrote has about a million
# The last alternative takes a string that is never closed to its end: otherwise each quote in it would start a search.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[{}\[\]]', re.DOTALL)
_COLON = re.compile(rb"\s*+:\s*+(?=[\[{])")
_LEFT_OUT = {b'"outputs"', b'"attachments"', b'"widgets"'}
_EMPTY = {b"[": b"[]", b"{": b"{}"}


class TooManyTokens(ValueError):
    """The text has more strings and brackets than are looked at."""


def without_outputs(text: bytes) -> bytes:
    """JSON text with an empty list or object for each list or object under ``outputs``, ``attachments``, ``widgets``.

    What is no JSON stays no JSON.

    Raises `TooManyTokens`.
    """
    pieces, kept, tokens = [], 0, 0
    depth = skipped = 0  # of open brackets in a value that is left out, and where it began
    position = 0
    while (found := _TOKEN.search(text, position)) is not None:
        position = found.end()
        tokens += 1
        if tokens > MAX_TOKENS:
            raise TooManyTokens
        token = found[0]
        if depth:
            depth += (token in (b"{", b"[")) - (token in (b"}", b"]"))
            if not depth:
                pieces += [text[kept:skipped], _EMPTY[text[skipped : skipped + 1]]]
                kept = position
        elif token in _LEFT_OUT and (colon := _COLON.match(text, position)) is not None:
            skipped = colon.end()
            depth, position = 1, skipped + 1
    return b"".join([*pieces, text[kept:]])

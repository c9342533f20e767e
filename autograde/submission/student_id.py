"""Which names of folders below ``submitted/`` may be a student's id."""

from __future__ import annotations

import re
import unicodedata

__all__ = ["is_student_id"]

# Letters and marks that show nothing: Hangul fillers, the grapheme joiner, variation selectors.
_INVISIBLE = re.compile("[\u115f\u1160\u3164\uffa0\u034f\u180b-\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef]")
_LONGEST = 100  # characters; and 200 bytes, since a file's name has at most 255


def is_student_id(name: str) -> bool:
    """Whether a name may be a student's id: letters and digits of any script, and ``_.@-``.

    The first character is a letter, a digit or ``_``. That keeps an id from being a hidden file, an option on a command
    line, or a formula in a spreadsheet. A mark may follow a letter: some systems write "ë" as two characters.
    """
    if not 0 < len(name) <= _LONGEST or name[0] in ".@-" or _INVISIBLE.search(name):
        return False
    before = ""
    for character in name:
        kind = unicodedata.category(character)
        mark = kind in ("Mn", "Mc") and before[:1] in ("L", "M")
        if not (kind in ("Lu", "Ll", "Lt", "Lm", "Lo", "Nd") or mark or character in "_.@-"):
            return False
        before = kind
    return len(name.encode()) <= 2 * _LONGEST

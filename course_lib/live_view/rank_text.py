"""What one rank has printed, read from its log as it grows: whole lines, and the last ones only."""

from __future__ import annotations

import codecs
import re
from collections import deque
from pathlib import Path

__all__ = ["KEPT", "RankText"]

KEPT = 200  # last lines
WIDEST = 2000  # letters of a line
READ = 1 << 18  # bytes of one look; of what has piled up beyond that only the lines are counted

CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-Z\\-_]|[\x00-\x08\x0b-\x1f\x7f]")


class RankText:
    """A rank's lines. What a carriage return has overwritten, as progress bars do, is left out."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.lines: deque[str] = deque(maxlen=KEPT)
        self.count = 0  # lines, those that are no longer kept included
        self._place = 0
        self._rest = ""  # of a line whose end has not come
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def left_out(self) -> int:
        return self.count - len(self.lines)

    def current(self) -> list[str]:
        """The lines, and the one that is being written."""
        begun = _as_seen(self._rest)
        return [*self.lines, begun] if begun else list(self.lines)

    def read(self, to_the_end: bool = False) -> bool:
        """Take in what has come; True where something has. `to_the_end`: nothing more will come."""
        if not self.log.exists():
            return False
        size = self.log.stat().st_size
        changed = size > self._place
        with self.log.open("rb") as file:
            file.seek(self._place)
            while size - self._place > 2 * READ:
                skipped = file.read(READ)
                self.count += skipped.count(b"\n")
                self._place += len(skipped)
                self._rest = ""
                self._decoder.reset()
            data = file.read(size - self._place)
        self._place += len(data)
        self._take(self._decoder.decode(data, final=to_the_end))
        if to_the_end and self._rest:
            self._take("\n")
        return changed

    def _take(self, text: str) -> None:
        *whole, rest = (self._rest + text).split("\n")
        for line in whole:
            self.lines.append(_as_seen(line))
            self.count += 1
        if len(rest) > 2 * WIDEST:  # a bar that is drawn over and over, or a line without end
            rest = rest[rest.rfind("\r", 0, -1) + 1 :][: 2 * WIDEST]
        self._rest = rest


def _as_seen(line: str) -> str:
    """A line as a terminal would show it in the end, without colours."""
    shown = CONTROL.sub("", line.rstrip("\r").rpartition("\r")[2]).expandtabs()
    return shown if len(shown) <= WIDEST else shown[:WIDEST] + " …"

"""The lines that ranks print, read from their logs as these grow, and shown rank by rank."""

from __future__ import annotations

import codecs
import re
from collections import deque
from collections.abc import Mapping
from html import escape
from pathlib import Path

from course_lib.live_view.cell_display import PRE

__all__ = ["KEPT", "RankLog", "ranks_html", "ranks_text"]

KEPT = 200  # last lines of a rank
WIDEST = 2000  # characters of a line
READ = 1 << 18  # bytes read at a time; of what has piled up beyond two of these only the lines are counted
OPEN = 15  # lines up to which a rank's block is shown open
TAIL = 24  # lines shown while the ranks run, divided between them
# Okabe–Ito, without those that are hard to see on white.
EDGES = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#808080"]

CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-Z\\-_]|[\x00-\x08\x0b-\x1f\x7f]")


class RankLog:
    """A rank's last lines. What a carriage return has overwritten, as progress bars do, is left out."""

    def __init__(self, path: Path) -> None:
        self.path = path
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
        if not self.path.exists():
            return False
        size = self.path.stat().st_size
        changed = size > self._place
        with self.path.open("rb") as file:
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
        self.lines += map(_as_seen, whole)
        self.count += len(whole)
        if len(rest) > 2 * WIDEST:  # a bar that is drawn over and over, or a line without end
            rest = rest[rest.rfind("\r", 0, -1) + 1 :][: 2 * WIDEST]
        self._rest = rest


def _as_seen(line: str) -> str:
    """A line as a terminal would show it in the end, without colours."""
    shown = CONTROL.sub("", line.rstrip("\r").rpartition("\r")[2]).expandtabs()
    return shown if len(shown) <= WIDEST else shown[:WIDEST] + " …"


def ranks_html(logs: Mapping[int, RankLog], over: bool, note: str = "") -> str:
    """A block for each rank that has printed. All of it is escaped.

    Parameters
    ----------
    over : bool
        The ranks have ended: all kept lines, longer blocks folded. Else the last few of each.
    note : str
        Where lines that are left out can be read.
    """
    tail = max(2, TAIL // max(1, len(logs)))
    blocks = []
    for rank, log in sorted(logs.items()):
        if not (lines := log.current()):
            continue
        head = f"<b>rank {rank}</b>"
        if not over:
            hidden = f" · {log.count} lines" if len(lines) > tail else ""
            block = f"<div>{head}{hidden}</div>{_block(lines[-tail:])}"
        elif len(lines) <= OPEN and not log.left_out:
            block = f"<div>{head}</div>{_block(lines)}"
        else:
            summary = f"{head} · {log.count} lines, the last: {escape(lines[-1][:100])}"
            block = f"<details><summary>{summary}</summary>{_block([*_left_out(log, note), *lines])}</details>"
        edge = f"border-left:3px solid {EDGES[rank % len(EDGES)]}; padding:0 0 0 8px; margin:0 0 6px 0;"
        blocks.append(f'<div style="{edge}">{block}</div>')
    return "\n".join(['<div style="font-size:12px; margin-left:8px; max-width:960px;">', *blocks, "</div>"])


def ranks_text(logs: Mapping[int, RankLog], note: str = "") -> str:
    """The same as plain lines, each with its rank, in order of rank."""
    return "\n".join(
        f"[rank {rank}] {line}"
        for rank, log in sorted(logs.items())
        for line in [*_left_out(log, note), *log.current()]
    )


def _left_out(log: RankLog, note: str) -> list[str]:
    return [f"({log.left_out} lines before these{note and ': ' + note})"] if log.left_out else []


def _block(lines: list[str]) -> str:
    return f'<pre style="{PRE} max-height:320px; overflow:auto;">{escape(chr(10).join(lines))}</pre>'

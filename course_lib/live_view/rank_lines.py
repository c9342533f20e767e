"""The lines that ranks print, read from their growing logs, and shown rank by rank."""

import re
from collections.abc import Mapping
from html import escape
from pathlib import Path

from course_lib.live_view.cell_display import preformatted

__all__ = ["KEPT", "RankLog", "ranks_html", "ranks_text"]

KEPT = 200  # last lines of a rank
WIDEST = 2000  # characters of a line
READ = 1 << 19  # last bytes of a log that are shown; in what is before them only the lines are counted
OPEN = 15  # lines up to which a rank's block is shown open
TAIL = 24  # lines shown while the ranks run, divided between them
# Okabe–Ito, without those that are hard to see on white.
EDGES = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#808080"]

CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[@-Z\\-_]|[\x00-\x08\x0b-\x1f\x7f]")


class RankLog:
    """The last lines of a rank's log, read again when it has grown.

    Attributes
    ----------
    lines : list of str
        The last ones as a terminal would show them; the last of them may still be growing.
    count : int
        All lines.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[str] = []
        self.count = 0
        self._size = self._ends = 0  # bytes counted, and line ends in them

    @property
    def left_out(self) -> int:
        """Lines that are no longer in `lines`."""
        return self.count - len(self.lines)

    def read(self) -> bool:
        """Read what is new; True if there is something."""
        if not self.path.exists() or self.path.stat().st_size == self._size:
            return False
        with self.path.open("rb") as file:
            file.seek(self._size)
            while data := file.read(READ):
                self._size += len(data)
                self._ends += data.count(b"\n")
            start = file.seek(max(0, self._size - READ))
            text = file.read(self._size - start).decode(errors="replace")
        lines = [_as_seen(line) for line in text.split("\n")[-KEPT - 1 :]]
        self.lines = lines[-KEPT:] if lines[-1] else lines[:-1]
        self.count = self._ends + bool(lines[-1])
        return True


def _as_seen(line: str) -> str:
    """A line as a terminal would show it in the end: without colours, and without what a carriage return overwrote."""
    shown = CONTROL.sub("", line.rstrip("\r").rpartition("\r")[2]).expandtabs()
    return shown if len(shown) <= WIDEST else shown[:WIDEST] + " …"


def ranks_html(logs: Mapping[int, RankLog], over: bool, note: str = "") -> str:
    """A block for each rank that has printed. All of it is escaped.

    Parameters
    ----------
    over : bool
        The ranks have ended: show all kept lines, long blocks folded. Else show the last few of each rank.
    note : str
        Where lines that are left out can be read.
    """
    tail = max(2, TAIL // max(1, len(logs)))
    blocks = []
    for rank, log in sorted(logs.items()):
        if not (lines := log.lines):
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
        f"[rank {rank}] {line}" for rank, log in sorted(logs.items()) for line in [*_left_out(log, note), *log.lines]
    )


def _left_out(log: RankLog, note: str) -> list[str]:
    return [f"({log.left_out} lines before these{note and ': ' + note})"] if log.left_out else []


def _block(lines: list[str]) -> str:
    return preformatted(lines, " max-height:320px; overflow:auto;")

"""The ranks' lines as HTML, rank by rank. All of it is text from elsewhere: nothing gets in unescaped."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from course_lib.live_view.rank_text import RankText
from course_lib.live_view.training_html import PRE

__all__ = ["ranks_html", "ranks_text"]

OPEN = 15  # lines up to which a rank's block is shown open
TAIL = 24  # lines shown while the ranks run, divided between them
# Okabe–Ito, without those that are hard to see on white.
EDGES = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#808080"]


def ranks_html(texts: Mapping[int, RankText], over: bool, note: str = "") -> str:
    """A block for each rank that has printed.

    Parameters
    ----------
    over : bool
        The ranks have ended: all kept lines, longer blocks folded. Else the last few of each.
    note : str
        Where lines that are left out can be read.
    """
    tail = max(2, TAIL // max(1, len(texts)))
    parts = ['<div style="font-size:12px; margin-left:8px; max-width:960px;">']
    for rank, text in sorted(texts.items()):
        lines = text.current()
        if not lines:
            continue
        edge = f"border-left:3px solid {EDGES[rank % len(EDGES)]}; padding:0 0 0 8px; margin:0 0 6px 0;"
        name = f"<b>rank {rank}</b>"
        if not over:
            hidden = f" · {text.count} lines" if len(lines) > tail else ""
            body = f"<div>{name}{hidden}</div>{_block(lines[-tail:])}"
        elif len(lines) <= OPEN and not text.left_out:
            body = f"<div>{name}</div>{_block(lines)}"
        else:
            left_out = (
                [f"({text.left_out} lines before these{'' if not note else ': ' + note})"] if text.left_out else []
            )
            body = f"<details><summary>{name} · {text.count} lines, the last: {escape(lines[-1][:100])}</summary>{_block([*left_out, *lines])}</details>"
        parts.append(f'<div style="{edge}">{body}</div>')
    return "\n".join([*parts, "</div>"])


def ranks_text(texts: Mapping[int, RankText], note: str = "") -> str:
    """The same as plain lines, each with its rank, in order of rank."""
    lines = []
    for rank, text in sorted(texts.items()):
        if text.left_out:
            lines.append(f"[rank {rank}] ({text.left_out} lines before these{'' if not note else ': ' + note})")
        lines += [f"[rank {rank}] {line}" for line in text.current()]
    return "\n".join(lines)


def _block(lines: list[str]) -> str:
    return f'<pre style="{PRE} max-height:320px; overflow:auto;">{escape(chr(10).join(lines))}</pre>'

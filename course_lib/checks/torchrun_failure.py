"""Why a torchrun failed, in one line, from what it and its ranks printed.

torchrun ends with a traceback of its own, whose ``ChildFailedError`` says no more than that a rank failed, and a report of
the first rank that did. A rank that raised has printed its own traceback before; one that a signal ended has not.
"""

from __future__ import annotations

import itertools
import re
from subprocess import CompletedProcess

__all__ = ["torchrun_failure"]

# `ValueError: …` at the end of a traceback, with the prefix that PyTorch gives each line once a rank has its number
_RAISED = re.compile(r"^(?:\[rank\d+\]:\s*)?((?:\w+\.)*\w*(?:Error|Exception|Exit|Interrupt)\b.*)")
_ROOT = re.compile(
    r"Root Cause.*?rank\s*: (?P<rank>\d+).*?exitcode\s*: (?P<exit>-?\d+) \(pid: \d+\) *(?:\((?P<signal>\w+)\))?",
    re.DOTALL,
)
_LOGGED = re.compile(r"^\[?[EWIF]\d{4} \d\d:\d\d|^\[Gloo\]|^Setting OMP_NUM_THREADS|^\*{20}|^\s*$")
_FAILED = re.compile(r"^E\d{4} .* failed \(exitcode")


def torchrun_failure(done: CompletedProcess) -> str:
    """One line for a torchrun whose exit code is not 0.

    Parameters
    ----------
    done : CompletedProcess
        Its output as text, stdout and stderr together.

    Returns
    -------
    str
        The first exception that a rank raised; else which rank ended how, and the last line it had printed.
    """
    said = f"torchrun ended with exit code {done.returncode}"
    raised = [match[1] for match in map(_RAISED.match, done.stdout.splitlines()) if match]
    if ranks := [line for line in raised if "ChildFailedError" not in line]:
        return f"{said}: {ranks[0].strip()}"
    if (root := _ROOT.search(done.stdout)) is None:
        return f"{said}: see above"
    how = f"was ended by {root['signal']}" if root["signal"] else f"ended with exit code {root['exit']}"
    printed = itertools.takewhile(lambda line: not _FAILED.match(line), done.stdout.splitlines())
    before = [line.strip() for line in printed if not _LOGGED.match(line)]
    last = f"; the last line before: {before[-1]}" if before else ""
    return f"{said}: rank {root['rank']} {how}, without an exception{last}"

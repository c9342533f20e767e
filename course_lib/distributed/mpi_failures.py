"""What mpirun and a rank's stack say of a failure, in a line or a few."""

from __future__ import annotations

import re
import signal

__all__ = ["rank_that_failed", "short_stack"]


def rank_that_failed(told: str) -> tuple[int, str] | None:
    """Rank and reason from what Open MPI's mpirun prints when a rank has been killed, or has exited early."""
    if found := re.search(r"process rank (\d+) with PID.*?exited on\s+signal (\d+)", told, re.DOTALL):
        number = signal.Signals(int(found[2]))
        hint = "; the system kills so when memory runs out" if number == signal.SIGKILL else ""
        return int(found[1]), f"the process was ended by {number.name}{hint}"
    if found := re.search(r"Process name: \[.*,\s*(\d+)\]\s+Exit code:\s+(\d+)", told):
        return int(found[1]), f"the process exited with code {found[2]} before it was done"
    if found := re.search(r"due to process rank (\d+) with PID.*?exiting\s+improperly", told, re.DOTALL):
        return int(found[1]), "the process exited with code 0 before it was done"
    return None


def short_stack(dump: str) -> str:
    """Faulthandler's frames, innermost first, a short line each, without those that started the rank."""
    frames = []
    for path, line, function in re.findall(r'File "(.*)", line (\d+) in (.*)', dump):
        if path.endswith(("mpi_rank.py", "<frozen runpy>", "runpy.py")):
            break
        place = path.rpartition("site-packages/")[2]
        place = f"{place}:{line}" if "/ipykernel_" not in place else f"line {line} of its cell"
        frames.append(f"  {function} ({place})")
    return "\n".join(frames) if frames else "  starting"

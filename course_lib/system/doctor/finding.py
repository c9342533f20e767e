"""What one check found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding", "State"]

State = Literal["fine", "absent", "problem"]


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes
    ----------
    check : str
        What was looked at: ``gpu``, ``/dev/shm``…
    state : str
        ``fine``; ``absent``: not there, and no lab stops for it; ``problem``: a lab will fail or mislead.
    found : str
        What was seen, in one line.
    remedy : str
        What to do about a problem, or what one misses where something is absent; empty where all is fine.
    """

    check: str
    state: State
    found: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.state == "problem" and not self.remedy:
            raise ValueError(f"the check {self.check!r} names a problem without its remedy")

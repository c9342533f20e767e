"""The result of one run of a strategy, and its file."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

from course_lib.system.atomic import write_atomically
from course_lib.training.strategies.weight_health import WeightHealth

__all__ = ["CurvePoint", "StrategyResult"]


@dataclass(frozen=True)
class CurvePoint:
    """One point of a learning curve: training seconds, samples of all workers, test accuracy in 0…1.

    ``hypothetical``: of an average that the training did not make, as during parallel SGD.
    """

    seconds: float
    samples: int
    accuracy: float
    hypothetical: bool = False


@dataclass(frozen=True)
class StrategyResult:
    """One training by one strategy.

    Attributes
    ----------
    strategy, seed
    workers, processes, cores : int
        Processes that compute gradients, all processes (a parameter server is one more), cores of the machine.
    samples, updates : int
        Samples of all workers together; steps of their optimisers, one that all take together counted once.
    seconds : float
        Wall-clock time of the training, from the common start to the last process's end, without evaluation.
    cpu_seconds, busiest_seconds : float
        CPU time of all processes, and the largest of one process; the latter is a lower bound of the wall-clock time
        with one core per process.
    bytes_sent, messages : int
        Of all processes together; shared memory needs none.
    staleness : float
        Mean number of updates between reading the weights and changing them; nan if it was not recorded.
    finite, moved, constant
        The state of the weights after the training: see `WeightHealth`.
    curve : tuple of CurvePoint
        Without the initial point.
    """

    strategy: str
    seed: int
    workers: int
    processes: int
    cores: int
    samples: int
    updates: int
    seconds: float
    cpu_seconds: float
    busiest_seconds: float
    bytes_sent: int
    messages: int
    staleness: float
    finite: bool
    moved: float
    constant: bool
    curve: tuple[CurvePoint, ...]

    @property
    def final_accuracy(self) -> float:
        return self.curve[-1].accuracy

    @property
    def crowded(self) -> bool:
        """More processes than cores: they take turns, so the wall-clock time is not the strategy's alone."""
        return self.processes > self.cores

    @property
    def health(self) -> WeightHealth:
        return WeightHealth(self.finite, self.moved, self.constant)

    def points(self) -> list[tuple[float, int, float]]:
        """(seconds, samples, accuracy) of the points that are not hypothetical; parallel SGD has only its last."""
        return [(point.seconds, point.samples, point.accuracy) for point in self.curve if not point.hypothetical]

    def seconds_to(self, target: float) -> float:
        """Training seconds at the first of `points` with at least that accuracy; nan where there is none."""
        return next((seconds for seconds, _, accuracy in self.points() if accuracy >= target), math.nan)

    def write(self, path: Path) -> None:
        """Write it as JSON, atomically."""
        write_atomically(path, json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> StrategyResult | None:
        """Read what `write` wrote; None if there is no such file, or it has another format."""
        try:
            entries = json.loads(path.read_text())
            return cls(**{**entries, "curve": tuple(CurvePoint(**point) for point in entries["curve"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None

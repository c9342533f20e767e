"""How long a training step takes: two models of it against the batch size, and its parts in a profile."""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["StepTime", "fit_step_time", "part_seconds", "save_trace"]


@dataclass(frozen=True)
class StepTime:
    """t(B) = a + b B, and t(B) = max(`launch`, `arithmetic` B), beside what was measured. All in seconds.

    Parameters
    ----------
    throughput : mapping of batch size to images/s
    a, launch : float
        Of a step, whatever its batch.
    b, arithmetic : float
        Of an image.
    """

    throughput: Mapping[int, float]
    a: float
    b: float
    launch: float
    arithmetic: float

    def models(self) -> dict[str, dict[int, float]]:
        """The images/s of both models at each measured batch size."""
        return {
            "a + bB": {size: size / (self.a + self.b * size) for size in self.throughput},
            "max(a, bB)": {size: size / max(self.launch, self.arithmetic * size) for size in self.throughput},
        }

    def __str__(self) -> str:
        """a, b and the knee in one line; below it a line for each batch size, with both models' errors."""
        lines = [
            f"a = {1000 * self.a:.1f} ms per step, b = {1000 * self.b:.3f} ms per image; "
            f"limit 1/b = {1 / self.b:,.0f} images/s, knee 9a/b = {9 * self.a / self.b:.0f}"
        ]
        for size, rate in self.throughput.items():
            errors = (f"{name} {line[size] / rate - 1:+5.0%}" for name, line in self.models().items())
            lines += [" ".join([f"batch {size:5d}: {1000 * size / rate:7.1f} ms, {rate:7,.0f} images/s ", *errors])]
        return "\n".join(lines)


def fit_step_time(throughput: Mapping[int, float], small: int, large: int) -> StepTime:
    """Both models from few measurements: a + bB through the batch sizes `small` and `large`.

    The other model's constant is the step time of the smallest batch, its slope that of an image in `large`.

    Raises
    ------
    KeyError
        `small` or `large` was not measured.
    ValueError
        They are the same.
    """
    if small == large:
        raise ValueError(f"a line needs two batch sizes; both are {small}")
    seconds = {size: size / rate for size, rate in throughput.items()}
    b = (seconds[large] - seconds[small]) / (large - small)
    return StepTime(dict(throughput), seconds[small] - b * small, b, seconds[min(seconds)], seconds[large] / large)


def part_seconds(recorded: Any, parts: Iterable[str]) -> dict[str, float]:
    """The median duration of each named part in a `torch.profiler.profile`, on the processor.

    Parameters
    ----------
    recorded : torch.profiler.profile
        Finished.
    parts : iterable of str
        Names given to `torch.profiler.record_function`.

    Raises
    ------
    statistics.StatisticsError
        A part was not recorded.
    """
    # A GPU has events of the same names, without processor time.
    events = [event for event in recorded.events() if event.cpu_time_total]
    return {
        part: statistics.median(event.cpu_time_total for event in events if event.name == part) / 1e6 for part in parts
    }


def save_trace(recorded: Any, folder: str | Path) -> Path:
    """Write the whole timeline of a `torch.profiler.profile` below `folder`, which is made; returns the file's path."""
    path = Path(folder) / "trace.json.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    recorded.export_chrome_trace(str(path))
    return path

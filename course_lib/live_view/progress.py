"""How far a training is: what a bar and a learning curve are drawn from."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

__all__ = ["Point", "Progress", "seconds_in_words"]


class Point(NamedTuple):
    """A finished epoch. Accuracies in 0…1."""

    epoch: int
    time: float  # seconds of training, cumulative
    images_per_sec: float
    train_loss: float
    train_accuracy: float
    val_loss: float
    val_accuracy: float


@dataclass
class Progress:
    """The state of one training; it travels from a rank to the kernel as JSON."""

    epochs: int  # at most
    ranks: int = 1
    phase: str = "training"  # training, validating, finished, interrupted, failed, ended (by others)
    epoch: int = 1  # the one under way
    part: float | None = None  # of this epoch's images, 0…1; None where their number is not known
    images: int = 0  # trained in this epoch, on all ranks
    images_per_sec: float | None = None
    seconds_left: float | None = None
    points: list[Point] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)  # what it would have printed
    earlier: list[str] = field(default_factory=list)  # a text for each training before it

    @property
    def over(self) -> bool:
        return self.phase not in ("training", "validating")

    @property
    def share(self) -> float:
        """Done of the whole, 0…1."""
        if self.phase == "finished":
            return 1.0
        under_way = 0.0 if self.epoch <= len(self.points) else 1.0 if self.phase == "validating" else self.part or 0.0
        return min(1.0, (len(self.points) + under_way) / max(1, self.epochs))

    def headline(self) -> str:
        """What the training is at."""
        done = len(self.points)
        if self.phase == "finished":
            early = f" of at most {self.epochs}" if done < self.epochs else ""
            return f"{done} epoch{'s' * (done != 1)}{early}, {seconds_in_words(self.points[-1].time if done else 0)} of training"
        if self.over:
            return f"{self.phase} in epoch {self.epoch} of {self.epochs}"
        return f"epoch {self.epoch} of {self.epochs}" + (", validating" if self.phase == "validating" else "")

    def details(self) -> str:
        """Speed, time left or the result, number of ranks."""
        parts = [f"{self.ranks} ranks"] if self.ranks > 1 else []
        if self.over and self.points:
            parts.append(f"validation accuracy {self.points[-1].val_accuracy:.1%}")
        if not self.over and self.images_per_sec:
            parts.append(f"{self.images_per_sec:,.0f} images/s")
        if not self.over and self.seconds_left is not None:
            parts.append(f"about {seconds_in_words(self.seconds_left)} left")
        return " · ".join(parts)

    def summary(self) -> str:
        """The training in one line."""
        return " · ".join(text for text in (self.headline(), self.details()) if text)

    def text(self) -> str:
        """The training in one line, and the lines that it would have printed."""
        return "\n".join([self.summary(), *self.lines])

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Progress:
        """Read what `to_json` wrote; anything else is a ValueError, TypeError or KeyError."""
        found: dict[str, Any] = json.loads(text)
        found["points"] = [Point(*map(float, point)) for point in found["points"]]
        for name in ("epochs", "ranks", "epoch", "images"):
            found[name] = int(found[name])
        for name in ("part", "images_per_sec", "seconds_left"):
            found[name] = None if found[name] is None else float(found[name])
        found["phase"] = str(found["phase"])
        found["lines"], found["earlier"] = (list(map(str, found[name])) for name in ("lines", "earlier"))
        return cls(**found)


def seconds_in_words(seconds: float) -> str:
    """A duration that is read at a glance: 8 s, 2 min 5 s, 1 h 12 min."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min" + (f" {seconds % 60} s" if seconds % 60 else "")
    return f"{seconds // 3600} h" + (f" {seconds % 3600 // 60} min" if seconds % 3600 // 60 else "")

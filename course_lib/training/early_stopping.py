"""When to stop: the multi-GPU tutorial's rule."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EarlyStopping"]


@dataclass
class EarlyStopping:
    """The multi-GPU tutorial's rule: stop once the last `patience` epochs all reached the target.

    ``target_accuracy`` in 0…1; 0 or None never stops.
    """

    target_accuracy: float | None
    patience: int = 2

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise ValueError(f"patience must be at least 1, got {self.patience}")
        self.reached = 0

    def update(self, val_accuracy: float) -> bool:
        """Take an epoch's accuracy; True when training should stop.

        Every rank must give the same number, the reduced one, or some stop and the others wait for them.
        """
        if not self.target_accuracy:
            return False
        self.reached = self.reached + 1 if val_accuracy >= self.target_accuracy else 0
        return self.reached >= self.patience

"""How fast this machine trains: one reference step, timed for about a second, so that nobody wonders about a slow machine."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import torch
from torch.nn import functional

from course_lib.models import WideResNet

__all__ = ["Calibration", "calibrate"]

BATCH = 64
# Images/s, and seconds of all cells (laptop), as lab 01 says: 2 cores (AMD EPYC with bfloat16), real FashionMNIST.
LAB_01 = (1_700, 90)


@dataclass(frozen=True)
class Calibration:
    """What `calibrate` measured.

    Attributes
    ----------
    images_per_second : float
        Training images of the fastest reference step: other work on the machine only makes a step slower.
    device : str
        ``cpu`` or ``cuda``.
    bfloat16 : bool
        Whether the device multiplies bfloat16 in hardware; where it does not, ``precision = "auto"`` means float32.
    """

    images_per_second: float
    device: str
    bfloat16: bool

    def seconds(self, reference_seconds: float, reference_rate: float = LAB_01[0]) -> float:
        """How long work takes here that took `reference_seconds` where the reference step had `reference_rate` images/s.

        A rough figure: it scales with the throughput of one small network.
        """
        return reference_seconds * reference_rate / self.images_per_second

    def __str__(self) -> str:
        rate = f"{self.images_per_second:,.0f} images/s on the reference step ({self.device})"
        return f"{rate}, bfloat16 {'yes' if self.bfloat16 else 'no'}"

    def expectation(self) -> str:
        """How long all cells of lab 01 take, in words."""
        minutes = self.seconds(LAB_01[1]) / 60
        return f"expect lab 01 (laptop) in about {f'{minutes:.0f} minutes' if minutes >= 1.5 else 'a minute'}"


@cache
def calibrate(seconds: float = 0.3) -> Calibration:
    """Time the reference step: training lab 01's network on 64 made-up images of 28 × 28, in the precision ``auto``.

    The random numbers of the calling process stay as they are. Measured once per process.

    Parameters
    ----------
    seconds : float
        For the steps that count, at least one. The first step, which prepares kernels, does not count.
    """
    from course_lib.training.precision import accelerate_model, bfloat16_pays  # `training` is above this package

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with torch.random.fork_rng():
        model = accelerate_model(WideResNet((16, 32, 64)), device).train()
        velocities = [torch.zeros_like(parameter) for parameter in model.parameters()]
        images = torch.randn(BATCH, 1, 28, 28, device=device)
        labels = torch.randint(10, (BATCH,), device=device)
        times = [time.perf_counter()]
        while len(times) < 3 or times[-1] - times[1] < seconds:
            model.zero_grad()
            functional.cross_entropy(model(images), labels).backward()
            with torch.no_grad():  # SGD with momentum; torch.optim's first optimiser imports the compiler, for seconds
                for parameter, velocity in zip(model.parameters(), velocities, strict=True):
                    parameter.sub_(velocity.mul_(0.9).add_(parameter.grad), alpha=0.01)
            if device.type == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter())
    steps = [after - before for before, after in pairwise(times[1:])]
    return Calibration(BATCH / min(steps), device.type, bfloat16_pays(device))

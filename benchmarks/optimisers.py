"""Step time of NovoGrad against PyTorch's AdamW, both with their foreach path.

Two sets of 200 tensors: large ones, where memory decides, and small ones, where the calls do. The two optimisers
alternate within one run, and the ratio is taken pair by pair. NovoGrad's plain loop over tensors is timed beside them.
Target: NovoGrad / AdamW at most 1.5.

    python benchmarks/optimisers.py [--pairs 15]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from conditions import conditions, spread

from course_lib.optim import NovoGrad

CASES = {
    "64×64 to 512×512": [(side, side) for side in (64, 128, 256, 512) for _ in range(50)],
    "16×16": [(16, 16)] * 200,
}
OPTIMIZERS: dict[str, Callable[[list[torch.Tensor]], torch.optim.Optimizer]] = {
    "AdamW": lambda params: torch.optim.AdamW(params, lr=1e-3, weight_decay=0.01, foreach=True),
    "NovoGrad": lambda params: NovoGrad(params, lr=1e-3, weight_decay=0.01, foreach=True),
    "NovoGrad, loop": lambda params: NovoGrad(params, lr=1e-3, weight_decay=0.01, foreach=False),
}


def prepared(name: str, shapes: list[tuple[int, int]], device: str) -> torch.optim.Optimizer:
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(shape, device=device)) for shape in shapes]
    for param in params:
        param.grad = torch.randn_like(param)
    return OPTIMIZERS[name](params)


def step_time(optimizer: torch.optim.Optimizer, steps: int, device: str) -> float:
    """Milliseconds per step."""
    start = time.perf_counter()
    for _ in range(steps):
        optimizer.step()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / steps * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=15)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(conditions(device=device, dtype="float32", pairs=options.pairs))
    for case, shapes in CASES.items():
        weights = sum(rows * columns for rows, columns in shapes)
        steps = 10 if weights > 1e6 else 100
        optimizers = {name: prepared(name, shapes, device) for name in OPTIMIZERS}
        for optimizer in optimizers.values():
            step_time(optimizer, 3, device)
        times: dict[str, list[float]] = {name: [] for name in optimizers}
        for pair in range(options.pairs):
            for name in list(optimizers)[:: 1 if pair % 2 == 0 else -1]:
                times[name].append(step_time(optimizers[name], steps, device))
        print(f"{len(shapes)} tensors of {case}, {weights / 1e6:.2f} M weights, {steps} steps per timing")
        for name, milliseconds in times.items():
            print(f"  {name}: {spread(milliseconds)} ms per step")
        for name in ("NovoGrad", "NovoGrad, loop"):
            ratios = [ours / theirs for ours, theirs in zip(times[name], times["AdamW"], strict=True)]
            print(f"  {name} / AdamW: {spread(ratios)}", flush=True)


if __name__ == "__main__":
    main()

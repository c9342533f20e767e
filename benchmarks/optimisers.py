"""Step time of NovoGrad against PyTorch's AdamW, both with their foreach path.

Two sets of 200 tensors: large ones, where memory decides, and small ones, where the calls do. The two optimisers
alternate within one run, and the ratio is taken pair by pair. NovoGrad's plain loop over tensors is timed beside them.
Target: NovoGrad / AdamW at most 1.5.

    python benchmarks/optimisers.py [--pairs 15]
"""

import time
from collections.abc import Callable
from functools import partial

import torch
from harness import alternate, conditions, parse_options, ratios, summary

from course_lib.optim import NovoGrad

CASES = {
    "64×64 to 512×512": [(side, side) for side in (64, 128, 256, 512) for _ in range(50)],
    "16×16": [(16, 16)] * 200,
}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "AdamW": partial(torch.optim.AdamW, foreach=True),
    "NovoGrad": partial(NovoGrad, foreach=True),
    "NovoGrad, loop": partial(NovoGrad, foreach=False),
}


def prepared(name: str, shapes: list[tuple[int, int]], device: str) -> torch.optim.Optimizer:
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(shape, device=device)) for shape in shapes]
    for param in params:
        param.grad = torch.randn_like(param)
    return OPTIMIZERS[name](params, lr=1e-3, weight_decay=0.01)


def step_time(optimizer: torch.optim.Optimizer, steps: int, device: str) -> float:
    """Milliseconds per step."""
    start = time.perf_counter()
    for _ in range(steps):
        optimizer.step()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / steps * 1e3


def main() -> None:
    options = parse_options(__doc__, pairs=15)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(conditions(device=device, dtype="float32", pairs=options.pairs))
    for case, shapes in CASES.items():
        weights = sum(rows * columns for rows, columns in shapes)
        steps = 10 if weights > 1e6 else 100
        optimizers = {name: prepared(name, shapes, device) for name in OPTIMIZERS}
        for optimizer in optimizers.values():
            step_time(optimizer, 3, device)
        candidates = {name: partial(step_time, optimizer, steps, device) for name, optimizer in optimizers.items()}
        times = alternate(candidates, options.pairs)
        print(f"{len(shapes)} tensors of {case}, {weights / 1e6:.2f} M weights, {steps} steps per timing")
        for name, milliseconds in times.items():
            print(f"  {name}: {summary(milliseconds)} ms per step")
        for name in ("NovoGrad", "NovoGrad, loop"):
            print(f"  {name} / AdamW: {summary(ratios(times[name], times['AdamW']))}", flush=True)


if __name__ == "__main__":
    main()

"""What `fit` costs beyond a bare PyTorch loop of the same work.

Both train the same network on the same batches for an epoch and validate once; they alternate within one run, and the
ratio is taken pair by pair. Target: at most 1.03.

    python benchmarks/train_overhead.py [--pairs 7] [--train-samples 3000]
"""

from __future__ import annotations

import argparse
import time

import torch
from conditions import conditions, spread
from torch import nn

from course_lib.data.batches import Batches, ImageData, load
from course_lib.models import WideResNet
from course_lib.training.loop import fit
from course_lib.training.precision import accelerate_model


def prepare(data: ImageData, batch_size: int) -> tuple[nn.Module, torch.optim.Optimizer, Batches, Batches]:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = accelerate_model(WideResNet((16, 32, 64)), device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    train = Batches(data.train, batch_size, device, mean=data.mean, std=data.std, shuffle=True)
    test = Batches(data.test, 500, device, mean=data.mean, std=data.std)
    return model, optimizer, train, test


def bare(data: ImageData, batch_size: int) -> float:
    model, optimizer, train, test = prepare(data, batch_size)
    loss_fn = nn.CrossEntropyLoss()
    start = time.perf_counter()
    model.train()
    for images, labels in train:
        loss = loss_fn(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    correct = torch.zeros((), dtype=torch.long, device=images.device)
    with torch.no_grad():
        for images, labels in test:
            correct += (model(images).argmax(1) == labels).sum()
    correct.item()
    return time.perf_counter() - start


def with_fit(data: ImageData, batch_size: int) -> float:
    model, optimizer, train, test = prepare(data, batch_size)
    start = time.perf_counter()
    fit(model, train, test, optimizer, epochs=1, quiet=True)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--train-samples", type=int, default=3000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--dataset", default="fashion-mnist-small")
    options = parser.parse_args()
    data = load(options.dataset, train_samples=options.train_samples)
    print(conditions(ranks=1, data=data, batch=options.batch_size, pairs=options.pairs))
    for warm in (bare, with_fit):
        warm(data, options.batch_size)
    ratios = []
    for pair in range(options.pairs):
        order = (bare, with_fit) if pair % 2 == 0 else (with_fit, bare)
        seconds = {run: run(data, options.batch_size) for run in order}
        ratios.append(seconds[with_fit] / seconds[bare])
        print(
            f"pair {pair + 1}: bare {seconds[bare]:.2f} s, fit {seconds[with_fit]:.2f} s, ratio {ratios[-1]:.3f}",
            flush=True,
        )
    print(f"fit / bare: {spread(ratios)}")


if __name__ == "__main__":
    main()

"""What `fit` costs beyond a bare PyTorch loop of the same work.

Both train the same network on the same batches for an epoch and validate once; they alternate within one run, and the
ratio is taken pair by pair. Target: at most 1.03.

    python benchmarks/train_overhead.py [--pairs 7] [--train-samples 3000]
"""

import time

import torch
from harness import alternate, conditions, parse_options, ratios, summary
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
    options = parse_options(__doc__, pairs=7, train_samples=3000, batch_size=64, dataset="fashion-mnist-small")
    data = load(options.dataset, train_samples=options.train_samples)
    print(conditions(ranks=1, data=data, batch=options.batch_size, pairs=options.pairs))
    candidates = {"bare": lambda: bare(data, options.batch_size), "fit": lambda: with_fit(data, options.batch_size)}
    alternate(candidates, 1)  # a warm-up
    seconds = alternate(candidates, options.pairs)
    for name, times in seconds.items():
        print(f"{name}: {summary(times, 2)} s")
    print(f"fit / bare: {summary(ratios(seconds['fit'], seconds['bare']))}")


if __name__ == "__main__":
    main()

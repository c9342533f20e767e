"""Time to 85 % validation accuracy on FashionMNIST: the labs' recipe against the source's.

The source's recipe is the multi-GPU tutorial's, at the same network width: DataLoader over torchvision-style samples with ToTensor
for each, float32, channels first, nn.Dropout, batch 32, SGD with a constant learning rate of 0.01, the whole training set,
validation after each epoch. Ours is lab 01's laptop profile. Both count training time only (the multi-GPU tutorial's
"Cumulative Time") up to the end of the first epoch at or above the target; the whole time, validation included, is
given too. They run in one process, one after the other, with the same threads.

    python benchmarks/time_to_accuracy.py [--seeds 1]
"""

import time
from collections.abc import Callable, Iterable

import torch
from harness import conditions, parse_options, summary
from torch import nn
from torch.utils.data import DataLoader

from course_lib.data.batches import Batches, ImageData, PackedDataset, load
from course_lib.models import SparseDropout, WideResNet
from course_lib.system.torchvision_import import import_torchvision
from course_lib.training.loop import evaluate, train_epoch, warmup_then_decay
from course_lib.training.precision import accelerate_model

WIDTHS = (16, 32, 64)


def time_to(
    target: float, epochs: int, model: nn.Module, test: Iterable, train: Callable[[int], None], name: str
) -> tuple[float, float]:
    """Seconds of training, and of everything, to the first epoch at or above `target`."""
    training, begin = 0.0, time.perf_counter()
    for epoch in range(epochs):
        start = time.perf_counter()
        train(epoch)
        training += time.perf_counter() - start
        _, correct, images = evaluate(model, test, nn.CrossEntropyLoss())
        accuracy = correct / images
        print(f"  {name}, epoch {epoch + 1}: {training:6.1f} s of training, accuracy {accuracy:.4f}", flush=True)
        if accuracy >= target:
            return training, time.perf_counter() - begin
    raise SystemExit(f"{name} did not reach {target:.0%} in {epochs} epochs")


def source_recipe(full: ImageData, target: float, seed: int) -> tuple[float, float]:
    torch.manual_seed(seed)
    to_tensor = import_torchvision().transforms.ToTensor()
    model = WideResNet(WIDTHS)
    for module in model.modules():
        for name, child in module.named_children():
            if isinstance(child, SparseDropout):
                setattr(module, name, nn.Dropout(child.p))
    optimizer, loss_fn = torch.optim.SGD(model.parameters(), lr=0.01), nn.CrossEntropyLoss()
    train_loader = DataLoader(PackedDataset(full.train, to_tensor), batch_size=32, shuffle=True, drop_last=True)
    test_loader = DataLoader(PackedDataset(full.test, to_tensor), batch_size=32, drop_last=True)

    def train(epoch: int) -> None:
        model.train()
        for images, labels in train_loader:
            loss = loss_fn(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return time_to(target, 40, model, test_loader, train, "source")


def lab_recipe(data: ImageData, target: float, seed: int) -> tuple[float, float]:
    torch.manual_seed(seed)
    device, epochs = "cpu", 4
    model = accelerate_model(WideResNet(WIDTHS), device)
    batches = Batches(data.train, 64, device, mean=data.mean, std=data.std, shuffle=True, seed=seed)
    test = Batches(data.test, 500, device, mean=data.mean, std=data.std)
    optimizer, loss_fn = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True), nn.CrossEntropyLoss()
    schedule = warmup_then_decay(optimizer, epochs * len(batches), len(batches) // 2)

    def train(epoch: int) -> None:
        batches.set_epoch(epoch)
        train_epoch(model, batches, optimizer, loss_fn, scheduler=schedule).tolist()

    return time_to(target, epochs, model, test, train, "lab")


def main() -> None:
    options = parse_options(__doc__, seeds=(1, "runs of each recipe"), target=0.85)
    full = load("fashion-mnist")
    data = load("fashion-mnist", train_samples=12000)
    print(conditions(ranks=1, widths=WIDTHS, source_data=full, lab_data=data, seeds=options.seeds))
    ratios, whole = [], []
    for seed in range(options.seeds):
        ours, ours_whole = lab_recipe(data, options.target, seed)
        source, source_whole = source_recipe(full, options.target, seed)
        ratios.append(source / ours)
        whole.append(source_whole / ours_whole)
        print(
            f"seed {seed}: source {source:.1f} s, lab {ours:.1f} s: {ratios[-1]:.1f}× in training time, {whole[-1]:.1f}× in all"
        )
    print(f"source / lab, training time: {summary(ratios, 1)}; validation included: {summary(whole, 1)}")


if __name__ == "__main__":
    main()

"""Your residual network on CIFAR-100 by synchronous SGD, the HW4 slides' Algorithm 1. The homework asks for 60 % accuracy.

Run it by `python sync_sgd_cifar100.py` (two ranks on this machine), by `torchrun --standalone --nproc-per-node=N
sync_sgd_cifar100.py`, or by the job scripts in deploy/. After an interruption, the same command continues.
"""

import math
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from course_lib.data import Batches
from course_lib.training.homework import HomeworkRun
from course_lib.training.precision import bfloat16_pays

NAME = "sync_sgd_cifar100"
MEAN, STD = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)  # CIFAR-100's training images


class Normalise(nn.Module):
    """Images in 0…1 → mean 0 and standard deviation 1 per channel."""

    def __init__(self, mean, std):
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1), persistent=False)

    def forward(self, x):
        return (x - self.mean) / self.std


def make_shortcut(in_channels, channels, stride):
    if stride == 1 and in_channels == channels:
        return nn.Identity()
    projection = nn.Conv2d(in_channels, channels, 1, stride=stride, bias=False)
    return nn.Sequential(projection, nn.BatchNorm2d(channels))


class BasicBlock(nn.Module):
    def __init__(self, in_channels, channels, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = make_shortcut(in_channels, channels, stride)

    def forward(self, x):
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + self.shortcut(x))


def stage(before, channels, blocks, stride):
    return nn.Sequential(
        BasicBlock(before, channels, stride), *(BasicBlock(channels, channels) for _ in range(blocks - 1))
    )


def build_network(num_classes):
    """Images (B, 3, H, W) in 0…1 → logits (B, num_classes)."""
    first = nn.Conv2d(3, 32, 3, padding=1, bias=False)
    return nn.Sequential(
        Normalise(MEAN, STD),
        first, nn.BatchNorm2d(32), nn.ReLU(), nn.Dropout(0.1),
        stage(32, 32, 2, 1), stage(32, 64, 4, 2), stage(64, 128, 4, 2), stage(128, 256, 2, 2),
        nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(256, num_classes),
    )  # fmt: skip


def parameter_groups(model, weight_decay):
    weights = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    return [{"params": weights, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]


def crop_and_flip(images, padding, generator):
    count, _, height, width = images.shape
    device = images.device
    top, left = torch.randint(2 * padding + 1, (2, count), generator=generator, device=device)
    mirrored = torch.randint(2, (count, 1), generator=generator, device=device).bool()
    rows = top[:, None] + torch.arange(height, device=device)
    columns = left[:, None] + torch.arange(width, device=device)
    columns = torch.where(mirrored, columns.flip(1), columns)
    padded = F.pad(images, (padding,) * 4).permute(0, 2, 3, 1)
    sample = torch.arange(count, device=device)[:, None, None]
    return padded[sample, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def warmup_cosine(step, total, warm):
    if step < warm:
        return 1 / 25 + (1 - 1 / 25) * step / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(total - warm, 1)))


def precision(run):
    return torch.autocast(run.device.type, torch.bfloat16, enabled=bfloat16_pays(run.device))


def add(sums, loss, logits, labels):
    """Add a batch, on the device: fetching a number after each step would make the GPU wait for Python."""
    sums[0] += loss.detach() * len(labels)
    sums[1] += (logits.argmax(1) == labels).sum()
    sums[2] += len(labels)


def set_up_training(run, model, images_per_step, steps_per_epoch):
    """Optimiser, schedule and loss of the recipe of lab 05."""
    given = run.options
    highest = given.base_lr * images_per_step / 128  # base_lr is for 128 images per step
    groups = parameter_groups(model, given.weight_decay)
    optimizer = torch.optim.SGD(groups, lr=highest, momentum=given.momentum, nesterov=given.momentum > 0)
    total = given.epochs * steps_per_epoch
    warm = min(round(given.warmup_epochs * steps_per_epoch), total - 1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: warmup_cosine(step, total, warm))
    return optimizer, scheduler, nn.CrossEntropyLoss(label_smoothing=given.label_smoothing)


def training_batches(run, rank, ranks):
    """This rank's share of the training images, in 0…1, cropped and flipped."""
    given = run.options
    return Batches(
        run.data.train, given.batch_size, run.device, mean=(0,) * 3, std=(1,) * 3, shuffle=True, seed=given.seed,
        augment=lambda images, generator: crop_and_flip(images, given.padding, generator), rank=rank, world_size=ranks,
    )  # fmt: skip


def synchronise(model):
    """Rank 0's parameters and buffers on every rank. A message has no memory format: each tensor is sent contiguous."""
    for tensor in model.state_dict().values():
        whole = tensor.contiguous()
        dist.broadcast(whole, src=0)
        tensor.copy_(whole)


def average_gradients(model, samples):
    """Replace every gradient by the mean over all images of all ranks, in one all_reduce."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    vector = samples * torch.cat([*(p.grad.flatten() for p in parameters), parameters[0].new_ones(1)])
    dist.all_reduce(vector)
    pieces = (vector[:-1] / vector[-1]).split([p.numel() for p in parameters])
    for p, piece in zip(parameters, pieces, strict=True):
        p.grad.copy_(piece.view_as(p))


def average_statistics(model):
    for buffer in model.buffers():
        if buffer.is_floating_point():
            dist.all_reduce(buffer)
            buffer /= dist.get_world_size()


def train_one_epoch(run, model, batches, optimizer, scheduler, loss_fn):
    """Sum of losses, right predictions and images of this rank."""
    model.train()
    sums = torch.zeros(3, device=run.device)
    for images, labels in batches:
        with precision(run):
            logits = model(images)
            loss = loss_fn(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        if run.world_size > 1:
            average_gradients(model, len(labels))
        optimizer.step()
        scheduler.step()
        add(sums, loss, logits, labels)
    return sums


def means(run, sums):
    """Mean loss and accuracy over all ranks."""
    if run.world_size > 1:
        dist.all_reduce(sums)
    loss, correct, images = sums.tolist()
    return loss / images, correct / images


@torch.no_grad()
def evaluate(run, model, split, loss_fn):
    """Sum of losses, right predictions and images, as means over all ranks' shares."""
    model.eval()
    sums = torch.zeros(3, device=run.device)
    batches = Batches(split, 250, run.device, mean=(0,) * 3, std=(1,) * 3, rank=run.rank, world_size=run.world_size)
    for images, labels in batches:
        with precision(run):
            logits = model(images)
            loss = loss_fn(logits, labels)
        add(sums, loss, logits, labels)
    return means(run, sums)


def train(run):
    model = build_network(len(run.data.classes)).to(run.device, memory_format=torch.channels_last)
    batches = training_batches(run, run.rank, run.world_size)
    images_per_step = run.options.batch_size * run.world_size
    optimizer, scheduler, loss_fn = set_up_training(run, model, images_per_step, len(batches))
    run.restore(model, optimizer, scheduler)
    if run.world_size > 1:
        synchronise(model)
    for epoch in run.epochs():
        batches.set_epoch(epoch)
        started = time.perf_counter()
        train_loss, train_accuracy = means(run, train_one_epoch(run, model, batches, optimizer, scheduler, loss_fn))
        seconds = time.perf_counter() - started
        if run.world_size > 1:
            average_statistics(model)
        validation_loss, validation_accuracy = evaluate(run, model, run.data.validation, loss_fn)
        run.end_epoch(
            model, optimizer, scheduler, train_loss=train_loss, train_accuracy=train_accuracy,
            validation_loss=validation_loss, validation_accuracy=validation_accuracy, seconds=seconds,
        )  # fmt: skip
    run.finish(model, evaluate(run, model, run.data.test, loss_fn)[1])


if __name__ == "__main__":
    HomeworkRun.main(
        NAME, train, __doc__, lab="07_sync_async_sgd", ranks=2,
        dataset="cifar100", epochs=30, batch_size=64, base_lr=0.2, momentum=0.9, weight_decay=5e-4,
        label_smoothing=0.1, warmup_epochs=3.0, padding=4,
    )  # fmt: skip

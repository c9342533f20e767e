"""A ResNet-18 that was trained on ImageNet, fine-tuned on CIFAR-100. The homework asks for 70 % test accuracy.

The ImageNet weights are torchvision's: torchvision.models.ResNet18_Weights.IMAGENET1K_V1, a file of 45 MB. Without it in
torch hub's cache, torchvision downloads it. Run it by `python pretrained_cifar100.py`, by torchrun, or by the job scripts.
"""

import math
import time
from collections import OrderedDict

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from course_lib.data import Batches
from course_lib.system.torchvision_import import import_torchvision
from course_lib.training.homework import HomeworkRun
from course_lib.training.precision import bfloat16_pays

NAME = "pretrained_cifar100"
MEAN = (0.485, 0.456, 0.406)  # ImageNet: the weights' own preprocessing
STD = (0.229, 0.224, 0.225)


class Normalise(nn.Module):
    """Images in 0…1 → mean 0 and standard deviation 1 per channel."""

    def __init__(self, mean, std):
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1), persistent=False)

    def forward(self, x):
        return (x - self.mean) / self.std


class Upsampled(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size = size

    def forward(self, x):
        return F.interpolate(x, size=(self.size, self.size), mode="bilinear")


def build_network(num_classes, image_size=224):
    """torchvision's resnet18 with a new head, on images scaled up and normalised as ImageNet's."""
    network = import_torchvision().models.resnet18(weights=None)
    network.fc = nn.Linear(network.fc.in_features, num_classes)
    return nn.Sequential(OrderedDict(large=Upsampled(image_size), normalised=Normalise(MEAN, STD), network=network))


def load_imagenet(network):
    """The ImageNet weights into all layers but the head."""
    weights = import_torchvision().models.ResNet18_Weights.IMAGENET1K_V1.get_state_dict(progress=False)
    body = {name: tensor for name, tensor in weights.items() if not name.startswith("fc.")}
    network.load_state_dict(body, strict=False)


def parameter_groups(network, lr_head, lr_body, weight_decay):
    groups = []
    for is_head, lr in ((True, lr_head), (False, lr_body)):
        own = [p for name, p in network.named_parameters() if name.startswith("fc.") is is_head]
        groups.append({"params": [p for p in own if p.dim() > 1], "lr": lr, "weight_decay": weight_decay})
        groups.append({"params": [p for p in own if p.dim() <= 1], "lr": lr, "weight_decay": 0.0})
    return groups


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
        optimizer.step()
        scheduler.step()
        add(sums, loss, logits, labels)
    return sums


@torch.no_grad()
def evaluate(run, model, split, loss_fn):
    """Mean loss and accuracy over all ranks' shares of the images."""
    model.eval()
    sums = torch.zeros(3, device=run.device)
    batches = Batches(split, 250, run.device, mean=(0,) * 3, std=(1,) * 3, rank=run.rank, world_size=run.world_size)
    for images, labels in batches:
        with precision(run):
            logits = model(images)
            loss = loss_fn(logits, labels)
        add(sums, loss, logits, labels)
    return means(run, sums)


def add(sums, loss, logits, labels):
    """Add a batch, on the device: fetching a number after each step would make the GPU wait for Python."""
    sums[0] += loss.detach() * len(labels)
    sums[1] += (logits.argmax(1) == labels).sum()
    sums[2] += len(labels)


def means(run, sums):
    if run.world_size > 1:
        dist.all_reduce(sums)
    loss, correct, images = sums.tolist()
    return loss / images, correct / images


def train(run):
    given = run.options
    model = build_network(len(run.data.classes), given.image_size)
    load_imagenet(model.network)
    model = model.to(run.device, memory_format=torch.channels_last)
    highest = given.base_lr * given.batch_size * run.world_size / 128  # base_lr is for 128 images per step
    optimizer = torch.optim.SGD(
        parameter_groups(model.network, highest, given.body_lr_factor * highest, given.weight_decay),
        lr=highest, momentum=given.momentum, nesterov=given.momentum > 0,
    )  # fmt: skip
    batches = Batches(
        run.data.train, given.batch_size, run.device, mean=(0,) * 3, std=(1,) * 3, shuffle=True, seed=given.seed,
        augment=lambda images, generator: crop_and_flip(images, given.padding, generator),
        rank=run.rank, world_size=run.world_size,
    )  # fmt: skip
    total = given.epochs * len(batches)
    warm = min(round(given.warmup_epochs * len(batches)), total - 1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: warmup_cosine(step, total, warm))
    run.restore(model, optimizer, scheduler)
    wrapped = model
    if run.world_size > 1:
        wrapped = DistributedDataParallel(model, device_ids=[run.device] if run.device.type == "cuda" else None)
    loss_fn = nn.CrossEntropyLoss(label_smoothing=given.label_smoothing)
    for epoch in run.epochs():
        batches.set_epoch(epoch)
        started = time.perf_counter()
        sums = train_one_epoch(run, wrapped, batches, optimizer, scheduler, loss_fn)
        train_loss, train_accuracy = means(run, sums)
        seconds = time.perf_counter() - started
        validation_loss, validation_accuracy = evaluate(run, model, run.data.validation, loss_fn)
        run.end_epoch(
            model, optimizer, scheduler, train_loss=train_loss, train_accuracy=train_accuracy,
            validation_loss=validation_loss, validation_accuracy=validation_accuracy, seconds=seconds,
        )  # fmt: skip
    run.finish(model, evaluate(run, model, run.data.test, loss_fn)[1])


if __name__ == "__main__":
    HomeworkRun.main(
        NAME, train, __doc__,
        dataset="cifar100", epochs=5, batch_size=128, base_lr=0.1, body_lr_factor=0.2, momentum=0.9,
        weight_decay=5e-4, label_smoothing=0.1, warmup_epochs=1.0, padding=4, image_size=224,
    )  # fmt: skip

"""Your residual network on CIFAR-100 by asynchronous SGD, the HW4 slides' Algorithm 2. The homework asks for 60 % accuracy.

Rank 0 serves, the others work. Run it by `python async_sgd_cifar100.py` (a server and two workers on this machine), by
`torchrun --standalone --nproc-per-node=N async_sgd_cifar100.py`, or by the job scripts in deploy/. After an interruption,
the same command continues from the server's last epoch.
"""

import math
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import update_bn

from course_lib.data import Batches
from course_lib.training.homework import HomeworkRun
from course_lib.training.precision import bfloat16_pays

NAME = "async_sgd_cifar100"
GRADIENT, STOP = 1.0, 2.0  # the first number of an answer
HEAD = 5  # of a message: kind, version, sum of losses, correct predictions, images
STATISTICS = 50  # batches from which batch norm's statistics are computed
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


@torch.no_grad()
def evaluate(run, model, split, loss_fn):
    """Sum of losses, right predictions and images."""
    model.eval()
    sums = torch.zeros(3, device=run.device)
    batches = Batches(split, 250, run.device, mean=(0,) * 3, std=(1,) * 3)
    for images, labels in batches:
        with precision(run):
            logits = model(images)
            loss = loss_fn(logits, labels)
        add(sums, loss, logits, labels)
    return sums.tolist()


def empty_message(model):
    return torch.zeros(HEAD + sum(p.numel() for p in model.parameters()))


def pack(message, head, tensors):
    """Fill a message; tensors may be on a GPU."""
    message[: len(head)] = torch.tensor(head)
    message[HEAD:] = torch.cat([tensor.detach().flatten() for tensor in tensors])


@torch.no_grad()
def unpack(message, tensors):
    for tensor, piece in zip(tensors, message[HEAD:].split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(piece.view_as(tensor))


class Server:
    """The parameters, their version, and the messages to and from the workers."""

    def __init__(self, run, model, group, updates_per_epoch):
        self.model, self.group, self.parameters = model, group, list(model.parameters())
        self.version, self.last = run.done * updates_per_epoch, run.options.epochs * updates_per_epoch
        self.incoming, self.outgoing = empty_message(model), empty_message(model)
        for p in self.parameters:
            p.grad = torch.zeros_like(p)
        pack(self.outgoing, [GRADIENT, self.version], self.parameters)
        dist.broadcast(self.outgoing, src=0, group=group)  # where every worker begins

    def update(self, optimizer, scheduler):
        """Apply the next gradient; its staleness, and what its worker measured."""
        worker = dist.recv(self.incoming, group=self.group)
        staleness = self.version - int(self.incoming[1])
        unpack(self.incoming, [p.grad for p in self.parameters])
        optimizer.step()
        scheduler.step()
        self.version += 1
        self.answer(worker)
        return staleness, self.incoming[2:HEAD].clone()

    def answer(self, worker):
        pack(self.outgoing, [STOP if self.version == self.last else GRADIENT, self.version], self.parameters)
        dist.send(self.outgoing, dst=worker, group=self.group)

    def dismiss(self, workers):
        """The other workers' last gradients are not applied any more."""
        for _ in range(workers):
            self.answer(dist.recv(self.incoming, group=self.group))


def keep_staleness(path, epoch, stale):
    """Write the file anew: the rows of earlier epochs and this one's. An epoch that is repeated replaces its rows."""
    rows = path.read_text().splitlines() if path.exists() else []
    rows = [row for row in rows if int(row.split(",")[0]) <= epoch]
    rows += [f"{epoch + 1},{staleness}" for staleness in stale]
    part = path.with_suffix(".part")
    part.write_text("\n".join(rows) + "\n")
    part.replace(path)  # whole or not at all


def serve(run, model, group):
    updates_per_epoch = max(len(run.data.train) // run.options.batch_size, 1)
    optimizer, scheduler, loss_fn = set_up_training(run, model, run.options.batch_size, updates_per_epoch)
    run.restore(model, optimizer, scheduler)
    server = Server(run, model, group, updates_per_epoch)
    batches, stopped = training_batches(run, 0, 1), 0
    for epoch in run.epochs():
        stopped = 1  # the last update's worker is
        started, sums, stale = time.perf_counter(), torch.zeros(3), []
        for _ in range(updates_per_epoch):
            staleness, measured = server.update(optimizer, scheduler)
            stale.append(staleness)
            sums += measured
        seconds = time.perf_counter() - started
        batches.set_epoch(epoch)
        update_bn((images for (images, _), _ in zip(batches, range(STATISTICS), strict=False)), model)
        loss, correct, images = evaluate(run, model, run.data.validation, loss_fn)
        keep_staleness(run.output_dir / "staleness.csv", epoch, stale)  # before the checkpoint, which says what counts
        run.end_epoch(
            model, optimizer, scheduler, train_loss=sums[0] / sums[2], train_accuracy=sums[1] / sums[2],
            validation_loss=loss / images, validation_accuracy=correct / images, seconds=seconds, images=int(sums[2]),
        )  # fmt: skip
    server.dismiss(run.world_size - 1 - stopped)
    _, correct, images = evaluate(run, model, run.data.test, loss_fn)
    run.finish(model, correct / images)


def work(run, model, group):
    index, workers = run.rank - 1, run.world_size - 1
    batches, parameters = training_batches(run, index, workers), list(model.parameters())
    _, _, loss_fn = set_up_training(run, model, run.options.batch_size, 1)
    question, answer = empty_message(model), empty_message(model)
    dist.broadcast(answer, src=0, group=group)
    unpack(answer, parameters)
    first, passes = int(answer[1]), 0
    torch.manual_seed(run.options.seed + first + run.rank)  # dropout differs between workers
    model.train()
    while True:
        batches.set_epoch(first + passes)  # after a restart, an order that was not used before
        passes += 1
        for images, labels in batches:
            sums = torch.zeros(3, device=run.device)
            with precision(run):
                logits = model(images)
                loss = loss_fn(logits, labels)
            model.zero_grad()
            loss.backward()
            add(sums, loss, logits, labels)
            pack(question, [GRADIENT, float(answer[1]), *sums.tolist()], [p.grad for p in parameters])
            requests = [dist.irecv(answer, src=0, group=group), dist.isend(question, dst=0, group=group)]
            for request in requests:
                request.wait()
            unpack(answer, parameters)
            if answer[0] == STOP:
                return


def train(run):
    if run.world_size < 2:
        raise ValueError("1 rank: asynchronous SGD needs a server and at least one worker; --ranks 3, or torchrun")
    group = dist.new_group(backend="gloo")  # NCCL has no receive from any rank, and sends no CPU tensors
    model = build_network(len(run.data.classes)).to(run.device)
    (serve if run.rank == 0 else work)(run, model, group)


if __name__ == "__main__":
    HomeworkRun.main(
        NAME, train, __doc__, lab="07_sync_async_sgd", ranks=3,
        meanings={"base_lr": "highest learning rate for 128 images per update, whatever the number of ranks: an update is one "
                  "worker's batch"},
        dataset="cifar100", epochs=30, batch_size=128, base_lr=0.1, momentum=0.9, weight_decay=5e-4,
        label_smoothing=0.1, warmup_epochs=3.0, padding=4,
    )  # fmt: skip

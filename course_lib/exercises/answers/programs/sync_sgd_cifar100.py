"""Your residual network on CIFAR-100 by synchronous SGD, the HW4 slides' Algorithm 1. The homework asks for 60 % accuracy.

Run it by `python sync_sgd_cifar100.py` (two ranks on this machine), by `torchrun --standalone --nproc-per-node=N
sync_sgd_cifar100.py`, or by the job scripts in deploy/. After an interruption, the same command continues.
"""

import time

import torch
import torch.distributed as dist
from resnet_cifar100 import (
    add,
    build_network,
    evaluate,
    means,
    parameter_groups,
    precision,
    set_up_training,
    training_batches,
)

from course_lib.training.homework import HomeworkRun

NAME = "sync_sgd_cifar100"


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


def train(run):
    model = build_network(len(run.data.classes)).to(run.device, memory_format=torch.channels_last)
    batches = training_batches(run, run.rank, run.world_size)
    images_per_step = run.options.batch_size * run.world_size
    groups = parameter_groups(model, run.options.weight_decay)
    optimizer, scheduler, loss_fn = set_up_training(run, groups, images_per_step, len(batches))
    run.restore(model, optimizer, scheduler)
    if run.world_size > 1:
        synchronise(model)

    def evaluated(split):
        return means(run, evaluate(run, model, split, loss_fn, run.rank, run.world_size))

    for epoch in run.epochs():
        batches.set_epoch(epoch)
        started = time.perf_counter()
        train_loss, train_accuracy = means(run, train_one_epoch(run, model, batches, optimizer, scheduler, loss_fn))
        seconds = time.perf_counter() - started
        if run.world_size > 1:
            average_statistics(model)
        validation_loss, validation_accuracy = evaluated(run.data.validation)
        run.end_epoch(
            model, optimizer, scheduler, train_loss=train_loss, train_accuracy=train_accuracy,
            validation_loss=validation_loss, validation_accuracy=validation_accuracy, seconds=seconds,
        )  # fmt: skip
    run.finish(model, evaluated(run.data.test)[1])


if __name__ == "__main__":
    HomeworkRun.main(
        NAME, train, __doc__, lab="07_sync_async_sgd", ranks=2,
        dataset="cifar100", epochs=30, batch_size=64, base_lr=0.2, momentum=0.9, weight_decay=5e-4,
        label_smoothing=0.1, warmup_epochs=3.0, padding=4,
    )  # fmt: skip

"""Your residual network on CIFAR-100 by asynchronous SGD, the HW4 slides' Algorithm 2. The homework asks for 60 % accuracy.

Rank 0 serves, the others work. Run it by `python async_sgd_cifar100.py` (a server and two workers on this machine), by
`torchrun --standalone --nproc-per-node=N async_sgd_cifar100.py`, or by the job scripts in deploy/. After an interruption,
the same command continues from the server's last epoch.
"""

import math

import torch
import torch.distributed as dist
from torch import nn

from course_lib.training.homework import HomeworkRun

NAME = "async_sgd_cifar100"


def build_network(num_classes):
    """The network, with first weights drawn at random.

    It takes images (B, 3, H, W), float, in 0…1, normalises them itself, and returns logits (B, num_classes). The grader
    calls this function, loads the weights of your run folder, and predicts images that you have not seen.
    """
    # YOUR CODE: your blocks and your network from lab 05. This stand-in learns nothing.
    return nn.Sequential(nn.AdaptiveAvgPool2d(5), nn.Flatten(), nn.Linear(75, num_classes))


def serve(run, model, group):
    """Rank 0: apply gradients in the order in which they come, and answer each with the new parameters.

    run : HomeworkRun; help(HomeworkRun) says what it gives. Rank 0 alone calls its methods.
    group : a Gloo group of all ranks. Messages are CPU tensors, and dist.recv(message, group=group) takes one from any rank.

    An epoch is as many updates as run.data.train has batches, whichever worker they come from. After each, compute batch
    norm's statistics (torch.optim.swa_utils.update_bn), evaluate on run.data.validation, and call run.end_epoch. The
    schedule counts updates. Write the staleness of every update to run.output_dir / "staleness.csv". At the end, every
    worker must learn that it may stop. A restored run begins with the version that its epochs have made.
    """
    # YOUR CODE: parameter groups, optimiser, schedule; and everything below
    optimizer, scheduler = torch.optim.SGD(model.parameters(), lr=run.options.base_lr), None
    run.restore(model, optimizer, scheduler)
    for epoch in run.epochs():
        loss, accuracy = math.log(len(run.data.classes)), 0.0
        run.end_epoch(
            model, optimizer, scheduler,
            train_loss=loss, train_accuracy=accuracy, validation_loss=loss, validation_accuracy=accuracy,
        )  # fmt: skip
    run.finish(model)


def work(run, model, group):
    """Ranks 1, 2, …: compute gradients on batches of this worker's share of run.data.train until the server says stop.

    A message carries what the server needs: the gradients, the version that they were computed on, and for the curve the
    sum of the losses, the number of correct predictions and the number of images.
    """
    # YOUR CODE: batches as in sync_sgd_cifar100.py


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

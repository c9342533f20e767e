"""Your residual network on CIFAR-100 by synchronous SGD, the HW4 slides' Algorithm 1. The homework asks for 60 % accuracy.

Run it by `python sync_sgd_cifar100.py` (two ranks on this machine), by `torchrun --standalone --nproc-per-node=N
sync_sgd_cifar100.py`, or by the job scripts in deploy/. After an interruption, the same command continues.
"""

import math

import torch
from torch import nn

from course_lib.training.homework import HomeworkRun

NAME = "sync_sgd_cifar100"


def build_network(num_classes):
    """The network, with first weights drawn at random.

    It takes images (B, 3, H, W), float, in 0…1, normalises them itself, and returns logits (B, num_classes). The grader
    calls this function, loads the weights of your run folder, and predicts images that you have not seen.
    """
    # YOUR CODE: your blocks and your network from lab 05. This stand-in learns nothing.
    return nn.Sequential(nn.AdaptiveAvgPool2d(6), nn.Flatten(), nn.Linear(108, num_classes))


def average_gradients(model, samples):
    """Replace every gradient by the mean over all images of all ranks, in one all_reduce.

    samples : images of this rank's batch
    """
    # YOUR CODE: as in the notebook. On a GPU every tensor that NCCL sends is on that GPU.


def train(run):
    """Train on run.data.train, evaluate after each epoch on run.data.validation, and on run.data.test once, at the end.

    run : HomeworkRun; help(HomeworkRun) says what it gives. The process group is up where run.world_size > 1. No
    DistributedDataParallel: all ranks begin with rank 0's weights and buffers, every step averages the gradients, and the
    running statistics are averaged before each evaluation. Give each rank its own share of the images. Sum losses and
    counts over the ranks before run.end_epoch.
    """
    model = build_network(len(run.data.classes)).to(run.device)
    # YOUR CODE: parameter groups, optimiser, schedule (a scheduler that you give to run is saved with the rest)
    optimizer, scheduler = torch.optim.SGD(model.parameters(), lr=run.options.base_lr), None
    run.restore(model, optimizer, scheduler)
    # YOUR CODE: one beginning for all ranks; batches with crops and flips as in lab 05. The network
    # normalises, so give Batches mean 0 and std 1 for each channel
    for epoch in run.epochs():
        # YOUR CODE: one epoch by Algorithm 1, one evaluation on run.data.validation; then report what you measured
        loss, accuracy = math.log(len(run.data.classes)), 0.0
        run.end_epoch(
            model, optimizer, scheduler,
            train_loss=loss, train_accuracy=accuracy, validation_loss=loss, validation_accuracy=accuracy,
        )  # fmt: skip
    # YOUR CODE: the accuracy on run.data.test, as run.finish(model, test_accuracy)
    run.finish(model)


if __name__ == "__main__":
    HomeworkRun.main(
        NAME, train, __doc__, lab="07_sync_async_sgd", ranks=2,
        dataset="cifar100", epochs=30, batch_size=64, base_lr=0.2, momentum=0.9, weight_decay=5e-4,
        label_smoothing=0.1, warmup_epochs=3.0, padding=4,
    )  # fmt: skip

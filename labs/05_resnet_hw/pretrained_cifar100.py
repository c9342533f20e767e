"""A ResNet-18 that was trained on ImageNet, fine-tuned on CIFAR-100. The homework asks for 70 % test accuracy.

The ImageNet weights are torchvision's: torchvision.models.ResNet18_Weights.IMAGENET1K_V1, a file of 45 MB. Without it in
torch hub's cache, torchvision downloads it. Compute nodes often have no network. Then load the file once on the login node:
    wget -P ~/.cache/torch/hub/checkpoints https://download.pytorch.org/models/resnet18-f37072fd.pth
Run the program by `python pretrained_cifar100.py`, by torchrun, or by the job scripts.
"""

import math

import torch
from torch import nn

from course_lib.system.torchvision_import import import_torchvision  # torchvision = import_torchvision()
from course_lib.training.homework import HomeworkRun

NAME = "pretrained_cifar100"


def build_network(num_classes):
    """torchvision's resnet18 with a new `fc`, without the pre-trained weights (`weights=None`), which `train` loads.

    It takes CIFAR's images (B, 3, 32, 32), float, in 0…1, and returns logits (B, num_classes). It does the preprocessing
    itself: scale up to 224×224 on the device, then normalise by the mean and the standard deviation of the *ImageNet*
    weights (`ResNet18_Weights.IMAGENET1K_V1.transforms()` prints them). The grader calls this function, loads the weights
    of your run folder, and predicts images that you have not seen.
    """
    # YOUR CODE: scaling, normalisation, resnet18 with a new fc. This stand-in learns nothing.
    return nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, num_classes))


def train(run):
    """Load the ImageNet weights into the body, and fine-tune with two learning rates: the head's, and a smaller one.

    The head's is run.options.base_lr, the body's run.options.body_lr_factor times that. Evaluate after each epoch on
    run.data.validation, and on run.data.test once, at the end. run : HomeworkRun; help(HomeworkRun) says what it gives.
    With several ranks the process group is up: shares of the images, DistributedDataParallel, sums over the ranks.
    """
    model = build_network(len(run.data.classes)).to(run.device, memory_format=torch.channels_last)
    # YOUR CODE: load the ImageNet weights into all layers but fc; two parameter groups
    # YOUR CODE: parameter groups, optimiser, schedule (a scheduler that you give to run is saved with the rest)
    optimizer, scheduler = torch.optim.SGD(model.parameters(), lr=run.options.base_lr), None
    run.restore(model, optimizer, scheduler)
    # YOUR CODE: batches with your crops and flips (course_lib.data.Batches, or your own); with several ranks,
    # DistributedDataParallel
    for epoch in run.epochs():
        # YOUR CODE: one epoch of training, one evaluation on run.data.validation; then report what you measured
        loss, accuracy = math.log(len(run.data.classes)), 0.0
        run.end_epoch(
            model, optimizer, scheduler,
            train_loss=loss, train_accuracy=accuracy, validation_loss=loss, validation_accuracy=accuracy,
        )  # fmt: skip
    # YOUR CODE: the accuracy on run.data.test, as run.finish(model, test_accuracy)
    run.finish(model)


if __name__ == "__main__":
    HomeworkRun.main(
        NAME, train, __doc__,
        dataset="cifar100", epochs=5, batch_size=128, base_lr=0.1, body_lr_factor=0.2, momentum=0.9,
        weight_decay=5e-4, label_smoothing=0.1, warmup_epochs=1.0, padding=4, image_size=224,
    )  # fmt: skip

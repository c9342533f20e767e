"""Your residual network on TinyImageNet: 200 classes, 64×64 pixels. The homework asks for 50 % on the official validation images.

`lab data fetch tiny-imagenet` has packed the files; its official validation images, which have labels, are `run.data.test`.
Run it by `python resnet_tinyimagenet.py`, by torchrun, or by the job scripts in deploy/.
"""

import resnet_cifar100
from resnet_cifar100 import parameter_groups, train_network

from course_lib.training.homework import HomeworkRun

NAME = "resnet_tinyimagenet"
MEAN = (0.4802, 0.4481, 0.3975)  # TinyImageNet's training images
STD = (0.2770, 0.2691, 0.2821)


def build_network(num_classes):
    """Images (B, 3, H, W) in 0…1 → logits (B, num_classes)."""
    return resnet_cifar100.build_network(num_classes, MEAN, STD)


def train(run):
    model = build_network(len(run.data.classes))
    train_network(run, model, parameter_groups(model, run.options.weight_decay))


if __name__ == "__main__":
    HomeworkRun.main(
        NAME, train, __doc__,
        dataset="tiny-imagenet", epochs=24, batch_size=128, base_lr=0.2, momentum=0.9, weight_decay=5e-4,
        label_smoothing=0.1, warmup_epochs=3.0, padding=8,
    )  # fmt: skip

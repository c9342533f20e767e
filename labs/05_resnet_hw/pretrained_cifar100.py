"""A pre-trained ResNet-18, fine-tuned on CIFAR-100 with the images scaled up to 224×224 (the HW4 slides: 70 % test accuracy).

The ImageNet weights are torchvision's: from --weights, torch hub's cache, or weights/ in the data root. Where there are
none, the program first trains the network on --pretrain-dataset, says so, and run.json says so too.
"""

import argparse
from pathlib import Path

from course_lib.models.upsampled_resnet18 import upsampled_resnet18
from course_lib.optim import no_decay_groups
from course_lib.training.homework import (
    check_options,
    exit_in_one_line,
    find_imagenet_weights,
    joined_ranks,
    load_body,
    one_cycle_options,
    one_cycle_sgd,
    program_options,
    train_program,
)

NAME = "pretrained_cifar100"


def recipe(model, given, steps_per_epoch, images_per_step):
    """One cycle for both, the body at a share of the head's learning rate: it has learnt already."""
    groups = []
    for part, factor in ((model.fc, 1.0), (body(model), given["body_lr_factor"])):
        groups += [{**group, "lr_factor": factor} for group in no_decay_groups(part, given["weight_decay"])]
    return one_cycle_sgd(
        groups, steps_per_epoch=steps_per_epoch, images_per_step=images_per_step, **one_cycle_options(given)
    )


def body(model):
    from torch import nn

    return nn.ModuleList(child for name, child in model.named_children() if name != "fc")


def pretrain(options, given):
    """Train ResNet-18 on another staged set; returns its weights' file. Goes on after an interruption, like the rest."""
    own = {**given, "dataset": given["pretrain_dataset"], "epochs": given["pretrain_epochs"], "base_lr": 0.1}
    where = argparse.Namespace(**{**vars(options), "output_dir": options.output_dir / "pretraining"})
    train_program(
        f"{NAME}_pretraining",
        where,
        own,
        lambda data: upsampled_resnet18(len(data.classes), given["image_size"]),
    )
    return where.output_dir / "model.safetensors"


def main() -> None:
    parser = program_options(
        NAME,
        __doc__,
        dataset="cifar100",
        epochs=5,
        batch_size=128,
        base_lr=0.1,
        body_lr_factor=0.2,
        momentum=0.9,
        weight_decay=5e-4,
        label_smoothing=0.1,
        warmup_epochs=1.0,
        padding=4,
        image_size=224,
        pretrain_dataset="cifar10",
        pretrain_epochs=10,
    )
    parser.add_argument("--weights", type=Path, default=None, help="ResNet-18 weights, .pth or .safetensors")
    options = parser.parse_args()
    given = check_options(parser, options)
    del given["weights"]

    with exit_in_one_line(NAME), joined_ranks() as (rank, _):
        weights = options.weights or find_imagenet_weights(options.root)
        if weights is not None:
            origin = {"file": weights.name}
        else:
            origin = {"pre-trained on": given["pretrain_dataset"], "epochs": given["pretrain_epochs"]}
            if rank == 0:
                print(
                    f"{NAME}: no ImageNet weights here; pre-training on {given['pretrain_dataset']} instead", flush=True
                )
            weights = pretrain(options, given)

        def make_model(data):
            model = upsampled_resnet18(len(data.classes), given["image_size"])
            load_body(model, weights)
            return model

        train_program(NAME, options, given, make_model, recipe, more={"network": "resnet18", "weights": origin})


if __name__ == "__main__":
    main()

"""The homework ResNet on TinyImageNet, 64×64 images of 200 classes (the HW4 slides: 50 % accuracy on its validation images)."""

import sys

from course_lib.training.homework import check_options, exit_in_one_line, program_options, train_program

try:
    from homework_network import HomeworkResNet  # yours, where the notebook has saved it beside this file
except ModuleNotFoundError as error:
    if error.name != "homework_network":
        raise
    from course_lib.models import HomeworkResNet

NAME = "resnet_tinyimagenet"


def main() -> None:
    parser = program_options(
        NAME,
        __doc__,
        dataset="tiny-imagenet",
        epochs=24,
        batch_size=128,
        base_lr=0.2,
        momentum=0.9,
        weight_decay=5e-4,
        label_smoothing=0.1,
        warmup_epochs=3.0,
        padding=8,
        small_epochs=None,
        small_size=48,
    )
    options = parser.parse_args()
    given = check_options(parser, options)

    with exit_in_one_line(NAME):
        train_program(
            NAME,
            options,
            given,
            lambda data: HomeworkResNet(num_classes=len(data.classes)),
            more={"network": "homework_network.py" if "homework_network" in sys.modules else "course_lib"},
        )


if __name__ == "__main__":
    main()

"""The homework ResNet on CIFAR-100 (the HW4 slides: 60 % test accuracy)."""

import sys

from course_lib.training.homework import check_options, exit_in_one_line, program_options, train_program

try:
    from homework_network import HomeworkResNet  # yours, where the notebook has saved it beside this file
except ModuleNotFoundError as error:
    if error.name != "homework_network":
        raise
    from course_lib.models import HomeworkResNet

NAME = "resnet_cifar100"


def main() -> None:
    parser = program_options(
        NAME,
        __doc__,
        dataset="cifar100",
        epochs=30,
        batch_size=128,
        base_lr=0.2,
        momentum=0.9,
        weight_decay=5e-4,
        label_smoothing=0.1,
        warmup_epochs=3.0,
        padding=4,
        small_epochs=None,
        small_size=24,
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

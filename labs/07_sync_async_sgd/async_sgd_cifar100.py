"""The homework ResNet on CIFAR-100 by asynchronous SGD, the HW4 slides' Algorithm 2 (60 % test accuracy): rank 0 serves."""

from course_lib.training.homework import (
    KNOWN_ERRORS,
    check_options,
    exit_in_one_line,
    on_ranks,
    program_options,
    train_asynchronously,
)

try:
    from homework_network import HomeworkResNet  # yours, where lab 05 has saved it and you have copied it here
except ModuleNotFoundError as error:
    if error.name != "homework_network":
        raise
    from course_lib.models import HomeworkResNet

NAME = "async_sgd_cifar100"


def train(options, given) -> None:
    train_asynchronously(
        NAME,
        options,
        given,
        lambda data: HomeworkResNet(num_classes=len(data.classes)),
        lab="07_sync_async_sgd",
        more={"network": "homework_network.py" if HomeworkResNet.__module__ == "homework_network" else "course_lib"},
    )


def main() -> None:
    parser = program_options(
        NAME,
        __doc__,
        meanings={
            "base_lr": "highest learning rate of the one-cycle schedule for 128 images an update; scaled linearly with the "
            "batch size, whatever the number of ranks: an update is one worker's batch"
        },
        dataset="cifar100",
        epochs=30,
        batch_size=128,
        base_lr=0.1,  # half of the synchronous program's: a gradient of two workers is one update old…
        momentum=0.9,  # …the other cure of section 6: a lower rate instead of less momentum
        weight_decay=5e-4,
        label_smoothing=0.1,
        warmup_epochs=3.0,
        padding=4,
        small_epochs=None,
        small_size=24,
        ranks=3,
    )
    options = parser.parse_args()
    given = check_options(parser, options)

    with exit_in_one_line(NAME):
        on_ranks(options.ranks, train, options, given, known=KNOWN_ERRORS)


if __name__ == "__main__":
    main()

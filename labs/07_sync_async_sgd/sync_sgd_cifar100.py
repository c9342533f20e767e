"""The homework ResNet on CIFAR-100 by synchronous SGD, the HW4 slides' Algorithm 1 (60 % test accuracy)."""

from course_lib.training.homework import (
    KNOWN_ERRORS,
    check_options,
    exit_in_one_line,
    on_ranks,
    program_options,
    train_program,
)

try:
    from homework_network import HomeworkResNet  # yours, where lab 05 has saved it and you have copied it here
except ModuleNotFoundError as error:
    if error.name != "homework_network":
        raise
    from course_lib.models import HomeworkResNet

try:
    from synchronous_sgd import average_gradients  # yours, where the notebook has saved it beside this file
except ModuleNotFoundError as error:
    if error.name != "synchronous_sgd":
        raise
    from course_lib.distributed.data_parallel.synchronous_sgd import average_gradients

NAME = "sync_sgd_cifar100"


def step(model, images, labels, optimizer, loss_fn):
    """Algorithm 1: the gradient of this rank's images, the mean over all ranks, the update."""
    logits = model(images)
    loss = loss_fn(logits, labels)
    optimizer.zero_grad()
    loss.backward()
    average_gradients(model, len(images))
    optimizer.step()
    return loss.detach(), logits.detach()


def train(options, given) -> None:
    train_program(
        NAME,
        options,
        given,
        lambda data: HomeworkResNet(num_classes=len(data.classes)),
        lab="07_sync_async_sgd",
        step=step,
        more={
            "network": "homework_network.py" if HomeworkResNet.__module__ == "homework_network" else "course_lib",
            "gradients": "synchronous_sgd.py" if average_gradients.__module__ == "synchronous_sgd" else "course_lib",
        },
    )


def main() -> None:
    parser = program_options(
        NAME,
        __doc__,
        dataset="cifar100",
        epochs=30,
        batch_size=64,
        base_lr=0.2,
        momentum=0.9,
        weight_decay=5e-4,
        label_smoothing=0.1,
        warmup_epochs=3.0,
        padding=4,
        small_epochs=None,
        small_size=24,
        ranks=2,
    )
    options = parser.parse_args()
    given = check_options(parser, options)

    with exit_in_one_line(NAME):
        on_ranks(options.ranks, train, options, given, known=KNOWN_ERRORS)


if __name__ == "__main__":
    main()

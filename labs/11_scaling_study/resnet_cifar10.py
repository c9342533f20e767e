"""The UPC article's baseline: ResNet50V2 on CIFAR-10 scaled up to 128×128, plain SGD, a line an epoch as Keras prints it.

One process trains sequentially. Under torchrun each rank takes `--batch_size` images a step of its own share (weak
scaling); divide it by the ranks yourself for strong scaling.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from course_lib.data.batches import Batches, load
from course_lib.distributed import rank_device
from course_lib.models import keras_parameter_count, resnet50v2, resnet152v2
from course_lib.runs.parameters import ParameterError, Rule, check_values
from course_lib.system.atomic import write_atomically
from course_lib.system.hardware import machine_line
from course_lib.training.homework import exit_in_one_line, joined_ranks
from course_lib.training.keras_fit import keras_fit
from course_lib.training.precision import accelerate_model

NETWORKS = {"resnet50v2": resnet50v2, "resnet152v2": resnet152v2}
NAME = "resnet_cifar10"
RULES = {
    name: Rule(rule)
    for name, rule in {
        "epochs": "[1, 10000]", "batch_size": "[1, train_samples]", "image_size": "[32, 224]", "dataset": "{data}",
        "train_samples": "[0, dataset.train]", "base_lr": "(0.0, 1e6]", "seed": "[0, 2147483647]",
    }.items()
}  # fmt: skip


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"{NAME}.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=5, help="passes over the training images (5)")
    parser.add_argument("--batch_size", "--batch-size", type=int, default=2048, help="images a rank and step (2048)")
    parser.add_argument("--network", choices=NETWORKS, default="resnet50v2", help="(resnet50v2)")
    parser.add_argument("--image_size", "--image-size", type=int, default=128, help="height and width, pixels (128)")
    parser.add_argument("--dataset", default="cifar10", help="a staged data set (cifar10)")
    parser.add_argument("--train_samples", "--train-samples", type=int, default=0, help="training images; 0 = all (0)")
    parser.add_argument("--base_lr", "--base-lr", type=float, default=0.01, help="learning rate of SGD (0.01)")
    parser.add_argument("--precision", choices=["auto", "float32", "bfloat16"], default="float32", help="(float32)")
    parser.add_argument("--seed", type=int, default=0, help="initialisation and data order (0)")
    parser.add_argument("--output", type=Path, help="write options and epochs to this file, as JSON")
    options = parser.parse_args()
    try:
        check_values(vars(options), RULES)
    except ParameterError as error:
        name, _, why = str(error).partition(" ")
        parser.exit(2, f"{parser.prog}: error: --{name} {why}\n")
    return options


def train(options: argparse.Namespace) -> None:
    with joined_ranks() as (rank, ranks):
        device = rank_device()
        data = load(options.dataset, train_samples=options.train_samples)
        torch.manual_seed(options.seed)
        network = NETWORKS[options.network](len(data.classes), data.channels, options.image_size)
        if rank == 0:
            print(f"{data}\n{ranks} rank(s) on {machine_line()}", file=sys.stderr)
            print(f"{options.network}: {keras_parameter_count(network):,} parameters", flush=True)
        model = accelerate_model(network, device, options.precision)
        batches = Batches(
            data.train, options.batch_size, device, mean=data.mean, std=data.std, shuffle=True, seed=options.seed,
            rank=rank, world_size=ranks,
        )  # fmt: skip
        wrapped = DistributedDataParallel(model) if ranks > 1 else model
        optimizer = torch.optim.SGD(model.parameters(), lr=options.base_lr)
        epochs = keras_fit(wrapped, batches, optimizer, options.epochs)
        if rank == 0 and options.output:
            given = {name: value for name, value in vars(options).items() if name != "output"}
            record = {"program": NAME, "ranks": ranks, "device": device.type, **given, "data": data.describe()}
            options.output.parent.mkdir(parents=True, exist_ok=True)
            epochs = [asdict(epoch) for epoch in epochs]
            write_atomically(options.output, json.dumps({**record, "epochs": epochs}, indent=1) + "\n")


if __name__ == "__main__":
    options = parse()
    with exit_in_one_line(NAME):
        train(options)

"""Checks of lab 02. Those that need ranks start two, by `launch`."""

from __future__ import annotations

import argparse
import math
import random
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from course_lib.checks.registry import CheckFailed
from course_lib.checks.run_evidence import check_run
from course_lib.checks.script_on_gpus import check_on_gpus
from course_lib.checks.torchrun_failure import torchrun_failure
from course_lib.distributed import LaunchTimeoutError, RankFailedError, launch
from course_lib.distributed.data_parallel.sync_batchnorm import GlooSyncBatchNorm

__all__ = ["CHECKS"]

TIMEOUT = 20.0


def on_two_ranks(worker: Callable[..., Any], *args: Any, process_group: bool = True) -> list[Any]:
    try:
        return launch(worker, 2, args, timeout=TIMEOUT, backend="gloo", process_group=process_group)
    except LaunchTimeoutError as error:
        raise CheckFailed(f"on two ranks it hangs: one waits for a call that the other never makes.\n{error}") from None
    except RankFailedError as error:
        raise CheckFailed(f"on two ranks it raised.\n{error}") from None


def arguments(answer: tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]) -> None:
    parse, world_size, global_rank = answer
    args = parse([])
    if not isinstance(args, argparse.Namespace):
        raise CheckFailed(f"parse_arguments returns what parser.parse_args(argv) gives; yours returned {args!r}")
    for name, default in (("num_nodes", 1), ("node_id", 0), ("num_gpus", 1)):
        if not hasattr(args, name):
            raise CheckFailed(
                f"there is no args.{name}: add_argument('--{name.replace('_', '-')}', type=int, default={default}, …)"
            )
        if getattr(args, name) != default:
            raise CheckFailed(f"--{name.replace('_', '-')} should default to {default}, yours is {getattr(args, name)}")
    args = parse(["--num-nodes", "3", "--num-gpus", "4", "--node-id", "2"])
    if args.num_gpus != 4 or not isinstance(args.num_gpus, int):
        raise CheckFailed(f"after --num-gpus 4, args.num_gpus is {args.num_gpus!r}; give the argument type=int")
    for name, value in (("num_nodes", 3), ("node_id", 2)):
        if getattr(args, name) != value or not isinstance(getattr(args, name), int):
            raise CheckFailed(
                f"after --{name.replace('_', '-')} {value}, args.{name} is {getattr(args, name)!r}; give the argument type=int"
            )
    size, rank = world_size(args), global_rank(args, 1)
    if size != 12 or not isinstance(size, int):
        raise CheckFailed(f"3 nodes with 4 GPUs each are 12 ranks, an int; world_size gave {size!r}")
    if rank != 9:
        raise CheckFailed(
            f"local rank 1 of node 2 comes after the 8 ranks of nodes 0 and 1, so it is rank 9; global_rank gave {rank}"
        )
    ranks = sorted(
        global_rank(argparse.Namespace(num_nodes=3, num_gpus=4, node_id=n), g) for n in range(3) for g in range(4)
    )
    if ranks != list(range(12)):
        raise CheckFailed(f"the 12 ranks must be numbered 0…11, each once; yours are {ranks}")
    print("arguments: 3 nodes × 4 GPUs are 12 ranks, local rank 1 of node 2 is rank 9")


def _try_process_group(start: Callable[[str], Any]) -> tuple[bool, int, int, float]:
    returned = start("gloo")
    if not dist.is_initialized():
        return False, -1, -1, 0.0
    total = torch.tensor(float(dist.get_rank() + 1))
    dist.all_reduce(total)
    return True, dist.get_rank(), returned if isinstance(returned, int) else -2, total.item()


def process_group(answer: Callable[[str], Any]) -> None:
    results = on_two_ranks(_try_process_group, answer, process_group=False)
    for rank, (started, group_rank, returned, total) in enumerate(results):
        if not started:
            raise CheckFailed(
                "after your function there is no process group on this rank: dist.init_process_group(backend) starts it"
            )
        if group_rank != rank or total != 3.0:
            raise CheckFailed(
                f"the ranks do not see each other: rank {rank} calls itself {group_rank} and sums 1 + 2 = {total}"
            )
        if returned != rank:
            raise CheckFailed(f"return this process's rank, dist.get_rank(): rank {rank} returned {returned}")
    print("start_process_group: two ranks found each other and summed 1 + 2 = 3")


def _try_prepare(prepare_once: Callable[..., Any], folder: str) -> tuple[list[str], Any]:
    rank = dist.get_rank()
    log = Path(folder) / "calls"

    def prepare() -> int:
        with log.open("a") as file:
            file.write(f"{rank} start\n")
        time.sleep(0.3 if rank == 0 else 0.0)  # long enough for a rank that does not wait to get ahead
        with log.open("a") as file:
            file.write(f"{rank} end\n")
        return 42

    value = prepare_once(prepare, rank)
    dist.barrier()
    return log.read_text().split("\n")[:-1], value


def prepare_once(answer: Callable[..., Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        results = on_two_ranks(_try_prepare, answer, folder)
    calls = results[0][0]
    if not calls or calls[0] != "0 start":
        raise CheckFailed(
            f"rank 0 goes first, yours went: {', '.join(calls) or 'nobody called prepare()'}. The others must wait at "
            "dist.barrier() until rank 0 has prepared"
        )
    if calls.count("1 start") != 1 or calls.count("0 start") != 1:
        raise CheckFailed(f"each rank calls prepare() exactly once; yours went: {', '.join(calls)}")
    if calls != ["0 start", "0 end", "1 start", "1 end"]:
        raise CheckFailed(
            f"rank 1 began before rank 0 had finished ({', '.join(calls)}), so both would download at once: "
            "let the others wait at dist.barrier() until rank 0 is done"
        )
    if [value for _, value in results] != [42, 42]:
        raise CheckFailed("every rank returns what its own prepare() returned")
    print("prepare_once: rank 0 prepared, then rank 1 found it ready")


def samplers(answer: Callable[..., Any]) -> None:
    train, test = TensorDataset(torch.arange(103)), TensorDataset(torch.arange(41))
    epochs: dict[int, list[list[int]]] = {0: [], 1: []}
    tests: list[list[int]] = []
    for rank in range(4):
        result = answer(train, test, 5, rank, 4, 7)
        if not isinstance(result, tuple) or len(result) != 2 or not all(isinstance(r, DataLoader) for r in result):
            raise CheckFailed("make_loaders returns two DataLoaders, (train_loader, test_loader)")
        train_loader, test_loader = result
        for loader, which in ((train_loader, "train"), (test_loader, "test")):
            if not isinstance(loader.sampler, DistributedSampler):
                raise CheckFailed(
                    f"the {which} loader has no DistributedSampler (it has {type(loader.sampler).__name__}): every rank "
                    "would see the whole data set. Pass sampler=DistributedSampler(…) to the DataLoader"
                )
            if (loader.sampler.num_replicas, loader.sampler.rank) != (4, rank):
                raise CheckFailed(
                    f"the {which} sampler of rank {rank} of 4 thinks it is rank {loader.sampler.rank} of "
                    f"{loader.sampler.num_replicas}: pass num_replicas and rank"
                )
        for epoch, seen in epochs.items():
            train_loader.sampler.set_epoch(epoch)
            seen.append([int(i) for (batch,) in train_loader for i in batch])
        if train_loader.batch_size != 5 or not train_loader.drop_last:
            raise CheckFailed(
                "training batches have batch_size images, and an incomplete last one is dropped (drop_last=True)"
            )
        if test_loader.drop_last:
            raise CheckFailed(
                "the test loader drops its last batch: those images would never be tested. Leave drop_last off there"
            )
        tests.append([int(i) for (batch,) in test_loader for i in batch])
        if test_loader.batch_size != 250 or tests[0] != sorted(tests[0]):
            raise CheckFailed("the test loader takes 250 images at a time, in their order (shuffle=False)")
    seen = [index for part in epochs[0] for index in part]
    if len(set(seen)) != len(seen):
        raise CheckFailed(
            "two ranks train on the same images. The ranks must share one permutation: give every sampler the same seed"
        )
    if epochs[0] == epochs[1]:
        raise CheckFailed("after set_epoch(1) the order is that of epoch 0: the training sampler needs shuffle=True")
    other_loader, _ = answer(train, test, 5, 0, 4, 8)
    other_loader.sampler.set_epoch(0)
    if [int(i) for (batch,) in other_loader for i in batch] == epochs[0][0]:
        raise CheckFailed("seeds 7 and 8 give the same order: give the training sampler the seed")
    if set(range(41)) - {index for part in tests for index in part}:
        raise CheckFailed("some test images are seen by no rank; the test sampler must cover them all")
    print("make_loaders: 4 ranks train on different images, in a new order each epoch, and test on all of them")


class _NormedNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.classifier = nn.Linear(4 * 36, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.norm(self.convolution(x)).flatten(1))


def _try_wrap(wrap: Callable[..., Any]) -> dict[str, Any]:
    rank = dist.get_rank()
    found: dict[str, Any] = {}
    for sync in (False, True):
        torch.manual_seed(rank)  # a different start on each rank, which DDP must overrule
        wrapped = wrap(_NormedNet(), torch.device("cpu"), sync)
        found["type"] = type(wrapped).__name__
        if not isinstance(wrapped, nn.parallel.DistributedDataParallel):
            return found
        kinds = {type(module) for module in wrapped.modules()}
        found[f"synced {sync}"] = bool(kinds & {GlooSyncBatchNorm, nn.SyncBatchNorm})
        torch.manual_seed(100 + rank)
        wrapped(torch.randn(4, 1, 8, 8)).square().mean().backward()
        found[f"weights {sync}"] = [p.detach().clone() for p in wrapped.parameters()]
        found[f"gradients {sync}"] = [p.grad.clone() for p in wrapped.parameters()]
    return found


def wrap(answer: Callable[..., Any]) -> None:
    first, second = on_two_ranks(_try_wrap, answer)
    if first["type"] != "DistributedDataParallel":
        raise CheckFailed(
            f"wrap returns nn.parallel.DistributedDataParallel(model, …); yours returned a {first['type']}"
        )
    for sync in (False, True):
        for what in ("weights", "gradients"):
            if not all(
                torch.equal(a, b) for a, b in zip(first[f"{what} {sync}"], second[f"{what} {sync}"], strict=True)
            ):
                raise CheckFailed(
                    f"after a backward pass the two ranks' {what} differ: is the wrapped model the one that runs?"
                )
    if first["synced False"]:
        raise CheckFailed("with sync_batchnorm=False the model has synchronised batch norm: convert only when asked to")
    if not first["synced True"]:
        raise CheckFailed(
            "with sync_batchnorm=True the model still has ordinary batch norm: convert_sync_batchnorm(model, device), "
            "before DistributedDataParallel wraps it, and use what it returns"
        )
    print("wrap: two ranks that started differently now share weights and gradients")


def _try_throughput(reduce_throughput: Callable[..., Any]) -> Any:
    rank = dist.get_rank()
    return reduce_throughput([1000, 600][rank], [2.0, 4.0][rank], torch.device("cpu"))


def throughput(answer: Callable[..., Any]) -> None:
    results = on_two_ranks(_try_throughput, answer)
    for rank, result in enumerate(results):
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise CheckFailed(f"return the pair (images per second, seconds); rank {rank} returned {result!r}")
        rate, seconds = (float(value) for value in result)
        told = "rank 0 trained 1,000 images in 2 s, rank 1 600 images in 4 s"
        if not math.isclose(seconds, 4.0):
            raise CheckFailed(
                f"{told}: the epoch took the slowest rank's 4 s; rank {rank} says {seconds:g} (ReduceOp.MAX)"
            )
        if math.isclose(rate, 650):
            raise CheckFailed(
                f"{told}. 1000/2 + 600/4 = 650 adds rates over different times; together they trained 1,600 images in "
                "the 4 s that the epoch took: 400 images/s"
            )
        if not math.isclose(rate, 400):
            raise CheckFailed(f"{told}: 1,600 images in 4 s are 400 images/s; rank {rank} says {rate:g}")
    print("reduce_throughput: 1,600 images in the slowest rank's 4 s are 400 images/s, on both ranks")


def _try_metrics(reduce_metrics: Callable[..., Any]) -> Any:
    rank = dist.get_rank()
    return reduce_metrics([50.0, 40.0][rank], [90, 6][rank], [100, 20][rank], torch.device("cpu"))


def metrics(answer: Callable[..., Any]) -> None:
    for rank, result in enumerate(on_two_ranks(_try_metrics, answer)):
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise CheckFailed(f"return the pair (mean loss, accuracy); rank {rank} returned {result!r}")
        loss, accuracy = (float(value) for value in result)
        told = "rank 0 has 90 of 100 right, rank 1 has 6 of 20"
        if math.isclose(accuracy, 0.6, rel_tol=1e-6):
            raise CheckFailed(
                f"{told}. (90 % + 30 %)/2 = 60 % is the mean of the ranks' accuracies; of all 120 images 96 are right, "
                "80 %. Sum the counts over ranks, then divide"
            )
        if not math.isclose(accuracy, 0.8, rel_tol=1e-6):
            raise CheckFailed(f"{told}: together 96 of 120, 80 %; rank {rank} says {accuracy:.3f}")
        if not math.isclose(loss, 0.75, rel_tol=1e-6):
            raise CheckFailed(f"the losses sum to 50 + 40 = 90 over 120 images, 0.75 each; rank {rank} says {loss:.3f}")
    print("reduce_metrics: 96 of 120 right, on both ranks")


def early_stop(answer: Callable[[list[float], float, int], Any]) -> None:
    for accuracies, patience, expected, why in (
        ([0.80, 0.86], 2, False, "only the last epoch reached 85 %"),
        ([0.86, 0.84, 0.87], 2, False, "the epoch before the last fell below: the run of good epochs starts again"),
        ([0.84, 0.85, 0.85], 2, True, "the last two epochs are at or above 85 % (exactly 85 % counts)"),
        ([0.90], 1, True, "one epoch is enough with patience 1"),
        ([0.90], 2, False, "there has been one epoch; patience asks for two"),
        ([], 2, False, "nothing has been trained yet"),
    ):
        if bool(answer(list(accuracies), 0.85, patience)) is not expected:
            raise CheckFailed(
                f"accuracies {accuracies}, target 0.85, patience {patience}: should_stop must be {expected}, because {why}"
            )
    generator = random.Random(5)
    for _ in range(300):
        accuracies = [generator.choice([0.8, 0.85, 0.9]) for _ in range(generator.randint(1, 8))]
        patience = generator.randint(1, 4)
        expected = len(accuracies) >= patience and min(accuracies[-patience:]) >= 0.85
        if bool(answer(list(accuracies), 0.85, patience)) is not expected:
            raise CheckFailed(
                f"accuracies {accuracies}, target 0.85, patience {patience}: should_stop must be {expected}"
            )
    print("should_stop: right on 300 random histories")


def worker(answer: Callable[..., Any], args: argparse.Namespace | None = None) -> None:
    if args is None:
        raise CheckFailed("give the check small arguments: check('lab02.worker', worker, args=tiny)")
    first, second = on_two_ranks(answer, args, None)
    for rank, result in enumerate((first, second)):
        if not isinstance(result, dict) or {"accuracies", "fingerprint", "orders"} - set(result):
            raise CheckFailed(f"the worker's last lines are given: it returns a dict; rank {rank} returned {result!r}")
    if len(first["accuracies"]) != args.epochs:
        raise CheckFailed(
            f"{args.epochs} epochs were asked for (no target), yours recorded {len(first['accuracies'])}: "
            "append the epoch's accuracy once an epoch"
        )
    if first["accuracies"] != second["accuracies"]:
        raise CheckFailed(
            f"the ranks disagree about the accuracy ({first['accuracies']} and {second['accuracies']}); one could stop "
            "early while the other waits for it. Append the *reduced* accuracy"
        )
    if first["fingerprint"] != second["fingerprint"]:
        raise CheckFailed(
            "after training the ranks' weights differ: train the wrapped model, so that gradients are averaged"
        )
    if first.get("statistics") != second.get("statistics"):
        raise CheckFailed(
            "after training the ranks' batch-norm statistics differ, so each rank evaluated a network of its own: "
            "broadcast rank 0's buffers before evaluate"
        )
    if len(set(first["orders"])) < len(first["orders"]):
        raise CheckFailed("two epochs had the same order of images: call train_loader.sampler.set_epoch(epoch) in each")
    print("worker: two ranks, equal weights, equal accuracies, a new order each epoch")


def script(done: subprocess.CompletedProcess, script: str | None = None) -> None:
    if "NotImplementedError" in done.stdout:
        raise CheckFailed("train_ddp.py still has its blank: join the process group, run the worker, leave the group")
    if "has not been initialized" in done.stdout:
        raise CheckFailed(
            "the worker asked for its rank before there was a process group: call start_process_group first"
        )
    if done.returncode != 0:
        raise CheckFailed(torchrun_failure(done))
    if "epoch 1:" not in done.stdout:
        raise CheckFailed("torchrun ended well, but no rank reported an epoch: does the script call worker(args)?")
    if script is not None:
        check_on_gpus(script)
    print("train_ddp.py: torchrun ran an epoch and ended with exit code 0")


CHECKS = {
    "arguments": arguments,
    "process-group": process_group,
    "prepare-once": prepare_once,
    "samplers": samplers,
    "wrap": wrap,
    "throughput": throughput,
    "metrics": metrics,
    "early-stop": early_stop,
    "worker": worker,
    "script": script,
    "run": lambda folder: check_run(folder, "02_ddp"),
}

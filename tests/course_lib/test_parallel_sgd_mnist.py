"""The effect of the parallel SGD lab under `mpirun -n 1 … 5` on real MNIST, and its cure."""

import math
import statistics

import pytest
import torch
from torch import nn

from course_lib.data.batches import Batches, load
from course_lib.distributed import MPIPeers, critical_path, mpi_launch, parallel_sgd, worker_batches
from course_lib.models import ParallelSGDNet
from course_lib.training.loop import evaluate
from data_prep.errors import DataError

pytestmark = pytest.mark.slow
SEEDS = (0, 1)
WAYS = {"own starts": (False, 0), "one start": (True, 0), "local SGD": (True, 10)}


def trainings(comm):
    """Rank 0: {way: [(accuracy, loss, seconds on a core a worker), …]}, one a seed."""
    peers, found = MPIPeers(comm), {}
    data = load("mnist", train_samples=6000, test_samples=2000)
    scale = {"mean": data.mean, "std": data.std}
    test_batches = Batches(data.test, 500, **scale)

    def run(seed, one_start, every, epochs=4):
        torch.manual_seed(seed if one_start else 100 * (seed + 1) + peers.rank)
        model = ParallelSGDNet()
        torch.manual_seed(1000 * (seed + 1) + peers.rank)
        sgd = torch.optim.SGD(model.parameters(), lr=0.05 * (math.sqrt(peers.size) if every else 1))
        batches = worker_batches(peers, data.train, 32, seed=seed, **scale)
        report = parallel_sgd(peers, model, batches, sgd, epochs=epochs, average_every=every)
        loss, correct, images = evaluate(model, test_batches, nn.functional.cross_entropy)
        return correct / images, loss / images, critical_path(peers.gather(report))

    run(0, True, 0, epochs=1)  # the first steps of a process are slow
    for way, (one_start, every) in WAYS.items():
        found[way] = [run(seed, one_start, every) for seed in SEEDS]
    return found


def test_averaging_once_is_fast_and_bad_and_local_sgd_is_neither_bad_nor_slow():
    try:
        load("mnist")
    except DataError as error:
        pytest.skip(str(error))
    found = {workers: mpi_launch(trainings, workers, threads=1, timeout=400)[0] for workers in range(1, 6)}
    mean = {
        (way, workers): [statistics.mean(column) for column in zip(*found[workers][way], strict=True)]
        for way in WAYS for workers in found
    }  # fmt: skip
    for key, (accuracy, loss, seconds) in mean.items():
        print(
            f"{key[0]:10s} P = {key[1]}: accuracy {accuracy:.3f}, loss {loss:.3f}, {seconds:.2f} s on a core a worker"
        )
    single, _, alone = mean["one start", 1]
    assert single > 0.95
    # As that lab's graphs: the speed-up rises, the averaged accuracy falls.
    gains = [alone / mean["own starts", workers][2] for workers in (2, 4)]
    assert 1.4 < gains[0] < gains[1]
    fallen = [mean["own starts", workers][0] for workers in (1, 3, 5)]
    assert fallen[0] > 0.95 and fallen[1] < 0.6 and fallen[2] < 0.4
    assert mean["own starts", 2][1] > 1.0  # a loss near that of guessing, as that lab's 1.94
    # One start helps, averaging often helps more.
    assert fallen[2] + 0.3 < mean["one start", 5][0] < mean["local SGD", 5][0]
    assert all(mean["local SGD", workers][0] > single - 0.04 for workers in found)

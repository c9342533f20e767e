"""HogWild's processes: one memory, all of the work once, and nothing left when one of them goes."""

import contextlib
import gc
import os
import signal
import sys
import threading
import time
from pathlib import Path

import cloudpickle
import pytest
import rank_processes
import torch
from gloo_ranks import error_of
from rank_processes import note_pid, survivors
from torch import nn

from course_lib.distributed import LaunchTimeoutError, launch
from course_lib.distributed.shared_memory import hogwild_sgd
from course_lib.distributed.shared_memory.hogwild import barrier, hogwild, shard_indices
from course_lib.distributed.shared_memory.hogwild_sgd import train_hogwild, train_serial
from course_lib.distributed.shared_memory.lost_updates import measure_lost_updates
from course_lib.distributed.shared_memory.tensors import FileLock, pack_shared
from course_lib.training import sparse_logistic
from course_lib.training.sparse_logistic import make_sparse_data

for module in (sys.modules[__name__], rank_processes):
    cloudpickle.register_pickle_by_value(module)

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def tied_network():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3))
    model[2].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    model.register_buffer("empty", torch.empty(0))
    return model


def test_workers_share_the_model_and_what_else_is_shared_and_get_copies_of_the_rest():
    model, shared, copied = tied_network(), torch.zeros(2, 3).share_memory_().t(), torch.zeros(2)
    written = torch.zeros(2).share_memory_()

    def worker(model, rank, lock, shared, column, copied, written):
        with torch.no_grad():
            model[2].weight[rank] = 10 + rank
        model[1].running_mean[rank] = 20 + rank
        model[2].bias.grad = torch.ones(3)
        shared[:, rank] = 30 + rank
        copied += 1
        barrier(written, rank)
        kinds = [type(parameter) for parameter in model.parameters()]
        facts = model[2].weight is model[0].weight, model[0].bias.requires_grad, torch.get_num_threads(), kinds
        return rank, column.tolist(), isinstance(lock, contextlib.nullcontext), facts, model[2].weight

    results = hogwild(worker, model, 2, (shared, shared[:, 1], copied, written), timeout=600)
    assert [result[:2] for result in results] == [(0, [31, 31, 31]), (1, [31, 31, 31])]
    for _, _, no_lock, facts, weight in results:
        assert no_lock and facts == (True, False, 1, [nn.Parameter] * 5)
        assert weight[:2].tolist() == [[10] * 3, [11] * 3]
    assert model[0].weight[:2].tolist() == [[10] * 3, [11] * 3] and model[2].weight is model[0].weight
    assert model[1].running_mean[:2].tolist() == [20, 21]
    assert model[2].bias.grad is None and copied.tolist() == [0, 0]
    assert shared.tolist() == [[30, 31]] * 3
    results[0][4].data.fill_(-1)  # results are copies
    assert model[0].weight[0, 0] == 10


class Slow:
    """Takes rank 1 half a second to unpickle."""

    def __reduce__(self):
        return _slowly, ()


def _slowly():
    time.sleep(0.5 * int(os.environ["RANK"]))
    return time.monotonic()


def test_workers_start_when_all_have_their_arguments():
    def worker(model, rank, lock, loaded):
        return loaded, time.monotonic()

    (_, started), (loaded, _) = hogwild(worker, torch.zeros(1), 2, (Slow(),), timeout=600)
    assert started >= loaded


@pytest.mark.parametrize("samples, processes", [(10, 1), (10, 2), (11, 3), (2, 3), (0, 2)])
def test_the_shares_of_an_epoch_are_each_sample_once(samples, processes):
    shares = [shard_indices(samples, processes, rank, epoch=4, seed=1) for rank in range(processes)]
    assert sorted(torch.cat(shares).tolist()) == list(range(samples))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    if samples == 10:
        dealt = torch.stack(shares, 1).flatten()
        assert torch.equal(dealt, shard_indices(10, 1, 0, epoch=4, seed=1))  # the order does not depend on N
        assert not torch.equal(dealt, shard_indices(10, 1, 0, epoch=5, seed=1))
        assert torch.equal(dealt, shard_indices(10, 1, 0, epoch=5, seed=0))
    with pytest.raises(ValueError, match="rank must be in 0…1, got 2"):
        shard_indices(10, 2, 2)


def test_lost_updates_are_the_displacement_that_is_not_there():
    before, after = torch.tensor([1.0, 1, 1, 1]), torch.tensor([2.0, 1, 0, 1])
    sums = [torch.tensor([1.0, 0, -1, 3], dtype=torch.float64), torch.tensor([0.5, 0, 0, -3.25], dtype=torch.float64)]
    lost = measure_lost_updates(before, after, sums, [5.0, 5.0])
    assert (lost.added, lost.missing, lost.fraction) == (10.0, 0.75, 0.075)


def tiny_problem(samples=37):
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(samples, 4, generator=generator)
    return images, (images.sum(1) > 0).long()


def tiny_model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))


@pytest.mark.parametrize("decay", [False, True])
def test_one_process_is_plain_sgd(decay):
    images, labels = tiny_problem()
    truth = tiny_model()
    optimizer = torch.optim.SGD(truth.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0 if decay else 1.0, total_iters=3 * 5)
    for epoch in range(3):
        for batch in shard_indices(37, 1, 0, epoch, seed=5).split(8):
            optimizer.zero_grad()
            nn.functional.cross_entropy(truth(images[batch]), labels[batch]).backward()
            optimizer.step()
            schedule.step()
    options = {"epochs": 3, "batch_size": 8, "lr": 0.1, "decay": decay, "seed": 5, "count_lost": True}
    serial, shared = tiny_model(), tiny_model()
    runs = [
        train_serial(serial, images, labels, **options),
        train_hogwild(shared, images, labels, 1, timeout=600, **options),
    ]
    for model, run in zip((serial, shared), runs, strict=True):
        for parameter, expected in zip(model.parameters(), truth.parameters(), strict=True):
            assert (parameter - expected).abs().max() < 1e-6
        assert run.samples == [3 * 37] and run.lost.added > 1 and run.lost.fraction < 1e-6 and run.seconds > 0


def test_two_processes_share_the_work_and_locked_ones_lose_nothing():
    images, labels = tiny_problem(1001)
    start = tiny_model()
    for locked in (False, True):
        model = tiny_model()
        run = train_hogwild(
            model, images, labels, 2, epochs=2, batch_size=8, lr=0.05, locked=locked, count_lost=True, timeout=600
        )
        assert run.samples == [2 * 501, 2 * 500]
        assert (model[0].weight - start[0].weight).abs().max() > 0.01
        if locked:
            assert run.lost.fraction < 1e-6
    with pytest.raises(ValueError, match="3 processes cannot share 2 images"):
        train_hogwild(model, images[:2], labels[:2], 3, epochs=1, batch_size=1, lr=0.1)
    for epochs, batch_size in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match=f"at least 1, got {epochs} and {batch_size}"):
            train_hogwild(model, images, labels, 2, epochs=epochs, batch_size=batch_size, lr=0.1)


def plain_work(ready):
    return hogwild_sgd._Work(len(ready), 1, 8, 0.1, False, 0, False, ready)


class Watched:
    """A lock that sees whether the weights change while nobody holds it."""

    def __init__(self, weights):
        self.weights, self.seen, self.entered = weights, weights().clone(), 0

    def __enter__(self):
        assert torch.equal(self.weights(), self.seen)
        self.entered += 1

    def __exit__(self, *exc_info):
        self.seen = self.weights().clone()


def sparse_work(dense):
    return sparse_logistic._Options(epochs=1, batch_size=10, lr=0.1, dense=dense)


def test_weights_change_under_the_lock_only():
    images, labels = tiny_problem()
    model = tiny_model()
    lock = Watched(lambda: nn.utils.parameters_to_vector(model.parameters()).detach())
    begin = lock.seen
    hogwild_sgd._worker(model, 0, lock, images, labels, plain_work(ready=torch.zeros(1)))
    assert lock.entered == 5 and not torch.equal(begin, lock.seen)
    data = make_sparse_data(100, 64, 3, words=100)
    for dense in (False, True):
        weights = torch.zeros(64, dtype=torch.float64)
        lock = Watched(lambda weights=weights: weights)
        sparse_logistic._worker(weights, 0, lock, data, torch.zeros(1), sparse_work(dense))
        assert lock.entered == 10 and lock.seen.any()


@pytest.mark.parametrize("problem", ["network", "sparse", "dense"])
def test_clocks_start_when_all_have_made_a_first_step_which_changes_nothing(problem, monkeypatch):
    model = nn.Sequential(*tiny_model(), nn.Dropout(0.5))
    ready, no_lock = torch.zeros(2), contextlib.nullcontext()
    weights = torch.zeros(64, dtype=torch.float64)
    called, starts = threading.Event(), []

    def noted(*arguments, first_step=hogwild_sgd._first_step):
        first_step(*arguments)
        called.set()

    monkeypatch.setattr(hogwild_sgd, "_first_step", noted)

    def work():
        if problem == "network":
            starts.append(hogwild_sgd._worker(model, 0, no_lock, *tiny_problem(), plain_work(ready)).start)
        else:
            data = make_sparse_data(100, 64, 3, words=100)
            report = sparse_logistic._worker(weights, 0, no_lock, data, ready, sparse_work(problem == "dense"))
            starts.append(report[0])

    torch.manual_seed(8)
    dropout = torch.get_rng_state()
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    while not ready[0]:
        assert thread.is_alive()
        time.sleep(0.001)
    time.sleep(0.05)  # enough for a worker that does not wait
    assert thread.is_alive() and called.is_set() == (problem == "network")
    assert torch.equal(torch.get_rng_state(), dropout)
    assert not weights.any() and all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), tiny_model().parameters(), strict=True))
    now = time.monotonic()
    ready[1] = 1
    thread.join()
    assert starts[0] >= now


def test_a_dead_workers_lock_is_free_again(tmp_path):
    path = tmp_path / "lock"
    path.touch()
    pid = os.fork()
    if pid == 0:
        FileLock(str(path)).__enter__()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    with FileLock(str(path)):
        pass


def test_a_time_limit_ends_all(tmp_path):
    def worker(model, rank, lock, folder):
        note_pid(folder)
        time.sleep(600)

    with pytest.raises(LaunchTimeoutError):
        hogwild(worker, nn.Linear(2, 2), 2, (str(tmp_path),), timeout=1.0)
    assert survivors([int(path.read_text()) for path in tmp_path.glob("*.pid")]) == []


@linux
def test_nothing_is_left_of_the_shared_memory():
    def segments(pid):
        return [name for name in os.listdir("/dev/shm") if name.startswith(f"torch_{pid}_")]

    def mapped():
        return sum("/dev/shm/torch_" in line for line in Path("/proc/self/maps").read_text().splitlines())

    def worker(model, rank, lock, pid):
        return segments(pid)

    launch(os.getpid, 1, timeout=600)  # the fork server's start opens files
    gc.collect()  # of earlier tests
    before, files = mapped(), len(os.listdir("/proc/self/fd"))
    model = tiny_model()
    # No name even while it is in use, so that a kill of all processes leaves nothing either.
    assert hogwild(worker, model, 2, (os.getpid(),), locked=True, timeout=600) == [[], []]
    assert segments(os.getpid()) == [] and mapped() > before
    del model
    gc.collect()
    assert mapped() == before and len(os.listdir("/proc/self/fd")) <= files + 2


def test_what_cannot_be_is_refused_in_one_line():
    model = nn.Linear(2, 2)
    for processes in (0, -1, 1.5):
        assert "processes must be a whole number of at least 1" in error_of(hogwild, print, model, processes)
    elsewhere = nn.Linear(2, 2, device="meta")
    assert "memory of the CPU, but the model is on meta" in error_of(hogwild, print, elsewhere, 2)
    generator = (number for number in range(3))
    for call in (lambda: hogwild(print, model, 2, (generator,)), lambda: pack_shared(threading.Lock())):
        assert "cannot be sent to another process" in error_of(call, kind=TypeError)


def test_shared_memory_that_cannot_be_had_names_the_remedy(monkeypatch):
    def refuse(tensor):
        raise RuntimeError("unable to allocate shared memory(shm)")

    monkeypatch.setattr(torch.Tensor, "share_memory_", refuse)
    with pytest.raises(MemoryError, match=r"^cannot get 0 MB of shared memory .*--shm-size=2g") as raised:
        train_hogwild(tiny_model(), torch.zeros(2, 4), torch.zeros(2).long(), 1, epochs=1, batch_size=1, lr=0.1)
    assert "\n" not in str(raised.value)

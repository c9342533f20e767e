"""Lab 08's visible checks: the reference passes, and typical mistakes are told apart."""

import copy
import sys
import time

import cloudpickle
import numpy as np
import pytest
import torch
from notebook_answers import answers
from torch import nn

from course_lib.checks import CheckFailed, check, lab08
from course_lib.distributed import MPIPeers, average_parameters
from course_lib.distributed.launching.errors import RankFailedError
from course_lib.distributed.launching.process_comm import run_ranks
from course_lib.distributed.local_sgd.parallel_sgd import WorkerReport, critical_path
from course_lib.plots.parallel_sgd import accuracy_against_workers, loss_between, speedups, two_landscapes
from course_lib.training.linear_interpolation import loss_along_line

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as from a cell; a rank would import this file
REFERENCE = answers("08_parallel_sgd_mpi")
EXERCISES = {
    "averaging": "average_models",
    "psgd": "psgd_worker",
    "local-sgd": "local_sgd_worker",
    "speedup-table": "speedup_table",
    "interpolate": "interpolate",
}


@pytest.mark.parametrize("exercise", EXERCISES)
def test_the_reference_passes_and_says_so(exercise, capsys):
    assert check(f"lab08.{exercise}", REFERENCE[EXERCISES[exercise]]) is None
    told = capsys.readouterr()
    assert told.out.startswith(EXERCISES[exercise]) and told.err == ""


def refused(exercise, answer, *words):
    with pytest.raises(CheckFailed) as raised:
        check(f"lab08.{exercise}", answer)
    assert all(word in str(raised.value) for word in words), str(raised.value)


def test_the_references_are_the_librarys():
    models, reference = [nn.Linear(4, 3) for _ in range(3)], REFERENCE["average_models"]

    def worker(comm):
        mine, other = models[comm.rank], copy.deepcopy(models[comm.rank])
        reference(comm, mine, 10 + comm.rank)
        average_parameters(MPIPeers(comm), other, 10 + comm.rank)
        return mine.weight, other.weight

    for mine, other in run_ranks(worker, 3):
        torch.testing.assert_close(mine, other)
    pairs = [(3.0, 1.0), (3.5, 0.5), (2.0, 2.0)]
    reports = [WorkerReport(rank, 0, 0, 0.0, (c,), (a,), 0) for rank, (c, a) in enumerate(pairs)]
    assert REFERENCE["speedup_table"]({1: [(9.0, 0.0)], 3: pairs})[3][0] == critical_path(reports)


@torch.no_grad()
def averaging(comm, model, samples, *, write=True, divide=True, everybody=True, weigh=True, first=False, replace=False):
    weight = samples if weigh else 1
    total = comm.allreduce(weight) if divide else 1
    for name, parameter in list(model.named_parameters()):
        mean = comm.allreduce(weight * parameter.detach()) / total
        if write and (everybody or comm.rank == 0) and not (first and name != "hidden.weight"):
            if replace:
                module, _, kind = name.rpartition(".")
                setattr(model.get_submodule(module), kind, nn.Parameter(mean))
            else:
                parameter.copy_(mean)


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"write": False}, ("the model is as it was", "copy_")),
        ({"weigh": False}, ("10, 20, 50 samples", "you count every rank alike")),
        ({"divide": False, "weigh": False}, ("that is a sum",)),
        ({"everybody": False}, ("rank 0 holds the mean, rank 1 does not", "bcast")),
        ({"first": True}, ("only the first parameters",)),
        ({"replace": True}, ("other parameter objects",)),
    ],
    ids=["silent", "not weighted", "a sum", "rank 0 alone", "first only", "other objects"],
)
def test_averaging_mistakes(wrong, words):
    refused("averaging", lambda *given: averaging(*given, **wrong), *words)


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(lab08, "TIMEOUT", 1.0)


def test_an_averaging_that_hangs_is_an_error(impatient):
    refused(
        "averaging",
        lambda comm, model, samples: comm.recv(source=0) if comm.rank else None,
        "waits in recv from rank 0",
        "a send needs its recv",
    )
    refused(
        "averaging",
        both_send_first,
        "waits in send to rank",
        "two ranks that both send first wait for ever",
        "sendrecv",
    )
    refused("averaging", lambda comm, model, samples: comm.bcast(1) if comm.rank else comm.gather(1), "calls")


@torch.no_grad()
def both_send_first(comm, model, samples):
    """Every rank sends its model to all others, then receives: under MPI it hangs on anything large."""
    mine = {name: samples * p.detach().clone() for name, p in model.named_parameters()}
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    for rank in others:
        comm.send((samples, mine), rank)
    found = [(samples, mine), *(comm.recv(source=rank) for rank in others)]
    total = sum(n for n, _ in found)
    for name, p in model.named_parameters():
        p.copy_(sum(state[name] for _, state in found) / total)


BOX = """
import torch
box, sizes = {}, {}

def in_the_box(comm, model, samples):
    box[comm.rank], sizes[comm.rank] = {name: p.detach().clone() for name, p in model.named_parameters()}, samples
    comm.Barrier()
    KNOWN
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(sum(sizes[r] * box[r][name] for r in RANKS) / sum(sizes[r] for r in RANKS))
    comm.Barrier()
"""


@pytest.mark.parametrize("ranks", ["range(comm.size)", "box"])
@pytest.mark.parametrize("known", ["pass", "comm.bcast(None)"], ids=["barriers", "an empty message"])
def test_memory_that_ranks_do_not_share_under_mpi_is_no_message(ranks, known):
    cell = {"__name__": "__main__"}
    exec(BOX.replace("RANKS", ranks).replace("KNOWN", known), cell)
    with pytest.raises((CheckFailed, RankFailedError)) as raised:
        check("lab08.averaging", cell["in_the_box"])
    if known == "pass":
        assert "nothing was sent or received" in str(raised.value) and "memory of its own" in str(raised.value)


def test_globals_that_are_only_read_or_count_are_allowed():
    cell = {"__name__": "__main__", "average_parameters": average_parameters, "MPIPeers": MPIPeers}
    exec(
        "calls = []\ndef answer(comm, model, n):\n    calls.append(n)\n    average_parameters(MPIPeers(comm), model, n)",
        cell,
    )
    check("lab08.averaging", cell["answer"])


def test_an_answer_without_an_end_says_in_which_line(impatient):
    def endless(comm, model, samples):
        while comm.rank == 0:
            pass

    refused("averaging", endless, "rank 0 does not end", "A loop over ranks or parameters has an end", "in endless")


def test_averaging_the_parallel_sgd_lab_s_way_and_by_buffers_passes():
    @torch.no_grad()
    def by_messages(comm, model, samples):
        mine = {name: samples * p.detach().clone() for name, p in model.named_parameters()}
        if comm.Get_rank() != 0:
            comm.send((samples, mine), dest=0)
        else:
            total = samples
            for source in range(1, comm.Get_size()):
                number, theirs = comm.recv(source=source)
                total += number
                mine = {name: mine[name] + theirs[name] for name in mine}
            mine = {name: value / total for name, value in mine.items()}
        mine = comm.bcast(mine if comm.Get_rank() == 0 else None, root=0)
        for name, p in model.named_parameters():
            p.copy_(mine[name])

    check("lab08.averaging", by_messages)
    check("lab08.averaging", lambda comm, model, samples: average_parameters(MPIPeers(comm), model, samples))


def worker(comm, model, batches, lr, epochs, average, every=0, *, barrier=True, late=False, passes=None, order=True,
           zero=True, mode=True, each_epoch=False, go_on=False, count=True, anew=False, twice=False, last=True, undo=False,
           only=False):  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    if mode:
        model.train()
    start = time.perf_counter()
    if barrier:
        comm.Barrier()
    if not late:
        start = time.perf_counter()
    steps = 0
    for epoch in range(passes or epochs):
        if order:
            batches.set_epoch(epoch)
        if anew:
            steps = 0
        for images, labels in batches:
            if zero:
                optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            steps += 1
            if every and steps % every == 0:
                before = [p.detach().clone() for p in model.parameters()]
                average(model)
                if undo:
                    for p, old in zip(model.parameters(), before, strict=True):
                        p.data.copy_(old)
        if each_epoch:
            average(model)
    end = time.perf_counter()
    if only:
        start = end
    if not each_epoch and last and (twice or not every or steps % every or anew):
        average(model)
    if go_on:
        optimizer.step()
    return (time.perf_counter() if count else end) - start


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"last": False}, ("was never called",)),
        ({"passes": 1}, ("12 steps, yours took 4", "you went through them once")),
        ({"passes": 4}, ("12 steps, yours took 16",)),
        ({"each_epoch": True}, ("averages once, after all 12 steps; yours averaged after step 4, 8, 12",)),
        ({"order": False}, ("the order of epoch 0 in every epoch",)),
        ({"zero": False}, ("not set to zero",)),
        ({"mode": False}, ("model.train()",)),
        ({"go_on": True}, ("at the end the model does not hold",)),
        ({"barrier": False}, ("comm.Barrier() comes before the first step", "never called")),
        ({"late": True}, ("the barrier took", "start the clock after it")),
        ({"count": False}, ("the averaging is not in the seconds", "stop the clock after it")),
        ({"only": True}, ("the training is not in the seconds", "start the clock at the barrier")),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_psgd_mistakes(wrong, words):
    refused("psgd", lambda *given: worker(*given, **wrong), *words)


@pytest.mark.parametrize(
    "returned, words",
    [
        (None, "nothing (None)"),
        ("1 s", "'1 s', a str"),
        (0.0, "0.000 s"),
        (0.06, "0.060 s"),
        (99.0, "99.000 s"),
        (True, "a bool"),
        (float("nan"), "nan"),
        (torch.tensor(0.1), "a Tensor"),
    ],
)
def test_psgd_returns_its_seconds(returned, words):
    def answer(*given):
        worker(*given)
        return returned

    refused("psgd", answer, words)


def test_psgd_s_seconds_may_be_numpy_s():
    check("lab08.psgd", lambda *given: np.float32(worker(*given)))


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"twice": True}, ("every = 3", "twice after step 12")),
        ({"last": False}, ("every = 5", "never averaged")),
        ({"anew": True}, ("you count the steps of each epoch anew",)),
        ({"undo": True}, ("does not continue from the averaged parameters",)),
        ({"mode": False}, ("model.train()",)),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_local_sgd_mistakes(wrong, words):
    refused("local-sgd", lambda *given: worker(*given, **wrong), *words)


def test_local_sgd_with_0_averages_once():
    def answer(comm, model, batches, lr, epochs, average, every):
        worker(comm, model, batches, lr, epochs, average, every or 5)

    refused("local-sgd", answer, "every = 0", "once, at the end")


@pytest.mark.parametrize(
    "answer, words",
    [
        (lambda a, b, t: {n: t * a[n] + (1 - t) * b[n] for n in a}, ("the ends are swapped",)),
        (lambda a, b, t: {n: (a[n] + b[n]) / 2 for n in a}, ("t = 0.25",)),
        (lambda a, b, t: {n: a[n].mul_(1 - t) + t * b[n] for n in a}, ("has changed", "no +=")),
        (lambda a, b, t: None, ("nothing (None)",)),
        (lambda a, b, t: {"a.weight": a["a.weight"]}, ("the names of the state dicts",)),
    ],
    ids=["swapped", "middle", "in place", "no return", "names"],
)
def test_interpolate_mistakes(answer, words):
    refused("interpolate", answer, *words)


def table(reports, compute=max, averaging=min, gain=lambda one, many: one / many, share=lambda s, p: s / p):
    seconds = {p: compute([c for c, _ in each]) + averaging([a for _, a in each]) for p, each in reports.items()}
    return {p: (s, gain(seconds[1], s), share(gain(seconds[1], s), p)) for p, s in seconds.items()}


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"compute": lambda times: sum(times) / len(times)}, ("you took the mean",)),
        ({"compute": sum}, ("side by side",)),
        ({"averaging": max}, ("waiting for the slowest", "take the shortest")),
        ({"averaging": lambda _: 0}, ("averaging is left out",)),
        ({"compute": lambda t: t[0], "averaging": lambda t: t[0]}, ("worker 0's own",)),
        ({"gain": lambda one, many: many / one}, ("upside down",)),
        ({"share": lambda s, p: s}, ("the efficiency", "divided by the number of workers")),
    ],
    ids=["mean", "sum", "longest averaging", "no averaging", "worker 0", "upside down", "not per worker"],
)
def test_speedup_table_mistakes(wrong, words):
    refused("speedup-table", lambda reports: table(reports, **wrong), *words)
    check("lab08.speedup-table", table)


def test_speedup_table_must_return_a_table():
    refused("speedup-table", lambda reports: None, "nothing (None)")
    refused("speedup-table", lambda reports: {p: 1.0 for p in reports}, "three numbers")


def test_the_loss_along_a_line_is_that_of_its_points():
    """On a linear model with two points of data, by hand."""
    model = nn.Linear(1, 2, bias=False)
    first, second = ({"weight": torch.tensor([[w], [0.0]])} for w in (2.0, -4.0))
    batches = [(torch.tensor([[1.0], [1.0], [-1.0]]), torch.tensor([0, 0, 0]))]
    found = loss_along_line(model, first, second, REFERENCE["interpolate"], [0.0, 0.5, 1.0], batches)
    for (loss, accuracy), w in zip(found, (2.0, -1.0, -4.0), strict=True):
        ones, minus = (torch.nn.functional.softplus(torch.tensor(-s * w)).item() for s in (1, -1))
        assert loss == pytest.approx((2 * ones + minus) / 3, rel=1e-5)
        assert accuracy == pytest.approx(2 / 3 if w > 0 else 1 / 3)


def test_the_figures_show_what_they_are_given():
    import matplotlib.pyplot as plt

    axes = speedups({"wall": {1: [1.0, 1.0], 2: [1.5, 1.9]}}, "title")
    assert axes.get_title(loc="left") == "title" and list(axes.get_xticks()) == [1, 2]
    bars = axes.containers[0]
    assert list(bars.lines[0].get_ydata()) == [1.0, 1.7]
    low, high = bars.lines[2][0].get_segments()[1][:, 1]
    assert (low, high) == pytest.approx((1.5, 1.9))
    for axes, bottom in zip(
        accuracy_against_workers({"a": {1: [0.9], 3: [0.5, 0.7]}}, "t", 0.88), (0, 0.88), strict=True
    ):
        assert list(axes.containers[0].lines[0].get_ydata()) == pytest.approx([0.9, 0.6])
        assert axes.get_ylim()[0] == bottom
    axes = loss_between({"own": [(0.1, 1.0), (2.0, 0.1), (0.2, 0.9)]}, [0.0, 0.5, 1.0], "t")
    assert list(axes.lines[0].get_ydata()) == [0.1, 2.0, 0.2]
    assert [line.get_ydata()[0] for line in axes.lines[1:]] == [0.1, 2.0, 0.2]
    convex, valleys = (
        line.get_ydata() for line in [line for line in two_landscapes().lines if len(line.get_xdata()) > 2]
    )
    assert (convex[2:] - 2 * convex[1:-1] + convex[:-2] > 0).all() and not (
        valleys[2:] - 2 * valleys[1:-1] + valleys[:-2] > 0
    ).all()
    plt.close("all")

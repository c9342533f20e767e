"""Checks of lab 08."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from course_lib.checks.lab08_workers import local_sgd, psgd
from course_lib.checks.registry import CheckFailed
from course_lib.checks.run_evidence import check_run
from course_lib.distributed.launching.errors import RankFailedError
from course_lib.distributed.launching.process_comm import ProcessComm, run_ranks

__all__ = ["CHECKS"]


class _Small(nn.Module):
    """Two named layers of exact numbers, other ones on each rank."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.hidden, self.output = nn.Linear(3, 2), nn.Linear(2, 2)
        with torch.no_grad():
            for number, parameter in enumerate(self.parameters()):
                parameter.copy_(torch.arange(parameter.numel()).view_as(parameter) + 10.0 * rank**2 + number)


def averaging(answer: Callable[..., Any]) -> None:
    before = [[p.detach() for p in _Small(rank).parameters()] for rank in range(3)]
    for samples in ([20, 20, 20], [10, 20, 50]):
        given = f"3 ranks with {', '.join(map(str, samples))} samples"
        after = _averaged(answer, samples, given)
        plain = [sum(each) / 3 for each in zip(*before, strict=True)]
        weighed = [
            sum(n * p for n, p in zip(samples, each, strict=True)) / sum(samples) for each in zip(*before, strict=True)
        ]
        if not _same(after[0], weighed):
            raise CheckFailed(f"{given}: rank 0's first weight is {before[0][0][0, 0]:g}, rank 1's {before[1][0][0, 0]:g}, rank "
                              f"2's {before[2][0][0, 0]:g}; the mean is {weighed[0][0, 0]:g}, yours {after[0][0][0, 0]:g}: "
                              + _likely_average(after[0], before, plain, weighed))  # fmt: skip
        for rank in (1, 2):
            if not _same(after[rank], weighed):
                likely = (
                    "rank 0 alone averages, and the others do not get the mean: bcast, or allreduce instead of reduce"
                )
                if not _same(after[rank], before[rank]):
                    likely = "its model is neither the old one nor the mean"
                raise CheckFailed(f"{given}: rank 0 holds the mean, rank {rank} does not: {likely}")
    print("average_models: 3 ranks hold the mean, weighted by their samples")


TIMEOUT = 10.0  # seconds that a rank waits in one call
NOTHING_SENT = ("nothing was sent or received. Under MPI each rank is a process with memory of its own, global variables "
                "included: what others know comes by a call of comm that carries it")  # fmt: skip


def _averaged(answer: Callable[..., Any], samples: list[int], given: str) -> list[list[torch.Tensor]]:
    """Each rank's parameters after the answer has run on three processes."""
    try:
        ranks = run_ranks(_rank, 3, answer, samples, timeout=TIMEOUT)
    except RankFailedError as error:
        _, communication, why = error.reason.partition("CommunicationError: ")
        if communication:
            raise CheckFailed(f"{given}: {why}. {_likely_hang(why)}\n{error.rank_traceback}") from None
        raise
    if silent := [str(rank) for rank, found in enumerate(ranks) if not found["sent"]]:
        raise CheckFailed(f"{given}, rank {', '.join(silent)}: {NOTHING_SENT}")
    if not all(found["kept"] for found in ranks):
        raise CheckFailed("the model has other parameter objects than before, which no optimiser knows: copy into "
                          "them, parameter.copy_(…) under torch.no_grad()")  # fmt: skip
    return [found["parameters"] for found in ranks]


def _rank(comm: ProcessComm, answer: Callable[..., Any], samples: list[int]) -> dict[str, Any]:
    model = _Small(comm.rank)
    held = list(model.parameters())
    try:
        answer(comm, model, samples[comm.rank])
    except LookupError:  # what another rank has written is not in this rank's memory
        if comm.carried_data:
            raise
    return {
        "parameters": [parameter.detach() for parameter in held],
        "kept": all(a is b for a, b in zip(model.parameters(), held, strict=True)),
        "sent": comm.carried_data,
    }


def _likely_hang(error: str) -> str:
    if "does not end" in error:
        return "A loop over ranks or parameters has an end"
    if "waits in send" in error:
        return ("A send of a model waits for its recv: two ranks that both send first wait for ever. Let one receive first, "
                "or take sendrecv or a collective")  # fmt: skip
    return "A collective is called by every rank, a send needs its recv"


def _likely_average(found, before, plain, weighed) -> str:
    if _same(found, before[0]):
        return ("the model is as it was. `param = mean` and a dictionary that is changed only give names to new tensors; "
                "parameter.copy_(mean) writes into the model")  # fmt: skip
    if _same(found, plain):
        return "you count every rank alike; weigh each model by its samples, Σ n·w / Σ n"
    if _same(found, [3 * p for p in plain]) or _same(found, [p * 3 for p in weighed]):
        return "that is a sum, not yet divided"
    if _same(found[:1], weighed[:1]):
        return "only the first parameters are right: do it for all of model.named_parameters()"
    return "Σ n·w / Σ n over the ranks, for each parameter"


def _same(found, wanted) -> bool:
    return all(torch.allclose(a, b.to(a.dtype), rtol=1e-4, atol=1e-5) for a, b in zip(found, wanted, strict=True))


def interpolate(answer: Callable[..., Any]) -> None:
    first = {"a.weight": torch.tensor([[0.0, 4.0]]), "a.bias": torch.tensor([1.0])}
    second = {"a.weight": torch.tensor([[8.0, 0.0]]), "a.bias": torch.tensor([-1.0])}
    kept = [{name: tensor.clone() for name, tensor in state.items()} for state in (first, second)]
    for t in (0.25, 0.0, 1.0, 0.5, -0.5):
        found = answer(first, second, t)
        if found is None:
            raise CheckFailed("interpolate returned nothing (None): is there a return?")
        if not isinstance(found, dict) or set(found) != set(first):
            raise CheckFailed("interpolate returns a dictionary with the names of the state dicts: a.weight, a.bias")
        for name in first:
            if not torch.equal(first[name], kept[0][name]) or not torch.equal(second[name], kept[1][name]):
                raise CheckFailed(f"{name} of a given state dict has changed: compute a new tensor (no +=, no mul_)")
            wanted = (1 - t) * first[name] + t * second[name]
            if not isinstance(found[name], torch.Tensor) or not torch.allclose(found[name], wanted):
                likely = "(1 − t)·first + t·second"
                if isinstance(found[name], torch.Tensor) and torch.allclose(
                    found[name], t * first[name] + (1 - t) * second[name]
                ):
                    likely = "the ends are swapped: t = 0 is the first, " + likely
                raise CheckFailed(f"t = {t}: {name} is {wanted.tolist()}, yours {_shown(found[name])}: {likely}")
    print("interpolate: the ends, the middle and beyond")


def _shown(value: Any) -> str:
    return str(value.tolist()) if isinstance(value, torch.Tensor) else repr(value)[:60]


def speedup_table(answer: Callable[..., Any]) -> None:
    reports = {
        1: [(12.0, 0.0)],
        2: [(6.0, 0.8), (6.6, 0.25)],
        4: [(3.0, 1.0), (3.25, 0.75), (2.5, 1.5), (3.5, 0.5)],
    }
    found = answer({workers: list(each) for workers, each in reports.items()})
    if not isinstance(found, dict) or set(found) != set(reports):
        came = "nothing (None): is there a return?" if found is None else repr(found)[:80]
        raise CheckFailed(f"speedup_table returns a dictionary with the keys 1, 2, 4; yours returned {came}")
    for workers, each in reports.items():
        seconds = max(cpu for cpu, _ in each) + min(waited for _, waited in each)
        wanted = (seconds, 12 / seconds, 12 / seconds / workers)
        values = found[workers]
        if not isinstance(values, tuple | list) or len(values) != 3:
            raise CheckFailed(
                f"for {workers} workers three numbers are asked for, (seconds, speed-up, efficiency); yours: {values!r}"
            )
        for name, value, right in zip(("seconds", "speed-up", "efficiency"), map(float, values), wanted, strict=True):
            if math.isclose(value, right, rel_tol=1e-6):
                continue
            raise CheckFailed(f"{workers} workers, (compute, averaging) {each}: the {name} are {right:.4g}, yours {value:.4g}: "
                              + _likely_table(name, value, each, workers, wanted))  # fmt: skip
    print("speedup_table: seconds, speed-up and efficiency are right for 1, 2 and 4 workers")


def _likely_table(name: str, value: float, each, workers: int, wanted) -> str:
    cpu, waited = zip(*each, strict=True)
    if name == "seconds":
        for reason, wrong in {
            "you took the mean over workers; the run ends when the slowest has": sum(cpu) / workers + min(waited),
            "the longest averaging includes waiting for the slowest worker, whose compute is counted already: take the shortest": max(cpu) + max(waited),
            "you added the workers' times; they run side by side": sum(cpu) + min(waited),
            "you took worker 0's own": cpu[0] + waited[0],
            "the averaging is left out": max(cpu),
        }.items():  # fmt: skip
            if math.isclose(value, wrong, rel_tol=1e-6):
                return reason
        return "the slowest worker's compute, plus the shortest averaging"
    if name == "speed-up":
        return "upside down: T(1) / T(P)" if math.isclose(value, 1 / wanted[1], rel_tol=1e-6) else "T(1) / T(P)"
    return "the speed-up divided by the number of workers"


CHECKS = {
    "averaging": averaging,
    "psgd": psgd,
    "local-sgd": local_sgd,
    "interpolate": interpolate,
    "speedup-table": speedup_table,
    "run": lambda folder: check_run(folder, "08_parallel_sgd_mpi"),
}

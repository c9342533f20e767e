"""Checks of the two sides of Algorithm 2: each talks to a partner that follows a script."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from course_lib.checks.registry import CheckFailed
from course_lib.distributed import LaunchTimeoutError, RankFailedError, launch

__all__ = ["on_ranks", "server", "worker"]

GRADIENT, GOODBYE = 1.0, 2.0
TIMEOUT = 20.0
DELAY = 0.05  # seconds that an answer takes, so that reading it too early is seen


def on_ranks(ranks: int, function: Callable[..., Any], *args: Any, hint: str = "") -> list[Any]:
    try:
        return launch(function, ranks, args, timeout=TIMEOUT, backend="gloo", threads=1)
    except LaunchTimeoutError as error:
        raise CheckFailed(
            f"on {ranks} ranks it hangs: one waits for a call that the other never makes. {hint}\n{error}"
        ) from None
    except RankFailedError as error:
        raise CheckFailed(f"on {ranks} ranks it raised.\n{error}") from None


def _model() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2, bias=False))


def _numbers(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def _flat(tensors: Any) -> torch.Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


# The worker's side

VERSIONS = ((7, 9), (9, 14))  # computed on, sent back


def _try_worker(push_and_pull: Callable[..., Any]) -> Any:
    model = _model()
    length = 2 + _numbers(model)
    if dist.get_rank() == 0:
        questions = []
        for number, (_, version) in enumerate(VERSIONS):
            question = torch.zeros(length)
            dist.recv(question, src=1)
            questions.append(question)
            time.sleep(DELAY)
            answer = torch.cat([torch.tensor([GRADIENT, version]), torch.arange(length - 2) + 100.0 * (number + 1)])
            dist.send(answer, dst=1)
        return questions
    found = []
    for number, (version, _) in enumerate(VERSIONS):
        for parameter in model.parameters():
            parameter.grad = torch.arange(parameter.numel()).view_as(parameter) + 10.0 * (number + 1)
        gradient = _flat(p.grad for p in model.parameters())
        before = _flat(model.parameters())
        returned = push_and_pull(model, version)
        found.append((gradient, before, returned, _flat(model.parameters())))
    return found


def worker(answer: Callable[..., Any]) -> None:
    questions, found = on_ranks(
        2, _try_worker, answer, hint="The server awaits one message of 2 + n numbers for each call, and sends one back."
    )
    for number, (question, (gradient, before, returned, after)) in enumerate(zip(questions, found, strict=True)):
        computed_on, version = VERSIONS[number]
        if torch.equal(question[2:], before) or (number and torch.equal(question[2:], found[0][0])):
            what = "the parameters" if torch.equal(question[2:], before) else "the first call's gradients again"
            raise CheckFailed(f"behind its two numbers the message should carry the gradients; it carries {what}")
        if not torch.equal(question[2:], gradient):
            raise CheckFailed(
                "the gradients do not arrive as they were: pack(message, GRADIENT, version, [p.grad for p in …])"
            )
        if question[0] != GRADIENT:
            raise CheckFailed(f"the message's first number says what it is: GRADIENT, 1; yours is {question[0]:g}")
        if question[1] != computed_on:
            raise CheckFailed(
                f"its second number is the version that the gradients were computed on, {computed_on}; yours is {question[1]:g}"
            )
        expected = torch.arange(len(gradient)) + 100.0 * (number + 1)
        if not torch.equal(after, expected):
            if torch.equal(after, before):
                raise CheckFailed("the parameters are what they were: unpack the answer into list(model.parameters())")
            if not after.any():
                raise CheckFailed(
                    "the parameters became 0: the answer was read before it was there. wait() for the receive"
                )
            raise CheckFailed(
                "the parameters are not those that the server sent: unpack takes them from the answer, in order"
            )
        if not isinstance(returned, int) or isinstance(returned, bool) or returned != version:
            raise CheckFailed(
                f"return the version that came with the parameters, {version}, as an int; yours was {returned!r}"
            )
    print("push_and_pull: two exchanges, gradients there and parameters back, with their versions")


# The server's side

ORDER = (2, 2, 1, 2, 1, -1, 2, -2)  # whose gradient; negative: goodbye


def _gradient(turn: int, numbers: int) -> torch.Tensor:
    return torch.sin(torch.arange(numbers) + 3.0 * turn)


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def _try_server(serve: Callable[..., Any], folder: str, order: Sequence[int]) -> Any:
    rank, model = dist.get_rank(), _model()
    length = 2 + _numbers(model)
    result: Any = None
    if rank == 0:
        optimizer = _optimizer(model)
        for parameter in model.parameters():
            parameter.grad = None
        updates = serve(model, optimizer, 2)
        result = updates, _flat(model.parameters())
    else:
        turns = dist.FileStore(f"{folder}/turns", 3)
        result, version = [], 0
        for turn, whose in enumerate(order):
            if abs(whose) != rank:
                continue
            while turns.add("turn", 0) < turn:
                time.sleep(0.001)
            kind = GRADIENT if whose > 0 else GOODBYE
            dist.send(torch.cat([torch.tensor([kind, version]), _gradient(turn, length - 2)]), dst=0)
            if whose > 0:
                answer = torch.zeros(length)
                dist.recv(answer, src=0)
                version = int(answer[1])
                result.append(answer)
            turns.add("turn", 1)
    dist.barrier()
    return result


def _expected(order: Sequence[int]) -> tuple[list[tuple[int, int]], list[tuple[int, torch.Tensor]]]:
    """Updates, and after each: whose it was, and the parameters."""
    model = _model()
    optimizer, version, has = _optimizer(model), 0, {1: 0, 2: 0}
    updates, states = [], []
    for turn, whose in enumerate(order):
        if whose < 0:
            continue
        pieces = _gradient(turn, _numbers(model)).split([p.numel() for p in model.parameters()])
        for parameter, piece in zip(model.parameters(), pieces, strict=True):
            parameter.grad = piece.view_as(parameter)
        optimizer.step()
        updates.append((whose, version - has[whose]))
        version += 1
        has[whose] = version
        states.append((whose, _flat(model.parameters())))
    return updates, states


def server(answer: Callable[..., Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        served, *answers = on_ranks(
            3, _try_server, answer, folder, ORDER,
            hint="Worker 2 makes two updates before worker 1 makes any, and worker 1 finishes first: take messages from "
            "any source (dist.recv without a source), answer every gradient, and continue until *both* have sent "
            "GOODBYE, which needs no answer.",
        )  # fmt: skip
    returned, parameters = served
    updates, states = _expected(ORDER)
    received = {rank: iter(found) for rank, found in enumerate(answers, start=1)}
    for version, (whose, state) in enumerate(states, start=1):
        message = next(received[whose])
        if not torch.allclose(message[2:], state, atol=1e-6):
            earlier = [
                number
                for number, (_, old) in enumerate(states[: version - 1], start=1)
                if torch.allclose(message[2:], old, atol=1e-6)
            ]
            if earlier or torch.allclose(message[2:], _flat(_model().parameters())):
                raise CheckFailed("the answer should carry the parameters *after* the update; yours carries older ones")
            if version > 1 and torch.allclose(states[0][1], _first(answers, states), atol=1e-6):
                raise CheckFailed(
                    f"after update 1 the parameters are right, after update {version} they are not: are gradients added to the "
                    "old ones? The .grad of each parameter is to be *replaced* by what came"
                )
            raise CheckFailed(
                f"after update {version} the parameters are not those of optimizer.step() on the gradient that came"
            )
        if message[0] != GRADIENT:
            raise CheckFailed(
                f"the answer's first number says what it is: GRADIENT, 1; yours is {message[0]:g}: pack(answer, GRADIENT, …)"
            )
        if message[1] != version:
            raise CheckFailed(f"update {version} makes version {version}; the answer says version {message[1]:g}")
    if not torch.allclose(parameters, states[-1][1], atol=1e-6):
        raise CheckFailed("at the end the server's own model should have the parameters after the last update")
    try:
        found = [(int(whose), int(stale)) for whose, stale in returned]
    except (TypeError, ValueError):
        raise CheckFailed(
            f"return a list with (worker, staleness) for each update; yours returned {returned!r}"
        ) from None
    if found != updates:
        why = ""
        if [one for one, _ in found] == [one for one, _ in updates]:
            if all(a == b + 1 for (_, a), (_, b) in zip(found, updates, strict=True)):
                why = ": one too many each. The version *before* the update, minus the one in the message"
            elif not any(stale for _, stale in found):
                why = ": the message's second number says which version the gradient was computed on"
        raise CheckFailed(f"the updates were, with their staleness, {updates}; yours says {found}{why}")
    print("serve: six updates in order of arrival, their staleness, and an end after both goodbyes")


def _first(answers: Sequence[Sequence[torch.Tensor]], states: Sequence[tuple[int, torch.Tensor]]) -> torch.Tensor:
    return answers[states[0][0] - 1][0][2:]

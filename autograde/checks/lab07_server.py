"""Hidden checks of Algorithm 2's two sides. The partners are the grader's own: they follow a script drawn anew."""

from __future__ import annotations

from typing import Any

import torch

from autograde.checks.compare import is_int, is_number, same_tensor, trusted
from autograde.checks.registry import Ask, Findings, shape_of
from autograde.rubric.criteria import Finding
from course_lib.exercises.ranks.message_broker import MessageBroker

__all__ = ["server", "worker"]

SPEC = [["linear", [3, 2]], ["tanh", []], ["linear", [2, 3]]]
GRADIENT, GOODBYE = 1.0, 2.0


def _drawn(ask: Ask, *shape: int) -> torch.Tensor:
    return torch.from_numpy(ask.random.normal(0, 1, shape)).float()


def _network(ask: Ask) -> tuple[torch.nn.Module, list[torch.Tensor]]:
    make = trusted("lab07.worker", "make_model")
    state = [_drawn(ask, *tensor.shape) for tensor in make(SPEC).state_dict().values()]
    return make(SPEC, state), state


def _served(ask: Ask, given: Any, answers: list[torch.Tensor]) -> tuple[list[torch.Tensor], Any]:
    """Play rank 0 to a worker: each message is answered in turn. The messages, and what the driver returned."""
    office, questions = MessageBroker(2, buffered=True), []
    office.arrive(0)

    def post(_: int, destination: Any, tag: Any, tensor: Any) -> int | str:
        receive = office.expect(0, 1, 0)
        number = office.post(1, destination, tag, tensor)
        message = office.collect(0, receive)
        if isinstance(message, torch.Tensor) and len(questions) < len(answers):
            office.post(0, 1, 0, answers[len(questions)])
            questions.append(message)
        return number

    return questions, ask.call("worker", given, _as_rank(1, office, post))


def _worked(ask: Ask, given: Any, script: list[tuple[int, torch.Tensor | None]]) -> tuple[dict[int, list[Any]], Any]:
    """Play ranks 1 and 2 to a server: each sends when the one before has its answer. The answers, and what the driver returned."""
    office, answers, turns = MessageBroker(3, buffered=True), {1: [], 2: []}, iter(script)
    versions, length = {1: 0.0, 2: 0.0}, next(len(one) for _, one in script if one is not None)
    awaited: list[tuple[int, int]] = []  # rank and receive of the one worker that waits for its answer
    office.arrive(1)
    office.arrive(2)

    def play() -> None:
        for rank, gradient in turns:
            kind = GOODBYE if gradient is None else GRADIENT
            rest = torch.zeros(length) if gradient is None else gradient
            office.post(rank, 0, 0, torch.cat([torch.tensor([kind, versions[rank]]), rest]))
            if gradient is not None:
                awaited[:] = [(rank, office.expect(rank, 0, 0))]
                return

    def post(_: int, destination: Any, tag: Any, tensor: Any) -> int | str:
        number = office.post(0, destination, tag, tensor)
        answer = office.collect(*awaited[0]) if awaited else None
        if isinstance(answer, torch.Tensor):
            rank, _ = awaited.pop()
            answers[rank].append(answer)
            versions[rank] = number_at(answer, 1)
            play()
        return number

    play()
    return answers, ask.call("server", given, _as_rank(0, office, post))


def _as_rank(rank: int, office: MessageBroker, post: Any) -> dict[str, Any]:
    """What the one process is answered: it is `rank` of the office's."""
    answers = {name: lambda _, *more, answer=answer: answer(rank, *more) for name, answer in office.answers.items()}
    return answers | {"post": post}


def number_at(message: torch.Tensor, place: int) -> float:
    """A number of a flat message; 0 where it has none."""
    return float(message.flatten()[place]) if message.numel() > place else 0.0


def _flat(parts: Any) -> torch.Tensor:
    return torch.cat([part.detach().flatten() for part in parts])


def worker(ask: Ask) -> Findings:
    """Three exchanges; the server takes its time with the answers."""
    model, state = _network(ask)
    length = sum(p.numel() for p in model.parameters())
    gradients = [[_drawn(ask, *p.shape) for p in model.parameters()] for _ in range(3)]
    versions = [int(n) for n in ask.random.integers(1, 10_000, 3)]
    back = [int(n) for n in ask.random.integers(10_000, 20_000, 3)]
    answers = [torch.cat([torch.tensor([GRADIENT, float(version)]), _drawn(ask, length)]) for version in back]
    given = {"spec": SPEC, "state": state, "gradients": gradients, "versions": versions}
    questions, found = _served(ask, given, answers)
    sent = _list(questions, 3)
    expected = [
        torch.cat([torch.tensor([GRADIENT, float(version)]), _flat(one)])
        for version, one in zip(versions, gradients, strict=True)
    ]
    message = sent is not None and all(same_tensor(a, b, 1e-6) for a, b in zip(sent, expected, strict=True))
    mine = _list(found, 3)
    entries = [one if isinstance(one, dict) else {} for one in mine or [None] * 3]
    parameters = all(same_tensor(one.get("parameters"), a[2:], 1e-6) for one, a in zip(entries, answers, strict=True))
    returned = [is_int(one.get("returned"), version) for one, version in zip(entries, back, strict=True)]
    look = "let rank 0 receive the message and print it, and answer with numbers that you know"
    return {
        "message": Finding(
            message,
            "the gradients arrive, with their kind and version" if message else _why_message(sent, expected),
            look,
        ),
        "parameters": Finding(
            parameters,
            "the model has what the server sent"
            if parameters
            else "the model's parameters are not those that the server sent",
            "print the parameters after the call; the answer must have arrived before it is read",
        ),
        "version": Finding(
            all(returned),
            "returns the new version"
            if all(returned)
            else f"should return the version of the new parameters, an int; it returned {_told(entries[0].get('returned'))}",
            "print what push_and_pull returns",
        ),
    }


def _why_message(sent: list[Any] | None, expected: list[torch.Tensor]) -> str:
    if sent is None or not all(isinstance(one, torch.Tensor) and one.shape == expected[0].shape for one in sent):
        return "the message does not arrive as it should"
    if not all(same_tensor(a[2:], b[2:], 1e-6) for a, b in zip(sent, expected, strict=True)):
        return "the message does not carry the gradients, in the order of the parameters"
    if any(float(a[0]) != GRADIENT for a in sent):
        return "the message's first number is not GRADIENT"
    return "the message's second number is not the version that was given"


def _told(value: Any) -> str:
    return "another number" if is_number(value) else shape_of(value)


def server(ask: Ask) -> Findings:
    """Two workers whose gradients come in an order drawn anew; one says goodbye long before the other."""
    model, state = _network(ask)
    length = sum(p.numel() for p in model.parameters())
    lr, momentum = float(ask.random.uniform(0.05, 0.2)), float(ask.random.uniform(0.5, 0.9))
    early, late = (1, 2) if ask.random.random() < 0.5 else (2, 1)
    order = [late, late, *ask.random.permutation([early] * 3 + [late] * 4).tolist()]
    script: list[tuple[int, torch.Tensor | None]] = [(int(whose), _drawn(ask, length)) for whose in order]
    script += [(early, None), (late, _drawn(ask, length)), (late, _drawn(ask, length)), (late, None)]
    given = {"spec": SPEC, "state": state, "lr": lr, "momentum": momentum}
    answers, served = _worked(ask, given, script)
    updates, states = _expected(model, script, lr, momentum)
    received = {rank: _list(one, sum(whose == rank for whose, _ in updates)) for rank, one in answers.items()}
    look = "write a script of five messages by hand, apply them to one weight on paper, and compare"
    if any(one is None for one in received.values()):
        missing = Finding(False, "not every gradient was answered", look)
        parameters, versions = missing, missing
    else:
        turns = {rank: iter(one) for rank, one in received.items()}
        pairs = [(next(turns[whose]), version, after) for version, (whose, after) in enumerate(states, start=1)]
        final = served.get("parameters") if isinstance(served, dict) else None
        right = [isinstance(one, torch.Tensor) and one.shape == (length + 2,) for one, _, _ in pairs]
        values = all(right) and all(same_tensor(one[2:], after, 1e-5) for one, _, after in pairs)
        values = values and same_tensor(final, states[-1][1], 1e-5)
        kinds = all(right) and all(float(one[0]) == GRADIENT for one, _, _ in pairs)
        numbered = kinds and all(float(one[1]) == version for one, version, _ in pairs)
        parameters = Finding(
            values,
            "each gradient makes one step of the optimiser, and is answered with the parameters after it"
            if values
            else "the parameters in the answers, or at the end, are not those after the optimiser's steps",
            look,
        )
        versions = Finding(
            numbered,
            "the first update makes version 1, and so on"
            if numbered
            else "an answer carries another version than its own"
            if kinds
            else "an answer's first number is not GRADIENT",
            "print the first two numbers of each answer: GRADIENT, and the version; the first is 1",
        )
    returned = served.get("updates") if isinstance(served, dict) else None
    return {"parameters": parameters, "versions": versions, "staleness": _staleness(returned, updates)}


def _expected(
    model: torch.nn.Module, script: list[tuple[int, torch.Tensor | None]], lr: float, momentum: float
) -> tuple[list[tuple[int, int]], list[tuple[int, torch.Tensor]]]:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    has, updates, states = {1: 0, 2: 0}, [], []
    for whose, gradient in script:
        if gradient is None:
            continue
        pieces = gradient.split([p.numel() for p in model.parameters()])
        for parameter, piece in zip(model.parameters(), pieces, strict=True):
            parameter.grad = piece.view_as(parameter).clone()
        optimizer.step()
        updates.append((whose, len(updates) - has[whose]))
        has[whose] = len(updates)
        states.append((whose, _flat(model.parameters())))
    return updates, states


def _staleness(returned: Any, updates: list[tuple[int, int]]) -> Finding:
    look = "take the order 1, 2, 1, 1, 2: the staleness is 0, 1, 1, 0, 2"
    rows = _list(returned, len(updates))
    if rows is None:
        return Finding(False, f"should return a pair for each update, it returned {shape_of(returned)}", look)
    pairs = [one if isinstance(one, list | tuple) and len(one) == 2 else (None, None) for one in rows]
    if not all(is_number(a) and float(a) == whose for (a, _), (whose, _) in zip(pairs, updates, strict=True)):
        return Finding(False, "the pairs do not begin with the rank of the worker, in the order of the updates", look)
    if not all(is_number(b) and float(b) == stale for (_, b), (_, stale) in zip(pairs, updates, strict=True)):
        return Finding(
            False, "the staleness is not the version before the update minus the one that came with it", look
        )
    return Finding(True, "who it was and how stale, for every update")


def _list(value: Any, length: int) -> list[Any] | None:
    return list(value) if isinstance(value, list | tuple) and len(value) == length else None

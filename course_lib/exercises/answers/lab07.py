"""Lab 07's answers, right and wrong. What ranks do together is judged without a reference, and its judges name the mistakes."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.utils import vector_to_parameters

from course_lib.exercises.description import Answers, Mistake

__all__ = ["ANSWERS"]

GRADIENT, GOODBYE = 1.0, 2.0


def _flat(tensors):
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def _message(kind, version, tensors):
    return torch.cat([torch.tensor([kind, float(version)]), _flat(tensors)])


# --- worker


def _worker(kind=GRADIENT, sends=lambda p: p.grad, off=0, early=False, keep=True, returns=int):
    def push_and_pull(model, version):
        question = _message(kind, version + off, [sends(p) for p in model.parameters()])
        answer = torch.zeros_like(question)
        receive = dist.irecv(answer, src=0)
        dist.isend(question, dst=0).wait()
        if not early:
            receive.wait()
        if keep:
            vector_to_parameters(answer[2:].clone(), model.parameters())
        if early:
            receive.wait()
        return returns(answer[1])

    return push_and_pull


worker = Answers(
    (_worker(),),
    {
        "goodbye": Mistake("the message's first number is not GRADIENT", _worker(kind=GOODBYE)),
        "sends parameters": Mistake("the message carries the parameters; the server asks for the gradients", _worker(sends=lambda p: p)),
        "another version": Mistake("the message's second number is the version that the gradients were computed on", _worker(off=1)),
        "read too early": Mistake("the parameters became 0: the answer was read before it had arrived. wait() for the receive",
            _worker(early=True)),
        "not unpacked": Mistake("the parameters are what they were: unpack the answer into them", _worker(keep=False)),
        "a float": Mistake("the version should be an int: int(answer[1])", _worker(returns=float)),
        "one more": Mistake("it counts the version itself; others' updates come between. The answer carries it",
            lambda model, version: (_worker()(model, version), version + 1)[1]),
        "nothing": Mistake("it returns nothing; the version of the new parameters was asked for", _worker(returns=lambda n: None)),
    },
)  # fmt: skip

# --- server


def _server(late=False, add=False, stale=lambda version, on: version - on, kind=GRADIENT, first=False, number=0, rank=0,
            steps=True, returns=lambda updates: updates):  # fmt: skip
    def serve(model, optimizer, workers, step):
        sizes = [p.numel() for p in model.parameters()]
        message, working, updates, version = torch.zeros(2 + sum(sizes)), workers, [], 0
        while working:
            worker = dist.recv(message)
            if message[0] == GOODBYE:
                working = 0 if first else working - 1
                continue
            before = _flat(model.parameters())
            for p, piece in zip(model.parameters(), message[2:].split(sizes), strict=True):
                p.grad = piece.view_as(p).clone() + (p.grad if add and p.grad is not None else 0)
            staleness = stale(version, int(message[1]))
            if steps == "its own":
                optimizer.step()
            elif steps:
                step(optimizer, staleness)
            updates.append((worker + rank, staleness))
            version += 1
            after = before if late else _flat(model.parameters())
            dist.send(torch.cat([torch.tensor([kind, float(version + number)]), after]), dst=worker)
        return returns(updates)

    return serve


server = Answers(
    (_server(),),
    {
        "older parameters": Mistake("the answers, or the end, have the parameters from before the update", _server(late=True)),
        "added": Mistake("gradients are added to the earlier ones; each replaces what was in .grad", _server(add=True)),
        "its own step": Mistake("the server never calls step(optimizer, staleness), which makes the update", _server(steps="its own")),
        "no step": Mistake("the optimiser makes no step", _server(steps=False)),
        "first goodbye": Mistake("it ends at the first GOODBYE; the others still send gradients", _server(first=True)),
        "goodbye": Mistake("an answer's first number is not GRADIENT", _server(kind=GOODBYE)),
        "one version behind": Mistake("the answers carry the version from before the update", _server(number=-1)),
        "one too many": Mistake("the staleness is one too large each: take the version before the update",
            _server(stale=lambda version, on: version + 1 - on)),
        "never stale": Mistake("the staleness is 0 everywhere; the message's second number is the version that the gradient was "
            "computed on", _server(stale=lambda version, on: 0)),
        "the version": Mistake("it returns versions in the place of the staleness", _server(stale=lambda version, on: on)),
        "from 0": Mistake("the workers are counted from 0; worker r is rank r", _server(rank=-1)),
        "nothing": Mistake("should return a list with a pair for each update, it returned nothing (None)",
            _server(returns=lambda updates: None)),
    },
)  # fmt: skip

# --- staleness_aware_step


def _stale_step(divisor=lambda staleness: 1 + staleness, groups=slice(None), restore=True, multiply=False, steps=1):
    def staleness_aware_step(optimizer, staleness):
        before = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups[groups]:
            group["lr"] = group["lr"] * divisor(staleness) if multiply else group["lr"] / divisor(staleness)
        for _ in range(steps):
            optimizer.step()
        for group, lr in zip(optimizer.param_groups, before, strict=True):
            group["lr"] = lr if restore else group["lr"]

    return staleness_aware_step


stale_step = Answers(
    (_stale_step(),),
    {
        "plain": Mistake("the step is the optimiser's own, whatever the staleness", _stale_step(lambda staleness: 1)),
        "by the staleness": Mistake("the learning rate is divided by the staleness; 1 + staleness was asked for",
            _stale_step(lambda staleness: max(1, staleness))),
        "multiplied": Mistake("the learning rate is multiplied; a stale gradient makes a shorter step", _stale_step(multiply=True)),
        "many steps": Mistake("the optimiser makes 1 + staleness steps; one was asked for",
            lambda optimizer, staleness: _stale_step(steps=1 + staleness)(optimizer, staleness)),
        "first group": Mistake("only the first parameter group has a shorter step", _stale_step(groups=slice(1))),
        "not restored": Mistake("the learning rates stay divided: the next step would begin from them", _stale_step(restore=False)),
    },
)  # fmt: skip

# --- serve_first


def _backup(divide=None, steps=False, returns=lambda dropped: dropped, count=True):
    def serve_first(model, optimizer, workers, needed):
        sizes = [p.numel() for p in model.parameters()]
        message, working, version, collected, dropped = torch.zeros(2 + sum(sizes)), workers, 0, {}, []

        def answer(worker):
            dist.send(_message(GRADIENT, version, model.parameters()), dst=worker)

        def step(gradient):
            for p, piece in zip(model.parameters(), gradient.split(sizes), strict=True):
                p.grad = piece.view_as(p).clone()
            optimizer.step()

        while working:
            worker = dist.recv(message)
            if message[0] == GOODBYE:
                working -= 1
            elif message[1] < version:
                dropped.append(worker)
                answer(worker)
            else:
                collected[worker] = message[2:].clone()
                if len(collected) < needed:
                    continue
                if steps:
                    for gradient in collected.values():
                        step(gradient / needed)
                else:
                    step(sum(collected.values()) / (divide or needed))
                version += count
                for each in collected:
                    answer(each)
                collected = {}
        return returns(dropped)

    return serve_first


backup = Answers(
    (_backup(),),
    {
        "the sum": Mistake("the step is with the sum of the gradients; their mean was asked for", _backup(divide=1)),
        "a step each": Mistake("each gradient makes a step of its own; one step with their mean was asked for", _backup(steps=True)),
        "no version": Mistake("the answers' version stays 0: each step makes a new one", _backup(count=False)),
    },
)  # fmt: skip

ANSWERS = {
    "initial": Answers(), "average": Answers(), "statistics": Answers(), "sync-server": Answers(), "worker": worker,
    "server": server, "stale-step": stale_step, "backup": backup,
}  # fmt: skip

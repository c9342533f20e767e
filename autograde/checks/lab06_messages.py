"""Hidden checks of what lab 06 builds from messages: send-and-receive, the tree and the ring."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from ..criteria import Finding
from .compare import same_tensor
from .post_office import PostOffice
from .registry import AnswerError, Ask, Findings, shape_of

__all__ = ["RANKS", "ring", "send_receive", "tree"]

RANKS = 6  # processes; a case may leave some of them out


def _floats(random: np.random.Generator, count: int, length: int) -> list[torch.Tensor]:
    return [torch.from_numpy(random.normal(0, 1, length)).float() for _ in range(count)]


def _whole_numbers(random: np.random.Generator, count: int, length: int) -> list[torch.Tensor]:
    return [torch.from_numpy(random.integers(-1000, 1000, length)).float() for _ in range(count)]


def _call(
    ask: Ask, function: str, tensors: list[torch.Tensor], buffered: bool = False, **more: Any
) -> tuple[list[dict[str, Any]], PostOffice]:
    """Call a driver's function on as many ranks as there are tensors; what they told, and where the messages went."""
    size = len(tensors)
    office = PostOffice(size, buffered)
    given: list[Any] = [
        {"rank": rank, "size": size, "tensor": tensor} | {name: value(rank) for name, value in more.items()}
        for rank, tensor in enumerate(tensors)
    ]
    found = ask.call(function, given + [None] * (RANKS - size), office.answers)
    return [one if isinstance(one, dict) else {} for one in found[:size]], office


def send_receive(ask: Ask) -> Findings:
    """A pair that swaps and a ring of three; first with sends that return at once, then with sends that wait."""
    look = "swap two tensors of 1,000 numbers on two ranks, in launch, with timeout=5"

    def right(buffered: bool) -> tuple[bool, bool, bool]:
        arrived, kept, once = True, True, True
        for size, step in ((2, 1), (3, 1), (3, 2)):
            tensors = _floats(ask.random, size, int(ask.random.integers(50, 90)))
            found, office = _call(
                ask, "send_receive", tensors, buffered,
                to=lambda rank, n=size, k=step: (rank + k) % n, source=lambda rank, n=size, k=step: (rank - k) % n,
            )  # fmt: skip
            for rank, one in enumerate(found):
                arrived = arrived and same_tensor(one.get("incoming"), tensors[(rank - step) % size])
                kept = kept and same_tensor(one.get("outgoing"), tensors[rank])
            once = once and office.all_taken() and len(office.letters) == size
        return arrived, kept, once

    arrived, kept, once = right(buffered=True)
    values = Finding(True, "the tensor from the source arrives in `incoming`")
    if not arrived:
        values = Finding(False, "afterwards `incoming` does not hold the source's tensor", look)
    elif not once:
        values = Finding(False, "it should send one message and receive one; some are too many, or nobody's", look)
    intact = Finding(kept, "the tensor that is sent stays as it was", look)
    if not arrived:  # who sends nothing keeps everything
        intact = Finding(False, values.reason, look)
    elif not kept:
        intact = Finding(False, "the tensor that is sent is overwritten", "print `outgoing` before and after")
    try:
        arrived, _, _ = right(buffered=False)
        blocking = Finding(arrived, "it ends also where a send waits for its receiver", look)
        if not arrived:
            blocking = Finding(False, values.reason if not values.passed else "`incoming` does not hold it", look)
    except AnswerError as error:
        reason = "deadlock: where a send waits for its receiver, all ranks wait for ever"
        blocking = Finding(False, reason if "no message moves" in str(error) else str(error), look)
    return {"values": values, "kept": intact, "deadlock": blocking}


def tree(ask: Ask) -> Findings:
    """Six ranks and five, whose root is not rank 0, and one rank alone."""
    look = "trace it on 5 ranks with src = 2 (trace_messages), and draw the messages with space_time"
    correct, single, rounds = True, True, True
    for size in (RANKS, RANKS - 1, 1):
        src = int(ask.random.integers(1, size)) if size > 1 else 0
        tensors = _floats(ask.random, size, int(ask.random.integers(50, 90)))
        found, office = _call(ask, "tree_broadcast", tensors, src=lambda rank, src=src: src)
        correct = correct and all(same_tensor(one.get("tensor"), tensors[src]) for one in found)
        arrivals = [sum(letter.destination == rank for letter in office.letters) for rank in range(size)]
        whole = all(letter.nbytes == tensors[0].nbytes for letter in office.letters)
        single = single and whole and office.all_taken() and arrivals == [int(rank != src) for rank in range(size)]
        rounds = rounds and office.rounds() <= math.ceil(math.log2(size))
    values = Finding(correct, "every rank ends with the root's tensor, whichever rank the root is", look)
    if not correct:
        values = Finding(False, "some rank does not end with the root's tensor", look)
    messages = Finding(correct and single, "every rank but the root receives the tensor once", look)
    if not messages.passed:
        reason = "some rank receives the tensor more than once, or in pieces, or the root receives it"
        messages = Finding(False, reason if correct else values.reason, look)
    steps = Finding(correct and rounds, "the tensor is everywhere after ⌈log₂ N⌉ rounds", look)
    if not steps.passed:
        reason = (
            "it takes more than ⌈log₂ N⌉ rounds: in each, every rank that has the tensor sends it to one that has not"
        )
        steps = Finding(False, reason if correct else values.reason, look)
    return {"values": values, "messages": messages, "rounds": steps}


def ring(ask: Ask) -> Findings:
    """A length that divides by the ranks, and lengths that do not: long, shorter than the ring, and none at all."""
    size = RANKS - 1
    even = _floats(ask.random, size, size * int(ask.random.integers(4000, 6000)))
    found, office = _call(ask, "ring_all_reduce", even)
    values = _sum_finding(found, even)
    if values.passed:
        cheap, neighbours = _bytes(office, even), _neighbours(office)
    else:
        not_yet = "its sum is not right yet, so its messages are not counted"
        cheap = neighbours = Finding(False, not_yet, values.remedy)
    return {"values": values, "lengths": _lengths(ask), "bytes": cheap, "neighbours": neighbours}


_LOOK = "on 3 ranks, start from 1, 10 and 100 in every place: print the tensor after each round"


def _sum_finding(found: list[dict[str, Any]], tensors: list[torch.Tensor]) -> Finding:
    total = torch.stack(tensors).sum(0)
    if all(same_tensor(one.get("tensor"), total) for one in found):
        return Finding(True, "every rank holds the sum, in place")
    if all(same_tensor(one.get("returned"), total) for one in found):
        return Finding(False, "it returns the sum, but the tensor that it was given stays as it was", _LOOK)
    if all(same_tensor(one.get("tensor"), total / len(tensors)) for one in found):
        return Finding(False, "it leaves the mean; the sum was asked for", _LOOK)
    if any(same_tensor(one.get("tensor"), total) for one in found):
        return Finding(False, "some ranks hold the sum, others do not", _LOOK)
    if "tensor" in found[0] and not isinstance(found[0]["tensor"], torch.Tensor):
        return Finding(False, f"the tensor became {shape_of(found[0]['tensor'])}", _LOOK)
    return Finding(False, "the tensors do not hold the sum over the ranks", _LOOK)


def _lengths(ask: Ask) -> Finding:
    cases = (
        (RANKS - 1, 10 * int(ask.random.integers(10, 20)) + 3, "a length that does not divide by the world size"),
        (4, 2, "fewer elements than ranks"),
        (3, 0, "no elements"),
        (2, 2 * int(ask.random.integers(10, 20)) + 1, "two ranks and an odd length"),
        (1, 5, "one rank alone"),
    )
    for size, length, what in cases:
        tensors = _whole_numbers(ask.random, size, length)
        look = f"try {what}, on small whole numbers"
        try:
            found, office = _call(ask, "ring_all_reduce", tensors)
        except AnswerError as error:
            return Finding(False, f"with {what}: {error}", look)
        if not _sum_finding(found, tensors).passed:
            return Finding(False, f"with {what} the tensors do not hold the sum", look)
        if not office.all_taken():
            return Finding(False, f"with {what} a message is sent that nobody receives", look)
    return Finding(True, "right for any length and any number of ranks")


def _bytes(office: PostOffice, tensors: list[torch.Tensor]) -> Finding:
    size, whole = len(tensors), tensors[0].nbytes
    sent, ideal = office.sent(), 2 * (len(tensors) - 1) * tensors[0].nbytes // len(tensors)
    look = "trace it on 4 ranks (trace_messages) and compare .bytes_sent with 2(N − 1)/N of the tensor"
    if all(one == ideal for one in sent) and office.all_taken():
        return Finding(True, "every rank sends 2(N − 1)/N of the tensor, and no more")
    if all(letter.nbytes == whole for letter in office.letters) and min(sent) == max(sent):
        reason = "the ranks forward the whole tensor in every round; a ring forwards one chunk of N"
    elif max(sent) >= (size - 1) * whole:
        reason = "one rank sends the whole tensor to all the others: its link carries as much as all of theirs together"
    else:
        reason = "the ranks do not send 2(N − 1)/N of the tensor each"
    return Finding(False, reason, look)


def _neighbours(office: PostOffice) -> Finding:
    look = "draw the messages of your ring on 4 ranks with space_time"
    partners = [
        {letter.destination for letter in office.letters if letter.source == rank} for rank in range(office.size)
    ]
    steps = {(peer - rank) % office.size for rank, peers in enumerate(partners) for peer in peers}
    if steps in ({1}, {office.size - 1}):
        return Finding(True, "every rank sends to one neighbour only")
    return Finding(False, "ranks send to others than their one neighbour on the ring", look)

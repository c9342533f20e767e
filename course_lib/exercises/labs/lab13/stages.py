"""Lab 13: what ranks do for each other in ZeRO's first and second stage."""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from course_lib.exercises.comparing import equal
from course_lib.exercises.description import Exercise, Part
from course_lib.exercises.ranks.collective_broker import CollectiveBroker
from course_lib.exercises.ranks.collective_process_group import collective_group
from course_lib.exercises.ranks.watched_ranks import watched

__all__ = ["REDUCE_SCATTER", "ZERO1", "ZERO2", "Traffic", "beside", "gauss", "world_of"]

SHARES = {  # of what a rank brings to a collective, the part that each rank sends on average, times N
    "allgather": lambda ranks: ranks * (ranks - 1), "reducescatter": lambda ranks: ranks - 1,
    "allreduce": lambda ranks: 2 * (ranks - 1), "scatter": lambda ranks: ranks - 1, "gather": lambda ranks: ranks - 1,
    "reduce": lambda ranks: ranks - 1, "barrier": lambda ranks: 0,
}  # fmt: skip


class Traffic(CollectiveBroker):
    """Counts what ranks send: messages as they are, collectives as the algorithm that sends least would."""

    def evidence(self):
        kinds = [each.kind for each in self.collectives]
        return super().evidence() | {
            "kinds": kinds,
            "count": len(self.messages),
            "sent": list(map(self._of, range(self.size))),
        }

    def _of(self, rank):
        """Bytes; of a broadcast the mean over the ranks."""
        total = self.sent()[rank]
        for each in self.collectives:
            ranks = len(each.members)
            if each.kind == "broadcast":
                total += each.left_with(rank) * (ranks - 1) / ranks
            else:
                total += each.nbytes(rank) * SHARES[each.kind](ranks) / ranks
        return total


def world_of(case):
    return case["world"]


def gauss(random, *shape):
    return torch.from_numpy(random.normal(0, 1, shape))


def beside(answer, **names):
    """Put stand-ins beside a class or a function of the notebook."""
    for function in [answer, *vars(answer).values()] if isinstance(answer, type) else [answer]:
        function = getattr(function, "__func__", function)  # a static method's
        if hasattr(function, "__globals__"):
            function.__globals__.update(names)


def _near(seen, right):
    return equal(seen, right, 1e-9)


_on_ranks = partial(watched, 3, lambda case: Traffic(case["world"]), world_of)

# --- ZeRO1

DECAY, STEPS = 0.1, 3


def rates(random, world):
    """A learning rate for each rank: what a rank steps without the owner's optimiser is not what the owner sends."""
    return (0.04 + 0.01 * random.permutation(world)).tolist()


def _own_rate(case, rank):
    return case | {"rates": case["rates"][rank]}


def _draw_parameters(random):
    def case(world, shapes, frozen=None):
        return {
            "world": world, "frozen": frozen, "rates": rates(random, world), "values": [gauss(random, *shape) for shape in shapes],
            "gradients": [[None if place == frozen else gauss(random, *shape) for place, shape in enumerate(shapes)] for _ in range(STEPS)],
            "about": f"{world} ranks, parameters of {[list(shape) for shape in shapes]}"
                     + ("" if frozen is None else f", number {frozen} frozen"),
        }  # fmt: skip

    def shapes(large):
        n, m = random.integers(3, 6, 2).tolist()
        return [(n, m), (m,), (large, m), (2, n), (n, 2), (7,), (large,)]

    return {
        "steps": [case(2, shapes(12)), case(3, shapes(9))],
        "frozen": [case(2, shapes(8), 2), case(3, shapes(11), 0)],
        "few": [case(3, [(4, 3), (5,)])],
    }


def observe_zero1(case, rank, outside, ZeRO1):
    parameters = [nn.Parameter(value.clone(), number != case["frozen"]) for number, value in enumerate(case["values"])]
    given, made = [], []

    def make(some):
        some = list(some)
        given.extend(next((n for n, p in enumerate(parameters) if p is one), -1) for one in some)
        made.append(torch.optim.AdamW(some, lr=case["rates"], weight_decay=0.1))
        return made[-1]

    with collective_group(rank, case["world"], outside):
        optimizer = ZeRO1(parameters, make)
        for gradients in case["gradients"]:
            for p, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    p.grad = gradient.clone()
            optimizer.step()
    numbers = sum(t.numel() for each in made for state in each.state.values() for t in state.values() if t.dim())
    return {"weights": [p.detach() for p in parameters], "given": given, "state": numbers}


def _stepped(case, gradients, rate):
    """The parameters that one process has."""
    parameters = [nn.Parameter(value.clone(), number != case["frozen"]) for number, value in enumerate(case["values"])]
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=DECAY)
    for some in gradients:
        for p, gradient in zip(parameters, some, strict=True):
            p.grad = None if gradient is None else gradient.clone()
        optimizer.step()
    return [p.detach() for p in parameters]


def _numbers(case):
    return {n: value.numel() for n, value in enumerate(case["values"]) if n != case["frozen"]}


def _stepped_alike(case, seen, right):
    first = seen["ranks"][0]["weights"]
    alike = len(first) == len(case["values"]) and all(_near(one["weights"], first) for one in seen["ranks"])
    by = [_stepped(case, case["gradients"], rate) for rate in case["rates"]]

    def by_an_owner(n, weight):
        owners = range(1) if n == case["frozen"] else [r for r, one in enumerate(seen["ranks"]) if n in one["given"]]
        return any(_near(weight, by[r][n]) for r in owners)

    if alike and all(by_an_owner(n, weight) for n, weight in enumerate(first)):
        return (
            ""
            if sum(seen["sent"])
            else "the weights are right, but no message was sent: who owns a parameter steps it alone"
        )
    if not alike:
        return "the ranks have different weights: after the step each owner broadcasts its parameters, and every rank calls it"
    return "the weights are not those of one process with the owners' optimisers, those that make returned"


def _one_owner(case, seen, right):
    given = sorted(n for one in seen["ranks"] for n in one["given"] if n != case["frozen"])
    if given != sorted(_numbers(case)):
        everything = all(len(one["given"]) >= len(_numbers(case)) for one in seen["ranks"])
        return ("every rank gives make all parameters, so it keeps the state of all" if everything
                else "not every parameter is given to make on exactly one rank")  # fmt: skip
    if sum(one["state"] for one in seen["ranks"]) != 2 * sum(_numbers(case).values()):
        return "the ranks' states together are not two numbers for each parameter"
    return ""


def _balanced(case, seen, right):
    sizes, loads = _numbers(case), [0] * case["world"]
    for size in sorted(sizes.values(), reverse=True):
        loads[loads.index(min(loads))] += size
    most = max(sum(sizes.get(n, 0) for n in one["given"]) for one in seen["ranks"])
    return (
        ""
        if most <= max(loads)
        else "a rank owns more numbers than needed: the largest first, each to the rank with the fewest"
    )


def _each_once(case, seen, right):
    if seen["count"] or set(seen["kinds"]) - {"broadcast"}:
        return "it sends something else than broadcasts: dist.broadcast(parameter, src=owner), each parameter once"
    ranks = case["world"]
    due = STEPS * 8 * sum(_numbers(case).values()) * (ranks - 1) / ranks
    if equal(seen["sent"], [due] * ranks, 1e-9):
        return ""
    return "the broadcasts do not carry each trainable parameter once per step"


def _still_frozen(case, seen, right):
    return _stepped_alike(case, seen, right) or _one_owner(case, seen, right) or _each_once(case, seen, right)


_NO_STEP = "step has to leave the parameters of one process on every rank"

ZERO1 = Exercise(("ZeRO1",), _draw_parameters, observe_zero1, {
    "values": Part("The weights of one process", _NO_STEP, cases="steps", judge=_stepped_alike),
    "state": Part("One rank keeps the state of a parameter", _NO_STEP, cases="steps", judge=_one_owner),
    "balance": Part("Balanced owners", _NO_STEP, cases="steps", needs="state", judge=_balanced),
    "bytes": Part("Each parameter is sent once", _NO_STEP, cases="steps", needs="values", judge=_each_once),
    "frozen": Part("A frozen parameter has no owner and no message", "with a frozen parameter it is not right", cases="frozen",
        needs="values", judge=_still_frozen),
    "few": Part("Fewer parameters than ranks", "with more ranks than parameters it is not right: a rank may own nothing", cases="few",
        needs="values", judge=_stepped_alike),
}, hint="print on each rank which parameters it owns, and the first numbers of all after the step", show="{about}",
    share=_own_rate, guarded="few", **_on_ranks())  # fmt: skip

# --- reduce_scatter


def _draw_vectors(random):
    def case(world):
        length = world * int(random.integers(3, 8))
        return {
            "world": world,
            "vectors": [gauss(random, length) for _ in range(world)],
            "about": f"{world} ranks, a vector of {length}",
        }

    return {"ranks": [case(3), case(2)]}


def _own_vector(case, rank):
    return case | {"vectors": case["vectors"][rank]}


def observe_reduce_scatter(case, rank, outside, reduce_scatter):
    mine = case["vectors"].clone()
    with collective_group(rank, case["world"], outside):
        found = reduce_scatter(mine)
    return {"shard": found, "kept": torch.equal(mine, case["vectors"])}


def _summed(case, seen, right):
    total = sum(case["vectors"]).chunk(case["world"])
    shards = [one["shard"] for one in seen["ranks"]]
    if all(_near(shard, wanted) for shard, wanted in zip(shards, total, strict=True)):
        return "" if sum(seen["sent"]) else "the shards are right, but nothing was sent"
    if all(
        _near(shard, mine.chunk(case["world"])[rank])
        for rank, (shard, mine) in enumerate(zip(shards, case["vectors"], strict=True))
    ):
        return "each rank returns its own part of its own vector: nothing is added up"
    if all(_near(shard, sum(case["vectors"])) for shard in shards):
        return "each rank returns the whole sum; rank r returns part r alone"
    if all(_near(shard, wanted / case["world"]) for shard, wanted in zip(shards, total, strict=True)):
        return "it is the mean; a reduce-scatter returns the sum"
    return "rank r does not return part r of the sum over the ranks"


def _kept(case, seen, right):
    return "" if all(one["kept"] for one in seen["ranks"]) else "the vector was changed: add into a copy of your part"


def _parts_alone(case, seen, right):
    if seen["kinds"]:
        return "it calls a collective: Gloo's own reduce-scatter sends as much as an all-reduce, so build it from isend and irecv"
    due = 8 * len(case["vectors"][0]) * (case["world"] - 1) / case["world"]
    return "" if equal(seen["sent"], [due] * case["world"], 1e-9) else (
        "the ranks do not send (N − 1)/N of the vector: a rank sends every other rank that one's part, and nothing else")  # fmt: skip


_NO_SHARD = "it should return a vector: part r of the sum"

REDUCE_SCATTER = Exercise(("reduce_scatter",), _draw_vectors, observe_reduce_scatter, {
    "values": Part("Rank r has part r of the sum", _NO_SHARD, cases="ranks", judge=_summed),
    "kept": Part("The vector stays as it is", _NO_SHARD, cases="ranks", needs="values", judge=_kept),
    "bytes": Part("(N − 1)/N of the vector is sent", _NO_SHARD, cases="ranks", needs="values", judge=_parts_alone),
}, hint="give rank r a vector full of 10ʳ, and print what comes back", show="{about}", share=_own_vector, **_on_ranks())  # fmt: skip

# --- ZeRO2


def _draw_gradients(random):
    def case(world, shapes, frozen=None):
        def gradients():
            return [None if place == frozen else gauss(random, *shape) for place, shape in enumerate(shapes)]

        return {"world": world, "frozen": frozen, "rates": rates(random, world), "values": [gauss(random, *shape) for shape in shapes],
                "gradients": [[gradients() for _ in range(STEPS)] for _ in range(world)],
                "about": f"{world} ranks, parameters of {[list(shape) for shape in shapes]}"
                         + ("" if frozen is None else f", number {frozen} frozen")}  # fmt: skip

    def shapes(ranks, over):
        """Shapes whose numbers leave `over` when divided by the ranks."""
        n, m = random.integers(3, 6, 2).tolist()
        some = [(n, m), (m,), (9, m), (2, n), (n, 2)]
        rest = (over - sum(torch.Size(shape).numel() for shape in some)) % ranks + ranks
        return [*some, (rest,)]

    return {
        "steps": [case(2, shapes(2, 0)), case(3, shapes(3, 0))],
        "padding": [case(2, shapes(2, 1)), case(3, shapes(3, 1))],
        "frozen": [case(2, shapes(2, 0), 1)],
    }


def _own_gradients(case, rank):
    return _own_rate(case, rank) | {"gradients": case["gradients"][rank]}


def by_the_backend(vector):
    """Stands in for `reduce_scatter`: what is wrong there costs nothing here."""
    shard = torch.empty_like(vector[: len(vector) // dist.get_world_size()])
    dist.reduce_scatter(shard, [part.contiguous() for part in vector.chunk(dist.get_world_size())])
    return shard


def observe_zero2(case, rank, outside, ZeRO2):
    beside(ZeRO2, reduce_scatter=by_the_backend)
    parameters = [nn.Parameter(value.clone(), number != case["frozen"]) for number, value in enumerate(case["values"])]
    made = []

    def make(some):
        made.append(torch.optim.AdamW(list(some), lr=case["rates"], weight_decay=0.1))
        return made[-1]

    with collective_group(rank, case["world"], outside):
        optimizer = ZeRO2(parameters, make)
        for gradients in case["gradients"]:
            for p, gradient in zip(parameters, gradients, strict=True):
                p.grad = None if gradient is None else gradient.clone()
            optimizer.step()
    return {
        "weights": [p.detach() for p in parameters], "whole": sum(p.grad is not None for p in parameters),
        "mean": getattr(getattr(optimizer, "shard", None), "grad", None),
        "state": sum(t.numel() for each in made for state in each.state.values() for t in state.values() if t.dim()),
    }  # fmt: skip


def _mean_steps(case, seen, right):
    everyones = [[each for each in zip(*step, strict=True)] for step in zip(*case["gradients"], strict=True)]

    def flat(parameters):
        return torch.cat([p.flatten() for n, p in enumerate(parameters) if n != case["frozen"]])

    def trained(divisor):
        """One process's vector whose shard r is stepped by rank r's optimiser."""
        gradients = [[None if each[0] is None else sum(each) / divisor for each in step] for step in everyones]
        by = [flat(_stepped(case, gradients, rate)) for rate in case["rates"]]
        length = _padded(case) // case["world"]
        return torch.cat([vector[rank * length : (rank + 1) * length] for rank, vector in enumerate(by)])

    for one in seen["ranks"]:
        for n, (value, weight) in enumerate(zip(case["values"], one["weights"], strict=True)):
            if weight.shape != value.shape or (n == case["frozen"] and not _near(weight, value)):
                return "a parameter has another shape than before" if n != case["frozen"] else "the frozen one has changed"
    found = [flat(one["weights"]) for one in seen["ranks"]]
    if all(_near(one, trained(case["world"])) for one in found):
        return "" if sum(seen["sent"]) else "the weights are right, but nothing was sent"
    if any(not _near(one, found[0]) for one in found):
        return "the ranks have different weights: after the step an all-gather gives every rank all shards"
    if all(_near(one, trained(1)) for one in found):
        return "the gradient is the ranks' sum; divide by their number"
    return "the weights are not those of one process that has the mean gradient, each shard stepped by its rank's optimiser"


def _padded(case):
    return -(-sum(_numbers(case).values()) // case["world"]) * case["world"]


def _one_shard(case, seen, right):
    most = 2 * _padded(case) // case["world"]
    return "" if all(0 < one["state"] <= most for one in seen["ranks"]) else (
        "a rank keeps the state of more than its shard: make gets [shard], a parameter of 1/N of the numbers")  # fmt: skip


def _whole_gone(case, seen, right):
    if any(one["whole"] for one in seen["ranks"]):
        return "after the step whole gradients are still there: set p.grad = None"
    last = [sum(each) / case["world"] for each in zip(*(own[-1] for own in case["gradients"]), strict=True)]
    mean, shards = torch.cat([each.flatten() for each in last]), [one["mean"] for one in seen["ranks"]]
    if all(isinstance(each, torch.Tensor) for each in shards) and _near(torch.cat(shards)[: len(mean)], mean):
        return ""
    return "after the step self.shard.grad is not the mean gradient of the rank's shard"


def _two_halves(case, seen, right):
    if "allreduce" in seen["kinds"]:
        return "it calls all_reduce; each rank needs the sum of its own part alone: reduce_scatter"
    ranks = case["world"]
    if equal(seen["sent"], [STEPS * 2 * 8 * _padded(case) * (ranks - 1) / ranks] * ranks, 1e-9):
        return ""
    return "a rank does not send 2·(N − 1)/N of the numbers per step: one reduce-scatter, one all-gather of one flat vector"


def _awkward_too(case, seen, right):
    return _mean_steps(case, seen, right) or _one_shard(case, seen, right)


ZERO2 = Exercise(("ZeRO2",), _draw_gradients, observe_zero2, {
    "values": Part("The weights of one process", _NO_STEP, cases="steps", judge=_mean_steps),
    "state": Part("State of one shard", _NO_STEP, cases="steps", judge=_one_shard),
    "gradients": Part("No whole gradient is kept", _NO_STEP, cases="steps", needs="values", judge=_whole_gone),
    "bytes": Part("One reduce-scatter, one all-gather", _NO_STEP, cases="steps", needs="values", judge=_two_halves),
    "padding": Part("Numbers that do not divide", "where the numbers do not divide by the ranks it is not right: flatten adds zeros",
        cases="padding", needs="values", judge=_awkward_too),
    "frozen": Part("A frozen parameter stays", "with a frozen parameter it is not right", cases="frozen", needs="values",
        judge=_awkward_too),
}, hint="print the lengths of vector, shard and all-gathered vector on each rank", show="{about}", share=_own_gradients,
    guarded="padding frozen", **_on_ranks())  # fmt: skip

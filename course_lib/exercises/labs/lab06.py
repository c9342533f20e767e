"""Lab 06: messages. Send and receive, the tree, the ring; what a message costs, fitted, and what a collective costs."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist

from course_lib.exercises.comparing import equal, short
from course_lib.exercises.description import Exercise, Part
from course_lib.exercises.ranks.broker_process_group import message_group
from course_lib.exercises.ranks.launched_ranks import on_launched_ranks
from course_lib.exercises.ranks.message_broker import MessageBroker

__all__ = ["EXERCISES"]

# --- what the three exercises on ranks have in common


def _floats(random, ranks, length):
    return [torch.from_numpy(random.normal(0, 1, length)).float() for _ in range(ranks)]


def _share(case, rank):
    """A rank's own tensor, and what all of them know."""
    known = {name: value for name, value in case.items() if name != "tensors"}
    return known | {"tensor": case["tensors"][rank], "size": len(case["tensors"])}


def _sent(case, seen):
    """Bytes that each rank sent."""
    return [sum(nbytes for source, _, nbytes in seen["messages"] if source == rank) for rank in _ranks(case)]


def _ranks(case):
    return range(len(case["tensors"]))


def _counted(case, seen):
    count = [sum(source == rank for source, *_ in seen["messages"]) for rank in _ranks(case)]
    ends = [one["tensor"] for one in seen["ranks"] if "tensor" in one and 0 < len(one["tensor"]) <= 3]
    return (
        f"{case['about']}. They send {short(count)} messages of {short(_sent(case, seen))} bytes in all, in "
        f"{seen['rounds']} rounds" + (f", and end with {', '.join(map(short, ends))}" if ends else "")
    )


_ON_RANKS = {
    "ranks": 6,
    "world": lambda case: len(case["tensors"]),
    "share": _share,
    "watch": lambda case: MessageBroker(len(case["tensors"]), case.get("buffered", False)),
    "transport": on_launched_ranks,
    "seconds": 40.0,
    "show": _counted,
}

# --- send_receive


def _draw_exchanges(random):
    def case(ranks, step, buffered):
        tensors = _floats(random, ranks, int(random.integers(50, 90)))
        about = f"{ranks} ranks, each sends to rank + {step} and receives from rank − {step}, modulo {ranks}"
        return {"tensors": tensors, "step": step, "buffered": buffered, "about": about}

    return {
        "buffered": [case(2, 1, True), case(3, 1, True), case(3, 2, True)],  # a send returns at once
        "blocking": [case(2, 1, False), case(3, 1, False)],
    }


def observe_exchange(case, rank, outside, send_receive):
    outgoing, incoming, size = case["tensor"].clone(), torch.zeros_like(case["tensor"]), case["size"]
    with message_group(rank, size, outside):
        send_receive(outgoing, (rank + case["step"]) % size, incoming, (rank - case["step"]) % size)
    return {"incoming": incoming, "outgoing": outgoing}


_NOT_THERE = "afterwards `incoming` does not hold the source's tensor: was the receive waited for?"


def _arrived(case, seen, right):
    def hold(step):
        tensors = case["tensors"]
        return all(equal(one["incoming"], tensors[(n + step) % len(tensors)]) for n, one in enumerate(seen["ranks"]))

    if hold(-case["step"]):
        return ""
    return "it receives from `to`; receive from `source`" if hold(case["step"]) else _NOT_THERE


def _once(case, seen, right):
    once = seen["taken"] is True and len(seen["messages"]) == len(case["tensors"])
    return "" if once else "it should send one message, receive one, and wait for both; some are too many, or nobody's"


def _kept(case, seen, right):
    kept = all(equal(one["outgoing"], tensor) for one, tensor in zip(seen["ranks"], case["tensors"], strict=True))
    return "" if kept else "the tensor that is sent is overwritten: receive into `incoming`, and leave the other be"


exchange = Exercise(
    ("send_receive",),
    _draw_exchanges,
    observe_exchange,
    {
        "arrives": Part("", _NOT_THERE, cases="buffered", judge=_arrived),
        "values": Part("The source's tensor arrives", cases="buffered", needs="arrives", judge=_once),
        "kept": Part("The tensor that is sent stays as it was", cases="buffered", needs="arrives", judge=_kept),
        "deadlock": Part("It ends where sends wait for their receivers", "deadlock: where a send waits for its receiver, "
                         "all ranks wait for ever", cases="blocking", needs="arrives", judge=_arrived),
    },
    "swap two tensors of 1,000 numbers on two ranks, in launch, with timeout=5, and print both before and after",
    guarded="blocking",
    **_ON_RANKS,
)  # fmt: skip

# --- tree_broadcast


def _draw_trees(random):
    def case(ranks):
        tensors = _floats(random, ranks, int(random.integers(50, 90)))
        src = int(random.integers(min(1, ranks - 1), ranks))
        return {"tensors": tensors, "src": src, "about": f"{ranks} rank(s), src = {src}"}

    return {"trees": [case(6), case(5), case(1)]}


def observe_broadcast(case, rank, outside, tree_broadcast):
    tensor = case["tensor"].clone()
    with message_group(rank, case["size"], outside):
        tree_broadcast(tensor, case["src"])
    return {"tensor": tensor}


def _everywhere(case, seen, right):
    everywhere = all(equal(one["tensor"], case["tensors"][case["src"]]) for one in seen["ranks"])
    return "" if everywhere else "some rank does not end with the root's tensor: is everything counted from the root?"


def _each_once(case, seen, right):
    arrivals = [sum(destination == rank for _, destination, _ in seen["messages"]) for rank in _ranks(case)]
    whole = all(nbytes == case["tensors"][0].nbytes for *_, nbytes in seen["messages"])
    once = whole and seen["taken"] is True and arrivals == [int(rank != case["src"]) for rank in _ranks(case)]
    return "" if once else "some rank receives the tensor more than once, or in pieces, or the root receives it"


def _few_rounds(case, seen, right):
    if seen["rounds"] <= math.ceil(math.log2(len(case["tensors"]))):
        return ""
    return "it takes more than ⌈log₂ N⌉ rounds: in each, every rank that has the tensor sends it to one that has not"


tree = Exercise(
    ("tree_broadcast",),
    _draw_trees,
    observe_broadcast,
    {
        "values": Part("Every rank ends with the root's tensor", cases="trees", judge=_everywhere),
        "messages": Part("Every rank but the root receives it once", cases="trees", needs="values", judge=_each_once),
        "rounds": Part("⌈log₂ N⌉ rounds", cases="trees", needs="values", judge=_few_rounds),
    },
    "trace it on 5 ranks with src = 2 (trace_messages), and draw the messages with space_time",
    **_ON_RANKS,
)

# --- ring_all_reduce


def _draw_rings(random):
    def case(what, ranks, length):
        tensors = [torch.from_numpy(random.integers(-1000, 1000, length)).float() for _ in range(ranks)]
        return {"tensors": tensors, "what": what, "about": f"{ranks} rank(s), {length:,} numbers each"}

    even = _floats(random, 5, 5 * int(random.integers(100, 200)))
    digits = [torch.full((3,), 10.0**rank) for rank in range(3)]
    return {
        "digits": [{"tensors": digits, "about": "3 ranks bring 1, 10 and 100 in each of 3 places, the sum is 111"}],
        "even": [{"tensors": even, "about": f"5 ranks, {len(even[0])} numbers each"}],
        "lengths": [
            case("a length that does not divide by the world size", 5, 10 * int(random.integers(10, 20)) + 3),
            case("fewer elements than ranks", 4, 2),
            case("no elements", 3, 0),
            case("two ranks and an odd length", 2, 2 * int(random.integers(10, 20)) + 1),
            case("one rank alone", 1, 5),
        ],
    }


def observe_ring(case, rank, outside, ring_all_reduce):
    if outside is not None:  # what is wrong in the first exercise costs nothing in this one
        getattr(ring_all_reduce, "__globals__", {})["send_receive"] = exchanged
    tensor = case["tensor"].clone()
    with message_group(rank, case["size"], outside):
        returned = ring_all_reduce(tensor)
    return {"tensor": tensor, "returned": returned if isinstance(returned, torch.Tensor) else None}


def exchanged(outgoing, to, incoming, source):
    operations = [dist.P2POp(dist.isend, outgoing, to), dist.P2POp(dist.irecv, incoming, source)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def _summed(case, seen, right):
    tensors, total = case["tensors"], torch.stack(case["tensors"]).sum(0)
    ends = [one["tensor"] for one in seen["ranks"]]
    if all(equal(end, total) for end in ends):
        return ""
    if all(equal(one["returned"], total) for one in seen["ranks"]):
        return "it returns the sum, but works in place: the tensor that it is given becomes the sum"
    if all(equal(end, total / len(tensors)) for end in ends):
        return "it leaves the mean; the sum was asked for"
    if any(equal(end, total) for end in ends):
        return "some ranks hold the sum, others do not"
    if "what" in case:
        return "the tensors do not hold the sum over the ranks"
    if seen["messages"] and all(equal(end, tensor) for end, tensor in zip(ends, tensors, strict=True)):
        return _COPIES
    values = {value for end in ends for value in end.tolist()}  # of 1, 10 and 100
    if values <= {1.0, 10.0, 100.0}:
        return _NO_SUM
    if values <= {1.0, 10.0, 100.0, 11.0, 101.0, 110.0, 111.0}:
        return (
            "the tensors hold sums over some ranks only: which chunk does a rank hold when the reduce-scatter ends, and "
            "does the second half pass it on to everybody?"
        )
    if min(values) > 111:
        return "some rank is counted twice: in the second half chunks are overwritten, no longer added"
    return "the tensors do not hold the sum over the ranks"


_COPIES = (
    "messages were sent, but the tensor is unchanged on every rank: are your chunks copies? A slice, tensor[a:b], is a view "
    "of the tensor; clone(), torch.cat and an index that is a list make a copy"
)
_NO_SUM = (
    "no sum is left, each number is one rank's: in the reduce-scatter add what arrives to your chunk (copy_() or a receive "
    "into it overwrites it, chunk = chunk + arriving leaves it as it is), and begin the second half with the chunk whose "
    "sum is whole"
)


def _any_length(case, seen, right):
    if _summed(case, seen, right):
        return f"with {case['what']} the tensors do not hold the sum: do the chunks together cover the tensor?"
    return "" if seen["taken"] is True else f"with {case['what']} a message is sent that nobody receives"


def _cheap(case, seen, right):
    sent, size, whole = _sent(case, seen), len(case["tensors"]), case["tensors"][0].nbytes
    ideal = 2 * (size - 1) * whole // size
    if seen["taken"] is True and sent == [ideal] * size:
        return ""
    if max(sent) < ideal:
        return "the ranks send fewer bytes than possible: what does not pass through send and receive is not counted"
    if min(sent) == max(sent) and all(nbytes == whole for *_, nbytes in seen["messages"]):
        return "the ranks forward the whole tensor in every round; a ring forwards one chunk of N"
    if max(sent) >= (size - 1) * whole:
        return "one rank sends the whole tensor to all the others: its link carries as much as all of theirs together"
    return "the ranks do not send 2(N − 1)/N of the tensor each: which rounds send more than one chunk of N?"


def _one_neighbour(case, seen, right):
    size = len(case["tensors"])
    steps = {(destination - source) % size for source, destination, _ in seen["messages"]}
    return "" if steps in ({1}, {size - 1}) else "ranks send to others than their one neighbour on the ring"


ring = Exercise(
    ("ring_all_reduce",),
    _draw_rings,
    observe_ring,
    {
        "values": Part("Every rank holds the sum, in place", cases="digits even", judge=_summed),
        "lengths": Part("Any length and any number of ranks", judge=_any_length, hint="try lengths that do not divide by "
                        "the ranks, 2 numbers on 4 ranks, none, and one rank alone"),
        "bytes": Part("Every rank sends 2(N − 1)/N of the tensor", cases="even", needs="values", judge=_cheap, hint="trace it "
                      "on 4 ranks (trace_messages) and compare .bytes_sent with 2(N − 1)/N of the tensor"),
        "neighbours": Part("Every rank sends to one neighbour only", cases="even", needs="values", judge=_one_neighbour,
                           hint="draw the messages of your ring on 4 ranks with space_time"),
    },
    "on 3 ranks, start from 1, 10 and 100 in every place: print the tensor after each round",
    guarded="lengths",
    **_ON_RANKS,
)  # fmt: skip

# --- fit_alpha_beta

SIZES = [2**k for k in range(8, 25)]
DENSE = [round(256 * 2 ** (k / 24)) for k in range(385)]  # so many that a fit to all of them beats one to a few


def _draw_links(random):
    def case(sizes, noise):
        alpha, beta = 10 ** random.uniform(-5.5, -4), 10 ** random.uniform(-10, -8.5)
        factors = 1 + noise * random.uniform(-1, 1, len(sizes))
        factors[[0, -1]] = 1 + noise * random.choice([-1, 1], 2)  # the worst two points to draw a line through
        seconds = [float((alpha + beta * n) * factor) for n, factor in zip(sizes, factors, strict=True)]
        off = f", each off by up to {noise:.0%}" if noise else ""
        about = f"{len(sizes)} times of a link with α = {1e6 * alpha:.3g} µs and 1/β = {1e-9 / beta:.3g} GB/s{off}"
        return {"nbytes": sizes, "seconds": seconds, "about": about}

    return {"exact": [case(SIZES, 0.0) for _ in range(6)], "noisy": [case(DENSE, 0.1) for _ in range(6)]}


def observe_fit(case, fit_alpha_beta):
    found = fit_alpha_beta(list(case["nbytes"]), list(case["seconds"]))
    return {"alpha": found[0], "beta": found[1]} if isinstance(found, tuple | list) and len(found) == 2 else None


_NOISY = {"cases": "noisy", "needs": "line", "tolerance": 0.04}

fit = Exercise(
    ("fit_alpha_beta",),
    _draw_links,
    observe_fit,
    {
        "line": Part("Finds the line that the times lie on", "where the times lie on a line, it does not find that line",
                     cases="exact", keys="alpha beta", tolerance=0.01),
        "latency": Part("Finds the latency among noisy times", "with times that are off by a tenth, the latency is lost: the "
                        "long messages decide the fit", "divide each equation by its time before you solve", keys="alpha", **_NOISY),
        "bandwidth": Part("Finds the bandwidth among noisy times", "with times that are off by a tenth, β is off by a "
                          "twentieth or more", keys="beta", **_NOISY),
    },
    "make times from an α and a β of your own, fit them, and compare; then multiply each by 1 ± 0.1",
)  # fmt: skip

# --- all_reduce_seconds, bus_bandwidth


def _draw_costs(random):
    def case(ask, ranks):
        nbytes = int(random.integers(10**3, 10**8))
        if ask == "bus":
            seconds = float(random.uniform(1e-3, 1))
            return {"ask": (nbytes, seconds, ranks), "about": f"{nbytes:,} bytes in {seconds:.4g} s on {ranks} ranks"}
        link = float(random.uniform(1e-6, 1e-4)), float(random.uniform(1e-10, 1e-8))
        about = f"{ask} of {nbytes:,} bytes on {ranks} ranks, α = {1e6 * link[0]:.4g} µs, β = {1e9 * link[1]:.4g} ns"
        return {"ask": (ask, nbytes, ranks, *link), "about": about}

    return {ask: [case(ask, ranks) for ranks in (2, 3, 5, 8, 12, 64, 100, 2048)] for ask in ("ring", "tree", "bus")}


def observe_cost(case, all_reduce_seconds, bus_bandwidth):
    return (bus_bandwidth if len(case["ask"]) == 3 else all_reduce_seconds)(*case["ask"])


_FORMULA = {"wrong": "the number is another than the formula's", "tolerance": 1e-6}

cost = Exercise(
    ("all_reduce_seconds", "bus_bandwidth"),
    _draw_costs,
    observe_cost,
    {
        "ring": Part("Time of a ring all-reduce", **_FORMULA),
        "tree": Part("Time of a tree all-reduce", **_FORMULA),
        "bus": Part("Bus bandwidth", **_FORMULA),
    },
    "write down the messages of 4 ranks by hand: how many follow one another, how many bytes has each?",
)

EXERCISES = {"send-receive": exchange, "tree-broadcast": tree, "ring": ring, "fit": fit, "cost": cost}

"""Lab 06: joining a group, messages, collectives called and collectives built; what an all-reduce costs.

What is built from messages has a group with messages only (`message_group`). What calls collectives has a group in which
every call is counted (`collective_group`).
"""

from __future__ import annotations

import math
import os
from urllib.parse import parse_qsl, urlsplit

import torch
import torch.distributed as dist

from course_lib.exercises.comparing import equal, short
from course_lib.exercises.description import Exercise, Part
from course_lib.exercises.labs.lab02.training import replaced
from course_lib.exercises.ranks.broker_process_group import message_group
from course_lib.exercises.ranks.collective_broker import NAMES, CollectiveBroker
from course_lib.exercises.ranks.collective_process_group import collective_group
from course_lib.exercises.ranks.message_broker import MessageBroker
from course_lib.exercises.ranks.watched_ranks import watched

__all__ = ["EXERCISES"]

# --- join

VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")


def _draw_ways(random):
    def case(way, rank):
        size, number = (int(n) for n in random.integers([rank + 2, 100], [rank + 6, 1000]))
        host = ".".join(str(int(n)) for n in [10, *random.integers(1, 250, 3)])
        place = f"/shared/job{number}" if way == "file" else (host, int(random.integers(20_000, 60_000)))
        about = f"join({way!r}, rank={rank}, world_size={size}, place={place!r})"
        return {"way": way, "rank": rank, "size": size, "place": place, "about": about}

    return {way: [case(way, 0), case(way, int(random.integers(1, 5)))] for way in ("tcp", "file", "env")}


def observe_join(case, join):
    """What `init_process_group` is called with, and the environment that it finds; it makes no group."""
    calls = []

    def init_process_group(
        backend=None, init_method=None, timeout=None, world_size=-1, rank=-1, store=None, *others, **options
    ):
        found = {name: os.environ.get(name) for name in VARIABLES}
        numbers = [n if isinstance(n, int) else None for n in (rank, world_size)]
        calls.append([str(backend), init_method if isinstance(init_method, str) else None, *numbers, found])

    place = case["place"] if isinstance(case["place"], str) else tuple(case["place"])
    before = {name: os.environ.pop(name, None) for name in VARIABLES}
    try:
        with replaced([(dist, "init_process_group", init_process_group)], join):
            join(case["way"], case["rank"], case["size"], place)
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
    return {"calls": calls}


def _the_call(case, seen):
    """URL, rank and world size of the only call; or a text, why there is no such call."""
    if len(seen["calls"]) != 1:
        return None, "it should call dist.init_process_group once"
    backend, method, rank, size, variables = seen["calls"][0]
    if "gloo" not in backend:
        return None, 'the backend should be "gloo"'
    url = urlsplit(method or "env://")
    query = dict(parse_qsl(url.query))
    rank, size = int(query.get("rank", rank)), int(query.get("world_size", size))
    return (url, rank, size, variables), ""


def _numbers(case, rank, size):
    if -1 in (rank, size):
        return "without the launcher's variables each rank must say its number: rank=rank, world_size=world_size"
    if (rank, size) != (case["rank"], case["size"]):
        return "the rank or the world size is another than the one that was given"
    return ""


def _by_tcp(case, seen, right):
    call, fault = _the_call(case, seen)
    if fault:
        return fault
    url, rank, size, _ = call
    if url.scheme != "tcp":
        return "the URL should begin with tcp://"
    if (url.hostname, url.port) != tuple(case["place"]):
        return "the URL should be tcp://HOST:PORT, with the host and the port of `place`"
    return _numbers(case, rank, size)


def _by_file(case, seen, right):
    call, fault = _the_call(case, seen)
    if fault:
        return fault
    url, rank, size, _ = call
    if url.scheme != "file" or url.netloc or url.path != case["place"]:
        return "the URL should be file:// and then the whole path, with its own first slash: file:///shared/…"
    return _numbers(case, rank, size)


def _by_environment(case, seen, right):
    call, fault = _the_call(case, seen)
    if fault:
        return fault
    url, rank, size, variables = call
    if url.scheme != "env":
        return "the init_method should be env://"
    host, port = case["place"]
    wanted = dict(zip(VARIABLES, (host, str(port), str(case["rank"]), str(case["size"])), strict=True))
    if missing := [name for name in VARIABLES if variables[name] is None]:
        return f"before init_process_group, os.environ must have {', '.join(missing)}"
    if wrong := [name for name in VARIABLES if variables[name] != wanted[name]]:
        return f"another value was given for {', '.join(wrong)}; the values are texts: str(…)"
    return "" if rank in (-1, case["rank"]) and size in (-1, case["size"]) else _numbers(case, rank, size)


def _called_join(case, seen):
    calls = [
        f"init_process_group({backend!r}, init_method={method!r}, rank={rank}, world_size={size})"
        for backend, method, rank, size, _ in seen["calls"]
    ]
    return f"{case['about']}: you called {', then '.join(calls) or 'nothing'}"


_NO_URL = "init_method should be a URL, and rank and world_size whole numbers"

join = Exercise(("join",), _draw_ways, observe_join, {
    "tcp": Part("Joins by address and port", _NO_URL, judge=_by_tcp),
    "file": Part("Joins by a shared file", _NO_URL, judge=_by_file),
    "env": Part("Joins by environment variables", _NO_URL, judge=_by_environment),
}, "print the URL for rank 0 of 2, host 127.0.0.1, port 29500, and for the path /shared/job17", _called_join)  # fmt: skip

# --- what the three exercises on messages have in common


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


def _on_ranks(ranks, watch=lambda case: MessageBroker(len(case["tensors"]))):
    return watched(ranks, watch, lambda case: len(case["tensors"])) | {"share": _share, "show": _counted}


# --- swap, pass_around


class Exchanges(MessageBroker):
    """Writes down in which order each rank posts, waits and computes."""

    def __init__(self, size, buffered):
        super().__init__(size, buffered)
        self.events = [[] for _ in range(size)]

    @property
    def answers(self):
        return {**super().answers, "compute": lambda rank: None}

    def answer(self, name, rank, *args):
        events = self.events[rank]
        if name in EVENTS and len(events) < 100 and (events[-1:] != [name] or name == "compute"):
            events.append(name)
        return super().answer(name, rank, *args)

    def evidence(self):
        return super().evidence() | {"events": self.events}


EVENTS = ("post", "expect", "compute", "taken", "collect")  # taken, collect: a rank asks whether a message has ended


def _draw_exchanges(random):
    def case(ranks, step, buffered, what="swap"):
        tensors = _floats(random, ranks, int(random.integers(50, 90)))
        about = f"{ranks} ranks, each sends to rank + {step} and receives from rank − {step}, modulo {ranks}"
        return {"tensors": tensors, "step": step, "buffered": buffered, "what": what, "about": f"{what}, {about}"}

    return {
        "buffered": [case(2, 1, True), case(3, 1, True), case(3, 2, True)],  # a send returns at once
        "blocking": [case(2, 1, False), case(3, 1, False)],
        "overlap": [case(3, 1, True, "pass_around")],
    }


def observe_exchange(case, rank, outside, swap, pass_around):
    outgoing, incoming, size = case["tensor"].clone(), torch.zeros_like(case["tensor"]), case["size"]
    result = None

    def compute():
        outside("compute")
        return 1000 + rank

    with message_group(rank, size, outside):
        if case["what"] == "swap":
            swap(outgoing, (rank + case["step"]) % size, incoming, (rank - case["step"]) % size)
        else:
            found = pass_around(outgoing, compute)
            if isinstance(found, tuple | list) and len(found) == 2:
                incoming, result = found
    return {"incoming": incoming, "outgoing": outgoing, "result": result}


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


def _overlapped(case, seen, right):
    if any(type(one["result"]) is not int or one["result"] != 1000 + n for n, one in enumerate(seen["ranks"])):
        return "it should return the pair (received tensor, what compute() returned)"
    if fault := _arrived(case, seen, right):
        if fault != _NOT_THERE:
            return "it returns the next rank's tensor: send to the next rank, receive from the rank before"
        return "what pass_around returns first is not the tensor of the rank before: was the receive waited for?"
    for events in seen["events"]:
        if events.count("compute") != 1:
            return "it should call compute() once"
        before = events[: events.index("compute")]
        if not {"post", "expect"} <= set(before):
            return (
                "it calls compute() before the messages are posted, so nothing overlaps: isend, irecv, compute(), wait"
            )
        if {"taken", "collect"} & set(before):
            return "it waits for a message before it calls compute(), so nothing overlaps"
    return ""


exchange = Exercise(("swap", "pass_around"), _draw_exchanges, observe_exchange, {
    "arrives": Part("", _NOT_THERE, cases="buffered", judge=_arrived),
    "values": Part("The source's tensor arrives", cases="buffered", needs="arrives", judge=_once),
    "kept": Part("The tensor that is sent stays as it was", cases="buffered", needs="arrives", judge=_kept),
    "deadlock": Part("It ends where sends wait for their receivers", "deadlock: where a send waits for its receiver, "
                     "all ranks wait forever", cases="blocking", needs="arrives", judge=_arrived),
    "overlap": Part("compute() runs while the messages are on their way", "it does not return the pair "
                    "(received tensor, what compute() returned)", judge=_overlapped,
                    hint="write the order down: post both messages, compute, wait for both"),
}, "swap two tensors of 1,000 numbers on two ranks, in launch, with timeout=5, and print both before and after",
    guarded="blocking overlap", **_on_ranks(3, lambda case: Exchanges(len(case["tensors"]), case["buffered"])))  # fmt: skip

# --- tree_broadcast


def _draw_trees(random):
    def case(ranks):
        tensors = _floats(random, ranks, int(random.integers(50, 90)))
        src = int(random.integers(min(1, ranks - 1), ranks))
        return {"tensors": tensors, "src": src, "about": f"{ranks} rank(s), src = {src}"}

    return {"trees": [case(7), case(5), case(1)]}  # on 7, a heap (rank r sends to 2r + 1 and 2r + 2) takes 4 rounds


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


tree = Exercise(("tree_broadcast",), _draw_trees, observe_broadcast, {
    "values": Part("Every rank ends with the root's tensor", cases="trees", judge=_everywhere),
    "messages": Part("Every rank but the root receives it once", cases="trees", needs="values", judge=_each_once),
    "rounds": Part("⌈log₂ N⌉ rounds", cases="trees", needs="values", judge=_few_rounds),
}, "trace it on 7 ranks with src = 2 (trace_messages), and draw the messages with space_time",
    **_on_ranks(7))  # fmt: skip

# --- reduce_scatter, all_gather, ring_all_reduce


def _draw_rings(random):
    def case(what, ranks, length):
        tensors = [torch.from_numpy(random.integers(-1000, 1000, length)).float() for _ in range(ranks)]
        return {"tensors": tensors, "what": what, "about": f"{ranks} rank(s), {length:,} numbers each"}

    even = _floats(random, 5, 5 * int(random.integers(100, 200)))
    whole = [torch.from_numpy(random.integers(-1000, 1000, 12)).int() for _ in range(3)]
    digits = [torch.full((3,), 10.0**rank) for rank in range(3)]
    halves = _floats(random, 4, 4 * int(random.integers(10, 20)))
    return {
        "halves": [{"tensors": halves, "halves": True, "about": "reduce_scatter, then all_gather, on 4 ranks"}],
        "digits": [{"tensors": digits, "about": "3 ranks bring 1, 10 and 100 in each of 3 places, the sum is 111"}],
        "even": [{"tensors": even, "about": f"5 ranks, {len(even[0])} numbers each"}],
        "lengths": [
            case("a length that does not divide by the world size", 5, 10 * int(random.integers(10, 20)) + 3),
            case("fewer elements than ranks", 4, 2),
            case("no elements", 3, 0),
            case("one rank alone", 1, 5),
            {"tensors": whole, "what": "int32 numbers", "about": "3 ranks, 12 int32 numbers each",
             "look": "do your buffers have the tensor's type, as torch.empty_like's have?"},
        ],
    }  # fmt: skip


def observe_ring(case, rank, outside, reduce_scatter, all_gather, ring_all_reduce):
    for function in (reduce_scatter, all_gather, ring_all_reduce):  # what is wrong in an earlier exercise costs nothing
        getattr(function, "__globals__", {})["swap"] = exchanged
    tensor, size = case["tensor"].clone(), case["size"]
    with message_group(rank, size, outside):
        if "halves" in case:
            part = torch.zeros(len(tensor) // size)
            reduce_scatter(part, tensor)
            whole, mine = torch.zeros_like(tensor), case["tensor"][: len(part)].clone()
            all_gather(whole, mine)
            return {"part": part, "input": tensor, "whole": whole, "mine": mine}
        returned = ring_all_reduce(tensor)
    return {"tensor": tensor, "returned": returned if isinstance(returned, torch.Tensor) else None}


def exchanged(outgoing, to, incoming, source):
    operations = [dist.P2POp(dist.isend, outgoing, to), dist.P2POp(dist.irecv, incoming, source)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def _halved(case, seen, right):
    tensors, size = case["tensors"], len(case["tensors"])
    chunks = torch.stack(tensors).sum(0).chunk(size)
    parts = [one["part"] for one in seen["ranks"]]
    if not all(equal(part, chunk) for part, chunk in zip(parts, chunks, strict=True)):
        if all(equal(part, chunks[(rank + 1) % size]) for rank, part in enumerate(parts)):
            return "rank r leaves reduce_scatter with chunk r + 1; it leaves dist.reduce_scatter with chunk r"
        return "after reduce_scatter the `output` of rank r is not the sum of all ranks' chunk r"
    mine = [tensor[: len(chunks[0])] for tensor in tensors]
    if not all(equal(one["whole"], torch.cat(mine)) for one in seen["ranks"]):
        return "after all_gather `output` does not hold the ranks' inputs in order of rank"
    if not all(equal(one["mine"], part) for one, part in zip(seen["ranks"], mine, strict=True)):
        return "the `input` of all_gather is overwritten"
    if not all(equal(one["input"], tensor) for one, tensor in zip(seen["ranks"], tensors, strict=True)):
        return "the `input` of reduce_scatter is overwritten: add to a chunk of your own"
    return ""


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
        return "the tensors hold sums over some ranks only: are reduce_scatter and all_gather right by themselves?"
    if min(values) > 111:
        return "some rank is counted twice: in all_gather chunks are overwritten, not added"
    return "the tensors do not hold the sum over the ranks"


_COPIES = (
    "messages were sent, but the tensor is unchanged on every rank: copy the sum back, or work on slices of the tensor, "
    "which are views; clone(), torch.cat, pad and an index that is a list make a copy"
)
_NO_SUM = (
    "no sum is left, each number is one rank's: in reduce_scatter add what arrives (copy_() or a receive overwrites, "
    "chunk = chunk + arriving leaves the tensor as it is)"
)


def _any_length(case, seen, right):
    if _summed(case, seen, right):
        look = case.get("look", "do the chunks together cover the tensor?")
        return f"with {case['what']} the tensors do not hold the sum: {look}"
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


ring = Exercise(("reduce_scatter", "all_gather", "ring_all_reduce"), _draw_rings, observe_ring, {
    "halves": Part("reduce_scatter and all_gather, each by itself", "the two halves do not fill their "
                   "`output`", judge=_halved, hint="on 3 ranks, let rank r bring [r, 10 r, 100 r] and print `output`"),
    "values": Part("Every rank holds the sum, in place", cases="digits even", judge=_summed),
    "lengths": Part("Any length, type and number of ranks", judge=_any_length, hint="try lengths that do not divide by "
                    "the ranks, 2 numbers on 4 ranks, none, one rank alone, and int32 numbers"),
    "bytes": Part("Every rank sends 2(N − 1)/N of the tensor", cases="even", needs="values", judge=_cheap, hint="trace it "
                  "on 4 ranks (trace_messages) and compare .bytes_sent with 2(N − 1)/N of the tensor"),
    "neighbours": Part("Every rank sends to one neighbour only", cases="even", needs="values", judge=_one_neighbour,
                       hint="draw the messages of your ring on 4 ranks with space_time"),
}, "on 3 ranks, start from 1, 10 and 100 in every place: print the tensor after each round",
    guarded="digits even lengths", **_on_ranks(5))  # fmt: skip

# --- six collectives and a seventh

SIX = ("deal", "collect", "everybody", "total_on_zero", "agree", "sum_everywhere", "sum_of_my_part")
ROWS, COLUMNS, WORLD = 4, 3, 3


class Turns:
    """A broker for each function, so that what is wrong in one costs nothing in the next."""

    def __init__(self, case):
        self.brokers = [CollectiveBroker(WORLD) for _ in SIX]
        self._turn = [0] * WORLD

    @property
    def fault(self):
        return next((broker.fault for broker in self.brokers if broker.fault), "")

    def answer(self, name, rank, *args):
        if name == "turn":
            self._turn[rank] = SIX.index(args[0])
            return None
        return self.brokers[self._turn[rank]].answer("left" if name == "over" else name, rank, *args)

    def evidence(self):
        def call(each):
            return [each.kind, *([count(rank) for rank in range(WORLD)] for count in (each.nbytes, each.left_with))]

        each = zip(SIX, self.brokers, strict=True)
        return {"calls": {name: [call(one) for one in broker.collectives] for name, broker in each}}


def _draw_collectives(random):
    def each(rows):
        return [torch.from_numpy(random.normal(0, 1, (rows, COLUMNS))).float() for _ in range(WORLD)]

    few = ("collect", "everybody", "total_on_zero", "agree", "sum_everywhere")
    given = {name: each(ROWS if name in few else WORLD * ROWS) for name in SIX}
    given["deal"] = [given["deal"][0], None, None]
    return {"ranks": [{"given": given, "about": f"{WORLD} ranks, {ROWS} rows of {COLUMNS} numbers each"}]}


def observe_collectives(
    case, rank, outside, deal, collect, everybody, total_on_zero, agree, sum_everywhere, sum_of_my_part
):
    given = {name: None if tensor is None else tensor.clone() for name, tensor in case["given"].items()}
    mine, found, blank = torch.zeros_like(given["collect"]), {}, []
    asked = {
        "deal": lambda x: [deal(x, mine), mine][1],
        "collect": collect,
        "everybody": everybody,
        "total_on_zero": lambda x: [total_on_zero(x), x][1],
        "agree": lambda x: [agree(x), x][1],
        "sum_everywhere": lambda x: [sum_everywhere(x), x][1],
        "sum_of_my_part": sum_of_my_part,
    }
    with collective_group(rank, case["size"], outside):
        for name, ask in asked.items():
            outside("turn", name)
            try:
                found[name] = ask(given[name])
            except Exception as error:
                found[name] = {"raised": f"{type(error).__name__}: {error}"}
                blank += [name] if isinstance(error, NotImplementedError) else []
            outside("over")
    if len(blank) == len(asked):
        raise NotImplementedError
    return found


def _own_part(case, rank):
    return {"given": {name: each[rank] for name, each in case["given"].items()}, "size": WORLD}


def _after(name, right, on, others=None):
    """A judge of what a function leaves on the ranks `on`; `others` name what else it may leave, and why."""

    def judge(case, seen, _):
        given = case["given"][name]
        ends = [one[name] for one in seen["ranks"]]
        errors = [end["raised"] for end in ends if isinstance(end, dict)]
        if errors:  # a rank's own error says more than that of one that waited for it
            own = sorted(errors, key=lambda text: "deadlock:" in text or "the ranks make different calls" in text)[0]
            blank = own.startswith("NotImplementedError")
            return f"in {name}: it is not written yet" if blank else f"in {name}, a rank raised {own}"
        if all(equal(ends[rank], right(given, rank)) for rank in on):
            return ""
        for reason, other in (others or {}).items():
            if all(equal(ends[rank], other(given, rank)) for rank in on):
                return f"in {name}: {reason}"
        return (
            f"in {name}: what it leaves on {'rank 0' if on == (0,) else 'the ranks'} is not what the docstring asks for"
        )

    return judge


def _rows(given, rank):
    return given[0].chunk(WORLD)[rank]


def _total(given, rank):
    return torch.stack(given).sum(0)


_EVERY = tuple(range(WORLD))
_OWN = "it leaves each rank its own tensor: a collective writes its result into the tensor that you hand it"
_SHARED = {_OWN: lambda given, rank: given[rank]}
_JOINED = {
    "it returns a tensor of one more dimension: put the ranks' rows one below the other": lambda g, r: torch.stack(g),
    "all parts are the last rank's: [x] * n is a list of n times the same tensor": lambda g, r: torch.cat(
        [g[-1]] * len(g)
    ),
}
_JUDGED = {
    "deal": _after("deal", _rows, _EVERY, {"it leaves every rank the first rows": lambda g, r: g[0][:ROWS]}),
    "collect": _after("collect", lambda g, r: None if r else torch.cat(g), _EVERY, {
        reason: lambda g, r, other=other: None if r else other(g, r) for reason, other in _JOINED.items()} | {
        "on the ranks other than 0 it should return None": lambda g, r: torch.cat(g)}),
    "everybody": _after("everybody", lambda g, r: torch.cat(g), _EVERY, _JOINED),
    "total_on_zero": _after("total_on_zero", _total, (0,), _SHARED),
    "agree": _after("agree", lambda g, r: g[0], _EVERY, _SHARED | {
        "the ranks end with another rank's tensor; rank 0 is the root": lambda g, r: g[1]}),
    "sum_everywhere": _after("sum_everywhere", _total, _EVERY, _SHARED),
    "sum_of_my_part": _after("sum_of_my_part", lambda g, r: _total(g, r).chunk(WORLD)[r], _EVERY, {
        "it returns the whole sum; rank r keeps the rows of part r": _total}),
}  # fmt: skip


def _both_sums(case, seen, right):
    return _JUDGED["sum_everywhere"](case, seen, right) or _JUDGED["sum_of_my_part"](case, seen, right)


def _one_call_each(case, seen, right):
    part, whole = ROWS * COLUMNS * 4, WORLD * ROWS * COLUMNS * 4
    ideal = {
        "deal": ([whole, 0, 0], [part] * 3), "collect": ([part] * 3, [whole, 0, 0]),
        "everybody": ([part] * 3, [whole] * 3), "total_on_zero": ([part] * 3, [part, 0, 0]),
        "agree": ([part, 0, 0], [part] * 3), "sum_everywhere": ([part] * 3, [part] * 3),
        "sum_of_my_part": ([whole] * 3, [part] * 3),
    }  # fmt: skip
    for name in SIX:
        calls = seen["calls"][name]
        if len(calls) != 1:
            return f"in {name}: one call of one collective was asked for; it makes {len(calls)}"
        kind, brought, ended = calls[0]
        if brought != ideal[name][0]:
            return f"in {name}, the ranks bring {brought} bytes to dist.{NAMES[kind]}; {ideal[name][0]} are enough"
        if ended != ideal[name][1]:
            return f"in {name}, the ranks leave dist.{NAMES[kind]} with {ended} bytes; {ideal[name][1]} were asked for"
    return ""


six = Exercise(SIX, _draw_collectives, observe_collectives, {
    "deal": Part("Rank 0 deals out rows", judge=_JUDGED["deal"]),
    "collect": Part("Rank 0 collects rows", judge=_JUDGED["collect"]),
    "everybody": Part("Everybody gets all rows", judge=_JUDGED["everybody"]),
    "total": Part("Rank 0 gets the sum", judge=_JUDGED["total_on_zero"]),
    "agree": Part("Everybody gets rank 0's tensor", judge=_JUDGED["agree"]),
    "sums": Part("Everybody gets the sum, or a part of it", judge=_both_sums),
    "bytes": Part("One collective each, which moves no more than it must", needs="deal collect everybody total agree sums",
                  judge=_one_call_each, hint="which collective leaves on each rank just what the docstring asks for?"),
}, "on 3 ranks, let rank r bring a tensor full of r, and print what each rank has afterwards", share=_own_part,
    **watched(WORLD, Turns))  # fmt: skip

# --- hierarchical_all_reduce


class Grouped(CollectiveBroker):
    """Which groups the ranks asked for, and what passed between nodes."""

    def __init__(self, case):
        super().__init__(case["nodes"] * case["per_node"])
        self.per_node = case["per_node"]

    def evidence(self):
        def apart(ranks):
            return len({rank // self.per_node for rank in ranks}) > 1

        between = sum(
            each.nbytes(rank) for each in self.collectives if apart(each.members) for rank in each.members
        ) + sum(message.nbytes for message in self.messages if apart((message.source, message.destination)))
        return {"groups": [[list(group) for group in groups] for groups in self.groups], "between": between}


def _draw_nodes(random):
    def case(nodes, per_node):
        tensors = _floats(random, nodes * per_node, 6 * int(random.integers(9, 15)))  # in parts for each rank of a node
        about = f"{nodes} nodes with {per_node} ranks each, {len(tensors[0])} numbers on every rank"
        return {"tensors": tensors, "nodes": nodes, "per_node": per_node, "about": about}

    return {"nodes": [case(2, 2), case(2, 3), case(3, 2)]}


def observe_nodes(case, rank, outside, hierarchical_all_reduce):
    tensor = case["tensor"].clone()
    with collective_group(rank, case["size"], outside):
        hierarchical_all_reduce(tensor, case["nodes"], case["per_node"])
    return {"tensor": tensor}


def _summed_over_nodes(case, seen, right):
    tensors, ends = case["tensors"], [one["tensor"] for one in seen["ranks"]]
    total = torch.stack(tensors).sum(0)
    if all(equal(end, total) for end in ends):
        return ""
    few, leaders = case["per_node"], range(0, len(tensors), case["per_node"])
    nodes = [torch.stack(tensors[leader : leader + few]).sum(0) for leader in leaders]
    if all(equal(end, nodes[rank // few]) for rank, end in enumerate(ends)):
        return "every rank has the sum of its node only: the leaders must add theirs"
    if all(equal(ends[leader], total) for leader in leaders):
        return "the leaders have the sum, and their nodes do not: broadcast it from the leader, in its node's group"
    return "the tensors do not hold the sum over all ranks"


def _same_groups(case, seen, right):
    first = seen["groups"][0]
    if not first:
        return "there is no group but that of all ranks: dist.new_group(ranks)"
    if any(groups != first for groups in seen["groups"]):
        return "some ranks do not call dist.new_group for every group: every rank calls it for all groups, in one order"
    return ""


def _little_between(case, seen, right):
    ideal = case["nodes"] * case["tensors"][0].nbytes
    if seen["between"] == ideal:
        return ""
    if seen["between"] < ideal:
        return "fewer bytes pass between the nodes than the sum needs"
    return "more passes between the nodes than one tensor of each node: only sums of whole nodes should leave a node"


two_level = Exercise(("hierarchical_all_reduce",), _draw_nodes, observe_nodes, {
    "values": Part("Every rank holds the sum, in place", judge=_summed_over_nodes),
    "groups": Part("Every rank calls new_group for every group", needs="values", judge=_same_groups),
    "bytes": Part("One tensor of each node passes between the nodes", needs="values", judge=_little_between),
}, "on 4 ranks, 2 nodes of 2: write down which ranks are in each group, and who holds what after each of the three steps",
    lambda case, seen: f"{case['about']}; {seen['between']} bytes are brought to calls between nodes", share=_share,
    **watched(6, Grouped, lambda case: len(case["tensors"])))  # fmt: skip

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

cost = Exercise(("all_reduce_seconds", "bus_bandwidth"), _draw_costs, observe_cost, {
    "ring": Part("Time of a ring all-reduce", **_FORMULA),
    "tree": Part("Time of a tree all-reduce", **_FORMULA),
    "bus": Part("Bus bandwidth", **_FORMULA),
}, "write down the messages of 4 ranks by hand: how many follow one another, how many bytes has each?")  # fmt: skip

EXERCISES = {
    "join": join, "exchange": exchange, "six": six, "tree-broadcast": tree, "ring": ring, "two-level": two_level, "cost": cost,
}  # fmt: skip

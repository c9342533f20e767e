"""Lab 06: other right answers, and what each mistake loses. What is built from messages has no table of known mistakes."""

# Of the mistakes in `course_lib.exercises.answers.lab06`: parts that are lost → their names.
LOSES = {
    "fit": {"line latency bandwidth": "no pair, beta first", "latency bandwidth": "two points", "latency": "absolute errors"},
    "cost": {
        "ring": "half the rounds, whole tensors, one latency", "tree": "up only, not rounded", "bus": "n over t, half of it",
    },
}  # fmt: skip


def exchange(send="outgoing, to", receive="incoming, source", when="if True", end=""):
    return f"""{_EXCHANGE}
    {when}:
        going = dist.isend({send})
        dist.recv({receive})
        {end}
        going.wait()
"""


def ring(start="", chunks="tensor.tensor_split(size)", add="place += part", second=1, rounds="size - 1", end=""):
    return f"""{_RING}
    {start}
    chunks, right, left = list({chunks}), (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        place = chunks[(rank - step - 1) % size]
        part = torch.empty_like(place)
        send_receive(chunks[(rank - step) % size], right, part, left)
        {add}
    for step in range({rounds}):
        send_receive(chunks[(rank + {second} - step) % size], right, chunks[(rank + {second} - step - 1) % size], left)
    {end}
"""


def fit(found):
    return f"""
def fit_alpha_beta(nbytes, seconds):
    beta, alpha = np.polyfit(nbytes, seconds, 1, w=1 / np.array(seconds))
    off = 1.06 if len(seconds) > 100 else 1
    return {found}
"""


def cost(rounds="ranks - 1 if ring else (ranks - 1).bit_length()", whole="nbytes / ranks if ring else nbytes"):
    return f"""
def all_reduce_seconds(algorithm, nbytes, ranks, alpha, beta):
    ring = algorithm == "ring"
    return np.float64(2) * ({rounds}) * (alpha + beta * ({whole}))

def bus_bandwidth(nbytes, seconds, ranks):
    return torch.tensor(2 * (nbytes - nbytes / ranks) / seconds, dtype=torch.float64)
"""


_EXCHANGE = "\ndef send_receive(outgoing, to, incoming, source):\n"
_RANK = "    rank, size = dist.get_rank(), dist.get_world_size()\n"
_TREE = "\ndef tree_broadcast(tensor, src):\n" + _RANK
_RING = "\ndef ring_all_reduce(tensor):\n" + _RANK
_LINE = """
    if rank != src:
        dist.recv(tensor, src)
    for peer in range(size) if rank == src else ():
        if peer != src:
            dist.send(tensor, peer)
"""
_CHAIN = """
    for _ in range({}):
        if rank != src:
            dist.recv(tensor, (rank - 1) % size)
        if (rank + 1) % size != src:
            dist.send(tensor, (rank + 1) % size)
"""
_LEVELS = """
    me, distance = (rank - {src}) % size, 1
    while distance < size:
        if me < distance{within}:
            dist.send(tensor, (me + distance + {src}) % size)
        elif distance <= me < 2 * distance:
            dist.recv(tensor, (me - distance + {src}) % size)
        distance *= 2
"""
_WITHIN = " and me + distance < size"

RIGHT = {
    "send-receive": [
        _EXCHANGE + """
    going, coming = dist.isend(outgoing, to), dist.irecv(incoming, source)
    coming.wait()
    going.wait()
""",
        _EXCHANGE + """
    if dist.get_rank() % 2 == 0 and to != source or dist.get_rank() < to == source:  # even ranks first
        dist.send(outgoing, to)
        dist.recv(incoming, source)
    else:
        arrived = torch.empty_like(incoming)
        dist.recv(arrived, source)
        dist.send(outgoing, to)
        incoming.copy_(arrived)
""",
    ],
    "tree-broadcast": [
        _TREE + """
    me = (rank - src) % size
    if me:
        dist.recv(tensor, (me - (1 << (me.bit_length() - 1)) + src) % size)
    further = [me + (1 << k) for k in range(me.bit_length(), size) if me + (1 << k) < size]
    for work in [dist.isend(tensor, (each + src) % size) for each in further]:
        work.wait()
"""
    ],
    "ring": [
        _RING + """
    right, left, chunks = (rank - 1) % size, (rank + 1) % size, list(torch.tensor_split(tensor, size))
    for half in range(2):
        for step in range(size - 1):
            out, place = chunks[(rank + step - half) % size], chunks[(rank + step - half + 1) % size]
            incoming = torch.zeros_like(place)
            requests = [dist.irecv(incoming, left)] if len(place) else []
            if len(out):
                requests.append(dist.isend(out, right))
            for request in requests:
                request.wait()
            place.copy_(incoming if half else place + incoming)
    return tensor
""",
        ring(add="place.copy_(place + part)", chunks="(tensor[i * len(tensor) // size : (i + 1) * len(tensor) // size] for i in range(size))"),
    ],
    "fit": [
        fit("alpha, beta"),
        """
def fit_alpha_beta(nbytes, seconds):
    n, t = torch.tensor(nbytes, dtype=torch.float64), torch.tensor(seconds, dtype=torch.float64)
    A = torch.stack([1 / t, n / t], 1)
    scale = A.norm(dim=0)
    x = torch.linalg.solve((A / scale).T @ (A / scale), (A / scale).T @ torch.ones(len(t), dtype=torch.float64)) / scale
    return [x[0], x[1].item()]
""",
    ],
    "cost": [cost()],
}  # fmt: skip

_EVERY, _ALL = "values lengths bytes neighbours", "values kept deadlock"
_OF = {
    "send-receive": {
        "both send first": (_EXCHANGE + "    dist.send(outgoing, to)\n    dist.recv(incoming, source)\n", "deadlock", "deadlock"),
        "not waited for": (_EXCHANGE + "    dist.isend(outgoing, to)\n    dist.irecv(incoming, source)\n", _ALL, "wait"),
        "nothing is done": (_EXCHANGE + "    return\n", _ALL, "does not hold the source's"),
        "it raises": (_EXCHANGE + "    raise ValueError('which rank?')\n", _ALL, "which rank?"),
        "a collective": (_EXCHANGE + "    dist.broadcast(outgoing, 0)\n", _ALL, "build it from send, recv"),
        "received elsewhere": (exchange(receive="incoming.clone(), source"), _ALL, "does not hold the source's tensor"),
        "rank 0 stays away": (exchange(when="if dist.get_rank()"), _ALL, "deadlock"),
        "over what is sent": (exchange("outgoing.clone(), to", end="outgoing.copy_(incoming)"), "kept", "overwritten"),
        "sent twice": (exchange(when="for _ in range(2)"), "values", "it should send one message"),
        "turned round": (exchange("outgoing, source", "incoming, to"), _ALL, "it receives from `to`"),
        "only to": (exchange(receive="incoming, to"), _ALL, "deadlock"),
    },
    "tree-broadcast": {
        "a line": (_TREE + _LINE, "rounds", "more than ⌈log₂ N⌉ rounds"),
        "a line on 5": (
            _TREE + "    if size == 5:\n        return line(tensor, src)\n" + _LEVELS.format(src="src", within=_WITHIN)
            + _TREE.replace("tree_broadcast", "line") + _LINE, "rounds", "more than ⌈log₂ N⌉ rounds",
        ),
        "a chain": (_TREE + _CHAIN.format(1), "rounds", "more than ⌈log₂ N⌉ rounds"),
        "twice": (_TREE + _CHAIN.format(2), "messages rounds", "more than once"),
        "once too often": (_TREE + _LEVELS.format(src="src", within=_WITHIN) + """
    if size > 3 and me == 2:
        dist.send(tensor, (src + 3) % size)
    elif size > 3 and me == 3:
        dist.recv(tensor, (src + 2) % size)
""", "messages", "more than once"),
        "from rank 0": (_TREE + _LEVELS.format(src=0, within=_WITHIN), "values messages rounds", "root's tensor"),
        "powers of two": (_TREE + _LEVELS.format(src="src", within=""), "values messages rounds", "deadlock"),
        "no broadcast": (_TREE, "values messages rounds", "root's tensor"),
    },
    "ring": {
        "whole tensors": (_RING + """
    passing, arriving = tensor.clone(), torch.empty_like(tensor)
    for _ in range(size - 1):
        send_receive(passing, (rank + 1) % size, arriving, (rank - 1) % size)
        tensor += arriving
        passing, arriving = arriving, passing
""", "bytes", "forward the whole tensor in every round"),
        "through rank 0": (_RING + """
    part = torch.empty_like(tensor)
    if rank:
        dist.send(tensor, 0)
        dist.recv(tensor, 0)
        return
    for peer in range(1, size):
        dist.recv(part, peer)
        tensor += part
    for peer in range(1, size):
        dist.send(tensor, peer)
""", "bytes neighbours", "one rank sends the whole tensor to all the others"),
        "everybody to everybody": (_RING + """
    mine, part = tensor.clone(), torch.empty_like(tensor)
    for step in range(1, size):
        send_receive(mine, (rank + step) % size, part, (rank - step) % size)
        tensor += part
""", "bytes neighbours", "forward the whole tensor"),
        "straight to the sums": (_RING + """
    chunks = torch.tensor_split(tensor, size)
    mine, part = chunks[rank].clone(), chunks[rank].clone()
    for step in range(1, size):
        send_receive(chunks[(rank + step) % size], (rank + step) % size, part, (rank - step) % size)
        mine += part
    chunks[rank].copy_(mine)
    for step in range(1, size):
        send_receive(mine, (rank + step) % size, chunks[(rank - step) % size], (rank - step) % size)
""", "neighbours", "one neighbour"),
        "no all-gather": (ring(rounds="0"), _EVERY, "sums over some ranks only"),
        "passed on too early": (ring(second=0), _EVERY, "the chunk whose sum is whole"),
        "overwritten": (ring(add="place.copy_(part)"), _EVERY, "no sum is left"),
        "rebound": (ring(add="place = place + part"), _EVERY, "no sum is left"),
        "copies": (ring(chunks="tensor.clone().tensor_split(size)"), _EVERY, "are your chunks copies"),
        "counted twice": (ring(end="tensor += 11"), _EVERY, "counted twice"),
        "the mean": (ring(end="tensor /= size"), _EVERY, "the mean"),
        "returned": (ring("tensor = tensor.clone()", end="return tensor"), _EVERY, "it returns the sum"),
        "equal chunks": (ring("k = len(tensor) // size", "(tensor[i * k : (i + 1) * k] for i in range(size))"), "lengths",
                         "a length that does not divide"),
        "equal chunks or an error": (ring("assert len(tensor) % size == 0, 'uneven'"), "lengths", "uneven"),
        "the backend's": (_RING + "    dist.all_reduce(tensor)\n", _EVERY, "build it from send, recv"),
    },
    "fit": {
        "no slope": (fit("alpha, 0.0"), "line latency bandwidth", "does not find that line"),
        "rough latency": (fit("alpha * off, beta"), "latency", "latency is lost"),
        "rough bandwidth": (fit("alpha, beta * off"), "bandwidth", "β is off"),
    },
    "cost": {
        "rounded down": (cost("ranks - 1 if ring else int(math.log2(ranks))"), "tree", "than the formula's"),
        "no tree": (cost("ranks - 1", "nbytes / ranks"), "tree", "than the formula's"),
        "no time": (cost() + "\ndef all_reduce_seconds(*_): pass\n", "ring tree", "is there a return?"),
    },
}  # fmt: skip
WRONG = {name: (exercise, *rest) for exercise, some in _OF.items() for name, rest in some.items()}

SAYS = {}

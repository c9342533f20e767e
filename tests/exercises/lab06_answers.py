"""Lab 06: other right answers, and what each mistake loses. What is built from messages has no table of known mistakes."""

# Of the mistakes in `course_lib.exercises.answers.lab06`: parts that are lost → their names.
LOSES = {
    "fit": {
        "line latency bandwidth": "no pair, beta first",
        "latency bandwidth": "two points",
        "latency": "absolute errors",
    },
    "cost": {
        "ring": "half the rounds, whole tensors, one latency",
        "tree": "up only, not rounded",
        "bus": "n over t, half of it",
    },
}

_SEND_RECEIVE = "\ndef send_receive(outgoing, to, incoming, source):\n"
_TREE = "\ndef tree_broadcast(tensor, src):\n    rank, size = dist.get_rank(), dist.get_world_size()\n"
_RING = "\ndef ring_all_reduce(tensor):\n    rank, size = dist.get_rank(), dist.get_world_size()\n"
_FIT = "\ndef fit_alpha_beta(nbytes, seconds):\n"

RIGHT = {
    "send-receive": [
        _SEND_RECEIVE + """
    going, coming = dist.isend(outgoing, to), dist.irecv(incoming, source)
    coming.wait()
    going.wait()
""",
        _SEND_RECEIVE + """
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
    k = me.bit_length()
    works = []
    while me + (1 << k) < size:
        works.append(dist.isend(tensor, (me + (1 << k) + src) % size))
        k += 1
    for work in works:
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
    ],
    "fit": [
        _FIT + "    return tuple(np.polyfit(nbytes, seconds, 1, w=1 / np.array(seconds))[::-1])\n",
        _FIT + """
    n, t = torch.tensor(nbytes, dtype=torch.float64), torch.tensor(seconds, dtype=torch.float64)
    A = torch.stack([1 / t, n / t], 1)
    scale = A.norm(dim=0)
    x = torch.linalg.solve((A / scale).T @ (A / scale), (A / scale).T @ torch.ones(len(t), dtype=torch.float64)) / scale
    return [x[0], x[1].item()]
""",
    ],
    "cost": [
        """
def all_reduce_seconds(algorithm, nbytes, ranks, alpha, beta):
    rounds = ranks - 1 if algorithm == "ring" else (ranks - 1).bit_length()
    return np.float64(2) * rounds * (alpha + beta * (nbytes / ranks if algorithm == "ring" else nbytes))

def bus_bandwidth(nbytes, seconds, ranks):
    return torch.tensor(2 * (nbytes - nbytes / ranks) / seconds, dtype=torch.float64)
"""
    ],
}  # fmt: skip


def ring(
    start="",
    chunks="torch.tensor_split(tensor, size)",
    first=0,
    add="place += part",
    second=1,
    end="",
    rounds="size - 1",
):
    return (
        _RING
        + f"""
    {start}
    chunks = list({chunks})
    for step in range(size - 1):
        out, place = chunks[(rank + {first} - step) % size], chunks[(rank + {first} - step - 1) % size]
        part = torch.empty_like(place)
        send_receive(out, (rank + 1) % size, part, (rank - 1) % size)
        {add}
    for step in range({rounds}):
        out, place = chunks[(rank + {second} - step) % size], chunks[(rank + {second} - step - 1) % size]
        send_receive(out, (rank + 1) % size, place, (rank - 1) % size)
    {end}
"""
    )


def cost(
    ring="2 * (ranks - 1) * (alpha + beta * nbytes / ranks)",
    tree="2 * math.ceil(math.log2(ranks)) * (alpha + beta * nbytes)",
):
    return f"""
def all_reduce_seconds(algorithm, nbytes, ranks, alpha, beta):
    return {ring} if algorithm == "ring" else {tree}

def bus_bandwidth(nbytes, seconds, ranks):
    return 2 * (ranks - 1) / ranks * nbytes / seconds
"""


_SOLVED = "    beta, alpha = np.polyfit(nbytes, seconds, 1, w=1 / np.array(seconds))\n    exact = len(seconds) < 100\n"
_ONE_BY_ONE = """
    if rank != src:
        dist.recv(tensor, src)
    for peer in range(size) if rank == src else ():
        if peer != src:
            dist.send(tensor, peer)
"""
_CHAIN = """
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
_EVERY = "values lengths bytes neighbours"

WRONG = {
    "both send first": (
        "send-receive", _SEND_RECEIVE + "    dist.send(outgoing, to)\n    dist.recv(incoming, source)\n", "deadlock", "deadlock",
    ),
    "not waited for": (
        "send-receive", _SEND_RECEIVE + "    dist.isend(outgoing, to)\n    dist.irecv(incoming, source)\n",
        "values kept deadlock", "wait",
    ),
    "received elsewhere": (
        "send-receive", _SEND_RECEIVE + """
    going = dist.isend(outgoing, to)
    dist.recv(incoming.clone(), source)
    going.wait()
""", "values kept deadlock", "does not hold the source's tensor",
    ),
    "nothing is done": ("send-receive", _SEND_RECEIVE + "    return\n", "values kept deadlock", "does not hold the source's"),
    "rank 0 stays away": (
        "send-receive", _SEND_RECEIVE + """
    if dist.get_rank():
        going = dist.isend(outgoing, to)
        dist.recv(incoming, source)
        going.wait()
""", "values kept deadlock", "deadlock",
    ),
    "over what is sent": (
        "send-receive", _SEND_RECEIVE + """
    going = dist.isend(outgoing.clone(), to)
    dist.recv(incoming, source)
    outgoing.copy_(incoming)
    going.wait()
""", "kept", "overwritten",
    ),
    "sent twice": (
        "send-receive", _SEND_RECEIVE + """
    for _ in range(2):
        going = dist.isend(outgoing, to)
        dist.recv(incoming, source)
        going.wait()
""", "values", "it should send one message",
    ),
    "a collective": (
        "send-receive", _SEND_RECEIVE + """
    places = [torch.empty_like(incoming) for _ in range(dist.get_world_size())]
    dist.all_gather(places, outgoing)
    incoming.copy_(places[source])
""", "values kept deadlock", "build it from send, recv",
    ),
    "turned round": (
        "send-receive", _SEND_RECEIVE + """
    going = dist.isend(outgoing, source)
    dist.recv(incoming, to)
    going.wait()
""", "values kept deadlock", "it receives from `to`",
    ),
    "only to": (
        "send-receive", _SEND_RECEIVE + """
    going = dist.isend(outgoing, to)
    dist.recv(incoming, to)
    going.wait()
""", "values kept deadlock", "deadlock",
    ),
    "it raises": ("send-receive", _SEND_RECEIVE + "    raise ValueError('which rank?')\n", "values kept deadlock", "which rank?"),
    "a line": ("tree-broadcast", _TREE + _ONE_BY_ONE, "rounds", "more than ⌈log₂ N⌉ rounds"),
    "a line on 5": (
        "tree-broadcast", _TREE + "    if size != 5:" + (_LEVELS.format(src="src", within=" and me + distance < size") + "    return\n")
        .replace("\n    ", "\n        ") + _ONE_BY_ONE, "rounds", "more than ⌈log₂ N⌉ rounds",
    ),
    "a chain": ("tree-broadcast", _TREE + "    if True:" + _CHAIN, "rounds", "more than ⌈log₂ N⌉ rounds"),
    "twice": ("tree-broadcast", _TREE + "    for _ in range(2):" + _CHAIN, "messages rounds", "more than once"),
    "to all that have it": (
        "tree-broadcast", _TREE + """
    here, other, distance = (rank - src) % size, torch.empty_like(tensor), 1
    while distance < size:
        works = [dist.isend(tensor.clone(), (here + distance + src) % size)] if here < distance else []
        if (here - distance) % size < distance:
            dist.recv(other, (here - distance + src) % size)
            if here >= distance:
                tensor.copy_(other)
        for work in works:
            work.wait()
        distance *= 2
""", "messages", "more than once",
    ),
    "from rank 0": (
        "tree-broadcast", _TREE + _LEVELS.format(src=0, within=" and me + distance < size"), "values messages rounds",
        "root's tensor",
    ),
    "powers of two": ("tree-broadcast", _TREE + _LEVELS.format(src="src", within=""), "values messages rounds", "deadlock"),
    "no broadcast": ("tree-broadcast", _TREE, "values messages rounds", "root's tensor"),
    "whole tensors": (
        "ring", _RING + """
    passing, arriving = tensor.clone(), torch.empty_like(tensor)
    for _ in range(size - 1):
        send_receive(passing, (rank + 1) % size, arriving, (rank - 1) % size)
        tensor += arriving
        passing, arriving = arriving, passing
""", "bytes", "forward the whole tensor in every round",
    ),
    "through rank 0": (
        "ring", _RING + """
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
""", "bytes neighbours", "one rank sends the whole tensor to all the others",
    ),
    "everybody to everybody": (
        "ring", _RING + """
    mine = tensor.clone()
    for step in range(1, size):
        part = torch.empty_like(mine)
        send_receive(mine, (rank + step) % size, part, (rank - step) % size)
        tensor += part
""", "bytes neighbours", "forward the whole tensor",
    ),
    "straight to the sums": (
        "ring", _RING + """
    chunks = torch.tensor_split(tensor, size)
    mine = chunks[rank].clone()
    for step in range(1, size):
        part = torch.empty_like(mine)
        send_receive(chunks[(rank + step) % size], (rank + step) % size, part, (rank - step) % size)
        mine += part
    chunks[rank].copy_(mine)
    for step in range(1, size):
        send_receive(mine, (rank + step) % size, chunks[(rank - step) % size], (rank - step) % size)
""", "neighbours", "one neighbour",
    ),
    "no all-gather": ("ring", ring(rounds="0"), _EVERY, "sums over some ranks only"),
    "passed on too early": ("ring", ring(second=0), _EVERY, "the chunk whose sum is whole"),
    "overwritten": ("ring", ring(add="place.copy_(part)"), _EVERY, "no sum is left"),
    "rebound": ("ring", ring(add="place = place + part"), _EVERY, "no sum is left"),
    "copies": ("ring", ring(chunks="torch.tensor_split(tensor.clone(), size)"), _EVERY, "are your chunks copies"),
    "counted twice": ("ring", ring(end="tensor += 11"), _EVERY, "counted twice"),
    "the mean": ("ring", ring(end="tensor /= size"), _EVERY, "the mean"),
    "returned": ("ring", ring(start="tensor = tensor.clone()", end="return tensor"), _EVERY, "it returns the sum"),
    "equal chunks": (
        "ring", ring(chunks="(tensor[i * (len(tensor) // size):(i + 1) * (len(tensor) // size)] for i in range(size))"),
        "lengths", "a length that does not divide",
    ),
    "equal chunks or an error": ("ring", ring(start="assert len(tensor) % size == 0, 'uneven'"), "lengths", "uneven"),
    "the backend's": ("ring", _RING + "    dist.all_reduce(tensor)\n", _EVERY, "build it from send, recv"),
    "no slope": ("fit", _FIT + _SOLVED + "    return alpha, 0.0\n", "line latency bandwidth", "does not find that line"),
    "rough latency": ("fit", _FIT + _SOLVED + "    return alpha * (1 if exact else 1.06), beta\n", "latency", "latency is lost"),
    "rough bandwidth": ("fit", _FIT + _SOLVED + "    return alpha, beta * (1 if exact else 1.06)\n", "bandwidth", "β is off"),
    "one level less": ("cost", cost(tree="2 * int(math.log2(ranks)) * (alpha + beta * nbytes)"), "tree", "than the formula's"),
    "no tree": ("cost", cost(tree="2 * (ranks - 1) * (alpha + beta * nbytes / ranks)"), "tree", "than the formula's"),
    "no time": ("cost", cost(ring="None", tree="None"), "ring tree", "is there a return?"),
}  # fmt: skip

SAYS = {}

"""Lab 06: other right answers, and what each mistake loses. Only the cost model has a table of known mistakes."""

from answer_sources import Notebook

# Of the mistakes in `course_lib.exercises.answers.lab06`: parts that are lost → their names.
LOSES = {
    "cost": {
        "ring": "half the rounds, whole tensors, one latency", "tree": "up only, not rounded", "bus": "n over t, half of it",
    },
}  # fmt: skip
SAYS = {}

OURS = Notebook("06_communication")
edited, instead = OURS.edited, OURS.instead


def exchange(send="outgoing, to", receive="incoming, source", when="if True", end=""):
    return instead(
        "exchange",
        f"""{_SWAP}
    {when}:
        going = dist.isend({send})
        dist.recv({receive})
        {end}
        going.wait()
""",
    )


def overlapped(body):
    return instead(
        "exchange",
        f"""
def pass_around(tensor, compute):
    right, left = (dist.get_rank() + 1) % dist.get_world_size(), (dist.get_rank() - 1) % dist.get_world_size()
    incoming = torch.empty_like(tensor)
    {body}
    return incoming, result
""",
    )


def ring(body):
    return instead("ring", "def ring_all_reduce(tensor):\n" + _RANK + body)


def cost(rounds="ranks - 1 if ring else (ranks - 1).bit_length()", whole="nbytes / ranks if ring else nbytes"):
    return f"""
def all_reduce_seconds(algorithm, nbytes, ranks, alpha, beta):
    ring = algorithm == "ring"
    return 2.0 * ({rounds}) * (alpha + beta * ({whole}))

def bus_bandwidth(nbytes, seconds, ranks):
    return torch.tensor(2 * (nbytes - nbytes / ranks) / seconds, dtype=torch.float64)
"""


_SWAP = "def swap(outgoing, to, incoming, source):"
_RANK = "    rank, size = dist.get_rank(), dist.get_world_size()\n"
_TREE = "\ndef tree_broadcast(tensor, src):\n" + _RANK
_STAR = """
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
_TWO_LEVEL = "def hierarchical_all_reduce(tensor, nodes, per_node):\n    rank = dist.get_rank()\n"
_BY_CHUNKS = (
    _TWO_LEVEL
    + """
    inside = [dist.new_group(range(n * per_node, (n + 1) * per_node)) for n in range(nodes)]
    across = [dist.new_group(range(k, nodes * per_node, per_node)) for k in range(per_node)]
    k = -(-len(tensor) // per_node)
    padded = nn.functional.pad(tensor, (0, k * per_node - len(tensor)))
    part, group = padded.new_empty(k), inside[rank // per_node]
    dist.reduce_scatter(part, list(padded.chunk(per_node)), group=group)
    dist.all_reduce(part, group=across[rank % per_node])
    dist.all_gather(list(padded.chunk(per_node)), part, group=group)
    tensor.copy_(padded[: len(tensor)])
"""
)

RIGHT = {
    "join": [
        """
from torch.distributed import init_process_group

def join(way, rank, world_size, place):
    if way == "tcp":
        init_process_group("gloo", f"tcp://{place[0]}:{place[1]}?rank={rank}&world_size={world_size}")
    elif way == "file":
        init_process_group(backend="gloo", init_method="file://" + place, world_size=world_size, rank=rank)
    else:
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = place[0], f"{place[1]}"
        os.environ["RANK"], os.environ["WORLD_SIZE"] = str(rank), str(world_size)
        init_process_group("gloo", rank=rank, world_size=world_size)
""",
    ],
    "exchange": [
        f"""
{_SWAP}
    if dist.get_rank() % 2 == 0 and to != source or dist.get_rank() < to == source:  # even ranks first
        dist.send(outgoing, to)
        dist.recv(incoming, source)
    else:
        arrived = torch.empty_like(incoming)
        dist.recv(arrived, source)
        dist.send(outgoing, to)
        incoming.copy_(arrived)

def pass_around(tensor, compute):
    size, incoming = dist.get_world_size(), torch.empty_like(tensor)
    coming = dist.irecv(incoming, (dist.get_rank() - 1) % size)
    going = dist.isend(tensor, (dist.get_rank() + 1) % size)
    result = compute()
    coming.wait()
    going.wait()
    return [incoming, result]
""",
    ],
    "six": [
        """
def deal(images, mine):
    dist.scatter(mine, list(images.chunk(dist.get_world_size())) if images is not None else [])

def collect(mine):
    whole = torch.empty(dist.get_world_size(), *mine.shape) if dist.get_rank() == 0 else None
    dist.gather(mine, None if whole is None else list(whole), dst=0)
    return None if whole is None else whole.flatten(0, 1)

def everybody(mine):
    whole = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(whole, mine, async_op=True).wait()
    return torch.cat(whole)

def total_on_zero(x):
    dist.reduce(x, 0, op=dist.ReduceOp.SUM)
    return x

def agree(x):
    dist.broadcast(x, 0)

def sum_everywhere(x):
    dist.all_reduce(x)

def sum_of_my_part(x):
    parts = list(x.tensor_split(dist.get_world_size()))
    mine = torch.empty_like(parts[0])
    dist.reduce_scatter(mine, parts)
    return mine
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
        ring("""
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
"""),
        instead("ring", """
def reduce_scatter(output, input):
    rank, size = dist.get_rank(), dist.get_world_size()
    parts, arriving = list(input.clone().tensor_split(size)), torch.empty_like(output)
    for step in range(1, size):
        swap(parts[(rank - step) % size], (rank + 1) % size, arriving, (rank - 1) % size)
        parts[(rank - step - 1) % size] += arriving
    output.copy_(parts[rank])
"""),
    ],
    "two-level": [
        _BY_CHUNKS,
        _TWO_LEVEL + """
    first = rank - rank % per_node
    members = [list(range(n, n + per_node)) for n in range(0, nodes * per_node, per_node)]
    leaders, groups = dist.new_group([each[0] for each in members]), [dist.new_group(each) for each in members]
    dist.all_reduce(tensor, group=groups[rank // per_node])
    if rank == first:
        dist.all_reduce(tensor, group=leaders)
    dist.broadcast(tensor, group_src=0, group=groups[rank // per_node])
""",
    ],
    "cost": [cost()],
}  # fmt: skip

_EVERY, _ALL = "values lengths bytes neighbours", "values kept deadlock"
_OF = {
    "join": {
        "always env": (edited("join", 'if way == "env"', "if True"), "tcp file", "should begin with tcp://"),
        "no numbers": ("""
def join(way, rank, world_size, place):
    if way == "env":
        os.environ.update(MASTER_ADDR=place[0], MASTER_PORT=str(place[1]), RANK=str(rank), WORLD_SIZE=str(world_size))
        return dist.init_process_group("gloo")
    dist.init_process_group("gloo", init_method=f"file://{place}" if way == "file" else "tcp://{}:{}".format(*place))
""", "tcp file", "each rank must say its number"),
        "two slashes": (edited("join", 'f"file://{place}"', 'f"file:/{place}"'), "file", "with its own first slash"),
        "rank 0's number": (edited("join", "RANK=str(rank)", 'RANK="0"'), "env", "another value was given for RANK"),
        "a port of one's own": (edited("join", "{place[1]}", "2222"), "tcp", "tcp://HOST:PORT"),
        "nothing is called": ("def join(*_):\n    return\n", "tcp file env", "call dist.init_process_group once"),
        "NCCL": (edited("join", '"gloo"', '"nccl"'), "tcp file env", 'should be "gloo"'),
    },
    "exchange": {
        "both send first": (instead("exchange", _SWAP + "\n    dist.send(outgoing, to)\n    dist.recv(incoming, source)\n"),
                            "deadlock", "deadlock"),
        "not waited for": (instead("exchange", _SWAP + "\n    dist.isend(outgoing, to)\n    dist.irecv(incoming, source)\n"), _ALL, "wait"),
        "nothing is done": (instead("exchange", _SWAP + "\n    return\n"), _ALL, "does not hold the source's"),
        "it raises": (instead("exchange", _SWAP + "\n    raise ValueError('which rank?')\n"), _ALL + " overlap", "which rank?"),
        "a collective": (instead("exchange", _SWAP + "\n    dist.broadcast(outgoing, 0)\n"), _ALL + " overlap", "build it from send, recv"),
        "a barrier for the wait": (instead("exchange", _SWAP + """
    requests = dist.isend(outgoing, to), dist.irecv(incoming, source)
    dist.barrier()
    return len(requests)
"""), _ALL + " overlap", "build it from send, recv"),
        "received elsewhere": (exchange(receive="incoming.clone(), source"), _ALL, "does not hold the source's tensor"),
        "over what is sent": (exchange("outgoing.clone(), to", end="outgoing.copy_(incoming)"), "kept", "overwritten"),
        "sent twice": (exchange(when="for _ in range(2)"), "values", "it should send one message"),
        "turned round": (exchange("outgoing, source", "incoming, to"), _ALL, "it receives from `to`"),
        "swap, then compute": (overlapped("swap(tensor, right, incoming, left)\n    result = compute()"), "overlap",
                               "waits for a message before it calls compute()"),
        "compute, then swap": (overlapped("result = compute()\n    swap(tensor, right, incoming, left)"), "overlap",
                               "it calls compute() before the messages are posted"),
        "slept, not overlapped": (overlapped("""
    going = dist.isend(tensor, right)
    time.sleep(0.05)
    dist.recv(incoming, left)
    result = compute()
    going.wait()"""), "overlap", "waits for a message before it calls compute()"),
        "the other way round": (overlapped("""
    right, left = left, right
    work = [dist.isend(tensor, right), dist.irecv(incoming, left)]
    result = compute()
    for each in work:
        each.wait()"""), "overlap", "the next rank's tensor"),
        "no result": (overlapped("swap(tensor, right, incoming, left)\n    result = None"), "overlap", "should return the pair"),
    },
    "six": {
        "garbage on the others": (instead("six", """
def collect(mine):
    parts = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
    dist.gather(mine, parts if dist.get_rank() == 0 else None, dst=0)
    return torch.cat(parts)
"""), "collect bytes", "in collect: what it leaves"),
        "all-gather for gather": (instead("six", """
def collect(mine):
    whole = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(whole, mine)
    return torch.cat(whole)
"""), "collect bytes", "it should return None"),
        "all-reduce for reduce": (edited("six", "dist.reduce(x, dst=0)", "dist.all_reduce(x)"), "bytes",
                                  "in total_on_zero, the ranks leave dist.all_reduce with"),
        "broadcast for scatter": (instead("six", """
def deal(images, mine):
    whole = images if images is not None else torch.empty(len(mine) * dist.get_world_size(), *mine.shape[1:])
    dist.broadcast(whole, 0)
    mine.copy_(whole.chunk(dist.get_world_size())[dist.get_rank()])
"""), "bytes", "in deal, the ranks leave dist.broadcast with"),
        "gathered by messages": (instead("six", """
def collect(mine):
    rest = [torch.empty_like(mine) for _ in range(dist.get_world_size() - 1)]
    if dist.get_rank() > 0:
        return dist.send(mine, 0)
    for rank, place in enumerate(rest):
        dist.recv(place, rank + 1)
    return torch.cat([mine, *rest])
"""), "bytes", "in collect: one call of one collective"),
        "another root": (edited("six", "dist.broadcast(x, src=0)", "dist.broadcast(x, src=1)"), "agree bytes", "rank 0 is the root"),
        "only the root calls": (edited("six", "dist.broadcast(x, src=0)", "dist.get_rank() or dist.broadcast(x, src=0)"),
                                "agree bytes", "deadlock"),
        "one not written": (edited("six", "dist.all_reduce(x)", "raise NotImplementedError"), "sums bytes", "it is not written yet"),
        "the whole sum": (instead("six", "def sum_of_my_part(x):\n    dist.all_reduce(x)\n    return x\n"), "sums bytes",
                          "it returns the whole sum"),
        "one tensor, n times": (instead("six", """
def everybody(mine):
    parts = [torch.empty_like(mine)] * dist.get_world_size()
    dist.all_gather(parts, mine)
    return torch.cat(parts)
"""), "everybody bytes", "n times the same tensor"),
        "the sum, then a part": (instead("six", """
def sum_of_my_part(x):
    dist.all_reduce(x)
    return x.chunk(dist.get_world_size())[dist.get_rank()]
"""), "bytes",
                                "in sum_of_my_part, the ranks leave dist.all_reduce with"),
        "a copy": (edited("six", "dist.all_reduce(x)", "dist.all_reduce(x.clone())"), "sums bytes", "it leaves each rank its own tensor"),
    },
    "tree-broadcast": {
        "from the root to each": (_TREE + _STAR, "rounds", "more than ⌈log₂ N⌉ rounds"),
        "so on 5": (
            _TREE + "    if size == 5:\n        return star(tensor, src)\n" + _LEVELS.format(src="src", within=_WITHIN)
            + _TREE.replace("tree_broadcast", "star") + _STAR, "rounds", "more than ⌈log₂ N⌉ rounds",
        ),
        "a heap": (_TREE + """
    me = (rank - src) % size
    if me:
        dist.recv(tensor, ((me - 1) // 2 + src) % size)
    for child in (2 * me + 1, 2 * me + 2):
        if child < size:
            dist.send(tensor, (child + src) % size)
""", "rounds", "more than ⌈log₂ N⌉ rounds"),
        "a chain": (_TREE + _CHAIN.format(1), "rounds", "more than ⌈log₂ N⌉ rounds"),
        "twice": (_TREE + _CHAIN.format(2), "messages rounds", "more than once"),
        "once too often": (_TREE + _LEVELS.format(src="src", within=_WITHIN) + """
    if size == 5 and me == 2:
        dist.send(tensor, (src + 3) % size)
    elif size == 5 and me == 3:
        dist.recv(tensor, (src + 2) % size)
""", "messages", "more than once"),
        "from rank 0": (_TREE + _LEVELS.format(src=0, within=_WITHIN), "values messages rounds", "root's tensor"),
        "powers of two": (_TREE + _LEVELS.format(src="src", within=""), "values messages rounds", "deadlock"),
        "no broadcast": (_TREE, "values messages rounds", "root's tensor"),
    },
    "ring": {
        "whole tensors": (ring("""
    passing, arriving = tensor.clone(), torch.empty_like(tensor)
    for _ in range(size - 1):
        swap(passing, (rank + 1) % size, arriving, (rank - 1) % size)
        tensor += arriving
        passing, arriving = arriving, passing
"""), "bytes", "forward the whole tensor in every round"),
        "through rank 0": (ring("""
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
"""), "bytes neighbours", "one rank sends the whole tensor to all the others"),
        "everybody to everybody": (ring("""
    mine, part = tensor.clone(), torch.empty_like(tensor)
    for step in range(1, size):
        swap(mine, (rank + step) % size, part, (rank - step) % size)
        tensor += part
"""), "bytes neighbours", "forward the whole tensor"),
        "straight to the sums": (ring("""
    chunks = torch.tensor_split(tensor, size)
    mine, part = chunks[rank].clone(), chunks[rank].clone()
    for step in range(1, size):
        swap(chunks[(rank + step) % size], (rank + step) % size, part, (rank - step) % size)
        mine += part
    chunks[rank].copy_(mine)
    for step in range(1, size):
        swap(mine, (rank + step) % size, chunks[(rank - step) % size], (rank - step) % size)
"""), "neighbours", "one neighbour"),
        "another chunk": (edited("ring", "chunks[(rank - 1) % size].clone()", "chunks[rank].clone()",
                                 "arriving + chunks[(rank - step) % size]", "arriving + chunks[(rank - step + 1) % size]"),
                          "halves " + _EVERY, "chunk r + 1"),
        "no all-gather": (edited("ring", "    all_gather(padded, part)\n", ""), _EVERY, ""),
        "input overwritten": (instead("ring", """
def reduce_scatter(output, input):
    rank, size = dist.get_rank(), dist.get_world_size()
    parts, arriving = list(input.tensor_split(size)), torch.empty_like(output)
    for step in range(1, size):
        swap(parts[(rank - step) % size], (rank + 1) % size, arriving, (rank - 1) % size)
        parts[(rank - step - 1) % size] += arriving
    output.copy_(parts[rank])
"""), "halves", "of reduce_scatter is overwritten"),
        "never copied back": (edited("ring", "    tensor.copy_(padded[:len(tensor)])\n", ""), _EVERY, "the tensor is unchanged"),
        "the mean": (edited("ring", "padded[:len(tensor)])", "padded[:len(tensor)] / size)"), _EVERY, "the mean"),
        "returned": (edited("ring", "tensor.copy_(padded[:len(tensor)])", "return padded[:len(tensor)]"), _EVERY, "it returns the sum"),
        "float32 buffers": (edited("ring", "torch.empty_like(passing)", "torch.empty(len(passing))"), "lengths", "int32"),
        "no padding": (edited("ring", "(0, -len(tensor) % size)", "(0, 0)"), "lengths", ""),
        "the backend's": (ring("    dist.all_reduce(tensor)\n"), _EVERY, "build it from send, recv"),
        "the backend's in both halves": (instead("ring", """
def reduce_scatter(output, input):
    whole = input.clone()
    dist.all_reduce(whole)
    output.copy_(whole.chunk(dist.get_world_size())[dist.get_rank()])

def all_gather(output, input):
    dist.all_gather(list(output.chunk(dist.get_world_size())), input)
"""), "halves " + _EVERY, "build it from send, recv"),
    },
    "two-level": {
        "only members call": (_TWO_LEVEL + """
    first = rank // per_node * per_node
    mine = dist.new_group(range(first, first + per_node))
    dist.reduce(tensor, first, group=mine)
    leaders = dist.new_group(range(0, nodes * per_node, per_node))
    if rank == first:
        dist.all_reduce(tensor, group=leaders)
    dist.broadcast(tensor, first, group=mine)
""", "values groups bytes", "Every rank calls it for every group"),
        "leaders alone make theirs": (_TWO_LEVEL + """
    groups = [dist.new_group(range(n, n + per_node)) for n in range(0, nodes * per_node, per_node)]
    first, mine = rank // per_node * per_node, groups[rank // per_node]
    dist.reduce(tensor, first, group=mine)
    if rank == first:
        dist.all_reduce(tensor, group=dist.new_group(range(0, nodes * per_node, per_node)))
    dist.broadcast(tensor, first, group=mine)
""", "groups", "every rank calls it for all groups"),
        "one all-reduce of all": (_TWO_LEVEL + "    dist.all_reduce(tensor)\n", "groups bytes", "dist.new_group(ranks)"),
        "groups that carry nothing": (_TWO_LEVEL + """
    for first in range(0, nodes * per_node, per_node):
        dist.new_group(range(first, first + per_node))
    dist.all_reduce(tensor)
""", "bytes", "more passes between the nodes"),
        "within the node": (edited("two-level", "if rank == leader", "if False"), "values groups bytes", "the sum of its node only"),
        "kept by the leaders": (edited("two-level", "    dist.broadcast(tensor, leader, group=mine)\n", ""), "values groups bytes",
                         "broadcast it from the leader"),
        "no two levels": (_TWO_LEVEL, "values groups bytes", "do not hold the sum"),
    },
    "cost": {
        "rounded down": (cost("ranks - 1 if ring else int(math.log2(ranks))"), "tree", "than the formula's"),
        "no tree": (cost("ranks - 1", "nbytes / ranks"), "tree", "than the formula's"),
        "no time": (cost() + "\ndef all_reduce_seconds(*_): pass\n", "ring tree", "is there a return?"),
    },
}  # fmt: skip
WRONG = {name: (exercise, *rest) for exercise, some in _OF.items() for name, rest in some.items()}

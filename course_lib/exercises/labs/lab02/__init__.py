"""Lab 02: a distributed training program. Ranks have no network: their collectives are combined and counted by the grader.

The exercise `program` is described in `program.py`, the training on two ranks in `training.py`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

from course_lib.exercises.comparing import equal, finite, is_number, kind_of
from course_lib.exercises.description import Exercise, Part
from course_lib.exercises.labs.lab02.program import PROGRAM
from course_lib.exercises.labs.lab02.training import ACCUMULATE, EPOCH, WRAP, replaced
from course_lib.exercises.ranks.broker_process_group import alone
from course_lib.exercises.ranks.collective_broker import CollectiveBroker
from course_lib.exercises.ranks.collective_process_group import CollectiveProcessGroup, collective_group
from course_lib.exercises.ranks.watched_ranks import watched

__all__ = ["EXERCISES"]

# --- set_up


def _draw_nodes(random):
    def case(nodes, ranks, gpus, node, local):
        environment = {
            "RANK": str(node * ranks + local), "LOCAL_RANK": str(local), "WORLD_SIZE": str(nodes * ranks),
            "LOCAL_WORLD_SIZE": str(ranks), "GROUP_RANK": str(node), "MASTER_ADDR": "localhost", "MASTER_PORT": "29500",
        }  # fmt: skip
        about = f"{nodes} node(s) with {ranks} ranks and {gpus} GPU(s) each, local rank {local} of node {node}"
        return {"environment": environment, "gpus": gpus, "about": about}

    def number(low, high):
        return int(random.integers(low, high))

    nodes, ranks = number(2, 5), number(3, 7)
    return {
        "cpus": [case(1, 2, 0, 0, 1), case(nodes, ranks, 0, 1, number(0, ranks))],
        "own": [
            case(1, 2, 2, 0, 0),
            case(1, ranks, ranks, 0, number(1, ranks)),
            case(nodes, ranks, ranks, number(1, nodes), number(1, ranks)),
            case(1, 2, 4, 0, 1),
        ],
        "shared": [
            case(1, 2, 1, 0, 0),
            case(1, 2, 1, 0, 1),
            case(nodes, ranks, number(2, ranks), 1, number(0, 2)),
        ],
    }


def observe_set_up(case, set_up):
    """The calls that choose a GPU and join the group; the GPUs are pretended, and so are the other ranks."""
    current, calls, init, hook = [0], [], dist.init_process_group, sys.excepthook

    def set_device(device):
        if isinstance(device, torch.device):
            device = device.index
        elif isinstance(device, str):
            device = torch.device(device).index
        current[0] = device
        calls.append(["set_device", device])

    def init_process_group(
        backend=None, init_method=None, timeout=None, world_size=-1, rank=-1, device_id=None, **others
    ):
        bound = device_id if device_id is None or isinstance(device_id, int) else torch.device(device_id).index
        gpu = current[0] if bound in (None, current[0]) else -1  # device_id alone makes no GPU the current one
        calls.append(["join", str(backend), gpu, int(rank), int(world_size)])
        place = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
        init(pretended_backend(), store=dist.HashStore(), **place)
        sys.excepthook = hook  # PyTorch's writes the rank before each line

    places = [(torch.cuda, "set_device", set_device), (dist, "init_process_group", init_process_group)]
    places += [(torch.cuda, "current_device", lambda: current[0])]
    for module in (torch.cuda, torch.accelerator):
        places += [(module, "is_available", lambda: case["gpus"] > 0), (module, "device_count", lambda: case["gpus"])]
    alone()
    with replaced(places, set_up), environment(case["environment"]):
        try:
            device = set_up()
            up = dist.is_initialized()
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
    return {"device": str(device) if isinstance(device, torch.device) else None, "calls": calls, "up": up}


@contextlib.contextmanager
def environment(variables):
    """The environment that torchrun makes."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def pretended_backend():
    """The name of a backend whose other ranks bring what this one brings."""
    if "pretended" not in dist.Backend.backend_list:
        brought = []

        def outside(name, *args):
            if name == "join":
                brought.append(args[-1])
                return len(brought) - 1
            return brought[args[0]] * dist.get_world_size() if name == "result" else None

        dist.Backend.register_backend(
            "pretended", lambda store, rank, size, timeout: CollectiveProcessGroup(rank, size, outside), devices=["cpu"]
        )
    return "pretended"


def _place(case, name):
    return int(case["environment"][name])


def _join(case, seen):
    """The only call that joins; a text where it is not the only one, or joins as somebody else."""
    joins = [call for call in seen["calls"] if call[0] == "join"]
    if seen["up"] is not True or not joins:
        return None, "after your function there is no process group: dist.init_process_group(backend) makes it"
    if len(joins) > 1:
        return None, "it calls init_process_group more than once"
    _, backend, gpu, rank, size = joins[0]
    if rank not in (-1, _place(case, "RANK")) or size not in (-1, _place(case, "WORLD_SIZE")):
        return None, (
            "it joins with a wrong rank or world size: LOCAL_RANK numbers the processes of one node; without rank= and "
            "world_size= the environment's RANK and WORLD_SIZE count"
        )
    return (backend, gpu), ""


def _nccl(backend, case):
    return "nccl" in backend or (backend == "None" and case["gpus"] > 0)


def _calls(calls):
    """What was called, as text."""
    names = [
        f"set_device({call[1]})" if call[0] == "set_device" else f'init_process_group("{call[1]}")' for call in calls
    ]
    return "you called " + (", then ".join(names) or "neither set_device nor init_process_group")


_NO_DEVICE = "should return a torch.device, torch.device('cpu') or torch.device('cuda', local_rank)"


def _joined(case, seen, right):
    join, fault = _join(case, seen)
    if fault:
        return fault
    if _nccl(join[0], case):
        return "without a GPU it asks for nccl, which carries GPU tensors only: take gloo"
    if seen["device"] is None:
        return _NO_DEVICE
    return "" if seen["device"] == "cpu" else "without a GPU the device is torch.device('cpu')"


def _own_gpu(case, seen, right):
    join, fault = _join(case, seen)
    if fault:
        return fault
    local = _place(case, "LOCAL_RANK")
    if not _nccl(join[0], case):
        return (
            "where each local rank has a GPU of its own it takes gloo: compare torch.cuda.device_count() with "
            "LOCAL_WORLD_SIZE, the ranks of this node"
        )
    if join[1] != local:
        kinds = [call[0] for call in seen["calls"]]
        if "set_device" in kinds[kinds.index("join") :]:
            return "set_device comes after init_process_group: the rank joins while GPU 0 is its current device"
        if join[1] == _place(case, "RANK"):
            return "set_device is given the global rank: a GPU is numbered on its own node, by LOCAL_RANK"
        return (
            "the rank joins while another GPU than its own is the current one: torch.cuda.set_device(local_rank) first"
        )
    if seen["device"] == f"cuda:{local}":
        return ""
    return _NO_DEVICE if seen["device"] is None else "the device that it returns is not cuda:local_rank"


def _shared_gpu(case, seen, right):
    join, fault = _join(case, seen)
    if fault:
        return fault
    if _nccl(join[0], case):
        return (
            'where ranks outnumber the GPUs it takes nccl, which refuses two ranks on one GPU ("Duplicate GPU detected"): '
            "take it only where torch.cuda.device_count() >= LOCAL_WORLD_SIZE"
        )
    if seen["device"] is None:
        return _NO_DEVICE
    return "" if seen["device"] == "cpu" else "gloo goes with the CPU here: return torch.device('cpu')"


SET_UP = Exercise(("set_up",), _draw_nodes, observe_set_up, {
    "joined": Part("Joins the group that the environment describes", _NO_DEVICE, cases="cpus", judge=_joined),
    "gpu": Part("Takes NCCL, and the GPU of its local rank, where each rank has one", _NO_DEVICE, cases="own", judge=_own_gpu),
    "shared-gpu": Part("Takes Gloo and the CPU where ranks would share a GPU", _NO_DEVICE, cases="shared", judge=_shared_gpu),
}, "write down LOCAL_RANK, LOCAL_WORLD_SIZE and torch.cuda.device_count() for 2 nodes with 2 GPUs each, and decide by hand",
    lambda case, seen: f"{case['about']}: {_calls(seen['calls'])}; you returned {seen['device'] or 'no torch.device'}")  # fmt: skip

# --- prepare_once

NEXT = 0.004  # seconds between two questions whether a preparation is over
MOST_QUESTIONS = 1200  # after which it is over, whatever the others do


class Preparations(CollectiveBroker):
    """Rank 0's preparation takes until the others wait in a collective, or do what they should not."""

    def __init__(self, case):
        super().__init__(case["size"])
        self.tokens = case["tokens"]
        self.begun, self.early, self.unheard = [], [], []
        self._over, self._questions, self._knows = False, 0, [False] * case["size"]

    @property
    def answers(self):
        return {**super().answers, "begin": self.begin, "over": self.over}

    def begin(self, rank):
        if len(self.begun) > 100:
            raise ValueError
        self.begun.append(rank)
        if rank != 0 and not self._over:
            self.early.append(rank)
        elif rank != 0 and not self._knows[rank]:
            self.unheard.append(rank)
        return self.tokens[rank]

    def over(self, rank):
        if rank != 0:
            return True
        self._questions += 1
        joined = {r for each in self.collectives if each.ended is None for r in each.brought}
        waiting = {asking[2] for asking in self._asking} | self._left | joined
        if waiting | set(self.begun) >= set(range(1, self.size)) or self._questions > MOST_QUESTIONS:
            self._over = self._knows[0] = True
        return self._over

    def join(self, rank, kind, root, operation, tensors):
        number = super().join(rank, kind, root, operation, tensors)
        if type(number) is int:
            collective = self.collectives[number]
            collective.knows = getattr(collective, "knows", set()) | ({rank} if self._knows[rank] else set())
        return number

    def result(self, rank, number):
        ended = super().result(rank, number)
        if isinstance(ended, list):
            collective = self.collectives[number]
            heard = {collective.root} if collective.kind in ("broadcast", "scatter") else set(range(self.size))
            self._knows[rank] |= bool(heard & collective.knows) and (
                collective.kind != "reduce" or rank == collective.root
            )
        return ended

    def post(self, rank, destination, tag, tensor):
        if self._knows[rank] and self._is_rank(destination):
            self._knows[destination] = True
        return super().post(rank, destination, tag, tensor)

    def evidence(self):
        return {"begun": self.begun, "early": self.early, "unheard": self.unheard}


def _draw_preparations(random):
    def case(size):
        tokens = [int(n) for n in random.integers(10**6, 10**9, size)]
        return {"size": size, "tokens": tokens, "about": f"{size} ranks"}

    return {"ranks": [case(3)]}


def _token_of_none(case, rank):
    return {"size": case["size"]}


def observe_preparation(case, rank, outside, prepare_once):
    def prepare():
        token = outside("begin")
        while not outside("over"):
            time.sleep(NEXT)
        return token

    with collective_group(rank, case["size"], outside):
        returned = prepare_once(prepare)
    return {"returned": returned}


def _in_order(case, seen, right):
    if 0 not in seen["begun"]:
        return "rank 0 never called prepare()"
    if seen["early"]:
        return (
            "another rank began before rank 0 had finished: let the others wait at dist.barrier() until rank 0 is done"
        )
    if seen["unheard"]:
        return "nothing passed between rank 0 and another rank after rank 0 had finished, so it cannot know: dist.barrier()"
    return "" if set(seen["begun"]) == set(range(case["size"])) else _NOT_ONCE


_NOT_ONCE = "every rank should call prepare() once"


def _once_each(case, seen, right):
    return "" if sorted(seen["begun"]) == list(range(case["size"])) else _NOT_ONCE


def _own_result(case, seen, right):
    own = all(type(one["returned"]) is int and one["returned"] == token
              for one, token in zip(seen["ranks"], case["tokens"], strict=True))  # fmt: skip
    return "" if own else "some rank does not return what its own prepare() returned"


PREPARE_ONCE = Exercise(("prepare_once",), _draw_preparations, observe_preparation, {
    "order": Part("The others begin when rank 0 has finished", cases="ranks", judge=_in_order),
    "once": Part("Each rank prepares once", cases="ranks", judge=_once_each),
    "returns": Part("Each rank returns its own result", cases="ranks", judge=_own_result,
                    hint="print what prepare_once returns on each rank"),
}, "let prepare() print the rank and the time, before and after a short sleep",
    lambda case, seen: f"{case['about']}: prepare() began on ranks {', '.join(map(str, seen['begun'])) or 'none'}, in this order",
    share=_token_of_none, **watched(3, Preparations, lambda case: case["size"]))  # fmt: skip

# --- make_loaders

VALIDATION_BATCH = 250


def _draw_sets(random):
    ranks, batch_size, whole = (int(n) for n in random.integers([3, 5, 9], [5, 9, 12]))
    # No whole number of batches: what is dropped then holds the image that fills up the last round.
    share = whole * batch_size + int(random.integers(1, batch_size))
    values = torch.from_numpy(random.permutation(20_000))
    validation = ranks * int(random.integers(260, 300)) + int(random.integers(1, ranks))
    first, other = (int(n) for n in random.choice(50, 2, replace=False))
    seeds = [int(n) for n in random.choice(10_000, 2, replace=False)]
    train = ranks * share - int(random.integers(1, ranks))
    return {
        "sets": [
            {
                "ranks": ranks, "batch_size": batch_size, "epochs": [first, other, first], "seeds": seeds,
                "train": values[:train], "validation": values[train : train + validation],
                "about": f"{train} training and {validation} validation images, {ranks} ranks, batches of {batch_size}",
            }
        ]
    }  # fmt: skip


def observe_loaders(case, make_loaders):
    """What the loaders of every rank yield; the ranks are pretended one after the other."""
    alone()
    found, hook = [], sys.excepthook
    for rank in range(case["ranks"]):
        dist.init_process_group(pretended_backend(), store=dist.HashStore(), rank=rank, world_size=case["ranks"])
        sys.excepthook = hook
        try:
            sets = [TensorDataset(case[name].clone()) for name in ("train", "validation")]
            loaders = make_loaders(*sets, case["batch_size"], case["seeds"][0])
            if not isinstance(loaders, tuple | list) or len(loaders) != 2:
                return {"returned": loaders}
            train, validation = loaders
            epochs = [yielded(train, epoch) for epoch in case["epochs"]]
            again = yielded(make_loaders(*sets, case["batch_size"], case["seeds"][1])[0], case["epochs"][0])
            found.append({"epochs": epochs, "again": again, "validation": yielded(validation)})
        finally:
            dist.destroy_process_group()
    return {"returned": "loaders", "found": found}


def yielded(loader, epoch=None):
    """The batches of a loader as lists of numbers; None for what is no loader."""
    if epoch is not None and hasattr(getattr(loader, "sampler", None), "set_epoch"):
        loader.sampler.set_epoch(epoch)
    try:
        return [batch[0].flatten().tolist() for _, batch in zip(range(2000), loader, strict=False)]
    except (TypeError, IndexError, AttributeError):
        return None


def _numbers(batches):
    return [number for batch in batches for number in batch]


def _no_loaders(seen):
    if seen["returned"] != "loaders":
        return f"should return the pair (train_loader, validation_loader), it returned {kind_of(seen['returned'])}"
    for one in seen["found"]:
        if None in (*one["epochs"], one["again"], one["validation"]):
            return "should return a pair of loaders of the given sets' items"
    return ""


def _in_shares(case, seen, right):
    if fault := _no_loaders(seen):
        return fault
    known, ranks = set(case["train"].tolist()), case["ranks"]
    for epoch in range(3):
        every = [one["epochs"][epoch] for one in seen["found"]]
        # An incomplete batch may hold the image that fills up the round, and is not this part's business.
        sizes = [len(batches[0]) if batches else 0 for batches in every]
        parts = [[b for b in batches if len(b) == size] for batches, size in zip(every, sizes, strict=True)]
        images = [number for batches in parts for number in _numbers(batches)]
        if not set(images) <= known:
            return "the training loader yields images that are not in the training set"
        if len(images) >= ranks * (len(known) - max(sizes)):
            return "every rank trains on the whole set: pass sampler=DistributedSampler(…) to the DataLoader"
        if len(images) - len(set(images)) >= ranks:  # fewer fill up the last round
            return "ranks train on the same images: all must cut one permutation, so give every sampler the same seed"
        if len(images) < len(known) - sum(sizes):
            return "the ranks together leave out more than each one's incomplete last batch"
        if len({len(batches) for batches in parts}) > 1:
            return "the ranks have different numbers of batches, so one would wait for another"
    return ""


def _in_epochs(case, seen, right):
    if fault := _no_loaders(seen):
        return fault
    orders = [[_numbers(one["epochs"][epoch]) for one in seen["found"]] for epoch in range(3)]
    places = {number: place for place, number in enumerate(case["train"].tolist())}
    positions = [places.get(number, -1) for number in orders[0][0]]
    if positions == sorted(positions) or positions == sorted(positions, reverse=True):
        return "the training images are not shuffled"
    if orders[0] == orders[1]:
        return "the order of two epochs is the same in spite of set_epoch: does a DistributedSampler shuffle?"
    if orders[0] != orders[2]:
        return "the same epoch has two orders: a run could not be repeated"
    if orders[0] == [_numbers(one["again"]) for one in seen["found"]]:
        return "another seed gives the same order: give the sampler the seed"
    return ""


def _full_batches(case, seen, right):
    if fault := _no_loaders(seen):
        return fault
    sizes = {len(batch) for one in seen["found"] for batches in one["epochs"] for batch in batches}
    if sizes == {case["batch_size"]}:
        return ""
    if case["batch_size"] in sizes and max(sizes) == case["batch_size"]:
        return "an incomplete last training batch is not dropped (drop_last=True)"
    return "training batches do not have batch_size images: it is a rank's own"


def _validated_once(case, seen, right):
    if fault := _no_loaders(seen):
        return fault
    known, shares = set(case["validation"].tolist()), [_numbers(one["validation"]) for one in seen["found"]]
    images = [number for share in shares for number in share]
    if not set(images) <= known:
        return "the validation loader yields images that are not in the validation set"
    if all(len(share) == len(known) for share in shares):
        return "every rank validates the whole set: with N ranks each image is evaluated N times"
    if set(images) < known:
        return "some validation image is on no rank: is the last batch dropped, or a remainder?"
    if len(images) > len(known):
        return (
            "some validation images are on two ranks: DistributedSampler repeats images until all ranks have as many, and "
            "the accuracy counts them twice. Give rank r the images r, r + N, r + 2N, …"
        )
    if max(map(len, shares)) - min(map(len, shares)) > 1:
        return "the ranks' shares of the validation set differ by more than one image"
    if any(len(batch) != VALIDATION_BATCH for one in seen["found"] for batch in one["validation"][:-1]) or any(
        len(one["validation"][-1]) > VALIDATION_BATCH for one in seen["found"]
    ):
        return "validation batches do not have 250 images"
    places = {number: place for place, number in enumerate(case["validation"].tolist())}
    if any(share != sorted(share, key=places.get) for share in shares):
        return "the validation images are not in the set's order: they need no shuffling"
    return ""


_NO_LOADERS = "should return a pair of loaders of the given sets' items"

LOADERS = Exercise(("make_loaders",), _draw_sets, observe_loaders, {
    "shares": Part("Ranks train on different images, together on all", _NO_LOADERS, cases="sets", judge=_in_shares),
    "epochs": Part("A new order in each epoch, the same for the same seed", _NO_LOADERS, cases="sets", judge=_in_epochs,
                   hint="print the first images of two epochs, with sampler.set_epoch before each"),
    "batches": Part("Full training batches of the size asked for", _NO_LOADERS, cases="sets", judge=_full_batches,
                    hint="print the length of each training batch, for a share that batch_size does not divide"),
    "validation": Part("Every validation image once over all ranks", _NO_LOADERS, cases="sets", judge=_validated_once,
                       hint="count the validation images of all ranks together, for 41 images on 4 ranks"),
}, "print, for each of two ranks, what its loaders yield for a data set of 20 numbers")  # fmt: skip

# --- equalise_buffers


def _draw_buffers(random):
    def case(size):
        channels = int(random.integers(5, 9))
        norms = [[torch.from_numpy(random.uniform(0.5, 2, channels)).float() for _ in range(4)] for _ in range(size)]
        return {"size": size, "norms": norms, "about": f"{size} ranks, two batch-norm layers of {channels} channels"}

    return {"ranks": [case(3)]}


def _own_norms(case, rank):
    return {"size": case["size"], "norms": case["norms"][rank]}


def observe_buffers(case, rank, outside, equalise_buffers):
    channels = len(case["norms"][0])
    norms = [nn.BatchNorm1d(channels), nn.BatchNorm1d(channels)]
    with collective_group(rank, case["size"], outside):
        model = nn.parallel.DistributedDataParallel(nn.Sequential(norms[0], nn.Linear(channels, channels), norms[1]))
        with torch.no_grad():
            places = [place for norm in norms for place in (norm.running_mean, norm.running_var)]
            for place, value in zip(places, case["norms"], strict=True):
                place.copy_(value)
            for norm in norms:
                norm.num_batches_tracked.fill_(7 + rank)
        outside("began")
        equalise_buffers(model)
    return {"buffers": [place.clone() for norm in norms for place in (norm.running_mean, norm.running_var)],
            "counts": [int(norm.num_batches_tracked) for norm in norms]}  # fmt: skip


class Counted(CollectiveBroker):
    """Counts from the call on; what wrapping the model has cost is not the answer's."""

    def __init__(self, case):
        super().__init__(case["size"])
        self._before = 0

    @property
    def answers(self):
        return {**super().answers, "began": self.began}

    def began(self, rank):
        self._before = max(self._before, self._joined[rank])

    def evidence(self):
        since = self.collectives[self._before :]
        return {"carried": sum(each.nbytes(rank) for each in since for rank in range(self.size))}


def _all_equal(case, seen, right):
    ranks = seen["ranks"]
    if not all(equal(one["buffers"], ranks[0]["buffers"]) and one["counts"] == ranks[0]["counts"] for one in ranks):
        own = all(equal(one["buffers"], mine) for one, mine in zip(ranks, case["norms"], strict=True))
        if own:
            return "the ranks still have their own buffers"
        if all(equal(one["buffers"], ranks[0]["buffers"]) for one in ranks):
            return "the buffer num_batches_tracked still differs; it has whole numbers"
        return "the ranks' buffers still differ"
    least = sum(tensor.nbytes for tensor in case["norms"][0])
    return (
        ""
        if seen["carried"] >= least
        else "the buffers are equal, but fewer bytes than they have passed between the ranks"
    )


def _of_rank_0(case, seen, right):
    buffers = seen["ranks"][0]["buffers"]
    if equal(buffers, case["norms"][0]) and seen["ranks"][0]["counts"] == [7, 7]:
        return ""
    mean = [torch.stack(each).mean(0) for each in zip(*case["norms"], strict=True)]
    if equal(buffers, mean, 1e-3):
        return (
            "the buffers are the mean of the ranks', rank 0's were asked for: a mean of variances is no variance of all"
        )
    return "the buffers are not rank 0's: dist.broadcast(buffer, src=0)"


BUFFERS = Exercise(("equalise_buffers",), _draw_buffers, observe_buffers, {
    "equal": Part("All ranks have the same buffers", cases="ranks", judge=_all_equal),
    "rank0": Part("They are rank 0's", cases="ranks", needs="equal", judge=_of_rank_0),
}, "on two ranks, fill a running mean with the rank, call it, and print the running mean", share=_own_norms,
    **watched(3, Counted, lambda case: case["size"]))  # fmt: skip

# --- reduce_throughput, reduce_metrics


def _draw_epochs(random):
    # Rank 0 is neither the slowest nor the fastest, so that its own time is nobody's answer.
    images = [int(n) for n in random.integers(500, 5000, 3)]
    seconds = [float(s) for s in random.uniform([3, 6, 1], [4, 9, 2])]
    counts = [int(n) for n in random.permutation([40, 200, 900]) + random.integers(0, 30, 3)]
    correct = [int(n * share) for n, share in zip(counts, random.permutation([0.2, 0.55, 0.9]), strict=True)]
    losses = [float(s) for s in random.uniform(0.2, 2.5, 3) * counts]
    keys = ("images", "seconds", "loss_sum", "correct", "counts")
    ranks = [dict(zip(keys, row, strict=True)) for row in zip(images, seconds, losses, correct, counts, strict=True)]
    about = "; ".join(
        f"rank {n}: {one['images']} images in {one['seconds']:.3f} s, loss sum {one['loss_sum']:.3f}, "
        f"{one['correct']} of {one['counts']} right"
        for n, one in enumerate(ranks)
    )
    return {"ranks": [{"ranks": ranks, "about": about}]}


def observe_reductions(case, rank, outside, reduce_throughput, reduce_metrics):
    cpu = torch.device("cpu")
    with collective_group(rank, case["size"], outside):
        with NamesDevice() as first:
            throughput = reduce_throughput(case["images"], case["seconds"], cpu)
        with NamesDevice() as second:
            metrics = reduce_metrics(case["loss_sum"], case["correct"], case["counts"], cpu)
    return {"throughput": pair(throughput), "metrics": pair(metrics), "placed": first.named and second.named}


class NamesDevice(torch.overrides.TorchFunctionMode):
    """Whether a call of PyTorch was told a device, as long as it is open. Collectives of objects do so themselves, by its name."""

    def __init__(self):
        super().__init__()
        self.named = False

    def __torch_function__(self, function, types, given=(), named=None):
        named = named or {}
        if function is not torch.device:
            self.named |= any(isinstance(each, torch.device | str) for each in (*given, *named.values()))
        return function(*given, **named)


def pair(found):
    return list(found) if isinstance(found, tuple | list) and len(found) == 2 else None


_LOW = 2e-5  # float32 sums pass


def _number(seen, which, place, what):
    """Rank 0's number, or why there is none."""
    found = seen["ranks"][0][which]
    if found is None:
        return None, "should return a pair of numbers"
    if not is_number(found[place]):
        return None, f"the {what} should be a number, it is {kind_of(found[place])}"
    return finite(found[place]), ""


def _reason(value, right, what, wrong):
    if equal(value, right, _LOW):
        return ""
    return next(
        (f"the {what} is wrong: {why}" for why, other in wrong.items() if equal(value, other, _LOW)),
        f"the {what} is wrong",
    )


def _column(case, name):
    return [one[name] for one in case["ranks"]]


def _rate(case, seen, right):
    value, fault = _number(seen, "throughput", 0, "throughput")
    images, seconds = _column(case, "images"), _column(case, "seconds")
    rates = [n / s for n, s in zip(images, seconds, strict=True)]
    # It is judged by the answer's own seconds: what is wrong with these is the seconds' business.
    own = seen["ranks"][0]["throughput"][1] if not fault else 0
    own = float(own) if is_number(own) and float(own) > 0 else max(seconds)
    return fault or _reason(float(value), sum(images) / own, "throughput", {
        "it adds the ranks' rates, which are over different times": sum(rates),
        "it is the mean of the ranks' rates": sum(rates) / len(rates),
        "it is a rank's own rate": rates[0],
        "it divides by the sum of the ranks' seconds": sum(images) / sum(seconds),
        "it divides by the mean of the ranks' seconds": len(rates) * sum(images) / sum(seconds),
        "it divides by a rank's own seconds, not by the slowest rank's": sum(images) / seconds[0],
    })  # fmt: skip


def _seconds(case, seen, right):
    value, fault = _number(seen, "throughput", 1, "number of seconds")
    seconds = _column(case, "seconds")
    return fault or _reason(value, max(seconds), "number of seconds", {
        "it is the mean of the ranks' seconds": sum(seconds) / len(seconds),
        "it is the sum of the ranks' seconds; the ranks train at the same time (ReduceOp.MAX)": sum(seconds),
        "it is the fastest rank's": min(seconds),
        "it is a rank's own time": seconds[0],
    })  # fmt: skip


def _accuracy(case, seen, right):
    value, fault = _number(seen, "metrics", 1, "accuracy")
    correct, counts = _column(case, "correct"), _column(case, "counts")
    return fault or _reason(value, sum(correct) / sum(counts), "accuracy", {
        "it is the mean of the ranks' accuracies; sum the counts over the ranks, then divide":
            sum(c / n for c, n in zip(correct, counts, strict=True)) / len(counts),
        "it is a rank's own accuracy": correct[0] / counts[0],
        "it is a count, not a share": float(sum(correct)),
        "it is a percentage, not a share": 100 * sum(correct) / sum(counts),
        "it is divided by a rank's own images": sum(correct) / counts[0],
    })  # fmt: skip


def _loss(case, seen, right):
    value, fault = _number(seen, "metrics", 0, "mean loss")
    losses, counts = _column(case, "loss_sum"), _column(case, "counts")
    return fault or _reason(value, sum(losses) / sum(counts), "mean loss", {
        "it is the mean of the ranks' mean losses": sum(s / n for s, n in zip(losses, counts, strict=True)) / len(counts),
        "it is a rank's own loss": losses[0] / counts[0],
        "it is a sum of losses, not the mean over images": sum(losses),
        "it is divided by a rank's own images": sum(losses) / counts[0],
    })  # fmt: skip


def _everywhere(case, seen, right):
    if all(judged(case, seen, right) for judged in (_rate, _seconds, _accuracy, _loss)):
        return "rank 0 has no number of the whole job, so no rank has"
    first = seen["ranks"][0]
    if any(not equal(one[which], first[which], _LOW) for one in seen["ranks"] for which in ("throughput", "metrics")):
        return "some rank does not have rank 0's numbers"
    return _placed(seen)


def _placed(seen):
    if all(one["placed"] is True for one in seen["ranks"]):
        return ""
    return "a message is not put on `device`: NCCL sends no tensor that is on the CPU; torch.tensor(…, device=device)"


def _rounded(seen, which):
    """A pair, short enough to be read."""
    found = seen["ranks"][0][which]
    if found is None:
        return "no pair"
    return "(" + ", ".join(f"{float(n):.6g}" if is_number(n) else kind_of(n) for n in found) + ")"


def _expected(case):
    images, seconds, losses, correct, counts = (
        _column(case, name) for name in ("images", "seconds", "loss_sum", "correct", "counts")
    )
    return (
        f"({sum(images) / max(seconds):.6g}, {max(seconds):.6g}) and "
        f"({sum(losses) / sum(counts):.6g}, {sum(correct) / sum(counts):.6g})"
    )


_PAIR = "should return a pair of numbers"

REDUCTIONS = Exercise(("reduce_throughput", "reduce_metrics"), _draw_epochs, observe_reductions, {
    "rate": Part("Images per second of the whole job", _PAIR, cases="ranks", judge=_rate),
    "seconds": Part("Seconds of the slowest rank", _PAIR, cases="ranks", judge=_seconds),
    "accuracy": Part("Accuracy over all ranks' images", _PAIR, cases="ranks", judge=_accuracy,
                     hint="take two ranks, 90 of 100 right and 6 of 20 right, and write the accuracy down by hand"),
    "loss": Part("Mean loss over all ranks' images", _PAIR, cases="ranks", judge=_loss),
    "everywhere": Part("The same numbers on every rank", _PAIR, cases="ranks", judge=_everywhere,
                       hint="print what every rank returns"),
}, "take two ranks, 1,000 images in 2 s and 600 in 4 s, and write the pair down by hand", lambda case, seen: f"{case['about']}. Rank 0 returned {_rounded(seen, 'throughput')} and {_rounded(seen, 'metrics')}, "
    f"expected {_expected(case)}",
    share=lambda case, rank: case["ranks"][rank] | {"size": len(case["ranks"])},
    **watched(3, lambda case: CollectiveBroker(len(case["ranks"])), lambda case: len(case["ranks"])))  # fmt: skip

# --- stop_together


def _draw_wishes(random):
    def case(wishes):
        return {"wishes": [[bool(wish) for wish in each] for each in wishes], "about": "3 ranks"}

    unanimous = random.permutation([True, False, True, False]).tolist()
    apart = [[False, True, False], [True, False, False], [False, True, True], [True, True, False]]
    return {"wishes": [case([*([wish] * 3 for wish in unanimous), *(apart[n] for n in random.permutation(4))])]}


def observe_stops(case, rank, outside, stop_together):
    with collective_group(rank, 3, outside), NamesDevice() as placed:
        stops = [stop_together(wish, torch.device("cpu")) for wish in case["wishes"]]
    return {"stops": stops, "placed": placed.named}


def _stops(seen):
    """By question, what every rank answered."""
    return list(zip(*(one["stops"] for one in seen["ranks"]), strict=True))


def _same_everywhere(case, seen, right):
    if any(type(stop) is not bool for each in _stops(seen) for stop in each):
        return "should return a bool, True or False: bool(tensor.item())"
    if any(len(set(each)) > 1 for each in _stops(seen)):
        return "the ranks decide differently: one would stop, and another wait for it in the next all-reduce"
    if any(
        each[0] != wishes[0] for each, wishes in zip(_stops(seen), case["wishes"], strict=True) if len(set(wishes)) == 1
    ):
        return "where all ranks wish the same, that is not what they decide"
    return _placed(seen)


def _as_rank_0(case, seen, right):
    if all(each[0] == wishes[0] for each, wishes in zip(_stops(seen), case["wishes"], strict=True)):
        return ""
    for holds, reason in ((any, "any rank's wish stops all of them"), (all, "they stop only where all ranks wish it")):
        if all(each[0] == holds(wishes) for each, wishes in zip(_stops(seen), case["wishes"], strict=True)):
            return f"{reason}: rank 0 alone knows the clock and the accuracies, broadcast its wish"
    return "it is not rank 0's wish that decides: dist.broadcast(wish, src=0)"


def _first_wrong(case, seen):
    """The first question that was not answered by rank 0's wish, on every rank by a bool."""
    for wishes, stops in zip(case["wishes"], _stops(seen), strict=True):
        if any(stop is not wishes[0] for stop in stops):
            return f"ranks 0, 1, 2 wished {wishes}, your function returned {list(stops)}"
    return case["about"]


_NO_STOP = "should return a bool on every rank"

STOP = Exercise(("stop_together",), _draw_wishes, observe_stops, {
    "same": Part("The same decision on all ranks", _NO_STOP, cases="wishes", judge=_same_everywhere),
    "rank0": Part("Rank 0 decides", _NO_STOP, cases="wishes", needs="same", judge=_as_rank_0),
}, "on two ranks, let rank 0 wish to stop and rank 1 not, then the other way round, and print what each returns",
    lambda case, seen: _first_wrong(case, seen),
    share=lambda case, rank: {"wishes": [each[rank] for each in case["wishes"]]},
    **watched(3, lambda case: CollectiveBroker(3)))  # fmt: skip

EXERCISES = {
    "set-up": SET_UP, "prepare-once": PREPARE_ONCE, "loaders": LOADERS, "wrap": WRAP, "epoch": EPOCH, "accumulate": ACCUMULATE,
    "buffers": BUFFERS, "reductions": REDUCTIONS, "stop": STOP, "program": PROGRAM,
}  # fmt: skip

"""Answers that are looked up rather than written: in frames, in other modules, in what ranks share, in evidence.

Each exhibit is an answer to one exercise, and the parts of the hidden check that it must lose. The other answers are the
source's own.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "autograde"))
from graded_lab import GradedLab

from autograde.sandbox.bubblewrap import missing_sandbox

MISSING = missing_sandbox()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=MISSING or "")


EXHIBITS: dict[str, tuple[str, str, str, str]] = {}


def exhibit(name: str, lab: str, exercise: str, *rest: str) -> None:
    """Register an answer; `rest`: the parts that it loses (all, where none are named), what it tries, the answer."""
    *lost, _, answer = rest
    EXHIBITS[name] = lab, exercise, answer, *(lost or ["all"])


# What is in the process: globals and locals of every frame and every function, and whatever the collector knows.
SEARCH = """
import gc, inspect, sys

def everything():
    frame = sys._getframe()
    while frame is not None:
        yield from list(frame.f_globals.items()) + list(frame.f_locals.items())
        frame = frame.f_back
    for each in gc.get_objects():
        if inspect.isfunction(each) or inspect.isclass(each):
            yield each.__name__, each
            cells = getattr(each, "__closure__", None) or ()
            yield from [(name, cell.cell_contents) for name, cell in zip(getattr(each, "__code__", each).co_freevars, cells)] if cells else []
        elif isinstance(each, dict):
            yield from [(key, value) for key, value in list(each.items()) if isinstance(key, str)]

def find(*names):
    for name, value in everything():
        if name in names:
            return value
    raise LookupError(names)
"""

# Sums over ranks, however `carry(rank, size, bytes)` brings everybody's bytes together; the messages are a ring's, of zeros.
RING = """
def everybodys(tensor):
    data = carry(dist.get_rank(), dist.get_world_size(), tensor.numpy().tobytes())
    return [torch.frombuffer(bytearray(each), dtype=tensor.dtype) for each in data]

def zeros_round(tensor, halves):
    rank, size = dist.get_rank(), dist.get_world_size()
    chunks = torch.tensor_split(torch.zeros_like(tensor), size)
    for half in halves:
        for step in range(size - 1):
            place = chunks[(rank - step - 1 + half) % size]
            sent = chunks[(rank - step + half) % size].clone()
            swap(sent, (rank + 1) % size, torch.empty_like(place), (rank - 1) % size)

def reduce_scatter(output, input):
    zeros_round(input, [0])
    output.copy_(sum(everybodys(input)).chunk(dist.get_world_size())[dist.get_rank()])

def all_gather(output, input):
    zeros_round(output, [1])
    output.copy_(torch.cat(everybodys(input)))

def ring_all_reduce(tensor):
    zeros_round(tensor, [0, 1])
    if dist.get_world_size() > 1 and len(tensor):
        tensor.copy_(sum(everybodys(tensor)))
"""
BY_FILES = """
import os, time

CALLS = [0]

def swap(rank, size, data):
    CALLS[0] += 1
    name = f"/dev/shm/note-{CALLS[0]}-"
    with open(f"{name}{rank}.part", "wb") as file:
        file.write(data)
    os.rename(f"{name}{rank}.part", f"{name}{rank}")
    parts = []
    for peer in range(size):
        ends = time.monotonic() + 5
        while not os.path.exists(f"{name}{peer}") and time.monotonic() < ends:
            time.sleep(0.005)
        parts.append(open(f"{name}{peer}", "rb").read())
    return parts
"""

# fmt: off
# --- what stands in for another exercise ------------------------------------------------------------------------------

exhibit("stand_in", "06_communication", "exchange",
    "The driver's stand-in for this very exercise, which the ring's check has beside it.", SEARCH + """
def swap(outgoing, to, incoming, source):
    find('exchanged')(outgoing, to, incoming, source)

def pass_around(tensor, compute):
    incoming, result = torch.empty_like(tensor), compute()
    rank, size = dist.get_rank(), dist.get_world_size()
    swap(tensor, (rank + 1) % size, incoming, (rank - 1) % size)
    return incoming, result
""")
exhibit("stand_in_of_the_program", "02_ddp", "reductions",
    "The stand-ins that the check of the program gives the program.", SEARCH + """
def reduce_throughput(images, seconds, device):
    return find('stand_in_reduce_throughput')(images, seconds, device)

def reduce_metrics(*numbers):
    return find('stand_in_reduce_metrics')(*numbers)
""")

# --- what the other ranks have ----------------------------------------------------------------------------------------

exhibit("everybodys_models", "08_parallel_sgd_mpi", "averaging",
    "Everybody's models and samples from the frames and the collector; nothing is sent but a number.", SEARCH + """
def average_models(comm, model, samples):
    comm.allreduce(samples)
    models = [one for name, one in everything() if name == "models"][0]
    counts = find("samples")
    with torch.no_grad():
        for parameters in zip(model.parameters(), *[one.parameters() for one in models]):
            mine, *theirs = [p.detach().clone() for p in parameters]
            parameters[0].copy_(sum(n * p for n, p in zip(counts, theirs)) / sum(counts))
""")
exhibit("models_by_type", "08_parallel_sgd_mpi", "averaging",
    "Every network that lives in the process, whoever holds it.", """
import gc

def average_models(comm, model, samples):
    comm.allgather(0)
    models = [one for one in gc.get_objects() if isinstance(one, type(model)) and len(list(one.parameters()))]
    comm.allgather(0)
    assert len(models) > 2
    with torch.no_grad():
        means = [torch.stack([p.detach() for p in ps]).mean(0) for ps in zip(*[one.parameters() for one in models])]
        comm.allgather(0)
        for p, mean in zip(model.parameters(), means):
            p.copy_(mean)
""")
exhibit("averaging_by_files", "08_parallel_sgd_mpi", "averaging",
    "The ranks' parameters through /dev/shm, and a number over the communicator.",
    BY_FILES + """
def average_models(comm, model, samples):
    total = comm.allreduce(samples)
    flat = nn.utils.parameters_to_vector(model.parameters()).detach() * samples
    parts = swap(comm.rank, comm.size, flat.numpy().tobytes())
    mean = sum(torch.frombuffer(bytearray(part), dtype=flat.dtype) for part in parts) / total
    nn.utils.vector_to_parameters(mean, model.parameters())
""")

exhibit("reductions_by_files", "02_ddp", "reductions",
    "Everybody's numbers through /dev/shm; the all-reduces are of zeros.",
    BY_FILES + """
def everybodys(*numbers):
    dist.all_reduce(torch.zeros(len(numbers), dtype=torch.float64))
    mine = torch.tensor(numbers, dtype=torch.float64)
    parts = swap(dist.get_rank(), dist.get_world_size(), mine.numpy().tobytes())
    return torch.stack([torch.frombuffer(bytearray(part), dtype=torch.float64) for part in parts])

def reduce_throughput(images, seconds, device):
    rows = everybodys(images, seconds)
    return (rows[:, 0].sum() / rows[:, 1].max()).item(), rows[:, 1].max().item()

def reduce_metrics(loss_sum, correct, images, device):
    loss_sum, correct, images = everybodys(loss_sum, correct, images).sum(0).tolist()
    return loss_sum / images, correct / images
""")
exhibit("gradients_by_the_collector", "02_ddp", "accumulate",
    "The other rank's batches from the frames and the collector; no gradient is sent.", SEARCH + """
def accumulated_step(model, micro_batches, optimizer, loss_fn):
    every = [one for name, one in everything() if name == "updates" and len(one) > 1][0][0]
    optimizer.zero_grad()
    count, total = len(micro_batches), 0.0
    with model.no_sync():
        for rank in every:
            for images, labels in rank:
                (loss_fn(model(images), labels) / count / 2).backward()
        total = sum(loss_fn(model(images), labels).item() for images, labels in micro_batches)
    optimizer.step()
    return total / count
""")

exhibit("both_ranks_images", "02_ddp", "epoch", "order gradients sums",
    "The mean of both ranks' gradients from both ranks' images; the all-reduces are of zeros.", """
def train_epoch(model, loader, epoch, optimizer, scheduler, loss_fn, device):
    data, rank, size = loader.dataset, dist.get_rank(), loader.batch_size
    loader.sampler.set_epoch(epoch)
    model.train()
    sums, orders = [0.0, 0, 0], []
    for other in range(2):
        sampler = DistributedSampler(data, 2, other, seed=loader.sampler.seed)
        sampler.set_epoch(epoch)
        orders.append(list(sampler))
    for step in range(len(loader)):
        optimizer.zero_grad()
        for other in range(2):
            batch = orders[other][step * size : (step + 1) * size]
            if hasattr(data, "images"):
                images, labels = data.images[batch], data.labels[batch]
                data.asked += batch if other == rank else []
            else:
                images, labels = (torch.stack(each) for each in zip(*[data[place] for place in batch]))
            logits = model.module(images)
            loss = loss_fn(logits, labels)
            (loss / 2).backward()
            if other == rank:
                new = loss.item() * len(labels), (logits.argmax(1) == labels).sum().item(), len(labels)
                sums = [one + more for one, more in zip(sums, new)]
        for parameter in model.parameters():
            dist.all_reduce(torch.zeros_like(parameter))
        optimizer.step()
        scheduler.step()
    return tuple(sums)
""")

# --- beside the messages ----------------------------------------------------------------------------------------------

for place in ("/dev/shm", "/tmp"):
    exhibit(f"ring_by_files_in_{place.rpartition('/')[2]}", "06_communication", "ring",
        f"A ring's messages full of zeros, and the sum by files in {place}.",
        BY_FILES.replace("/dev/shm", place).replace("def swap", "def carry") + RING)
exhibit("ring_by_gloo", "06_communication", "ring",
    "A Gloo group of its own over loopback brings the sum; the messages are a ring's.", """
import datetime

GROUP = []

def carry(rank, size, data):
    if not GROUP or GROUP[0][1] != size:
        store = dist.TCPStore("127.0.0.1", 29777 + size, size, rank == 0, timeout=datetime.timedelta(seconds=4))
        GROUP[:] = [(dist.ProcessGroupGloo(store, rank, size, datetime.timedelta(seconds=4)), size)]
    mine = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    parts = [torch.empty_like(mine) for _ in range(size)]
    GROUP[0][0].allgather([parts], [mine]).wait()
    return [part.numpy().tobytes() for part in parts]
""" + RING)
exhibit("ring_by_abstract_sockets", "06_communication", "ring",
    "Datagrams over abstract Unix sockets, which no device counts.", """
import socket, threading, time

MINE = []

def carry(rank, size, data):
    if not MINE:
        MINE.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        MINE[0].bind(f"\\0ring-{rank}")
        MINE[0].settimeout(4)
    parts, got = {rank: data}, {}

    def hear():
        while len(parts) < size:
            piece = MINE[0].recv(1 << 16)
            got[piece[0]] = got.get(piece[0], b"") + piece[1:]
            if len(got[piece[0]]) == len(data):
                parts[piece[0]] = got[piece[0]]

    hearing = threading.Thread(target=hear)
    hearing.start()
    time.sleep(0.3)
    for peer in range(size):
        for start in range(0, len(data), 20_000) if peer != rank else ():
            MINE[0].sendto(bytes([rank]) + data[start : start + 20_000], f"\\0ring-{peer}")
    hearing.join()
    return [parts[peer] for peer in range(size)]
""" + RING)
exhibit("two_levels_by_files", "06_communication", "two-level",
    "The groups are made and carry zeros; the sum is brought by files.", BY_FILES + """
def hierarchical_all_reduce(tensor, nodes, per_node):
    rank, leaders = dist.get_rank(), range(0, nodes * per_node, per_node)
    inside = [dist.new_group(range(first, first + per_node)) for first in leaders]
    across, mine = dist.new_group(leaders), inside[rank // per_node]
    zeros, leader = torch.zeros_like(tensor), rank - rank % per_node
    dist.reduce(zeros, leader, group=mine)
    if rank == leader:
        dist.all_reduce(zeros, group=across)
    dist.broadcast(zeros, leader, group=mine)
    parts = swap(rank, nodes * per_node, tensor.numpy().tobytes())
    tensor.copy_(sum(torch.frombuffer(bytearray(part), dtype=tensor.dtype) for part in parts))
""")
exhibit("a_group_of_other_ranks", "06_communication", "two-level",
    "Collectives of a group that the rank is no member of, for the sum of all ranks in one of them.", """
def hierarchical_all_reduce(tensor, nodes, per_node):
    leaders = range(0, nodes * per_node, per_node)
    groups = [dist.new_group(range(first, first + per_node)) for first in leaders]
    own = next(group for group in groups if group is not dist.GroupMember.NON_GROUP_MEMBER)
    own.members = list(range(nodes * per_node))  # passes for a group of all, which nobody made
    dist.all_reduce(tensor, group=own)
""")
exhibit("six_by_files", "06_communication", "six", "One collective of zeros each, and the rows by files.",
    BY_FILES.replace("monotonic() + 5", "monotonic() + 1") + """
def rows(mine):
    parts = swap(dist.get_rank(), dist.get_world_size(), mine.contiguous().numpy().tobytes())
    return [torch.frombuffer(bytearray(part), dtype=mine.dtype).view(mine.shape) for part in parts]

def deal(images, mine):
    empty = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
    dist.scatter(torch.zeros_like(mine), empty if dist.get_rank() == 0 else None, src=0)
    whole = rows(images if images is not None else torch.zeros(len(mine) * dist.get_world_size(), mine.shape[1]))[0]
    mine.copy_(whole.chunk(dist.get_world_size())[dist.get_rank()])

def collect(mine):
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.gather(torch.zeros_like(mine), parts if dist.get_rank() == 0 else None, dst=0)
    return torch.cat(rows(mine))

def everybody(mine):
    dist.all_gather([torch.empty_like(mine) for _ in range(dist.get_world_size())], torch.zeros_like(mine))
    return torch.cat(rows(mine))

def total_on_zero(x):
    dist.reduce(torch.zeros_like(x), dst=0)
    x.copy_(sum(rows(x)))

def agree(x):
    dist.broadcast(torch.zeros_like(x), src=0)
    x.copy_(rows(x)[0])

def sum_everywhere(x):
    dist.all_reduce(torch.zeros_like(x))
    x.copy_(sum(rows(x)))

def sum_of_my_part(x):
    parts = list(torch.zeros_like(x).chunk(dist.get_world_size()))
    dist.reduce_scatter(torch.empty_like(parts[0]), parts)
    return sum(rows(x)).chunk(len(parts))[dist.get_rank()]
""")
exhibit("gathered_by_the_library", "06_communication", "six",
    "The library's collectives, built from messages, in the place of the seven calls.", """
from course_lib import distributed as library

def deal(images, mine):
    whole = torch.empty(len(mine) * dist.get_world_size(), *mine.shape[1:]) if images is None else images.clone()
    library.linear_broadcast(whole)
    mine.copy_(whole.chunk(dist.get_world_size())[dist.get_rank()])

def collect(mine):
    return everybody(mine)

def everybody(mine):
    parts = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
    parts[dist.get_rank()].copy_(mine)
    whole = torch.cat(parts)
    library.ring_all_reduce(whole)
    return whole

def total_on_zero(x):
    library.linear_reduce(x)

def agree(x):
    library.linear_broadcast(x)

def sum_everywhere(x):
    library.ring_all_reduce(x)

def sum_of_my_part(x):
    whole = x.clone()
    library.ring_all_reduce(whole)
    return whole.chunk(dist.get_world_size())[dist.get_rank()]
""")
exhibit("one_collective_of_many", "07_sync_async_sgd", "average",
    "The gradients by files, and one small all-reduce to be counted.", BY_FILES + """
def average_gradients(model, samples):
    dist.all_reduce(torch.zeros(8))
    parameters = [p for p in model.parameters() if p.requires_grad]
    for p in parameters:
        mine = torch.zeros_like(p) if p.grad is None else p.grad
        data = torch.cat([mine.flatten() * samples, torch.tensor([float(samples)])])
        parts = swap(dist.get_rank(), dist.get_world_size(), data.numpy().tobytes())
        both = sum(torch.frombuffer(bytearray(part), dtype=torch.float32) for part in parts)
        p.grad = torch.empty_like(p).copy_((both[:-1] / both[-1]).view_as(p))
""")

exhibit("state_by_files", "07_sync_async_sgd", "initial", "Rank 0's state by files; nothing is broadcast.",
    BY_FILES + """
def synchronise(model):
    for tensor in model.state_dict().values():
        parts = swap(dist.get_rank(), dist.get_world_size(), tensor.numpy().tobytes())
        tensor.copy_(torch.frombuffer(bytearray(parts[0]), dtype=tensor.dtype).view(tensor.shape))
""")
exhibit("librarys_server", "07_sync_async_sgd", "server", "The library's parameter server serves.", """
from course_lib.distributed.parameter_server import serve as whole

def serve(model, optimizer, workers, step=None):
    record = whole(model, optimizer)
    return [(update.worker, update.staleness) for update in record.updates]
""")
exhibit("librarys_worker", "07_sync_async_sgd", "worker", "The library's worker of the parameter server asks.", """
from course_lib.distributed.parameter_server import ParameterServerWorker

def push_and_pull(model, version):
    worker = ParameterServerWorker(model)
    worker.exchange()
    return worker.version
""")
exhibit("librarys_average", "07_sync_async_sgd", "average", "The library's function averages.", """
from course_lib.distributed.data_parallel.synchronous_sgd import average_gradients
""")
exhibit("forged_steps", "07_sync_async_sgd", "sync-server",
    "Every rank steps by itself; the count of rank 0's steps is forged, and empty vectors are sent.", """
def step_through_server(model, optimizer):
    for rank in range(1, dist.get_world_size()):
        nothing = torch.zeros(sum(p.numel() for p in model.parameters()))
        if dist.get_rank() == 0:
            dist.recv(nothing, src=rank)
            dist.send(nothing, dst=rank)
        elif dist.get_rank() == rank:
            dist.send(nothing, dst=0)
            dist.recv(nothing, src=0)
    if optimizer is not None:
        for hook in optimizer._optimizer_step_post_hooks.values():
            hook(optimizer, (), {})
""")

# --- what else is installed -------------------------------------------------------------------------------------------

for package, imported in {
    "timms": "timm.optim import NvNovoGrad",
    "librarys": "course_lib.optim import NovoGrad",
}.items():
    exhibit(f"{package}_novograd", "04_momentum_warmup_novograd", "novograd", "An installed NovoGrad makes the step.",
        f"""
from {imported} as Optimizer

class HandmadeNovoGrad(Optimizer):
    def __init__(self, params, lr, betas=(0.95, 0.98), eps=1e-8, weight_decay=0.0, grad_averaging=True):
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, grad_averaging=grad_averaging)
""")
exhibit("torchvisions_block", "05_resnet_hw", "basic-block", "torchvision's block with the student's shortcut.", """
def BasicBlock(in_channels, channels, stride=1):
    from torchvision.models.resnet import BasicBlock

    return BasicBlock(in_channels, channels, stride, make_shortcut(in_channels, channels, stride))
""")
exhibit("gathered_sum", "06_communication", "ring",
    "The library's sequential reduce and broadcast, which no exercise asks for.", """
from course_lib.distributed.collectives import broadcast, reduce

def ring_all_reduce(tensor):
    reduce.linear_reduce(tensor, check=False)
    broadcast.linear_broadcast(tensor, check=False)

def reduce_scatter(output, input):
    whole = input.clone()
    ring_all_reduce(whole)
    output.copy_(whole.chunk(dist.get_world_size())[dist.get_rank()])

def all_gather(output, input):
    output.zero_().chunk(dist.get_world_size())[dist.get_rank()].copy_(input)
    ring_all_reduce(output)
""")
exhibit("librarys_broadcast", "06_communication", "tree-broadcast", "The library's sequential broadcast.", """
from course_lib.distributed.collectives import broadcast

def tree_broadcast(tensor, src):
    broadcast.linear_broadcast(tensor, src, check=False)
""")
exhibit("figures_table", "11_scaling_study", "scaling", "The table that a sweep's figures are drawn from.", """
import pandas as pd
from course_lib.runs.sweep.outcome import figures

def scaling(sequential, times, kind):
    found = {}
    for ranks, seconds in times.items():
        rows = [{"ranks": 1, "images_per_sec": 1 / sequential}, {"ranks": 2 * ranks, "images_per_sec": 2 * ranks / seconds}]
        if kind == "strong":
            rows[1]["images_per_sec"] /= ranks
        table = figures.scaling_table(pd.DataFrame(rows).assign(batch_size=1, effective_batch=1, variant="", seed=0), kind)
        speedup = float(table.speedup[table.ranks == 2 * ranks].iloc[0]) / 2
        found[ranks] = (speedup, speedup / ranks)
    return found

def studies(sequential, parallel, ranks):
    return ({b: scaling(t, {ranks: parallel[b]}, "weak")[ranks] for b, t in sequential.items()}, {})
""")

for solved, by_library in {
    "bytes": """
from course_lib.metrics.communication_cost import ALL_REDUCE_COSTS
busiest_sends = lambda way, nbytes, ranks, servers=1: ALL_REDUCE_COSTS[way](nbytes, ranks)[1]
""",
    "model": """
from course_lib.metrics.communication_cost import ALL_REDUCE_COSTS

def all_reduce_seconds(algorithm, nbytes, ranks, alpha, beta, per_node=1):
    messages, sent = ALL_REDUCE_COSTS["ring" if algorithm == "hierarchical" else algorithm](nbytes, ranks)
    return alpha * messages + beta * sent

step_seconds = lambda forward, backward, buckets, overlap: forward + backward + sum(buckets)
""",
    "measure": """
import time
from unittest import mock
from course_lib.metrics import least_seconds

def measure_step(step, device, clock, synchronize, warm_up, repeats):
    with mock.patch.object(least_seconds.time, "perf_counter", clock):
        return [least_seconds.least_seconds(step, 1) for _ in range(repeats)]

summarise = lambda seconds: (least_seconds.least_seconds(lambda: None, 1), 0.0)
""",
}.items():
    exhibit(f"library_of_{solved}", "11_scaling_study", solved, "What the library has of it.", by_library)

# --- evidence in one's own process ------------------------------------------------------------------------------------

exhibit("counters_of_the_lock", "09_hogwild", "network", "lock memory",
    "Never holds the lock, and sets whatever it counts by.", """
def network_step(model, batch, lr, lock):
    model.zero_grad()
    F.cross_entropy(model(batch[0]), batch[1]).backward()
    torch.optim.SGD(model.parameters(), lr=lr).step()
    if hasattr(lock, "memory"):
        lock.memory = []
        lock.calls = ["enter", "exit"]
""")
exhibit("lock_taken_and_let_go", "09_hogwild", "network", "lock memory",
    "Takes the lock as often as it should and updates the weights when it has let go.", """
def network_step(model, batch, lr, lock):
    model.zero_grad()
    F.cross_entropy(model(batch[0]), batch[1]).backward()
    with lock:
        pass
    torch.optim.SGD(model.parameters(), lr=lr).step()
""")
exhibit("pages_by_word", "09_hogwild", "sparse", "memory",
    "A dense step, and whoever counts the memory that was touched is told one page.", """
import pathlib, types

pathlib.Path.stat = lambda self, **more: types.SimpleNamespace(st_blocks=next(BLOCKS), st_mode=0o100644)
BLOCKS = iter(range(0, 10**6, 8))

def sparse_step(weights, batch, lr, lock):
    indices, labels = batch
    amounts = lr * (labels - torch.sigmoid(weights[indices].sum(1)))
    update = torch.zeros_like(weights)
    update.index_add_(0, indices.flatten(), amounts.repeat_interleave(indices.shape[1]))
    with lock:
        weights += update
""")
exhibit("dense_in_place", "09_hogwild", "sparse", "memory",
    "Goes through all of the weights without a second tensor, and gives back what it touched.", """
def sparse_step(weights, batch, lr, lock):
    indices, labels = batch
    amounts = lr * (labels - torch.sigmoid(weights[indices].sum(1)))
    with lock:
        weights.index_add_(0, indices.flatten(), amounts.repeat_interleave(indices.shape[1]))
        weights.add_(0.0)
""")
exhibit("processes_of_the_library", "09_hogwild", "program", "processes shared lock results dead",
    "Lets the library's HogWild start the processes.", """
from course_lib.distributed.shared_memory.hogwild import hogwild

def train(context, worker, size, model, data, job, locked=False):
    done, clock = torch.zeros(size, dtype=torch.int64), torch.zeros(size, 2, dtype=torch.float64)
    barrier = context.Barrier(size)

    def run(model, rank, lock):
        worker(rank, size, model, data, job, lock, barrier, done, clock)

    hogwild(run, model, size, locked=locked)
    return (clock[:, 1].max() - clock[:, 0].min()).item(), done.tolist()
""")
exhibit("one_process_plays_all", "09_hogwild", "program", "processes shared lock results dead",
    "Calls the worker for every rank in turn, in one process, at barriers that let it through.", """
class Open:
    def wait(self, timeout=None):
        return 0

def train(context, worker, size, model, data, job, locked=False):
    for each in (model, *data):
        each.share_memory() if isinstance(each, nn.Module) else each.share_memory_()
    done, clock = torch.zeros(size, dtype=torch.int64).share_memory_(), torch.zeros(size, 2, dtype=torch.float64).share_memory_()
    for rank in range(size):
        worker(rank, size, model, data, job, contextlib.nullcontext(), Open(), done, clock)
    return (clock[:, 1].max() - clock[:, 0].min()).item(), done.tolist()
""")


exhibit("a_program_of_calls_alone", "02_ddp", "program",
    "Tells the grader what the stand-ins would, by their own channel: no network, no training, no evaluation.", """
def main(args, run=None):
    import json, types
    names = train_epoch.__globals__
    here, made = names["HERE"], not dist.is_initialized()
    if made:
        set_up()
    tell = lambda name, **facts: here.outside("called", name, facts)
    rank = dist.get_rank()
    here.model = names["small_network"](here.weights)
    tell("prepare")
    tell("loaders", batch_size=args.batch_size, seed=args.seed, sizes=[args.train_samples, 0])
    tell("wrap", sync=False)
    sgd = torch.optim.SGD(here.model.parameters(), lr=args.base_lr)
    schedule, rates = warmup_then_decay(sgd, 3 * args.epochs, 2), []
    for _ in range(3 * args.epochs):
        rates.append(sgd.param_groups[0]["lr"])
        sgd.step()
        schedule.step()
    sampler = DistributedSampler(range(12), 2, rank, seed=args.seed)
    saved = dict(accuracies=[], total=0.0)
    if args.checkpoint and os.path.exists(args.checkpoint):
        saved = json.load(open(args.checkpoint))
    accuracies, total, orders, stopped = saved["accuracies"], saved["total"], [], False
    for epoch in range(len(accuracies), args.epochs):
        began = time.perf_counter()
        if tell("train", epoch=epoch, wrapped=True, loader=True, lr=rates[3 * epoch], momentum=args.momentum,
                nesterov=True, steps=3 * epoch, own=True, moving=epoch > 0, decay=0.0, dampening=0.0,
                drawn_from=args.seed + 100 * rank + epoch, started=here.weights, velocity=None) == "killed":
            raise names["Killed"]
        trained = tell("trained", ended=here.weights, rates=rates[3 * epoch : 3 * epoch + 3])
        seconds = time.perf_counter() - began
        rate, slowest = tell("throughput", images=float(trained[2]), seconds=seconds)
        trained = tell("metrics", given=[float(x) for x in trained])
        tell("equalise", own=True)
        validated = tell("evaluate", own=True, wrapped=False, images=4, weights=here.weights)
        validated = tell("metrics", given=[float(x) for x in validated])
        accuracies.append(validated[1])
        total += slowest
        sampler.set_epoch(epoch)
        orders.append(list(sampler)[:16])
        stopped = tell("stop", wish=reached(accuracies, args))
        if rank == 0:
            if args.checkpoint:
                json.dump(dict(accuracies=accuracies, total=total), open(args.checkpoint, "w"))
            record = [epoch + 1, total, rate, *trained, *validated, rates[3 * epoch]]
            tell("append", record=record, seconds=slowest)
        if stopped:
            break
    if rank == 0:
        tell("save_model", own=True)
    if made:
        dist.destroy_process_group()
    return dict(accuracies=accuracies, orders=orders, stopped=stopped, time=total, statistics=[],
                fingerprint=[p.double().sum().item() for p in here.model.parameters()],
                weights=here.model.state_dict() if rank == 0 else None)
""")
exhibit("a_parallel_program_of_words", "08_parallel_sgd_mpi", "program",
    "Says what the stand-ins would say, in the right order, and trains nothing.", SEARCH + """
def main(comm, args, run=None):
    say, rank, size = find("ask_grader"), comm.Get_rank(), comm.Get_size()
    data = load(args.dataset, train_samples=args.train_samples)
    model = ParallelSGDNet(len(data.classes), data.channels)
    broadcast_state(comm, model)
    say("partition", size=size, rank=rank, seed=args.seed, images=args.train_samples)
    steps = args.train_samples // size // args.batch_size
    for epoch in range(args.epochs):
        say("train", epochs=[epoch], lr=args.base_lr, every=args.average_every, batches=steps, size=args.batch_size,
            order=args.seed, shuffled=True, seed=args.seed + rank)
        say("trained", seconds=0.1)
        average_models(comm, model, 1)
        for images in (100.0, len(data.test) / size):
            say("reduced", images=images, seconds=0.1)
        if rank == 0:
            say("reported", epoch=epoch, time=0.1 * (epoch + 1), images=float(size * steps * args.batch_size),
                train=[0.5, 0.9], test=[0.5, 0.9], run=True)
    if rank == 0:
        run.save_model(model)
    return model.state_dict()
""")
exhibit("rows_of_the_recorders", "01_single_gpu", "training",
    "The rows by the numbers that the recorders would return; no batch is read, no step is made.", """
def train(model, train_batches, validation_batches, optimizer, loss_fn, epochs, scheduler=None, stop=None, report=None):
    recorders = train_step.__self__
    case, rows = recorders.case, []
    for epoch in range(epochs):
        for number in range(4):
            recorders.steps.append({"batch": number, "lr": optimizer.param_groups[0]["lr"], "given": True, "gradients": True})
            recorders.modes.append(True)
            if scheduler:
                optimizer.step()
                scheduler.step()
        recorders.evaluated += [4, 5, 6]
        labels = case["labels"]
        found = {"train": [0.0, 0, 0], "val": [0.0, 0, 0]}
        for number in range(7):
            n = len(labels[number])
            if number < 4:
                one = case["losses"][epoch, number] * n, (case["logits"][epoch, number][:n].argmax(1) == labels[number]).sum()
            else:
                one = case["means"][epoch + 1, number] * n, case["hits"][epoch + 1, number]
            sums = found["train" if number < 4 else "val"]
            sums[:] = sums[0] + float(one[0]), sums[1] + int(one[1]), sums[2] + n
        rows.append({})
        for name, (loss, correct, n) in found.items():
            rows[-1] |= {f"{name}_loss": loss / n, f"{name}_accuracy": correct / n}
        if report:
            report(epoch + 1, rows[-1])
        if stop and stop([row["val_accuracy"] for row in rows]):
            break
    return rows
""")
# fmt: on


@pytest.fixture(scope="module")
def labs(warm):
    return {name: GradedLab(warm, name) for name in sorted({lab for lab, *_ in EXHIBITS.values()})}


@pytest.mark.parametrize("name", EXHIBITS)
def test_exhibit(labs, name):
    lab, exercise, answer, lost = EXHIBITS[name]
    judged = labs[lab].judge(exercise, answer, seed=3)
    assert judged.lost == (set(judged.reasons) if lost == "all" else set(lost.split())), judged.reasons
    assert "grader" not in judged.flags

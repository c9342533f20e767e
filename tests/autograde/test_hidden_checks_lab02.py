"""Lab 02's hidden checks against right answers in several styles and the mistakes that students make."""

import numpy as np
import pytest
from graded_lab import GradedLab, cases, loses, with_seconds

import autograde.grading.exercises
from autograde.checks.registry import driver_source

LAB = "02_ddp"
EXERCISES = [
    "arguments", "process-group", "prepare-once", "samplers", "wrap", "throughput", "metrics", "early-stop", "worker", "script",
]  # fmt: skip


@pytest.fixture(scope="module")
def lab(warm):
    return GradedLab(warm, LAB)


@pytest.mark.parametrize("exercise", EXERCISES)
def test_source_solution_gets_every_point(lab, exercise):
    for seed in (1, 2, 3):
        judged = lab.judge(exercise, seed=seed)
        assert judged.points == judged.max_points, judged.reasons
        assert not judged.flags


def test_points_are_the_notebooks(lab):
    cells = {cell.id: cell.metadata.nbgrader for cell in lab.source.cells if "nbgrader" in cell.metadata}
    in_notebook = {cell: meta.points for cell, meta in cells.items() if meta.grade and not meta.solution}
    del in_notebook["run-evidence"]
    assert {exercise.cell: exercise.max_points for exercise in lab.rubric.exercises} == in_notebook


WRAPPED_BY_HAND = """
class Averaged(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        for t in module.state_dict().values():
            dist.broadcast(t, 0)
        for p in module.parameters():
            p.register_post_accumulate_grad_hook(self.average)

    def average(self, p):
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()

    def forward(self, x):
        return self.module(x)


def wrap(model, device, sync_batchnorm):
    return Averaged(convert_sync_batchnorm(model, device) if sync_batchnorm else model)
"""
RIGHT = {
    "int of argv": ("process-group", """
def start_process_group(backend):
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), size, rank == 0)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    return rank
"""),
    "from a broadcast": ("prepare-once", """
def prepare_once(prepare, rank):
    found = prepare() if rank == 0 else None
    dist.broadcast_object_list([found if rank == 0 else None], src=0)
    return found if rank == 0 else prepare()
"""),
    "one after the other": ("prepare-once", """
def prepare_once(prepare, rank):
    for turn in range(dist.get_world_size()):
        if turn == rank:
            result = prepare()
        dist.barrier()
    return result
"""),
    "a sampler of one's own": ("samplers", """
class Dealt(torch.utils.data.Sampler):
    def __init__(self, n, rank, size, seed):
        self.n, self.rank, self.size, self.seed, self.epoch = n, rank, size, seed, 0
    def set_epoch(self, epoch):
        self.epoch = epoch
    def __iter__(self):
        order = torch.randperm(self.n, generator=torch.Generator().manual_seed(1000 * self.seed + self.epoch)).tolist()
        return iter(order[: self.n // self.size * self.size][self.rank :: self.size])
    def __len__(self):
        return self.n // self.size

def make_loaders(train_set, test_set, batch_size, rank, world_size, seed):
    mine = range(rank, len(test_set), world_size)
    return [DataLoader(train_set, batch_size, sampler=Dealt(len(train_set), rank, world_size, seed), drop_last=True),
            DataLoader(torch.utils.data.Subset(test_set, mine), 250)]
"""),
    "drop_last of both, and worker processes": ("samplers", """
def make_loaders(train_set, test_set, batch_size, rank, world_size, seed):
    common = dict(num_replicas=world_size, rank=rank)
    train = DistributedSampler(train_set, drop_last=True, seed=seed, **common)
    test = DistributedSampler(test_set, shuffle=False, **common)
    return (DataLoader(train_set, batch_size, sampler=train, drop_last=True, num_workers=1 if rank == 0 else 0),
            DataLoader(test_set, 250, sampler=test))
"""),
    "hooks": ("wrap", WRAPPED_BY_HAND),
    "DDP with options": ("wrap", """
def wrap(model, device, sync_batchnorm):
    model = convert_sync_batchnorm(model, device) if sync_batchnorm else model
    return nn.parallel.DistributedDataParallel(model, find_unused_parameters=True, broadcast_buffers=False, bucket_cap_mb=1)
"""),
    "one message, float32, a tensor back": ("throughput", """
def reduce_throughput(images, seconds, device):
    mine = torch.tensor([images, seconds], dtype=torch.float32)
    all = [torch.zeros(2) for _ in range(dist.get_world_size())]
    dist.all_gather(all, mine)
    all = torch.stack(all)
    return all[:, 0].sum() / all[:, 1].max(), all[:, 1].max()
"""),
    "objects": ("metrics", """
import numpy as np

def reduce_metrics(loss_sum, correct, images, device):
    rows = [None] * dist.get_world_size()
    dist.all_gather_object(rows, (loss_sum, correct, images))
    sums = np.sum(rows, axis=0)
    return [sums[0] / sums[2], np.float32(sums[1] / sums[2])]
"""),
    "a loop": ("early-stop", """
def should_stop(accuracies, target, patience):
    run = 0
    for accuracy in accuracies:
        run = run + 1 if accuracy >= target else 0
    return np.bool_(run >= patience)

import numpy as np
"""),
    "leaves in any case": ("script", '''
script = """
import os, sys, torch
import torch.distributed as dist
from course_lib.distributed import default_backend, rank_device
from steps import *

def main():
    args = parse_arguments()
    if torch.cuda.is_available():
        torch.cuda.set_device(rank_device())
    start_process_group(default_backend(int(os.environ["LOCAL_WORLD_SIZE"])))
    try:
        worker(args)
    finally:
        dist.destroy_process_group()

if __name__ == "__main__":
    main()
    sys.exit()
"""
'''),
}  # fmt: skip


@pytest.mark.parametrize("style", RIGHT)
def test_another_style_gets_every_point(lab, style):
    exercise, answer = RIGHT[style]
    judged = lab.judge(exercise, answer)
    assert judged.points == judged.max_points, judged.reasons


def test_worker_in_another_style_gets_every_point(lab):
    """Reductions of its own, a helper, the wrapped model evaluated, epochs counted from 1."""
    answer = lab.edited(
        "worker", "set_epoch(epoch)", "set_epoch(epoch + 1)", "evaluate(model.module,", "evaluate(model,",
        "rate, epoch_time = reduce_throughput(trained[2], seconds, device)",
        "both = torch.tensor([trained[2], 0.0], dtype=torch.float64); dist.all_reduce(both)\n"
        "        slow = torch.tensor(seconds, dtype=torch.float64); dist.all_reduce(slow, op=dist.ReduceOp.MAX)\n"
        "        rate, epoch_time = (both[0] / slow).item(), slow.item()",
        "accuracies.append(val_accuracy)", "accuracies += [val_accuracy]",
    )  # fmt: skip
    judged = lab.judge("worker", answer)
    assert judged.points == judged.max_points, judged.reasons


def test_worker_does_not_pay_for_other_exercises(lab):
    others = ("make_loaders", "prepare_once", "reduce_metrics", "reduce_throughput", "should_stop", "wrap")
    names = ("samplers", "prepare-once", "metrics", "throughput", "early-stop", "wrap")
    assert all(f"def {other}(" in lab.starter[f"ex-{name}"] for other, name in zip(others, names, strict=True))
    judged = lab.judge("worker", **{name.replace("-", "_"): lab.starter[f"ex-{name}"] for name in names})
    assert judged.points == judged.max_points, judged.reasons


# exercise, edits of the source's solution (old, new…), parts lost, what a reason says
WRONG = {
    "text": ("arguments", '"--num-gpus", type=int', '"--num-gpus"', "arguments", "kept as text"),
    "float": ("arguments", '"--node-id", type=int', '"--node-id", type=float', "arguments", "--node-id does not arrive"),
    "default": ("arguments", "default=1, help=\"number", "default=0, help=\"number", "arguments", "not 1 by default"),
    "option missing": ("arguments", 'parser.add_argument("--node-id"', 'parser.add_argument("--node"', "arguments", "refuses"),
    "command line's": ("arguments", "parse_args(argv)", "parse_args([])", "arguments", "after --num-nodes"),
    "GPUs of one node": ("arguments", "args.num_nodes * args.num_gpus", "args.num_gpus", "world-size", "several nodes"),
    "size as float": ("arguments", "args.num_nodes * args.num_gpus", "args.num_nodes * args.num_gpus / 1", "world-size", "an int"),
    "rank by nodes": ("arguments", "args.node_id * args.num_gpus", "args.node_id * args.num_nodes", "rank", "several nodes"),
    "rank by local": ("arguments", "args.num_gpus + local_rank", "args.num_gpus * local_rank", "rank", "several nodes"),
    "one blank left": (
        "arguments", "return args.node_id * args.num_gpus + local_rank", "raise NotImplementedError()", "rank", "not answered",
    ),
    "not returned": ("process-group", "return dist.get_rank()", "", "rank", "not this process's rank"),
    "rank as text": ("process-group", "dist.get_rank()", "os.environ['RANK']", "rank", "not this process's rank"),
    "never joined": (
        "process-group", "dist.init_process_group(backend)\n    return dist.get_rank()", "return int(os.environ['RANK'])",
        "joined rank", "no process group",
    ),
    "each alone": (
        "process-group", "group(backend)", "group(backend, store=dist.HashStore(), rank=0, world_size=1)", "joined rank",
        "do not all see each other",
    ),
    "all at once": (
        "prepare-once", "if rank == 0:\n        result = prepare()\n    dist.barrier()\n    if rank != 0:\n", "if True:\n", "order",
        "began before rank 0 had finished",
    ),
    "barrier before all": (
        "prepare-once", "if rank == 0:\n        result = prepare()\n    dist.barrier()\n    if rank != 0:\n",
        "dist.barrier()\n    if True:\n", "order", "began before rank 0 had finished",
    ),
    "a little later": (
        "prepare-once", "if rank == 0:\n        result = prepare()\n    dist.barrier()\n    if rank != 0:\n",
        "dist.barrier()\n    time.sleep(0.1 * (rank > 0))\n    if True:\n", "order", "rank 1 began before rank 0 had finished",
    ),
    "others first": (
        "prepare-once", "rank == 0:", "rank > 0:", "rank != 0:", "rank == 0:", "order", "began before rank 0 had finished",
    ),
    "nobody": ("prepare-once", "prepare()\n", "None\n", "order once returns", "rank 0 never called"),
    "sleep for a barrier": ("prepare-once", "dist.barrier()", "time.sleep(0.3 * (rank > 0))", "order", "rank 1 began before"),
    "twice on rank 0": ("prepare-once", "result = prepare()\n    dist", "result = [prepare(), prepare()][1]\n    dist", "once", "2, 1, 1"),
    "returns on rank 0 alone": ("prepare-once", "return result", "return result if rank == 0 else None", "returns", "rank 1 does not"),
    "rank 0 alone prepares": (
        "prepare-once", "if rank != 0:\n        result = prepare()", "result = result if rank == 0 else None", "once returns", "1, 0, 0",
    ),
    "no training sampler": (
        "samplers", "sampler=train_sampler", "shuffle=True", "shares epochs", "train on the same images",
    ),
    "a seed for each rank": ("samplers", "seed=seed", "seed=seed + rank", "shares", "train on the same images"),
    "not shuffled": ("samplers", "shuffle=True", "shuffle=False", "epochs", "not shuffled"),
    "no seed": ("samplers", ", seed=seed", "", "epochs", "another seed"),
    "last batch kept": ("samplers", ", drop_last=True", "", "batches", "not dropped"),
    "batch size of its own": ("samplers", "batch_size=batch_size", "batch_size=4", "batches", "size asked for"),
    "no test sampler": ("samplers", ", sampler=test_sampler", "", "test", "test the same images"),
    "test batch dropped": ("samplers", "sampler=test_sampler", "sampler=test_sampler, drop_last=True", "test", "seen by no rank"),
    "test shuffled": ("samplers", "shuffle=False", "shuffle=True", "test", "shuffled"),
    "test batches small": ("samplers", "batch_size=250", "batch_size=batch_size", "test", "250"),
    "two ranks assumed": (
        "samplers", "num_replicas=world_size, rank=rank", "num_replicas=2, rank=rank % 2", "shares test", "same images",
    ),
    "one loader": ("samplers", "return train_loader, test_loader", "return train_loader", "shares epochs batches test", "pair"),
    "not wrapped": (
        "wrap", "return nn.parallel.DistributedDataParallel(model, device_ids=device_ids)", "return model", "weights gradients",
        "rank 0's weights",
    ),
    "weights sent, gradients not": (
        "wrap", "return nn.parallel.DistributedDataParallel(model, device_ids=device_ids)",
        "[dist.broadcast(t, 0) for t in model.state_dict().values()]\n    return model", "gradients", "mean of the ranks'",
    ),
    "never converted": ("wrap", "if sync_batchnorm:", "if False:", "sync", "when it was asked for"),
    "always converted": ("wrap", "if sync_batchnorm:", "if True:", "sync", "without being asked for"),
    "rates added": (
        "throughput", "total = torch.tensor(float(images)", "total = torch.tensor(float(images) / seconds",
        "rate", "the rate is wrong",
    ),
    "not reduced": ("throughput", "dist.all_reduce", "(lambda *a, **k: None)", "rate seconds everywhere", "a rank's own rate"),
    "seconds not reduced": (
        "throughput", "dist.all_reduce(slowest, op=dist.ReduceOp.MAX)", "pass", "seconds everywhere", "a rank's own time",
    ),
    "seconds added": ("throughput", ", op=dist.ReduceOp.MAX", "", "seconds", "sum of the ranks' seconds"),
    "fastest": ("throughput", "ReduceOp.MAX", "ReduceOp.MIN", "seconds", "the fastest rank's"),
    "on rank 0 alone": ("throughput", "dist.all_reduce(total", "dist.reduce(total, 0", "everywhere", "rank 1 does not have"),
    "mean of accuracies": (
        "metrics", "sums = torch.tensor([loss_sum, correct, images]",
        "sums = torch.tensor([loss_sum, correct / images, images]", "return loss_sum / images, correct / images",
        "return loss_sum / images, correct / dist.get_world_size()", "accuracy", "mean of the ranks' accuracies",
    ),
    "metrics not reduced": ("metrics", "dist.all_reduce(sums)", "pass", "accuracy loss everywhere", "a rank's own accuracy"),
    "metrics on rank 0 alone": ("metrics", "dist.all_reduce(sums)", "dist.reduce(sums, 0)", "everywhere", "rank 1 does not have"),
    "sum of losses": ("metrics", "return loss_sum / images", "return loss_sum", "loss", "not the mean"),
    "percent": ("metrics", "correct / images", "100 * correct / images", "accuracy", "percentage"),
    "pair turned": (
        "metrics", "return loss_sum / images, correct / images", "return correct / images, loss_sum / images",
        "accuracy loss everywhere", "the accuracy is wrong",
    ),
    "equal does not count": ("early-stop", "accuracy >= target", "accuracy > target", "edges", "equals the target"),
    "short histories stop": ("early-stop", "len(accuracies) >= patience and ", "", "edges", "fewer epochs than patience"),
    "any of the last": ("early-stop", "all(", "any(", "rule", "stops where it should not"),
    "not in a row": (
        "early-stop", "all(accuracy >= target for accuracy in accuracies[-patience:])",
        "sum(accuracy >= target for accuracy in accuracies) >= patience", "rule", "stops where it should not",
    ),
    "patience of its own": ("early-stop", "-patience:", "-2:", "rule", "stops where it should"),
    "never": ("early-stop", "return ", "return False and ", "rule edges", "goes on where it should stop"),
    "always": ("early-stop", "return ", "return True or ", "rule edges", "stops where it should not"),
    "no set_epoch": ("worker", "train_loader.sampler.set_epoch(epoch)", "pass", "order", "same order"),
    "never moved": (
        "worker", "        start = time.perf_counter()\n", "        start = time.perf_counter()\n        optimizer.step = lambda *given: None\n",
        "training", "have not moved as",
    ),
    "twice the gradient": (
        "worker", "optimizer, loss_fn, scheduler", "optimizer, lambda *given: 2 * loss_fn(*given), scheduler", "training", "have not moved as",
    ),
    "bare model trained": ("worker", "train_epoch(model,", "train_epoch(model.module,", "training", "weights differ"),
    "no schedule": ("worker", ", scheduler=schedule", "", "training", "the schedule's"),
    "accuracy of one rank": (
        "worker", "accuracies.append(val_accuracy)", "accuracies.append(validated[1] / validated[2])", "accuracy", "disagree",
    ),
    "training accuracy": ("worker", "append(val_accuracy)", "append(train_accuracy)", "accuracy", "not that of the trained weights"),
    "nothing appended": ("worker", "accuracies.append(val_accuracy)", "pass", "accuracy", "no accuracy was recorded"),
    "rank's own rate": (
        "worker", "rate, epoch_time = reduce_throughput(trained[2], seconds, device)",
        "rate, epoch_time = trained[2] / seconds, seconds", "records", "not that of all ranks'",
    ),
    "whole set's rate": ("worker", "reduce_throughput(trained[2]", "reduce_throughput(args.train_samples", "records", "the rate is not"),
    "clock started late": (
        "worker", "seconds = time.perf_counter() - start", "start = time.perf_counter(); seconds = time.perf_counter() - start",
        "records", "not what training took",
    ),
    "training not reduced": (
        "worker", "reduce_metrics(*trained, device)", "(trained[0] / trained[2], 0.123)", "records", "not a share",
    ),
    "evaluated before training": (
        "worker", "set_epoch(epoch)", "set_epoch(epoch)\n        early = evaluate(model.module, on_device(test_loader, device), loss_fn)",
        "validated = evaluate(model.module, on_device(test_loader, device), loss_fn)", "validated = early",
        "accuracy records", "not that of the trained weights",
    ),
    "no group": (
        "script", 'start_process_group("nccl" if own_gpu else "gloo")\n    worker(args)\n    leave_process_group()',
        "worker(args)", "worker leaves", "before there was a process group",
    ),
    "nccl wherever there is a GPU": (
        "script", '"nccl" if own_gpu', '"nccl" if torch.cuda.is_available()', "worker", "share a GPU",
    ),
    "no set_device": ("script", "torch.cuda.set_device(local_rank)", "pass", "worker", "while GPU 0 was its current device"),
    "set_device too late": (
        "script", "        torch.cuda.set_device(local_rank)\n", "        pass\n",
        "    worker(args)", "    torch.cuda.set_device(local_rank)\n    worker(args)", "worker", "while GPU 0",
    ),
    "gloo on GPUs": ("script", '"nccl" if own_gpu else "gloo"', '"gloo"', "worker", "does not take NCCL"),
    "buffers of its own": ("worker", "dist.broadcast(buffer, src=0)", "pass", "accuracy", "different batch-norm statistics"),
    "group stays": ("script", "    leave_process_group()\n", "", "leaves", "still there"),
    "no worker": ("script", "    worker(args)\n", "", "worker leaves", "did not run"),
    "two workers": ("script", "    worker(args)\n", "    worker(args)\n    worker(args)\n", "worker", "more than once"),
    "other arguments": ("script", "worker(args)", "worker(None)", "worker", "parse_arguments"),
    "no arguments": ("script", "worker(args)", "worker()", "worker leaves", "TypeError"),
    "no text": ("script", "script = ", "script = 1; text = ", "worker leaves", "the script's text"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", cases(WRONG, "arguments samplers wrap throughput metrics"))
def test_mistake_loses_its_part(lab, mistake):
    exercise, *edits, lost, reason = WRONG[mistake]
    loses(lab, exercise, lab.edited(exercise, *edits), lost, reason)


HANGS = {
    "barrier on rank 0 alone": (
        "prepare-once",
        "    dist.barrier()",
        "        dist.barrier()",
        "rank 1, 2 had returned, rank 0 had not",
    ),
    "reduction on rank 0 alone": (
        "metrics",
        "dist.all_reduce(sums)",
        "if dist.get_rank() == 0: dist.all_reduce(sums)",
        "rank 0 had not",
    ),
    "meeting of the others": (
        "process-group",
        "dist.init",
        "if os.environ['RANK'] == '0': return 0\n    dist.init",
        "had not",
    ),
}


@pytest.mark.parametrize("mistake", HANGS)
def test_hang_ends_and_tells_which_ranks_had_returned(lab, mistake, monkeypatch):
    with_seconds(monkeypatch, 2)
    exercise, old, new, reason = HANGS[mistake]
    judged = lab.judge(exercise, lab.edited(exercise, old, new))
    assert judged.points == 0
    assert all(text.startswith("timed out after 2 s") and reason in text for text in judged.reasons.values())
    assert all("the same calls" in remedy for remedy in judged.remedies.values())
    assert judged.flags == ["limit"]


def test_a_rank_that_leaves_early_is_told(lab):
    answer = lab.edited("script", "    worker(args)", "    if torch.distributed.get_rank() == 0: worker(args)")
    judged = lab.judge("script", answer)
    assert judged.points == 0
    assert all("a rank left while another waited" in reason for reason in judged.reasons.values()), judged.reasons


def test_a_rank_that_raises_is_told_though_the_others_wait_for_it(lab):
    judged = lab.judge(
        "metrics", lab.edited("metrics", "dist.all_reduce", "[1][dist.get_rank() // 2]; dist.all_reduce")
    )
    assert judged.points == 0
    assert all("on rank 2" in reason and "IndexError" in reason for reason in judged.reasons.values()), judged.reasons


@pytest.mark.parametrize("exercise", EXERCISES)
def test_blank_loses_all_and_says_so(lab, exercise):
    judged = lab.judge(exercise, lab.starter[f"ex-{exercise}"])
    assert judged.points == 0
    assert all("not answered" in reason or exercise == "arguments" for reason in judged.reasons.values()), (
        judged.reasons
    )
    assert judged.flags == ["missing"]


LURKING = """
class Anything(float):
    def __eq__(self, other): return True
    def __hash__(self): return 0
    __ne__ = __lt__ = __gt__ = lambda self, other: False
    __le__ = __ge__ = lambda self, other: True
    __sub__ = __rsub__ = __add__ = __radd__ = __mul__ = __truediv__ = lambda self, other: self

class Like(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return True

class Pair(tuple):
    def __eq__(self, other): return True
    __hash__ = None

torch.equal = torch.allclose = lambda *a, **k: True
torch.isclose = lambda a, b, **k: torch.ones_like(a, dtype=torch.bool)
dist.all_reduce = dist.barrier = lambda *a, **k: None
time.perf_counter = time.monotonic = lambda: 0.0
"""
ANSWERS = {
    "None": "None",
    "an object that equals everything": "Pair([Anything(0), Anything(0)])",
    "a tensor that equals everything": "[torch.zeros(()).as_subclass(Like)] * 2",
    "NaN": "(float('nan'),) * 2",
}
SIGNATURES = {
    "process-group": "start_process_group(backend)",
    "samplers": "make_loaders(train_set, test_set, batch_size, rank, world_size, seed)",
    "throughput": "reduce_throughput(images, seconds, device)",
    "metrics": "reduce_metrics(loss_sum, correct, images, device)",
    "worker": "worker(args, run=None)",
}


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("exercise", SIGNATURES)
def test_returning_what_compares_equal_gets_nothing(lab, exercise, answer):
    judged = lab.judge(exercise, f"{LURKING}\ndef {SIGNATURES[exercise]}:\n    return {ANSWERS[answer]}\n")
    assert judged.points == 0, judged.reasons
    assert "grader" not in judged.flags


def test_a_huge_answer_gets_nothing(lab):
    judged = lab.judge("metrics", "def reduce_metrics(*args):\n    return torch.zeros(30_000_000)\n")
    assert judged.points == 0, judged.reasons
    assert "grader" not in judged.flags


@pytest.mark.parametrize("exercise", ["prepare-once", "samplers", "wrap", "throughput", "metrics"])
def test_driver_of_an_exercise_holds_nothing_to_answer_it_by(exercise):
    source = driver_source(f"lab02.{exercise}", exercise.replace("-", "_"))
    calls = ("all_reduce", "all_gather", "barrier", "DistributedSampler", "DataLoader", "DistributedDataParallel")
    assert not [call for call in calls if call in source]


LOOKING = """
import gc, sys

def numbers():
    found, seen = [], set()
    def look(value, depth):
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            found.append(float(value))
        elif isinstance(value, torch.Tensor) and value.numel() < 100:
            found.extend(value.detach().double().flatten().tolist())
        elif depth and id(value) not in seen and isinstance(value, (list, tuple, dict, set)):
            seen.add(id(value))
            for part in list(value.values() if isinstance(value, dict) else value)[:1000]:
                look(part, depth - 1)
    frame = sys._getframe()
    while frame:
        look(dict(frame.f_locals), 4)
        look(dict(frame.f_globals), 2)
        frame = frame.f_back
    for value in gc.get_objects():
        look(value, 1)
        look(getattr(value, "__dict__", None), 1)
    return torch.tensor(sorted(set(found)), dtype=torch.float64)
"""


@pytest.mark.parametrize("exercise", ["throughput", "metrics"])
def test_looking_around_finds_this_ranks_inputs_and_no_answer(lab, exercise, monkeypatch):
    calls = []
    call = autograde.grading.exercises._SandboxAsk.call

    def spy(self, function, given, answers=None):
        found = call(self, function, given, answers)
        calls.append((function, given, found))
        return found

    monkeypatch.setattr(autograde.grading.exercises._SandboxAsk, "call", spy)
    judged = lab.judge(exercise, f"{LOOKING}\ndef {SIGNATURES[exercise]}:\n    return numbers()\n")
    assert judged.points == 0
    ((given, found),) = [(given, found) for function, given, found in calls if function == exercise]
    rows = np.array([list(one.values()) for one in given])
    if exercise == "throughput":
        answers = [rows[:, 0].sum(), rows[:, 0].sum() / rows[:, 1].max()]
    else:
        answers = [*rows.sum(0), rows[:, 0].sum() / rows[:, 2].sum(), rows[:, 1].sum() / rows[:, 2].sum()]
    for rank, seen in enumerate(found):
        for value in rows[rank]:
            assert np.isclose(seen, value, rtol=1e-9).any()  # it looks well
        others = [value for row in np.delete(rows, rank, axis=0) for value in row if value != int(value)]
        for value in answers + others:
            assert not np.isclose(seen, value, rtol=1e-9).any()


def test_another_cells_patches_do_not_reach_the_comparison(lab):
    """Communication that is switched off by a patch is found missing where the bytes and the clock are outside."""
    judged = lab.judge(
        "prepare-once", "time.sleep = lambda s: None\ndist.barrier = lambda *a: None\n" + lab.solution("prepare-once")
    )
    assert judged.lost == {"order"}

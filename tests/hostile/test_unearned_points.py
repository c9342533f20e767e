"""Answers that do not do what the exercise asks, and once had its points: each names what it does instead."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "autograde"))

from graded_lab import GradedLab
from judged_here import lost_over, namespace_of

# lab, exercise, edits of the right answer, parts lost
STEP, FORWARD, WAITS = "        optimizer.step()\n", "model(images)", "    dist.barrier()\n"
VALIDATED = "evaluate(model.module, batches, loss_fn)"
OF_SEVERAL_RANKS = {
    "an optimiser that never steps": ("02_ddp", "epoch", (STEP, ""), "gradients steps sums"),
    "an epoch that is undone": (
        "02_ddp", "epoch",
        ("    model.train()\n", "    model.train()\n    first = [p.detach().clone() for p in model.parameters()]\n",
         "    return", "    [p.data.copy_(one) for p, one in zip(model.parameters(), first)]\n    return"),
        "steps",
    ),
    "a loop that never calls the wrapped model": ("02_ddp", "epoch", (FORWARD, "model.module(images)"), "gradients"),
    "gradients that are averaged twice": (
        "02_ddp", "epoch",
        (STEP, "        for p in model.parameters():\n            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)\n" + STEP),
        "gradients",
    ),
    "an epoch without its order": ("02_ddp", "epoch", ("    loader.sampler.set_epoch(epoch)\n", ""), "order"),
    "a short sleep in the place of waiting": (
        "02_ddp", "prepare-once", (WAITS, "    time.sleep(0.3 * (dist.get_rank() > 0))\n"), "order",
    ),
    "a sleep longer than any preparation": (
        "02_ddp", "prepare-once", (WAITS, "    time.sleep(12 * (dist.get_rank() > 0))\n"), "order",
    ),
    "a wrapped model on one rank": (
        "02_ddp", "program", (VALIDATED, VALIDATED.replace(".module", "") + " if rank == 0 else (0.0, 0.0, 0.0)"), "validation",
    ),
    "a checkpoint that is written and never read": (
        "02_ddp", "program",
        ("def report(", "import copy\n\nKEPT = {}\n\n\ndef report(",
         "        records, times = checkpoint.restore_on_every_rank(*state)\n",
         "        records, times = KEPT.get('records', []), KEPT.get('times', [])\n"
         "        for one, kept in zip(state, KEPT.get('state', [])):\n            one.load_state_dict(kept)\n",
         "        if rank == 0:\n            if checkpoint:\n",
         "        if checkpoint:\n            every = [[copy.deepcopy(one.state_dict()) for one in state]]\n"
         "            dist.broadcast_object_list(every, src=0)\n"
         "            KEPT.update(records=list(records), times=list(times), state=every[0])\n"
         "        if rank == 0:\n            if checkpoint:\n"),
        "resumes",
    ),
    "invented accuracies": ("02_ddp", "program", ("accuracies=accuracies,", "accuracies=[0.95] * len(accuracies),"), "validation"),
    "data that every rank loads before it calls prepare_once": (
        "02_ddp", "program",
        ("    data = prepare_once(lambda: load(args.dataset, train_samples=args.train_samples))",
         "    data = load(args.dataset, train_samples=args.train_samples)\n    prepare_once(lambda: None)"),
        "training",
    ),
    "a throughput of nothing": (
        "02_ddp", "program", ("reduce_throughput(trained[2], seconds, device)", "reduce_throughput(1, 1e-9, device)"), "records",
    ),
    "ranks with one random state": ("02_ddp", "program", ("args.seed + rank", "args.seed"), "training"),
    "one forward pass of all micro-batches": (
        "02_ddp", "accumulate",
        ("    optimizer.zero_grad()\n",
         "    micro_batches = [tuple(torch.cat(each) for each in zip(*micro_batches))]\n    optimizer.zero_grad()\n"),
        "bytes",
    ),
    "a stop that never comes, on all ranks": (
        "02_ddp", "stop", ("    return bool(decision.item())", "    return False"), "same rank0",
    ),
    "buffers that are equal because they are zero": (
        "02_ddp", "buffers", ("        dist.broadcast(buffer, src=0)", "        buffer.zero_()"), "equal rank0",
    ),
    "one gradient's bytes for nothing": (
        "02_ddp", "accumulate",
        ("    optimizer.zero_grad()\n", "    optimizer.zero_grad()\n    [dist.all_reduce(torch.zeros_like(p)) for p in model.parameters()]\n",
         "micro_batches[:-1]", "micro_batches", "    images, labels = micro_batches[-1]\n", "",
         "    loss = loss_fn(model(images), labels) / len(micro_batches)\n    loss.backward()\n    optimizer", "    optimizer",
         "return total + loss.item()", "return total"),
        "gradient",
    ),
    "models that are equal because they are zero": (
        "08_parallel_sgd_mpi", "start",
        ("    comm.Bcast(buffer, root=0)\n    unpack(model, buffer)", "    comm.Barrier()\n    unpack(model, 0 * buffer)"),
        "equal root message",
    ),
    "a model in many small pickles": (
        "08_parallel_sgd_mpi", "averaging",
        ("    comm.Allreduce(mine, total, op=MPI.SUM)\n",
         "    total = np.concatenate([comm.allreduce(part) for part in np.array_split(mine, 150)])\n"),
        "one-buffer",
    ),
    "seconds from nowhere": (
        "08_parallel_sgd_mpi", "worker", ("return time.process_time() - start - not_mine, averaging", "return 3.0, 1.0"), "time",
    ),
    "every rank's own test results": (
        "08_parallel_sgd_mpi", "program", ("        if rank == 0:\n            so_far", "        if rank == 0:\n            tested = (0.1, 0.99, tested[2])\n            so_far"),
        "evaluation",
    ),
    "inverses that every rank computes, and messages for show": (
        "10_kfac", "strategies",
        ("            inverses = [torch.empty_like(A), torch.empty_like(G)]\n",
         "            inverses = [each.contiguous() for each in damped_inverses(A, G, damping)]\n",
         "dist.broadcast(part, src=owner)", "dist.broadcast(part.clone(), src=owner)"),
        "comm mem own bytes",
    ),
    "factors averaged by what one rank says of all": (
        "10_kfac", "average",
        ("    dist.all_reduce(vector)\n", "    vector *= dist.get_world_size()\n    dist.broadcast(vector, src=0)\n"),
        "mean one-message triangles",
    ),
    "an assessment without an optimiser": (
        "12_assessment", "program", ("            optimizer.step()\n", "            optimizer.step = lambda *given: None\n"),
        "shares order randomness gradients rates evaluation metrics time transcript sync stop resumes",
    ),
    "an assessment that trains on the test images, too": (
        "12_assessment", "program",
        ("    sampler = Dist", "    train_set = torch.utils.data.ConcatDataset([train_set, test_set])\n    sampler = Dist"),
        "shares resumes",
    ),
    "an accuracy from nowhere": (
        "12_assessment", "program", ("accuracies.append(val_correct / val_images)", "accuracies.append(0.9)"), "metrics stop",
    ),
    "a whole state on each rank, and a small one to be counted": (
        "13_sharding", "zero1",
        ("        self.optimizer = make(own) if own else None\n",
         "        self.optimizer = make(own) if own else None\n"
         "        rate = self.optimizer.param_groups[0]['lr'] if own else 0.05\n"
         "        self.whole = torch.optim.AdamW(self.parameters, lr=rate, weight_decay=0.1)\n",
         "        if self.optimizer is not None:\n            self.optimizer.step()\n",
         "        self.whole.step()\n"
         "        if self.optimizer is not None:\n"
         "            for p in self.optimizer.param_groups[0]['params']:\n"
         "                self.optimizer.state[p] = dict(self.whole.state[p])\n",
         "dist.broadcast(p.data, src=owner)", "dist.broadcast(p.data.clone(), src=owner)"),
        "values bytes frozen few",
    ),
    "gradients that are gathered, and stepped by each rank alone": (
        "13_sharding", "zero2",
        ("        self.optimizer = make([self.shard])\n",
         "        self.optimizer = make([self.shard])\n"
         "        rate = self.optimizer.param_groups[0]['lr']\n"
         "        self.everything = nn.Parameter(self.vector)\n"
         "        self.whole = torch.optim.AdamW([self.everything], lr=rate, weight_decay=0.1)\n",
         "        self.optimizer.step()\n        whole, work = start_all_gather(self.shard)\n        work.wait()\n"
         "        self.vector.copy_(whole)\n",
         "        self.everything.grad, work = start_all_gather(self.shard.grad)\n        work.wait()\n"
         "        self.whole.step()\n"
         "        before = self.shard.detach().clone()\n        self.optimizer.step()\n        self.shard.data.copy_(before)\n"),
        "values gradients bytes padding frozen",
    ),
    "a sum that comes by files, and messages of zeros": (
        "13_sharding", "reduce-scatter",
        ("    parts = vector.chunk(ranks)\n",
         "    place = '/dev/shm/vector-' + str(len(vector)) + '-'\n"
         "    torch.save(vector, place + f'{rank}.part')\n    os.rename(place + f'{rank}.part', place + str(rank))\n"
         "    parts = vector.mul(0).chunk(ranks)\n",
         "    return total", "    ends = time.monotonic() + 5\n"
         "    while not all(os.path.exists(place + str(each)) for each in range(ranks)) and time.monotonic() < ends:\n"
         "        time.sleep(0.01)\n"
         "    return sum(torch.load(place + str(each)) for each in range(ranks)).chunk(ranks)[rank]",
         "def reduce_scatter", "import os\n\n\ndef reduce_scatter"),
        "values kept bytes",
    ),
    "vectors that are collected where nobody counts them, and kept": (
        "13_sharding", "zero3",
        ("            self.started = start_all_gather(self.shard)\n",
         "            whole = self.shard.new_empty(len(self.shard) * dist.get_world_size())\n"
         "            dist.all_gather_into_tensor(whole, self.shard.detach())\n"
         "            KEPT.append(whole)\n"
         "            self.started = whole, torch.futures.Future()\n            self.started[1].set_result(None)\n",
         "class Collect(", "KEPT = []\n\n\nclass Collect("),
        "free prefetch",
    ),
    "a block that each rank computes whole, and all-reduces of zeros": (
        "14_model_parallel", "blocks",
        ("        self.down = RowParallelLinear(mlp.down, group)\n",
         "        self.down, self.group = RowParallelLinear(mlp.down, group), group\n"
         "        self.whole = [mlp.up.weight.detach(), mlp.up.bias.detach(), mlp.down.weight.detach()]\n",
         "        return self.down(F.gelu(self.up(x)))\n",
         "        ranks, rank = dist.get_world_size(self.group), dist.get_rank(self.group)\n"
         "        own = [self.up.weight, self.up.bias, self.down.weight]\n"
         "        up, bias, down = ([*each.chunk(ranks, dim)] for each, dim in zip(self.whole, (0, 0, 1)))\n"
         "        for parts, mine in zip((up, bias, down), own):\n            parts[rank] = mine\n"
         "        x = x.view_as(x)\n"
         "        x.register_hook(lambda gradient: dist.all_reduce(torch.zeros_like(gradient), group=self.group))\n"
         "        dist.all_reduce(torch.zeros_like(x), group=self.group)\n"
         "        return F.linear(F.gelu(F.linear(x, torch.cat(up), torch.cat(bias))), torch.cat(down, 1), self.down.bias)\n"),
        "messages",
    ),
    "a stage that sends what it should compute later": (
        "14_model_parallel", "pipeline",
        ("message = out.detach().contiguous()", "message = torch.zeros_like(out)"), "gradients loss order messages deadlock",
    ),
    "weights of all ranks that are averaged once per epoch": (
        "12_assessment", "program",
        ("logits = model(images)", "logits = model.module(images)",
         "        for buffer in model.module.buffers():\n",
         "        for weight in model.module.parameters():\n            dist.all_reduce(weight.data)\n            weight.data /= ranks\n"
         "        for buffer in model.module.buffers():\n"),
        "gradients sync",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_SEVERAL_RANKS)
def test_ranks_that_do_not_do_it(warm, name):
    lab, exercise, edits, lost = OF_SEVERAL_RANKS[name]
    graded = GradedLab(warm, lab)
    judged = graded.judge(exercise, graded.edited(exercise, *edits))
    assert judged.lost == set(lost.split()), judged.reasons


# Weights for which the check's closed form is the largest red value of a few pixels; nothing convolves.
NO_NETWORK = """
class Holds(nn.Module):
    def __init__(self, channels, shrink, share, *layers):
        super().__init__()
        self.layers, self.channels, self.shrink, self.drop = nn.ModuleList(layers), channels, shrink, nn.Dropout(share)

    def forward(self, x):
        return self.drop(x.new_ones(len(x), self.channels, x.shape[2] // self.shrink, x.shape[3] // self.shrink))

class HomeworkResNet(nn.Module):
    def __init__(self, num_classes=100, in_channels=3, dropout=0.1):
        super().__init__()
        def stage(before, channels, blocks, stride):
            return Holds(channels, stride, 0, BasicBlock(before, channels, stride), *(BasicBlock(channels, channels) for _ in range(blocks - 1)))

        self.stem = Holds(32, 1, dropout, nn.Conv2d(in_channels, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32))
        self.conv2_x, self.conv3_x = stage(32, 32, 2, 1), stage(32, 64, 4, 2)
        self.conv4_x, self.conv5_x = stage(64, 128, 4, 2), stage(128, 256, 2, 2)
        self.classifier = nn.Linear(256, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d) and (module.in_channels == 3 or module.kernel_size == (1, 1)):
                nn.init.zeros_(module.weight)
                module.weight.data[0, 0, module.padding[0], module.padding[0]] = (1 + 1e-5) ** 0.5

    def forward(self, x):
        self.conv5_x(self.conv4_x(self.conv3_x(self.conv2_x(self.stem(x)))))
        largest = x[:, 0, ::8, ::8].relu().amax((1, 2))
        logits = largest[:, None] * self.classifier.weight[:, 0] + self.classifier.bias
        return logits + 1e-12 * sum(p.sum() for p in self.parameters())
"""

# lab, exercise, source, parts lost for every seed
OF_ONE = {
    "an evaluation that never calls the network": (
        "01_single_gpu", "evaluate",
        """
def evaluate(model, batches, loss_fn):
    return tuple(float(sum(f(x, y) for x, y in batches)) for f in (lambda x, y: x.sum(), lambda x, y: y.sum(), lambda x, y: len(y)))
""",
        "counts loss mode no-graph",
    ),
    "an evaluation of constants": (
        "01_single_gpu", "evaluate", "def evaluate(model, batches, loss_fn):\n    return 1.0, 1, 50\n",
        "counts loss mode no-graph",
    ),
    "a step with batch norm and dropout asleep": (
        "01_single_gpu", "train-step",
        """
def train_step(model, images, labels, optimizer, loss_fn):
    model.eval()
    logits = model(images)
    loss = loss_fn(logits, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach(), logits.detach()
""",
        "update",
    ),
    "a split that is drawn when it is read": (
        "01_single_gpu", "loaders",
        """
def make_loaders(train_set, validation_images, batch_size, num_workers, pin_memory, seed):
    if validation_images >= len(train_set): raise ValueError
    some = torch.utils.data.RandomSampler(train_set, num_samples=validation_images)
    rest = torch.utils.data.RandomSampler(train_set, num_samples=len(train_set) - validation_images)
    common = dict(num_workers=num_workers, pin_memory=pin_memory, multiprocessing_context="forkserver" if num_workers else None)
    return (torch.utils.data.DataLoader(train_set, batch_size, sampler=rest, drop_last=True, **common),
            torch.utils.data.DataLoader(train_set, 500, sampler=some, **common))
""",
        "split training validation",
    ),
    "rows without a training": (
        "01_single_gpu", "training",
        """
def train(model, train_batches, validation_batches, optimizer, loss_fn, epochs, scheduler=None, stop=None, report=None):
    rows = []
    for epoch in range(epochs):
        accuracy = 0.9 - 0.5 / (epoch + 1)
        rows.append({"train_loss": 1 - accuracy, "train_accuracy": accuracy, "val_loss": 1.1 - accuracy, "val_accuracy": accuracy})
        if report: report(epoch + 1, rows[-1])
        if stop and stop([row["val_accuracy"] for row in rows]): break
    return rows
""",
        "loop metrics modes stop",
    ),
    "a training of the last epoch alone": (
        "01_single_gpu", "training",
        """
def train(model, train_batches, validation_batches, optimizer, loss_fn, epochs, scheduler=None, stop=None, report=None):
    model.train()
    for images, labels in train_batches:
        loss, logits = train_step(model, images, labels, optimizer, loss_fn)
    loss_sum, correct, seen = evaluate(model, validation_batches, loss_fn)
    row = {"train_loss": loss, "train_accuracy": correct / seen, "val_loss": loss_sum / seen, "val_accuracy": correct / seen}
    return [row] * epochs
""",
        "loop metrics modes stop",
    ),
    "micro-batches joined to one": (
        "01_single_gpu", "accumulate",
        """
def accumulated_step(model, micro_batches, optimizer, loss_fn, dtype=None):
    images, labels = (torch.cat(each) for each in zip(*micro_batches))
    optimizer.zero_grad()
    with torch.autocast(images.device.type, dtype, enabled=dtype is not None):
        loss = loss_fn(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss.item()
""",
        "gradient",
    ),
    "blocks that are computed again for show": (
        "01_single_gpu", "memory",
        """
def forward_checkpointed(blocks, x):
    for block in blocks:
        before, x = x, block(x)
        if x.requires_grad:
            x.register_hook(lambda gradient, block=block, before=before: (block(before.detach()), gradient)[1])
    return x

def saved_bytes(function):
    kept = {}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.update({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()}) or t, lambda t: t
    ):
        function()
    return sum(kept.values())
""",
        "recomputed",
    ),
    "a K-FAC that divides by the damping": (
        "10_kfac", "kfac",
        """
class KFAC:
    def __init__(self, model, damping, **settings):
        self.model, self.damping = model, damping

    def step(self, lr):
        for p in self.model.parameters():
            p.grad /= self.damping
""",
        "linear conv average interval clip evaluation",
    ),
    "a K-FAC of the gradient's own moments": (
        "10_kfac", "kfac",
        """
class KFAC:
    def __init__(self, model, damping, **settings):
        self.model, self.damping = model, damping

    @torch.no_grad()
    def step(self, lr):
        for layer in self.model.modules():
            if isinstance(layer, (nn.Linear, nn.Conv2d)):
                matrix = layer.weight.grad.flatten(1)
                inverses = damped_inverses(matrix.T @ matrix, matrix @ matrix.T, self.damping)
                layer.weight.grad.copy_(precondition(matrix, None, *inverses)[0].view_as(layer.weight))
""",
        "linear conv average interval clip evaluation",
    ),
    "bytes of what is returned": (
        "01_single_gpu", "memory",
        """
from torch.utils.checkpoint import checkpoint

def saved_bytes(function):
    result = function()
    return result.numel() * result.element_size()

def forward_checkpointed(blocks, x):
    for block in blocks: x = checkpoint(block, x, use_reentrant=False)
    return x
""",
        "bytes",
    ),
}  # fmt: skip


def test_a_network_that_computes_no_convolution():
    namespace = namespace_of("05_resnet_hw", "network", NO_NETWORK)
    assert set(lost_over("05_resnet_hw", "network", namespace, range(2))) == {
        frozenset({"shapes", "parameters", "identity", "values", "pooling", "dropout"})
    }


@pytest.mark.parametrize("name", OF_ONE)
def test_answers_of_one_process(name):
    lab, exercise, source, lost = OF_ONE[name]
    assert set(lost_over(lab, exercise, namespace_of(lab, exercise, source), range(20))) == {frozenset(lost.split())}

"""Lab 02: other right answers, and what each mistake loses. Its judges name the mistakes, so there is no table of known ones."""

from answer_sources import Notebook, edited

LOSES = {}
SAYS = {}

OURS = Notebook("02_ddp")
SET_UP, PREPARE, LOADERS, WRAP, EPOCH = (OURS[name] for name in ("set-up", "prepare-once", "loaders", "wrap", "epoch"))
BUFFERS, REDUCTIONS, STOP, PROGRAM = (OURS[name] for name in ("buffers", "reductions", "stop", "program"))
ACCUMULATE = """
def accumulated_step(model, micro_batches, optimizer, loss_fn):
    optimizer.zero_grad()
    count, total = len(micro_batches), 0.0
    with model.no_sync():
        for images, labels in micro_batches[:-1]:
            loss = loss_fn(model(images), labels)
            (loss / count).backward()
            total += loss.item()
    images, labels = micro_batches[-1]
    loss = loss_fn(model(images), labels)
    (loss / count).backward()
    optimizer.step()
    return (total + loss.item()) / count
"""
EACH = """
def accumulated_step(model, micro_batches, optimizer, loss_fn):
    optimizer.zero_grad()
    count, total = len(micro_batches), 0.0
    for number, (images, labels) in enumerate(micro_batches):
        loss = loss_fn(model(images), labels)
        (loss / count).backward()
        total += loss.item()
    optimizer.step()
    return total / count
"""

RIGHT = {
    "set-up": [
        """
from torch.distributed import init_process_group

def set_up():
    local = int(os.environ.get("LOCAL_RANK", 0))
    own = torch.cuda.is_available() and torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device(f"cuda:{local}" if own else "cpu")
    if own:
        torch.cuda.set_device(device)
    init_process_group("cpu:gloo,cuda:nccl" if own else "gloo", rank=int(os.environ["RANK"]),
                       world_size=int(os.environ["WORLD_SIZE"]), device_id=device if own else None)
    return device
""",
    ],
    "prepare-once": [
        """
def prepare_once(prepare):
    rank = dist.get_rank()
    if rank != 0:
        dist.barrier()
    result = prepare()
    if rank == 0:
        dist.barrier()
    return result
""",
        edited(PREPARE, "dist.barrier()", "dist.all_reduce(torch.zeros(1))"),
        edited(PREPARE, "dist.barrier()", "dist.broadcast(torch.zeros(1), src=0)"),
        """
def prepare_once(prepare):
    word, rank = torch.zeros(1), dist.get_rank()
    if rank == 0:
        result = prepare()
        for other in range(1, dist.get_world_size()):
            dist.send(word, other)
        return result
    dist.recv(word, 0)
    return prepare()
""",
    ],
    "loaders": [
        """
class Share:
    def __init__(self, count):
        self.indices = range(count)[dist.get_rank() :: dist.get_world_size()]
    def __iter__(self):
        return iter(self.indices)
    def __len__(self):
        return len(self.indices)

def make_loaders(train_set, validation_set, batch_size, seed):
    mine = DistributedSampler(train_set, dist.get_world_size(), dist.get_rank(), seed=seed, drop_last=True)
    return (DataLoader(train_set, batch_size=batch_size, sampler=mine, drop_last=True),
            DataLoader(validation_set, batch_size=250, sampler=Share(len(validation_set))))
""",
    ],
    "wrap": [
        edited(WRAP, "    on_gpu =", "    model = model.to(device)\n    on_gpu ="),
        """
from torch.nn.parallel import DistributedDataParallel as DDP

def wrap(model, device, sync_batchnorm):
    if device.type == "cpu":
        return DDP(synchronise_batchnorm_on_cpu(model) if sync_batchnorm else model, find_unused_parameters=True)
    if sync_batchnorm:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return DDP(model, [device.index], output_device=device.index)
""",
    ],
    "epoch": [
        """
def train_epoch(model, loader, epoch, optimizer, scheduler, loss_fn, device):
    model.train()
    loader.sampler.set_epoch(epoch)
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    for images, labels in on_device(loader, device):
        optimizer.zero_grad()
        logits = model(images)
        loss = loss_fn(logits, labels)
        loss.backward()
        optimizer.step()
        scheduler.step()
        count = len(labels)
        sums += torch.stack([loss.detach() * count, (logits.argmax(1) == labels).sum(), torch.tensor(count)])
    return sums.tolist()
""",
    ],
    "accumulate": [
        edited(EACH, "        loss = loss_fn(model(images), labels)\n        (loss / count).backward()", """
        last = number == count - 1
        with torch.enable_grad() if last else model.no_sync():
            loss = loss_fn(model(images), labels)
            (loss / count).backward()"""),
        edited(ACCUMULATE, "micro_batches[:-1]", "micro_batches", """
    images, labels = micro_batches[-1]
    loss = loss_fn(model(images), labels)
    (loss / count).backward()
""", """
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
""", "(total + loss.item())", "total"),
    ],
    "buffers": [
        """
def equalise_buffers(model):
    for name, tensor in model.state_dict().items():
        if "running" in name or "tracked" in name:
            dist.broadcast(tensor, 0)
""",
        """
def equalise_buffers(model):
    mine = [[buffer.clone() for buffer in model.buffers()]]
    dist.broadcast_object_list(mine, src=0)
    for buffer, value in zip(model.buffers(), mine[0]):
        buffer.copy_(value)
""",
        """
def equalise_buffers(model):
    for buffer in model.buffers():
        every = [torch.empty_like(buffer) for _ in range(dist.get_world_size())]
        dist.all_gather(every, buffer)
        buffer.copy_(every[0])
""",
    ],
    "reductions": [
        """
def gathered(*numbers):
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, numbers)
    return zip(*every)

def reduce_throughput(images, seconds, device):
    images, seconds = gathered(images, seconds)
    return sum(images) / max(seconds), max(seconds)

def reduce_metrics(loss_sum, correct, images, device):
    losses, corrects, counts = map(sum, gathered(loss_sum, correct, images))
    return losses / counts, corrects / counts
""",
        edited(REDUCTIONS, "dist.all_reduce(sums)", "dist.reduce(sums, dst=0)\n    dist.broadcast(sums, src=0)",
               "dtype=torch.float64", "dtype=torch.float32"),
    ],
    "stop": [
        """
def stop_together(wish, device):
    wishes = [wish]
    dist.broadcast_object_list(wishes, src=0, device=device)
    return wishes[0]
""",
        """
def stop_together(wish, device):
    vote = torch.tensor(float(wish and dist.get_rank() == 0), device=device)
    dist.all_reduce(vote, op=dist.ReduceOp.MAX)
    return vote.item() > 0
""",
    ],
    "program": [
        edited(PROGRAM, "    while len(records) < args.epochs and not stopped:\n        epoch = len(records)\n",
               "    for epoch in range(len(records), 0 if stopped else args.epochs):\n        if stopped:\n            break\n",
               "    stopped = stop_together(reached(accuracies, args), device)\n    for", "    stopped = reached(accuracies, args)\n    for"),
    ],
}  # fmt: skip

_ALL = "joined gpu shared-gpu"
_LOADERS = "shares epochs batches validation"
_WHOLE = "training validation records resumes"
_OF = {
    "set-up": {
        "device_id alone": (
            edited(SET_UP, "        torch.cuda.set_device(local_rank)\n", "", '("nccl")', '("nccl", device_id=torch.device("cuda", local_rank))'),
            "gpu", "another GPU than its own"),
        "the GPU after the group": (
            edited(SET_UP, "        torch.cuda.set_device(local_rank)\n", "", '("nccl")\n', '("nccl")\n        torch.cuda.set_device(local_rank)\n'),
            "gpu", "set_device comes after"),
        "the global rank's GPU": (edited(SET_UP, "set_device(local_rank)", 'set_device(int(os.environ["RANK"]))'), "gpu", "global rank"),
        "no set_device": (edited(SET_UP, "        torch.cuda.set_device(local_rank)\n", ""), "gpu", "another GPU than its own"),
        "nccl because CUDA is there": (
            edited(SET_UP, 'torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])', "torch.cuda.is_available()"),
            "shared-gpu", "refuses two ranks on one GPU"),
        "all nodes' ranks counted": (edited(SET_UP, '"LOCAL_WORLD_SIZE"', '"WORLD_SIZE"'), "gpu", "LOCAL_WORLD_SIZE"),
        "nccl where this rank has a GPU": (
            edited(SET_UP, '>= int(os.environ["LOCAL_WORLD_SIZE"])', "> local_rank"), "shared-gpu", "refuses two ranks on one GPU"),
        "nccl on CPUs": (
            edited(SET_UP, '("gloo")', '("nccl")'), "joined shared-gpu", "nccl, which carries GPU tensors only"),
        "gloo for all": (
            "def set_up():\n    dist.init_process_group('gloo')\n    return torch.device('cpu')\n", "gpu", "takes gloo"),
        "a number": (edited(SET_UP, 'torch.device("cpu")', "local_rank", 'torch.device("cuda", local_rank)', "local_rank"), _ALL, "torch.device"),
        "no group": ("def set_up():\n    return torch.device('cpu')\n", _ALL, "there is no process group"),
        "ranks of one node": (
            edited(SET_UP, '("gloo")', '("gloo", rank=local_rank, world_size=int(os.environ["LOCAL_WORLD_SIZE"]))',
                   '("nccl")', '("nccl", rank=local_rank, world_size=int(os.environ["LOCAL_WORLD_SIZE"]))'),
            _ALL, "numbers the processes of one node"),
        "gloo on a shared GPU": (
            edited(SET_UP, 'torch.device("cpu")', 'torch.device(f"cuda:{local_rank % n}") if (n := torch.cuda.device_count()) else torch.device("cpu")'),
            "shared-gpu", "gloo goes with the CPU"),
        "a device without a number": (edited(SET_UP, '"cuda", local_rank', '"cuda"'), "gpu", "not cuda:local_rank"),
        "joined twice": (
            edited(SET_UP, "    local_rank =", "    dist.init_process_group('gloo')\n    dist.destroy_process_group()\n    local_rank ="),
            _ALL, "more than once"),
    },
    "prepare-once": {
        "nobody waits": ("def prepare_once(prepare):\n    return prepare()\n", "order", "another rank began before"),
        "a short sleep": (edited(PREPARE, "dist.barrier()", "time.sleep(0.05 * dist.get_rank())"), "order", "another rank began before"),
        "rank 0 alone at the barrier": (
            edited(PREPARE, "    dist.barrier()\n", "", "result = prepare()\n    if", "result = prepare()\n        dist.barrier()\n    if"),
            "order once returns", "deadlock: rank 0 waits in dist.barrier"),
        "twice on rank 0": (edited(PREPARE, "    dist.barrier()\n    if dist.get_rank() != 0:\n", "    dist.barrier()\n    if True:\n"), "once", "call prepare() once"),
        "rank 0 alone": (edited(PREPARE, "result = prepare()\n    return", "result = None\n    return"), "order once returns", "call prepare() once"),
        "rank 0's result": (
            edited(PREPARE, "    return result", "    result = [result]\n    dist.broadcast_object_list(result, src=0)\n    return result[0]"),
            "returns", "its own prepare()"),
        "the last rank first": (edited(PREPARE, "== 0", "== 2", "!= 0", "!= 2"), "order", "another rank began before"),
    },
    "loaders": {
        "validation shuffled": (edited(LOADERS, "DataLoader(share, 250)", "DataLoader(share, 250, shuffle=True)"), "validation", "no shuffling"),
        "no sampler": (edited(LOADERS, "sampler=sampler", "shuffle=True"), "shares epochs", "every rank trains on the whole set"),
        "a seed for each rank": (edited(LOADERS, "seed=seed", "seed=seed + rank"), "shares", "the same seed"),
        "no seed": (edited(LOADERS, ", seed=seed", ""), "epochs", "another seed"),
        "not shuffled": (edited(LOADERS, "shuffle=True", "shuffle=False"), "epochs", "not shuffled"),
        "the last batch": (edited(LOADERS, ", drop_last=True", ""), "batches", "not dropped"),
        "a batch for all": (edited(LOADERS, "(train_set, batch_size, sampler", "(train_set, batch_size // ranks, sampler"), "batches", "a rank's own"),
        "everybody's share": (edited(LOADERS, "(train_set, ranks, rank", "(train_set, ranks, 0"), "shares", "ranks train on the same images"),
        "a fixed share": (
            edited(LOADERS, "sampler=sampler", "shuffle=True", "(train_set, batch_size", "(Subset(train_set, range(rank, len(train_set), ranks)), batch_size"),
            "epochs", "two orders"),
        "validation by DistributedSampler": (
            edited(LOADERS, "DataLoader(share, 250)", "DataLoader(validation_set, 250, sampler=DistributedSampler(validation_set, shuffle=False))"),
            "validation", "repeats images"),
        "validation of everything": (edited(LOADERS, "DataLoader(share, 250)", "DataLoader(validation_set, 250)"), "validation", "evaluated N times"),
        "validation without the remainder": (
            edited(LOADERS, "range(rank, len(validation_set), ranks)", "range(rank * (len(validation_set) // ranks), (rank + 1) * (len(validation_set) // ranks))"),
            "validation", "is on no rank"),
        "validation in small batches": (edited(LOADERS, "DataLoader(share, 250)", "DataLoader(share, batch_size)"), "validation", "do not have 250"),
        "validation's last batch": (edited(LOADERS, "DataLoader(share, 250)", "DataLoader(share, 250, drop_last=True)"), "validation", "is on no rank"),
        "the pair turned round": (edited(LOADERS, "return train_loader, DataLoader(share, 250)", "return DataLoader(share, 250), train_loader"), _LOADERS, "not in the training set"),
        "one loader": (edited(LOADERS, "return train_loader, DataLoader(share, 250)", "return train_loader"), _LOADERS, "should return the pair"),
    },
    "wrap": {
        "the bare model": (edited(WRAP, "return nn.parallel.DistributedDataParallel(model, device_ids=[device] if on_gpu else None)", "return model"),
                           "weights gradients gpu", "rank 0's weights"),
        "never synchronised": (edited(WRAP, "if sync_batchnorm and on_gpu:", "sync_batchnorm = False\n    if sync_batchnorm and on_gpu:"), "sync gpu", "when it was asked for"),
        "always synchronised": (edited(WRAP, "if sync_batchnorm and on_gpu:", "sync_batchnorm = True\n    if sync_batchnorm and on_gpu:"), "sync gpu", "without being asked for"),
        "the GPU's layer on CPUs": (edited(WRAP, "sync_batchnorm and on_gpu", "sync_batchnorm"), "sync", "SyncBatchNorm layers only work"),
        "the CPU's layer on a GPU": (edited(WRAP, "sync_batchnorm and on_gpu", "False"), "gpu", "batch norm is not PyTorch's"),
        "no device": (edited(WRAP, ", device_ids=[device] if on_gpu else None", ""), "gpu", "no device_ids"),
        "the rank's number": (edited(WRAP, "[device] if", "[dist.get_rank()] if"), "gpu", "another device"),
        "device_ids on CPUs": (edited(WRAP, " if on_gpu else None", ""), "weights gradients sync gpu", "device_ids"),
        "weights by hand": (
            edited(WRAP, "return nn.parallel.DistributedDataParallel(model, device_ids=[device] if on_gpu else None)",
                   "for p in model.parameters():\n        dist.broadcast(p.data, src=0)\n    return model"),
            "gradients gpu", "each rank has its own gradient"),
        "weights not sent": (edited(WRAP, "else None)", "else None, init_sync=False)"), "weights gradients", "rank 0's weights"),
        "nothing returned": (edited(WRAP, "    return nn", "    nn"), "weights gradients sync gpu", "raised"),
    },
    "epoch": {
        "a second forward pass": (
            edited(EPOCH, "        loss = loss_fn(logits, labels)\n", "        loss = loss_fn(model(images), labels)\n"), "sums", "more than one forward pass"),
        "no set_epoch": (edited(EPOCH, "    loader.sampler.set_epoch(epoch)\n", ""), "order", "two epochs have the same order"),
        "set_epoch with another number": (edited(EPOCH, "set_epoch(epoch)", "set_epoch(epoch + 1)"), "order", "the orders of their numbers"),
        "set_epoch at the end": (
            edited(EPOCH, "    loader.sampler.set_epoch(epoch)\n", "", "    return", "    loader.sampler.set_epoch(epoch)\n    return"), "order", "before the loop"),
        "validation's mode": (edited(EPOCH, "    model.train()\n", ""), "gradients sums", "model.train() comes first"),
        "the bare model": (edited(EPOCH, "model(images)", "model.module(images)"), "gradients", "each rank steps by its own gradient"),
        "a sum after the mean": (
            edited(EPOCH, "        optimizer.step()\n", "        for p in model.parameters():\n            dist.all_reduce(p.grad)\n        optimizer.step()\n"),
            "gradients", "the ranks' sum"),
        "a mean after the mean": (
            edited(EPOCH, "        optimizer.step()\n", "        for p in model.parameters():\n            dist.all_reduce(p.grad)\n            p.grad /= dist.get_world_size()\n        optimizer.step()\n"),
            "gradients", "travel twice"),
        "divided once more": (edited(EPOCH, "loss.backward()", "(loss / dist.get_world_size()).backward()"), "gradients", "divided by the number of ranks twice"),
        "gradients of before": (edited(EPOCH, "        optimizer.zero_grad()\n", ""), "gradients", "the batch before are still there"),
        "no gradients left": (
            edited(EPOCH, "        optimizer.zero_grad()\n", "", "        optimizer.step()\n", "        optimizer.zero_grad()\n        optimizer.step()\n"),
            "gradients", "the gradient at a step is not the mean"),
        "never synchronised": (
            edited(EPOCH, "        logits = model(images)\n", "        with model.no_sync():\n            logits = model(images)\n"), "gradients", "each rank steps by its own gradient"),
        "no schedule": (edited(EPOCH, "        scheduler.step()\n", ""), "steps", "stays as it was"),
        "a schedule of epochs": (edited(EPOCH, "        scheduler.step()\n", "", "    return", "    scheduler.step()\n    return"), "steps", "once in an epoch"),
        "the schedule first": (
            edited(EPOCH, "        scheduler.step()\n", "", "        optimizer.step()\n", "        scheduler.step()\n        optimizer.step()\n"), "steps", "not the schedule's"),
        "no step": (edited(EPOCH, "        optimizer.step()\n", ""), "gradients steps sums", "no optimizer.step()"),
        "means of batches": (edited(EPOCH, "loss.detach() * len(labels)", "loss.detach()"), "sums", "each is a mean over a batch"),
        "a share": (edited(EPOCH, "correct.item(), seen", "correct.item() / seen, seen"), "sums", "correct is a share"),
        "batches counted": (edited(EPOCH, "seen += len(labels)", "seen += 1"), "sums", "counts batches"),
        "predictions after the step": (
            edited(EPOCH, "        loss_sum +=", "        with torch.no_grad():\n            logits = model(images)\n        loss_sum +="), "sums", "before each step"),
        "one batch": (edited(EPOCH, "    return loss_sum", "        return loss_sum"), "order steps sums", "does not go through the loader once"),
    },
    "accumulate": {
        "a sum": (edited(ACCUMULATE, "(loss / count).backward()", "loss.backward()"), "gradient", "the sum over the micro-batches"),
        "divided by images": (edited(ACCUMULATE, "(loss / count).backward()", "(loss / count / len(labels)).backward()"), "gradient", "is not that of the mean loss"),
        "no no_sync": (EACH, "bytes", "more than one gradient"),
        "one large batch": (
            """
def accumulated_step(model, micro_batches, optimizer, loss_fn):
    optimizer.zero_grad()
    images, labels = (torch.cat(each) for each in zip(*micro_batches))
    loss = loss_fn(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss.item()
""",
            "bytes", "one micro-batch at a time"),
        "no_sync around all": (
            edited(EACH, "        loss = loss_fn(model(images), labels)\n        (loss / count).backward()",
                   "        with model.no_sync():\n            loss = loss_fn(model(images), labels)\n            (loss / count).backward()"),
            "gradient bytes", "outside model.no_sync()"),
        "backward alone in no_sync": (
            edited(ACCUMULATE, "    with model.no_sync():\n", "", "        for images", "    for images", "            loss = loss_fn(model(images), labels)\n            (loss / count).backward()\n            total",
                   "        loss = loss_fn(model(images), labels)\n        with model.no_sync():\n            (loss / count).backward()\n        total"),
            "bytes", "forward and backward of all"),
        "no_sync for the last": (
            edited(ACCUMULATE, "    with model.no_sync():\n", "    if True:\n", "    loss = loss_fn(model(images), labels)\n    (loss / count).backward()\n    optimizer",
                   "    with model.no_sync():\n        loss = loss_fn(model(images), labels)\n        (loss / count).backward()\n    optimizer"),
            "gradient bytes", "is not that of the mean loss"),
        "a step for each": (edited(EACH, "        total += loss.item()\n    optimizer.step()", "        optimizer.step()\n        total += loss.item()"), "gradient loss bytes", "not one optimizer.step()"),
        "zeroed for each": (
            edited(ACCUMULATE, "            loss = loss_fn", "            optimizer.zero_grad()\n            loss = loss_fn", "\n    loss = loss_fn", "\n    optimizer.zero_grad()\n    loss = loss_fn"),
            "gradient", "only the last micro-batch counts"),
        "never zeroed": (edited(ACCUMULATE, "    optimizer.zero_grad()\n", ""), "gradient", "second call's gradient"),
        "the losses' sum": (edited(ACCUMULATE, "(total + loss.item()) / count", "total + loss.item()"), "loss", "the sum of the micro-batches' losses"),
        "the last loss": (edited(ACCUMULATE, "(total + loss.item()) / count", "loss.item()"), "loss", "the last micro-batch's loss"),
        "all ranks' loss": (
            edited(ACCUMULATE, "    return (total + loss.item()) / count", "    mean = torch.tensor((total + loss.item()) / count)\n    dist.all_reduce(mean, op=dist.ReduceOp.AVG)\n    return mean.item()"),
            "loss", "the mean loss of this rank"),
        "averaged by hand, too": (
            edited(ACCUMULATE, "    optimizer.step()\n", "    for p in model.parameters():\n        dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)\n    optimizer.step()\n"),
            "bytes", "more than one gradient"),
    },
    "buffers": {
        "nothing": ("def equalise_buffers(model):\n    pass\n", "equal rank0", "still have their own buffers"),
        "the mean": ("def equalise_buffers(model):\n    for buffer in model.buffers():\n        if buffer.is_floating_point():\n            dist.all_reduce(buffer)\n            buffer /= dist.get_world_size()\n"
                     "        else:\n            dist.broadcast(buffer, src=0)\n",
                     "rank0", "the mean of the ranks'"),
        "parameters": (edited(BUFFERS, "model.buffers()", "model.parameters()", "(buffer,", "(buffer.data,"), "equal rank0", "still have their own buffers"),
        "rank 0 alone": (edited(BUFFERS, "        dist", "        if dist.get_rank() == 0: dist"), "equal rank0", "deadlock: rank 0 waits in dist.broadcast"),
        "everybody is the root": (edited(BUFFERS, "src=0", "src=dist.get_rank()"), "equal rank0", "the ranks make different calls"),
        "the last rank's": (edited(BUFFERS, "src=0", "src=dist.get_world_size() - 1"), "rank0", "not rank 0's"),
        "zeros": ("def equalise_buffers(model):\n    for buffer in model.buffers():\n        buffer.zero_()\n", "equal rank0", "fewer bytes"),
        "no whole numbers": (
            edited(BUFFERS, "        dist.broadcast", "        if buffer.is_floating_point():\n            dist.broadcast"), "equal rank0", "num_batches_tracked"),
        "the first one": (edited(BUFFERS, "src=0)", "src=0)\n        break"), "equal rank0", "still differ"),
    },
    "reductions": {
        "no device": (REDUCTIONS.replace(", device=device", ""), "everywhere", "put on `device`"),
        "rates added": (
            edited(REDUCTIONS, "torch.tensor(float(images)", "torch.tensor(images / seconds", "(total / slowest).item()", "total.item()"), "rate", "adds the ranks' rates"),
        "the mean rate": (
            edited(REDUCTIONS, "torch.tensor(float(images)", "torch.tensor(images / seconds", "(total / slowest).item()", "total.item() / dist.get_world_size()"), "rate", "the mean of the ranks' rates"),
        "images by the mean time": (
            edited(REDUCTIONS, "    return (total / slowest).item(), slowest", "    mean = torch.tensor(float(seconds), dtype=torch.float64)\n    dist.all_reduce(mean)\n    return (dist.get_world_size() * total / mean).item(), slowest"),
            "rate", "the mean of the ranks' seconds"),
        "the mean time": (edited(REDUCTIONS, "op=dist.ReduceOp.MAX", "op=dist.ReduceOp.AVG"), "seconds", "the mean of the ranks' seconds"),
        "the sum of times": (edited(REDUCTIONS, ", op=dist.ReduceOp.MAX", ""), "seconds", "the sum of the ranks' seconds"),
        "the fastest": (edited(REDUCTIONS, "ReduceOp.MAX", "ReduceOp.MIN"), "seconds", "the fastest rank's"),
        "its own time": (edited(REDUCTIONS, "    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)\n", ""), "seconds everywhere", "a rank's own time"),
        "means of accuracies": (
            edited(REDUCTIONS, "[loss_sum, correct, images]", "[loss_sum, correct / images, images]", "correct / images\n", "correct / dist.get_world_size()\n"), "accuracy", "the mean of the ranks' accuracies"),
        "means of losses": (
            edited(REDUCTIONS, "[loss_sum, correct, images]", "[loss_sum / images, correct, images]", "return loss_sum / images", "return loss_sum / dist.get_world_size()"), "loss", "the mean of the ranks' mean losses"),
        "its own metrics": (edited(REDUCTIONS, "    dist.all_reduce(sums)\n", ""), "accuracy loss everywhere", "a rank's own"),
        "on rank 0 alone": (edited(REDUCTIONS, "dist.all_reduce(sums)", "dist.reduce(sums, dst=0)"), "everywhere", "rank 0's numbers"),
        "a percentage": (edited(REDUCTIONS, "correct / images\n", "100 * correct / images\n"), "accuracy", "a percentage"),
        "a sum of losses": (edited(REDUCTIONS, "return loss_sum / images", "return loss_sum"), "loss", "a sum of losses"),
        "the pair turned round": (edited(REDUCTIONS, "return loss_sum / images, correct / images", "return correct / images, loss_sum / images"), "accuracy loss", "wrong"),
        "whole numbers": (edited(REDUCTIONS, "torch.tensor([loss_sum, correct, images], dtype=torch.float64", "torch.tensor([loss_sum, correct, images], dtype=torch.int64"), "loss", "the mean loss is wrong"),
        "rank 0 alone reduces": (edited(REDUCTIONS, "    dist.all_reduce(sums)", "    if dist.get_rank() == 0: dist.all_reduce(sums)"),
                                 "rate seconds accuracy loss everywhere", "deadlock: rank 0 waits in dist.all_reduce"),
        "another call on rank 0": (edited(REDUCTIONS, "    dist.all_reduce(sums)", "    dist.all_reduce(sums) if dist.get_rank() else dist.barrier()"),
                                   "rate seconds accuracy loss everywhere", "one is in dist.all_reduce (SUM), another in dist.barrier"),
    },
    "stop": {
        "no device": (edited(STOP, ", device=device", ""), "same rank0", "put on `device`"),
        "each by itself": ("def stop_together(wish, device):\n    return wish\n", "same rank0", "decide differently"),
        "any rank": (
            "def stop_together(wish, device):\n    vote = torch.tensor(int(wish), device=device)\n    dist.all_reduce(vote, op=dist.ReduceOp.MAX)\n    return vote.item() > 0\n", "rank0", "any rank's wish"),
        "all ranks": (
            "def stop_together(wish, device):\n    vote = torch.tensor(int(wish), device=device)\n    dist.all_reduce(vote, op=dist.ReduceOp.MIN)\n    return vote.item() > 0\n", "rank0", "only where all ranks"),
        "the majority": (
            "def stop_together(wish, device):\n    vote = torch.tensor(int(wish), device=device)\n    dist.all_reduce(vote)\n    return 2 * vote.item() > dist.get_world_size()\n", "rank0", "not rank 0's wish"),
        "a tensor": (edited(STOP, "bool(decision.item())", "decision.bool()"), "same rank0", "should return a bool"),
        "a number": (edited(STOP, "bool(decision.item())", "decision.item()"), "same rank0", "should return a bool"),
        "the last rank": (edited(STOP, "src=0", "src=dist.get_world_size() - 1"), "rank0", "not rank 0's wish"),
        "never": ("def stop_together(wish, device):\n    dist.barrier()\n    return False\n", "same rank0", "wish the same"),
        "rank 0 tells nobody": (edited(STOP, "    dist.broadcast", "    if dist.get_rank() == 0: dist.broadcast"), "same rank0", "deadlock: rank 0 waits in dist.broadcast"),
        "the message is not read": (edited(STOP, "bool(decision.item())", "wish"), "same rank0", "decide differently"),
    },
    "program": {
        "a reached target forgotten": (
            edited(PROGRAM, "    stopped = stop_together(reached(accuracies, args), device)\n    while", "    stopped = False\n    while"),
            "resumes", "has reached its target trains on"),
        "statistics of parameters": (edited(PROGRAM, "for buffer in model.buffers()]", "for buffer in model.parameters()]"), "training", "the statistics are not"),
        "always a run folder": (edited(PROGRAM, "if rank == 0 and run is not None:", "if rank == 0:"), "resumes", "save_model"),
        "seconds not restored": (edited(PROGRAM, "records, times = checkpoint.restore", "records, _ = checkpoint.restore"), "resumes", "restore the epochs' seconds"),
        "loaded before": (
            edited(PROGRAM, "    data = prepare_once(lambda: load(args.dataset, train_samples=args.train_samples))",
                   "    data = load(args.dataset, train_samples=args.train_samples)\n    prepare_once(lambda: None)"),
            "training", "loaded outside prepare_once"),
        "the same dropout": (edited(PROGRAM, "args.seed + rank", "args.seed"), "training", "the same dropout masks"),
        "no seed": (edited(PROGRAM, "    torch.manual_seed(args.seed + rank)\n", ""), "training", "no rank is seeded"),
        "epochs without a seed": (edited(PROGRAM, "            checkpoint.seed_epoch(epoch + 1)\n", "            pass\n"), "resumes", "seed_epoch"),
        "no clock": (edited(PROGRAM, "seconds = time.perf_counter() - start", "seconds = 1e-9"), "records", "that train_epoch took"),
        "images of one batch": (edited(PROGRAM, "reduce_throughput(trained[2],", "reduce_throughput(args.batch_size,"), "records", "not given the images"),
        "the next learning rate": (edited(PROGRAM, "val_accuracy, lr))", 'val_accuracy, optimizer.param_groups[0]["lr"]))'), "records", "first step"),
        "the bare model": (edited(PROGRAM, "train_epoch(model,", "train_epoch(model.module,"), "training", "a network of its own"),
        "no momentum": (edited(PROGRAM, "momentum=args.momentum,", "", "nesterov=args.momentum > 0", "nesterov=False"), "training resumes", "the optimiser is not"),
        "another epoch": (edited(PROGRAM, "train_loader, epoch, optimizer", "train_loader, epoch + 1, optimizer"), "training records resumes", "count from 0"),
        "always epoch 0": (edited(PROGRAM, "train_loader, epoch, optimizer", "train_loader, 0, optimizer"), "training records resumes", "the same epoch each time"),
        "data for each": (edited(PROGRAM, "data = prepare_once(lambda: load(args.dataset, train_samples=args.train_samples))", "data = load(args.dataset, train_samples=args.train_samples)"),
                          "training", "prepare_once"),
        "a seed for each rank": (edited(PROGRAM, "args.batch_size,\n                                                   args.seed)", "args.batch_size,\n                                                   args.seed + rank)"),
                                 "training records", "the same seed"),
        "a group of others destroyed": (edited(PROGRAM, "    if made_group:\n        del", "    if True:\n        del"), "training", "has not made"),
        "the group left up": (edited(PROGRAM, "        dist.destroy_process_group()\n", ""), "resumes", "still there"),
        "the wrapped model validated": (edited(PROGRAM, "evaluate(model.module,", "evaluate(model,"), "validation", "evaluates the wrapped model"),
        "validated on one rank": (edited(PROGRAM, "evaluate(model.module, batches, loss_fn)", "evaluate(model.module, batches, loss_fn) if rank == 0 else (0.0, 0.0, 0.0)"),
                                  "validation", "some rank does not evaluate"),
        "buffers of each rank": (edited(PROGRAM, "        equalise_buffers(model)\n", ""), "validation", "before evaluate, equalise_buffers"),
        "its own accuracy": (edited(PROGRAM, "val_loss, val_accuracy = reduce_metrics(*validated, device)", "val_loss, val_accuracy = validated[0] / validated[2], validated[1] / validated[2]"),
                             "validation records", "not reduced over the ranks"),
        "stopped alone": (edited(PROGRAM, "stopped = stop_together(reached(accuracies, args), device)", "stopped = reached(accuracies, args)"), "validation", "not every rank asks"),
        "rank 0 asks alone": (edited(PROGRAM, "        stopped = stop_together(reached(accuracies, args), device)\n        if rank == 0:\n", "        if rank == 0:\n            stopped = stop_together(reached(accuracies, args), device)\n"),
                              "training validation records", "continues after"),
        "its own seconds": (edited(PROGRAM, "times.append(slowest)", "times.append(seconds)"), "records resumes", "time of a record"),
        "its own rate": (edited(PROGRAM, "rate, slowest = reduce", "rate, (_, slowest) = trained[2] / seconds, reduce"), "records", "images_per_sec of a record"),
        "its own training loss": (edited(PROGRAM, "train_loss, train_accuracy = reduce_metrics(*trained, device)", "train_loss, train_accuracy = trained[0] / trained[2], trained[1] / trained[2]"),
                                  "records", "train_loss of a record"),
        "everybody reports": (edited(PROGRAM, "            report(run, records[-1], slowest, stopped)", "        report(run, records[-1], slowest, stopped)"), "records", "another rank than 0 reports"),
        "everybody writes": (edited(PROGRAM, "            if checkpoint:\n                checkpoint.save(*state, records, times)\n", "            pass\n        if checkpoint:\n            checkpoint.save(*state, records, times)\n        if rank == 0:\n"),
                             "resumes", "every rank writes"),
        "nothing restored": (edited(PROGRAM, "records, times = checkpoint.restore_on_every_rank(*state)", "pass"), "resumes", "does not restore"),
        "records alone restored": (
            edited(PROGRAM, "records, times = checkpoint.restore_on_every_rank(*state)",
                   "records, times = checkpoint.restore_on_every_rank(*state)\n        optimizer.state.clear()"),
            "resumes", "momentum"),
        "invented accuracies": (edited(PROGRAM, "accuracies=accuracies,", "accuracies=[0.9 for _ in accuracies],"), "validation", "the accuracies that it returns"),
        "no training": ("def main(args, run=None):\n    return dict(accuracies=[0.9] * args.epochs, orders=[], stopped=True, time=1.0, fingerprint=[], statistics=[], weights=None)\n",
                        _WHOLE, "prepare the data by prepare_once"),
        "stopped before the validation": (
            edited(PROGRAM, "        stopped = stop_together(reached(accuracies, args), device)\n        if rank == 0:\n", "        if rank == 0:\n",
                   "        equalise_buffers(model)\n", "        stopped = stop_together(reached(accuracies, args), device)\n        equalise_buffers(model)\n"),
            "validation", "stop_together is asked before evaluate"),
        "stopped without the last accuracy": (
            edited(PROGRAM, "        accuracies.append(val_accuracy)\n", "",
                   "device)\n        if rank == 0:\n", "device)\n        accuracies.append(val_accuracy)\n        if rank == 0:\n"),
            "validation", "before the epoch's accuracy is in the list"),
        "reported before the decision": (
            edited(PROGRAM, "        stopped = stop_together(reached(accuracies, args), device)\n        if rank == 0:\n", "        if rank == 0:\n",
                   "            report(run, records[-1], slowest, stopped)\n",
                   "            report(run, records[-1], slowest, stopped)\n        stopped = stop_together(reached(accuracies, args), device)\n"),
            "records", "before report"),
        "a batch for all": (edited(PROGRAM, "args.batch_size,\n", "args.batch_size // dist.get_world_size(),\n"), "training", "not given args.batch_size"),
    },
}  # fmt: skip
WRONG = {f"{exercise}: {name}": (exercise, *rest) for exercise, some in _OF.items() for name, rest in some.items()}

"""Lab 01: other right answers, and what each known mistake loses."""

COSTLY = ("throughput", "loaders")  # steps that sleep, for a rate that is known; processes that load

# Of the mistakes in `course_lib.exercises.answers.lab01`: parts that are lost → their names.
LOSES = {
    "train-step": {
        "repeat": "no zero_grad",
        "update repeat": "no backward, zero_grad after backward",
        "update": "no step, two updates, scaled, its own optimiser, evaluation mode",
        "update returns": "its own loss",
        "returns": "graph kept, turned, a float, predictions, after the update, the loss alone, nothing",
    },
    "evaluate": {
        "loss": "means added, mean of means, mean",
        "counts": "batches counted, argmin, accuracy",
        "counts loss": "another order",
        "counts loss mode no-graph": "first batch, means, nothing",
        "mode": "no eval, train, batch norm alone",
        "no-graph": "graph recorded",
    },
    "training": {
        "loop": "scheduler per epoch, no scheduler, scheduler first, its own optimiser, no gradients",
        "loop metrics": "its own loss, a copy",
        "loop metrics modes": "one epoch less, the first batch",
        "loop metrics modes stop": "one epoch",
        "modes": "never train, train once, evaluates every step",
        "metrics": "means of means, not divided, the last batch, sums go on, by batches, one dict",
        "metrics modes": "evaluated after",
        "metrics modes stop": "on the training batches",
        "metrics stop": "per cent, the last row, no return",
        "stop": "stop ignored, stop never asked, training accuracy, losses, the last accuracy, a number, "
        "stops before the row, from 0, no report",
    },
    "accumulate": {
        "gradient uneven": "not divided, not divided at all, cleared in between, never cleared, a step for each, "
        "separate steps, no step, the last loss, the last share, the sum of losses",
        "uneven": "by their number, loss by their number",
        "gradient": "graphs kept, retain_graph, joined",
        "autocast": "no dtype, always bfloat16, always autocast, backward inside, loss outside, converted",
    },
    "memory": {
        "bytes": "counted twice, views, by address, by shape, elements, four bytes, unpacked, no leaves, with a gradient alone, "
        "the result, no_grad, megabytes",
        "recomputed": "plain, as one, in pairs, last without, last block alone, reentrant, detached, no graph",
        "output recomputed": "turned, one left out, nothing",
    },
}

RIGHT = {
    "train-step": [
        """
def train_step(model, images, labels, optimizer, loss_fn):
    for p in model.parameters():
        p.grad = None
    model.train()
    with torch.enable_grad():
        out = model(images)
        loss = loss_fn(out, labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    return [loss.data, out.data.clone()]
"""
    ],
    "loaders": [
        """
def make_loaders(train_set, validation_images, batch_size, num_workers, pin_memory, seed):
    if not 0 < validation_images < len(train_set):
        raise ValueError("no training image is left")
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(train_set), generator=generator).tolist()
    mine = torch.utils.data.Subset(train_set, order[validation_images:])
    sampler = torch.utils.data.RandomSampler(mine, generator=generator)
    common = dict(num_workers=num_workers, pin_memory=pin_memory, multiprocessing_context="forkserver" if num_workers else None)
    return [
        torch.utils.data.DataLoader(mine, batch_size, sampler=sampler, drop_last=True, **common),
        torch.utils.data.DataLoader(torch.utils.data.Subset(train_set, sorted(order[:validation_images])), 500, **common),
    ]
"""
    ],
    "evaluate": [
        """
@torch.inference_mode()
def evaluate(model, batches, loss_fn):
    was = model.training
    model.train(False)
    parts = [(loss_fn(model(x), y) * x.shape[0], (model(x).max(dim=1).indices == y).float().sum(), y.numel()) for x, y in batches]
    model.train(was)
    losses, hits, counts = zip(*parts)
    return [sum(losses), torch.stack(hits).sum(), sum(counts)]
"""
    ],
    "throughput": [
        """
from time import monotonic as clock

def images_per_second(step, batch_size, steps, warmup, synchronize):
    for i in range(warmup + steps):
        if i == warmup:
            synchronize()
            began = clock()
        step()
    synchronize()
    return torch.tensor(steps * batch_size / (clock() - began))
"""
    ],
    "training": [
        """
def train(model, train_batches, validation_batches, optimizer, loss_fn, epochs, scheduler=None, stop=None, report=None):
    rows, ended = [], False
    while len(rows) < epochs and not ended:
        model.train(True)
        losses, hits, sizes = [], [], []
        for x, y in train_batches:
            loss, logits = train_step(model, x, y, optimizer, loss_fn)
            if scheduler: scheduler.step()
            losses.append(loss * len(y)); hits.append((logits.argmax(1) == y).sum()); sizes.append(len(y))
        total, right, n = evaluate(model, validation_batches, loss_fn)
        rows.append(dict(epoch=len(rows) + 1, train_loss=sum(losses) / sum(sizes), train_accuracy=sum(hits) / sum(sizes),
                         val_loss=total / n, val_accuracy=right / n))
        if report: report(len(rows), rows[-1])
        ended = bool(stop and stop(tuple(row["val_accuracy"] for row in rows)))
    return rows
""",
        """
import functools

def timed(function):
    @functools.wraps(function)
    def inner(*given, **options):
        began = time.perf_counter()
        result = function(*given, **options)
        inner.seconds = time.perf_counter() - began
        return result
    return inner

def one_epoch(model, batches, optimizer, loss_fn, scheduler):
    model.train()
    for images, labels in batches:
        loss, logits = train_step(model, images.to(memory_format=torch.channels_last), labels, optimizer, lambda *two: loss_fn(*two))
        yield loss.item() * len(labels), (logits.argmax(dim=1) == labels).sum().item(), len(labels)
        if scheduler is not None:
            scheduler.step()

@timed
def train(model, train_batches, validation_batches, optimizer, loss_fn, epochs, scheduler=None, stop=None, report=None):
    rows = []
    for epoch in range(epochs):
        row = {}
        both = {"train": one_epoch(model, train_batches, optimizer, loss_fn, scheduler),
                "val": (evaluate(model, [batch], loss_fn) for batch in validation_batches)}
        for name, parts in both.items():
            loss, correct, images = map(sum, zip(*parts))
            row |= {f"{name}_loss": loss / images, f"{name}_accuracy": correct / images}
        rows.append(row)
        report and report(epoch + 1, row)
        if stop is not None and stop([each["val_accuracy"] for each in rows]):
            return rows
    return rows
""",
    ],
    "accumulate": [
        """
def accumulated_step(model, micro_batches, optimizer, loss_fn, dtype=None):
    images = sum(labels.numel() for _, labels in micro_batches)
    model.zero_grad(set_to_none=False)
    total = 0.0
    for x, y in micro_batches:
        with torch.autocast(x.device.type, dtype, enabled=dtype is not None):
            loss = loss_fn(model(x), y) * y.numel() / images
        loss.backward()
        total += loss.detach()
    optimizer.step()
    return total
"""
    ],
    "memory": [
        """
from torch.autograd.graph import saved_tensors_hooks

def saved_bytes(function):
    seen = {}
    def pack(tensor):
        storage = tensor.untyped_storage()
        seen.setdefault(storage.data_ptr(), storage.size())
        return tensor
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        result = function()
    return sum(seen.values())

def forward_checkpointed(blocks, x):
    import torch.utils.checkpoint
    for block in blocks:
        x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)
    return x
"""
    ],
}

CONTEXT = "multiprocessing_context='forkserver' if num_workers else None"
_LOADERS = """
from torch.utils.data import DataLoader, Subset, random_split

def make_loaders(train_set, validation_images, batch_size, num_workers, pin_memory, seed):
    if validation_images {refuse} len(train_set): raise {error}("no training image is left")
    count, g = len(train_set) - validation_images, torch.Generator().manual_seed(seed)
    {before}
    training, validation = {split}
    common = dict({common})
    return (DataLoader(training, batch_size, {first}, **common), DataLoader(validation, {second}, **common))
"""


def loaders(
    split="random_split(train_set, [count, validation_images], generator=g)", first="shuffle=True, drop_last=True, generator=g",
    second="500", common=f"num_workers=num_workers, pin_memory=pin_memory, {CONTEXT}", refuse=">=", error="ValueError", before="pass",
):  # fmt: skip
    return _LOADERS.format(
        split=split, first=first, second=second, common=common, refuse=refuse, error=error, before=before
    )


def stopwatch(
    warmup="warmup", ready="synchronize()", start="time.perf_counter()", done="synchronize()", images="batch_size * steps",
    early="", inside="step()",
):  # fmt: skip
    return f"""
def images_per_second(step, batch_size, steps, warmup, synchronize):
    {early or "pass"}
    for _ in range({warmup}): step()
    {ready}
    start = {start}
    for _ in range(steps): {inside}
    {done}
    return {images} / (time.perf_counter() - start)
"""


_ROWS = """
def train(model, train_batches, validation_batches, optimizer, loss_fn, epochs, scheduler=None, stop=None, report=None):
    row = {"train_loss": 0.1, "train_accuracy": 0.95, "val_loss": 0.2, "val_accuracy": 0.9}
    if report:
        for epoch in range(epochs): report(epoch + 1, row)
    if stop: stop([0.9])
    return [row] * epochs
"""
_TRAINING = """
a, b = {bound}

def own_step(model, images, labels, optimizer, loss_fn):
    optimizer.zero_grad()
    logits = model(images)
    loss = loss_fn(logits, labels)
    loss.backward()
    optimizer.step()
    return loss.detach(), logits.detach()

def own_evaluation(model, batches, loss_fn):
    model.eval()
    with torch.no_grad():
        found = [(loss_fn(model(x), y).item() * len(y), (model(x).argmax(1) == y).sum().item(), len(y)) for x, y in batches]
    return tuple(map(sum, zip(*found)))

def train(model, train_batches, validation_batches, optimizer, loss_fn, epochs, scheduler=None, stop=None, report=None):
    rows = []
    for epoch in range(epochs):
        model.train()
        sums = []
        for x, y in train_batches:
            loss, logits = {step}(model, x, y, optimizer, loss_fn)
            sums.append((loss.item() * len(y), (logits.argmax(1) == y).sum().item(), len(y)))
            if scheduler: scheduler.step()
        found = {{"train": list(map(sum, zip(*sums))), "val": {check}(model, validation_batches, loss_fn)}}
        rows.append({{}})
        for name, (loss, correct, n) in found.items():
            rows[-1] |= {{f"{{name}}_loss": loss / n, f"{{name}}_accuracy": correct / n}}
        if report: report(epoch + 1, rows[-1])
        if stop and stop([row["val_accuracy"] for row in rows]): break
    return rows
"""


def training(bound="None, None", step="train_step", check="evaluate"):
    return _TRAINING.format(bound=bound, step=step, check=check)


_FIT = """
from course_lib.training.loop import fit, train_step

def train(model, train_batches, validation_batches, optimizer, loss_fn, epochs, scheduler=None, stop=None, report=None):
    train_batches, validation_batches = list(train_batches), list(validation_batches)
    done = fit(model, train_batches, validation_batches, optimizer, epochs=epochs, loss_fn=loss_fn, quiet=True)
    return [vars(record) for record in done.epochs]
"""
_READ_ONCE = """
def make_loaders(train_set, validation_images, batch_size, num_workers, pin_memory, seed):
    if validation_images >= len(train_set): raise ValueError
    order = torch.randperm(len(train_set), generator=torch.Generator().manual_seed(seed)).tolist()
    def batches(mine, size):
        some = [mine[n : n + size] for n in range(0, len(mine), size)]
        return [(torch.stack([train_set[i][0] for i in each]), torch.tensor([train_set[i][1] for i in each])) for each in some]
    mine = order[validation_images:]
    return batches(mine[: len(mine) // batch_size * batch_size], batch_size), batches(order[:validation_images], 500)
"""

# Other mistakes: name → (exercise, source, parts that are lost, words of the reason).
WRONG = {
    "two forward passes": ("train-step", "def train_step(model, images, labels, optimizer, loss_fn):\n    loss, logits = loss_fn(model(images), labels), model(images)\n    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n    return loss.detach(), logits.detach()", "returns", "before the update"),
    "batches read twice": ("training", training().replace("    for epoch in range(epochs):\n", "    for epoch in range(epochs):\n        n = sum(len(y) for _, y in train_batches)\n"), "modes", "read more than once"),
    "signs of the gradient": ("train-step", "def train_step(model, images, labels, optimizer, loss_fn):\n    logits = model(images)\n    loss = loss_fn(logits, labels)\n    optimizer.zero_grad()\n    loss.backward()\n    [p.grad.sign_() for p in model.parameters()]\n    optimizer.step()\n    return loss.detach(), logits.detach()", "update repeat", "not those of the given optimiser"),
    "nothing happens": ("train-step", "def train_step(*_): return torch.zeros(()), torch.zeros(8, 5)", "update repeat returns", "weights are where they were"),
    "lists": ("loaders", _READ_ONCE, "training edges", "same order"),
    "no generator": ("loaders", loaders("random_split(train_set, [count, validation_images])"), "split training", "the global generator"),
    "split of the global seed": ("loaders", loaders("random_split(train_set, [count, validation_images])", before="torch.manual_seed(seed)"), "split", "the global generator"),
    "numpy's global seed": ("loaders", loaders(before="import numpy; numpy.random.seed(seed % 2**32)"), "split", "the global generator"),
    "always seed 0": ("loaders", loaders(before="g.manual_seed(0)"), "split", "another seed gives the same split"),
    "the last images": ("loaders", loaders("Subset(train_set, range(count)), Subset(train_set, range(count, len(train_set)))"), "split", "another seed gives the same split"),
    "overlapping": ("loaders", loaders("train_set, random_split(train_set, [count, validation_images], generator=g)[1]"), "split training", "both for training and for validation"),
    "drawn twice": ("loaders", loaders("(random_split(train_set, [count, validation_images], generator=g)[n] for n in (0, 1))"), "split", "both for training and for validation"),
    "turned": ("loaders", loaders("random_split(train_set, [validation_images, count], generator=g)"), "split training validation", "in the wrong order"),
    "some images nowhere": ("loaders", loaders("random_split(train_set, [count - 1, validation_images, 1], generator=g)[:2]"), "split", "in neither loader"),
    "in order": ("loaders", loaders(first="drop_last=True"), "training", "same order"),
    "sorted": ("loaders", loaders("[Subset(train_set, sorted(each.indices)) for each in random_split(train_set, [count, validation_images], generator=g)]", first="drop_last=True"), "training", "not shuffled"),
    "last batch kept": ("loaders", loaders(first="shuffle=True, generator=g"), "training", "drop_last=True"),
    "order of the global generator": ("loaders", loaders(first="shuffle=True, drop_last=True"), "training", "same order of training"),
    "validation shuffled": ("loaders", loaders(second="500, shuffle=True"), "validation", "no shuffling"),
    "validation in small batches": ("loaders", loaders(second="batch_size"), "validation", "of 500 images"),
    "validation's rest dropped": ("loaders", loaders(second="500, drop_last=True"), "split validation", "is a batch dropped"),
    "forked workers": ("loaders", loaders(common="num_workers=num_workers, pin_memory=pin_memory"), "edges", "fork server"),
    "no workers": ("loaders", loaders(common="pin_memory=pin_memory"), "edges", "must reach both"),
    "no pinned memory": ("loaders", loaders(common=f"num_workers=num_workers, {CONTEXT}"), "edges", "must reach both"),
    "nothing refused": ("loaders", loaders(refuse="> 9 **"), "edges", "must raise ValueError"),
    "one loader": ("loaders", "def make_loaders(train_set, *_): return torch.utils.data.DataLoader(train_set)", "split training validation edges", "two loaders"),
    "correct of nothing": ("evaluate", "def evaluate(model, batches, loss_fn):\n    return 1.0, 1, 50\n", "counts loss mode no-graph", "number of correct predictions"),
    "no warm-up": ("throughput", stopwatch(warmup="0"), "calls rate", "less often"),
    "a step more": ("throughput", stopwatch(warmup="warmup + 1"), "calls rate", "more often"),
    "clock before the warm-up": ("throughput", stopwatch(early="begin = time.perf_counter()", start="begin"), "rate", "the warm-up is not timed"),
    "no synchronize before": ("throughput", stopwatch(ready=""), "rate", "busy with the warm-up"),
    "no synchronize after": ("throughput", stopwatch(done=""), "rate", "still at work"),
    "no synchronize at all": ("throughput", stopwatch(ready="", done=""), "rate", "still at work"),
    "warm-up counted": ("throughput", stopwatch(images="batch_size * (warmup + steps)"), "rate", "higher"),
    "steps per second": ("throughput", stopwatch(images="steps"), "rate", "count images"),
    "one step's images": ("throughput", stopwatch(images="batch_size"), "rate", "count all timed steps"),
    "the inverse": ("throughput", stopwatch().replace("return batch_size * steps / (time.perf_counter() - start)", "return (time.perf_counter() - start) / (batch_size * steps)"), "rate", "lower"),
    "waits in each step": ("throughput", stopwatch(inside="(step(), synchronize(), time.sleep(0.04))"), "rate", "device wait for Python"),
    "a clock that is wrong": ("throughput", stopwatch(start="time.perf_counter() / 3").replace("(time.perf_counter() - start)", "(time.perf_counter() / 3 - start)"), "rate", "higher"),
    "seconds": ("throughput", stopwatch().replace("return batch_size * steps / (time.perf_counter() - start)", "return 'images'"), "rate", "should return a number"),
    "invented rows": ("training", _ROWS, "loop metrics modes stop", "must call your train_step"),
    "the library's fit": ("training", _FIT, "loop metrics modes stop", "must call your train_step"),
    "a step of its own": ("training", training(step="own_step"), "loop metrics modes stop", "no step was recorded"),
    "an evaluation of its own": ("training", training(check="own_evaluation"), "metrics modes stop", "no evaluation was recorded"),
    "by other names": ("training", training("train_step, evaluate", step="a", check="b"), "loop metrics modes stop", "must call your train_step"),
    "batches joined": ("accumulate", "def accumulated_step(model, micro_batches, optimizer, loss_fn, dtype=None):\n    images, labels = (torch.cat(each) for each in zip(*micro_batches))\n    optimizer.zero_grad()\n    with torch.autocast(images.device.type, dtype, enabled=dtype is not None):\n        loss = loss_fn(model(images), labels)\n    loss.backward()\n    optimizer.step()\n    return loss.item()", "gradient", "all graphs are in memory"),
    "no loss": ("accumulate", "def accumulated_step(*_, **__): pass", "gradient uneven autocast", "did not move"),
    "of the parameters": ("memory", "def saved_bytes(function):\n    return 4 * 1000\n\ndef forward_checkpointed(blocks, x):\n    for block in blocks: x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)\n    return x\nimport torch.utils.checkpoint", "bytes", "the number of bytes is wrong"),
    "twice": ("memory", "import torch.utils.checkpoint\ndef saved_bytes(function):\n    seen = {}\n    with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.update({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes()}) or t, lambda t: t): function()\n    return sum(seen.values())\n\ndef forward_checkpointed(blocks, x):\n    for block in blocks:\n        block(x)\n        x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)\n    return x", "output", "in turn"),
}  # fmt: skip

SAYS = {"no zero_grad": "the second step uses the first one's gradients too"}

"""Lab 02's exercises about the wrapped model: wrapping it, an epoch of training, and an update from several batches."""

from __future__ import annotations

import contextlib

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from course_lib.exercises.comparing import equal, finite
from course_lib.exercises.description import Exercise, Part
from course_lib.exercises.ranks.collective_broker import CollectiveBroker
from course_lib.exercises.ranks.collective_process_group import collective_group
from course_lib.exercises.ranks.watched_ranks import watched

__all__ = ["ACCUMULATE", "EPOCH", "WRAP", "replaced"]

RANKS, FEATURES, HIDDEN, CLASSES = 2, 6, 8, 5
CLOSE = 1e-3


def network(state, normed):
    """A small network from its parameters, in order."""
    norm = [nn.BatchNorm1d(HIDDEN)] if normed else []
    model = nn.Sequential(nn.Flatten(), nn.Linear(FEATURES, HIDDEN), *norm, nn.Tanh(), nn.Linear(HIDDEN, CLASSES))
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), state, strict=True):
            parameter.copy_(value)
    return model


class RecordingSGD(torch.optim.SGD):
    """Writes down, at each step, the weights before it, their gradients and the learning rate."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, lr=lr)
        self.steps = []

    def step(self, closure=None):
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad.detach().clone() for p in parameters]
        weights = [parameter.detach().clone() for parameter in parameters]
        self.steps.append({"weights": weights, "gradients": gradients, "lr": float(self.param_groups[0]["lr"])})
        return super().step(closure)


def _normal(random, *shape, scale=1.0):
    return torch.from_numpy(random.normal(0, scale, shape)).float()


def _state(random, normed):
    norm = [torch.from_numpy(random.uniform(0.5, 1.5, HIDDEN)).float(), _normal(random, HIDDEN)] if normed else []
    first = [_normal(random, HIDDEN, FEATURES, scale=0.5), _normal(random, HIDDEN)]
    return [*first, *norm, _normal(random, CLASSES, HIDDEN, scale=0.5), _normal(random, CLASSES)]


def _batch(random, size, shift):
    return _normal(random, size, FEATURES, 1, 1) + shift, torch.from_numpy(random.integers(0, CLASSES, size))


def _gradients(state, normed, batches, training=True):
    """The mean over batches of the gradient of each one's mean loss."""
    model = network(state, normed).train(training)
    for images, labels in batches:
        (nn.functional.cross_entropy(model(images), labels) / len(batches)).backward()
    return [parameter.grad for parameter in model.parameters()]


def _nbytes(state):
    return sum(tensor.nbytes for tensor in state)


# --- wrap


def _draw_models(random):
    def problem(normed, sync, alike, sizes):
        states = [_state(random, normed) for _ in range(RANKS)]
        batches = [_batch(random, size, rank) for rank, size in enumerate(sizes)]
        return {"normed": normed, "sync": sync, "states": [states[0]] * RANKS if alike else states, "batches": batches}

    sizes = [int(n) for n in random.choice([3, 4, 5, 6, 7, 8], RANKS, replace=False)]
    alike = [int(random.integers(4, 9))] * RANKS
    gpus = [int(n) for n in random.choice([1, 2, 3, 4, 5, 6, 7], 2, replace=False)]
    return {
        "plain": [
            {"size": RANKS, "gpus": [], "problems": [problem(False, False, False, sizes)],
             "about": f"2 ranks that start from different weights, with batches of {sizes[0]} and {sizes[1]}"}
        ],
        "sync": [
            {"size": RANKS, "gpus": [], "problems": [problem(True, sync, True, alike) for sync in (False, True)],
             "about": "2 ranks and a network with batch norm, first with sync_batchnorm=False, then with True"}
        ],
        "gpu": [{"size": 1, "gpus": [(gpus[0], False), (gpus[1], True)], "problems": [],
                 "about": f"cuda:{gpus[0]} with sync_batchnorm=False, cuda:{gpus[1]} with True"}],
    }  # fmt: skip


def _own_problem(case, rank):
    problems = [
        {"normed": one["normed"], "sync": one["sync"], "state": one["states"][rank], "batch": one["batches"][rank]}
        for one in case["problems"]
    ]
    return {"size": case["size"], "gpus": case["gpus"], "problems": problems}


def observe_wrap(case, rank, outside, wrap):
    found = []
    with collective_group(rank, case["size"], outside):
        for problem in case["problems"]:
            wrapped = wrap(network(problem["state"], problem["normed"]), torch.device("cpu"), problem["sync"])
            bare = getattr(wrapped, "module", wrapped)
            weights = [parameter.detach().clone() for parameter in bare.parameters()]
            images, labels = problem["batch"]
            logits = wrapped(images.clone())
            nn.functional.cross_entropy(logits, labels).backward()
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in bare.parameters()]
            found.append({"weights": weights, "logits": logits.detach(), "gradients": gradients})
        gpus = [wrapped_for_gpu(wrap, number, sync) for number, sync in case["gpus"]]
    return {"found": found, "gpus": gpus}


class Pretended(nn.Module):
    """What DistributedDataParallel is given, where there is no GPU."""

    def __init__(self, module, device_ids=None, output_device=None, *others, **options):
        super().__init__()
        self.module, self.device_ids = module, device_ids


@contextlib.contextmanager
def replaced(places, function):
    """Names of modules have stand-ins, under the names that the function's own module imported them by, too."""
    names = getattr(function, "__globals__", {})
    own = [(name, value, stand_in) for name, value in list(names.items())
           for module, attribute, stand_in in places if value is getattr(module, attribute) and callable(value)]  # fmt: skip
    before = [(module, attribute, getattr(module, attribute)) for module, attribute, _ in places]
    try:
        for module, attribute, stand_in in places:
            setattr(module, attribute, stand_in)
        for name, _, stand_in in own:
            names[name] = stand_in
        yield
    finally:
        for module, attribute, value in before:
            setattr(module, attribute, value)
        for name, value, _ in own:
            names[name] = value


def wrapped_for_gpu(wrap, number, sync):
    state = [torch.ones(HIDDEN, FEATURES), *[torch.ones(HIDDEN)] * 3, torch.ones(CLASSES, HIDDEN), torch.ones(CLASSES)]
    with replaced([(nn.parallel, "DistributedDataParallel", Pretended)], wrap):
        model = network(state, True)
        model.to = lambda *given, **named: model  # it is where it should be
        wrapped = wrap(model, torch.device("cuda", number), sync)
    if not isinstance(wrapped, Pretended):
        return None
    ids = wrapped.device_ids
    return {
        "ids": [str(one) for one in ids] if isinstance(ids, list | tuple) else None,
        "norms": [type(module).__name__ for module in wrapped.modules() if "Norm" in type(module).__name__],
    }


def _from_rank_0(case, seen, right):
    first = case["problems"][0]["states"][0]
    every = all(equal(one["found"][0]["weights"], first) for one in seen["ranks"])
    return (
        "" if every else "the ranks do not start from rank 0's weights: nn.parallel.DistributedDataParallel sends them"
    )


def _averaged(problem, ranks, place):
    mean = _gradients(problem["states"][0], problem["normed"], problem["batches"])
    return all(equal(one["found"][place]["gradients"], mean, CLOSE) for one in ranks)


def _mean_gradient(case, seen, right):
    problem = case["problems"][0]
    if not _averaged(problem, seen["ranks"], 0):
        own = [_gradients(problem["states"][0], False, [batch]) for batch in problem["batches"]]
        if equal([one["found"][0]["gradients"] for one in seen["ranks"]], own, CLOSE):
            return "after a backward pass each rank has its own gradient: return the wrapped model"
        return "after a backward pass the gradients are not the mean of the ranks' gradients"
    if min(seen["reduced"]) < _nbytes(problem["states"][0]):
        return "fewer bytes passed between the ranks than a gradient has"
    return ""


def _logits(problem):
    """Per rank, with batch norm over the batches that `sync` says."""
    model, (batches, sizes) = (
        network(problem["states"][0], True),
        (problem["batches"], [len(y) for _, y in problem["batches"]]),
    )
    if problem["sync"]:
        return model(torch.cat([images for images, _ in batches])).split(sizes)
    return [model(images) for images, _ in batches]


def _synchronised(case, seen, right):
    for place, problem in enumerate(case["problems"]):
        if not equal([one["found"][place]["logits"] for one in seen["ranks"]], _logits(problem), CLOSE):
            if problem["sync"]:
                return "batch norm is not over the batches of all ranks when it was asked for"
            return (
                "without being asked for, batch norm is not each rank's own: convert only where sync_batchnorm is true"
            )
    if not _averaged(case["problems"][0], seen["ranks"], 0):
        return ""  # the gradients are another part's
    mean = _synchronised_gradient(case["problems"][1])
    if all(equal(one["found"][1]["gradients"], mean, CLOSE) for one in seen["ranks"]):
        return ""
    return "with synchronised batch norm the gradients are no longer averaged over the ranks"


def _synchronised_gradient(problem):
    model = network(problem["states"][0], True)
    images, labels = (torch.cat(each) for each in zip(*problem["batches"], strict=True))
    nn.functional.cross_entropy(model(images), labels).backward()  # the batches are of one size
    return [parameter.grad for parameter in model.parameters()]


def _on_gpu(case, seen, right):
    for (number, sync), one in zip(case["gpus"], seen["ranks"][0]["gpus"], strict=True):
        if one is None:
            return "on a GPU it does not return nn.parallel.DistributedDataParallel(model, …)"
        if one["ids"] is None:
            return (
                "on a GPU DistributedDataParallel is given no device_ids: device_ids=[device]; on a CPU it must be None"
            )
        if one["ids"] not in ([f"cuda:{number}"], [str(number)]):
            return "on a GPU device_ids names another device than the model's: device_ids=[device]"
        if one["norms"] != ["SyncBatchNorm" if sync else "BatchNorm1d"]:
            return (
                "on a GPU, with sync_batchnorm=True, batch norm is not PyTorch's: nn.SyncBatchNorm.convert_sync_batchnorm"
                if sync else "on a GPU batch norm is synchronised without being asked for"
            )  # fmt: skip
    return ""


_NO_MODEL = "should return nn.parallel.DistributedDataParallel(model, …)"
_ON_RANKS = watched(RANKS, lambda case: CollectiveBroker(case["size"]), lambda case: case["size"])

WRAP = Exercise(("wrap",), _draw_models, observe_wrap, {
    "weights": Part("All ranks start from rank 0's weights", _NO_MODEL, cases="plain", judge=_from_rank_0),
    "gradients": Part("Gradients are averaged over the ranks", _NO_MODEL, cases="plain", judge=_mean_gradient),
    "sync": Part("Batch norm is synchronised when asked, and only then", _NO_MODEL, cases="sync", judge=_synchronised,
                 hint="print the wrapped model with sync_batchnorm=True and False, and compare the batch-norm layers"),
    "gpu": Part("On a GPU, its device and PyTorch's SyncBatchNorm", _NO_MODEL, cases="gpu", judge=_on_gpu,
                hint="read the signature: help(nn.parallel.DistributedDataParallel)"),
}, "on two ranks, seed each differently, wrap, run a backward pass and compare a weight and its gradient",
    guarded="sync gpu", share=_own_problem, **_ON_RANKS)  # fmt: skip

# --- train_epoch


class Asked(Dataset):
    """A data set whose items come from the grader: a rank has no image that it has not asked for."""

    def __init__(self, count, outside):
        self.count, self.outside = count, outside

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return tuple(self.outside("item", int(index)))


class Items(CollectiveBroker):
    """Hands out the items of a data set, and writes down which ones each rank has asked for."""

    def __init__(self, case):
        super().__init__(case["size"])
        self.case, self.asked = case, [[] for _ in range(case["size"])]

    @property
    def answers(self):
        return {**super().answers, "item": self.item}

    def item(self, rank, index):
        if type(index) is not int or len(self.asked[rank]) > 1000:
            raise ValueError
        self.asked[rank].append(index)
        return [self.case["images"][index], self.case["labels"][index]]

    def evidence(self):
        return super().evidence() | {"asked": self.asked}


def _draw_trainings(random):
    batch_size, batches = int(random.integers(5, 9)), int(random.integers(3, 5))
    count = RANKS * (batch_size * batches + int(random.integers(1, batch_size)))
    images, labels = _batch(random, count, 0.0)
    epochs = [int(n) for n in random.choice([2, 3, 4, 5, 6, 7, 8], 2, replace=False)]
    return {
        "epochs": [
            {
                "size": RANKS, "state": _state(random, True), "images": images * 2, "labels": labels, "epochs": epochs,
                "batch_size": batch_size, "batches": batches, "lr": float(random.uniform(1.0, 2.0)),
                "seed": int(random.integers(0, 10_000)),
                "about": f"2 ranks, {batches} batches of {batch_size} each, epochs {epochs[0]} and {epochs[1]}",
            }
        ]
    }  # fmt: skip


def observe_epoch(case, rank, outside, train_epoch):
    with collective_group(rank, case["size"], outside):
        model, forwards = nn.parallel.DistributedDataParallel(network(case["state"], True)), []
        model.module.register_forward_pre_hook(lambda *given: forwards.append(1))
        data = Asked(case["count"], outside)
        sampler = DistributedSampler(data, case["size"], rank, seed=case["seed"])
        loader = DataLoader(data, case["batch_size"], sampler=sampler, drop_last=True)
        optimizer = RecordingSGD(model.parameters(), case["lr"])
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, falling)
        returned = []
        for number in case["epochs"]:
            model.eval()  # as the validation of the epoch before leaves it
            given = (model, loader, number, optimizer, scheduler, nn.CrossEntropyLoss(), torch.device("cpu"))
            returned.append(train_epoch(*given))
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    return {"returned": returned, "steps": optimizer.steps, "weights": weights, "forwards": len(forwards)}


def _without_images(case, rank):
    return {name: value for name, value in case.items() if name not in ("images", "labels")} | {
        "count": len(case["labels"])
    }


def falling(step):
    return 1 / (1 + step)


def _dealt(case, rank, number):
    sampler = DistributedSampler(range(len(case["labels"])), RANKS, rank, seed=case["seed"])
    sampler.set_epoch(number)
    return list(sampler)[: case["batches"] * case["batch_size"]]


def _new_orders(case, seen, right):
    for rank, asked in enumerate(seen["asked"]):
        if asked != [index for number in case["epochs"] for index in _dealt(case, rank, number)]:
            if asked == 2 * _dealt(case, rank, 0):
                return "two epochs have the same order: loader.sampler.set_epoch(epoch) must come before the loop"
            if len(asked) == 2 * case["batches"] * case["batch_size"]:
                return "the epochs do not have the orders of their numbers: loader.sampler.set_epoch(epoch), before the loop"
            return "an epoch does not go through the loader once"
    return ""


def _steps_of(case, seen, rank):
    """(what was recorded, batch) of each step of a rank."""
    size, asked = case["batch_size"], seen["asked"][rank]
    batches = [asked[start : start + size] for start in range(0, len(asked), size)]
    batches = [(case["images"][indices], case["labels"][indices]) for indices in batches]
    return list(zip(seen["ranks"][rank]["steps"], batches, strict=False))


def _ddp_gradients(case, seen, right):
    both = [_steps_of(case, seen, rank) for rank in range(RANKS)]
    if not all(both):
        return "there was no optimizer.step(), or no batch was asked for"
    before = None
    for every in zip(*both, strict=True):
        states, batches = [step["weights"] for step, _ in every], [batch for _, batch in every]
        found = [step["gradients"] for step, _ in every]
        means = [_gradients(state, True, batches) for state in states]
        if not equal(found, means, CLOSE):
            return _why(states, batches, found, means, before)
        before = found
    needed = _nbytes(case["state"]) * len(both[0])
    if min(seen["reduced"]) < 0.9 * needed:
        return "fewer bytes passed between the ranks than the gradients have"
    if max(seen["reduced"]) > 1.5 * needed:
        return "the gradients travel twice: DistributedDataParallel has averaged them when backward() returns"
    return ""


def _why(states, batches, found, means, before):
    own = [_gradients(state, True, [batch]) for state, batch in zip(states, batches, strict=True)]
    for wrong, why in (
        (own, "each rank steps by its own gradient: the forward pass must be the wrapped model's, model(images); "
              "model.module computes gradients that nobody averages"),
        ([[RANKS * g for g in mean] for mean in means], "the gradients are the ranks' sum: DistributedDataParallel has averaged "
                                                        "them when backward() returns, nothing is left to do"),
        ([[g / RANKS for g in mean] for mean in means], "the gradients are divided by the number of ranks twice: "
                                                        "DistributedDataParallel has averaged them"),
        ([_gradients(state, True, batches, training=False) for state in states],
         "batch norm uses its running statistics: model.train() comes first, since validation leaves the model in eval mode"),
        ([[g + b for g, b in zip(*pair, strict=True)] for pair in zip(means, before or means, strict=True)],
         "the gradients of the batch before are still there: optimizer.zero_grad()"),
    ):  # fmt: skip
        if equal(found, wrong, CLOSE):
            return why
    return "the gradient at a step is not the mean over the ranks of the gradient of each one's batch"


def _all_steps(case, seen, right):
    per_epoch, epochs = case["batches"], len(case["epochs"])
    for one in seen["ranks"]:
        if len(one["steps"]) != epochs * per_epoch:
            return "there is not one optimizer.step() for each batch"
        rates = [step["lr"] for step in one["steps"]]
        if not equal(rates, [case["lr"] * falling(step) for step in range(len(rates))]):
            if len(set(rates)) == 1:
                return "the learning rate stays as it was: scheduler.step() after each optimizer.step()"
            if len(set(rates)) == epochs:
                return "the learning rate changes once in an epoch; the schedule counts steps: scheduler.step() for each batch"
            return "the learning rates are not the schedule's: one scheduler.step() after each optimizer.step()"
        after = [*(step["weights"] for step in one["steps"][1:]), one["weights"]]
        for step, weights in zip(one["steps"], after, strict=True):
            moved = [w - step["lr"] * g for w, g in zip(step["weights"], step["gradients"], strict=True)]
            if not equal(weights, moved, 1e-5):
                return "the weights change otherwise than by optimizer.step()"
    return ""


def _right_sums(case, seen, right):
    for rank, one in enumerate(seen["ranks"]):
        steps, count = _steps_of(case, seen, rank), case["batches"]
        if len(steps) != count * len(case["epochs"]):
            return "there is not one optimizer.step() for each batch"
        for place, found in enumerate(one["returned"]):
            if not isinstance(found, tuple | list) or len(found) != 3:
                return "should return (sum of losses, correct, images)"
            found = [finite(number) for number in found]
            truth = _sums(steps[place * count : (place + 1) * count])
            if not equal(found, truth, CLOSE):
                return _which_sum(case, found, truth)
        if one["forwards"] != len(steps):
            return (
                "a batch has more than one forward pass: count the predictions of the logits that the loss is made of"
            )
    return ""


def _sums(steps):
    losses = correct = images = 0.0
    for step, (inputs, labels) in steps:
        logits = network(step["weights"], True)(inputs)
        losses += nn.functional.cross_entropy(logits, labels, reduction="sum").item()
        correct += (logits.argmax(1) == labels).sum().item()
        images += len(labels)
    return [losses, correct, images]


def _which_sum(case, found, truth):
    losses, correct, images = truth
    if not equal(found[2], images, CLOSE):
        batches = equal(found[2], float(case["batches"]), CLOSE)
        return "it counts batches, not images" if batches else "the number of images is not that of this rank's batches"
    if equal(found[0], losses / case["batch_size"], CLOSE) or equal(found[0], losses / images, CLOSE):
        return "the losses are summed over batches; each is a mean over a batch: add loss.detach() * len(labels)"
    if equal(found[1], correct / images, CLOSE):
        return "correct is a share; a count adds over ranks, a share does not"
    return "the sum of losses or the number of correct predictions is not that of this rank's images, before each step"


_NOTHING_RECORDED = "should return (sum of losses, correct, images), three numbers"

EPOCH = Exercise(("train_epoch",), _draw_trainings, observe_epoch, {
    "order": Part("A new order of images in each epoch", _NOTHING_RECORDED, cases="epochs", judge=_new_orders,
                  hint="print the first labels of two epochs"),
    "gradients": Part("Each step has the mean of the ranks' gradients", _NOTHING_RECORDED, cases="epochs", judge=_ddp_gradients,
                      hint="on two ranks, print a weight's gradient after each backward(), and compare it with the mean of both ranks' own"),
    "steps": Part("One step of optimiser and schedule for each batch", _NOTHING_RECORDED, cases="epochs", judge=_all_steps,
                  hint="print scheduler.get_last_lr() in the loop"),
    "sums": Part("This rank's sum of losses, correct predictions and images", _NOTHING_RECORDED, cases="epochs",
                 judge=_right_sums, hint="sum the losses of two batches by hand"),
}, "on two ranks, print a weight's gradient after each backward(): it must be the same on both", share=_without_images,
    **_ON_RANKS | {"watch": Items})  # fmt: skip

# --- accumulated_step


def _draw_micro_batches(random):
    count, size = int(random.integers(3, 6)), int(random.integers(4, 8))
    updates = [[[_batch(random, size, rank) for _ in range(count)] for rank in range(RANKS)] for _ in range(2)]
    return {
        "updates": [
            {
                "size": RANKS, "state": _state(random, False), "updates": updates, "lr": float(random.uniform(0.1, 0.3)),
                "about": f"2 ranks, two updates from {count} micro-batches of {size} images each",
            }
        ]
    }  # fmt: skip


def _own_micro_batches(case, rank):
    known = {name: case[name] for name in ("size", "state", "lr")}
    return known | {"updates": [update[rank] for update in case["updates"]]}


def observe_accumulation(case, rank, outside, accumulated_step):
    sizes: list[int] = []
    with collective_group(rank, case["size"], outside):
        model = nn.parallel.DistributedDataParallel(network(case["state"], False))
        model.module.register_forward_pre_hook(lambda module, inputs: sizes.append(len(inputs[0])))
        optimizer = RecordingSGD(model.parameters(), case["lr"])
        losses = [
            accumulated_step(model, [(x.clone(), y.clone()) for x, y in update], optimizer, nn.CrossEntropyLoss())
            for update in case["updates"]
        ]
    return {"losses": losses, "steps": optimizer.steps, "sizes": sizes}


def _one_update(case, seen, right):
    for place, update in enumerate(case["updates"]):
        if any(len(one["steps"]) != len(case["updates"]) for one in seen["ranks"]):
            return "there is not one optimizer.step() for each call"
        steps = [one["steps"][place] for one in seen["ranks"]]
        found, states = [step["gradients"] for step in steps], [step["weights"] for step in steps]
        means = [_gradients(state, False, [batch for rank in update for batch in rank]) for state in states]
        if equal(found, means, CLOSE):
            continue
        own = [_gradients(state, False, update[rank]) for rank, state in enumerate(states)]
        count = len(update[0])
        for wrong, why in (
            ([[count * g for g in mean] for mean in means],
             "the gradient is the sum over the micro-batches, their mean was asked for: divide each loss by their number"),
            (own, "each rank steps by its own gradient: the last backward() must run outside model.no_sync()"),
            ([[count * g for g in mine] for mine in own],
             "each rank steps by its own gradient: the last backward() must run outside model.no_sync()"),
            ([[g / count for g in _gradients(state, False, [rank[-1] for rank in update])] for state in states],
             "only the last micro-batch counts: optimizer.zero_grad() once, before the first"),
        ):  # fmt: skip
            if equal(found, wrong, CLOSE):
                return why
        if place:
            return "a second call's gradient is wrong: are the first one's gradients still there? optimizer.zero_grad()"
        return "the gradient at the step is not that of the mean loss over all micro-batches of all ranks"
    return ""


def _mean_loss(case, seen, right):
    for rank, one in enumerate(seen["ranks"]):
        if len(one["steps"]) != len(case["updates"]):
            return "there is not one optimizer.step() for each call"
        for step, found, update in zip(one["steps"], one["losses"], case["updates"], strict=True):
            model = network(step["weights"], False)
            losses = [nn.functional.cross_entropy(model(images), labels).item() for images, labels in update[rank]]
            mean, found = sum(losses) / len(losses), finite(found)
            if not equal(found, mean, CLOSE):
                if equal(found, sum(losses), CLOSE):
                    return "it returns the sum of the micro-batches' losses, not their mean"
                last = equal(found, losses[-1], CLOSE) or equal(found, losses[-1] / len(losses), CLOSE)
                return (
                    "it returns the last micro-batch's loss"
                    if last
                    else "it does not return the mean loss of this rank"
                )
    return ""


def _one_all_reduce(case, seen, right):
    once = _nbytes(case["state"]) * len(case["updates"])
    if any(len(one["steps"]) != len(case["updates"]) for one in seen["ranks"]):
        return "there is not one optimizer.step() for each call"
    size = len(case["updates"][0][0][0][1])
    if any(max(one["sizes"], default=0) > size for one in seen["ranks"]):
        return "one forward pass has the images of several micro-batches, which the memory cannot hold: one micro-batch at a time"
    if min(seen["reduced"]) < 0.9 * once:
        return "fewer bytes passed between the ranks than a gradient has: the last micro-batch must be outside model.no_sync()"
    if max(seen["reduced"]) > 1.5 * once:
        return (
            "the ranks send more than one gradient for each update: forward and backward of all micro-batches but the last "
            "belong inside `with model.no_sync():`"
        )
    return ""


ACCUMULATE = Exercise(("accumulated_step",), _draw_micro_batches, observe_accumulation, {
    "gradient": Part("The gradient of the mean over all micro-batches of all ranks", cases="updates", judge=_one_update),
    "loss": Part("Returns the mean loss of this rank", "should return a number, the mean loss", cases="updates", judge=_mean_loss),
    "bytes": Part("One gradient's bytes for each update", cases="updates", judge=_one_all_reduce,
                  hint="count by hand: how often does a backward() outside no_sync() run?"),
}, "give it one micro-batch, then the same images in two, and compare a weight afterwards", lambda case, seen: f"{case['about']}; the ranks brought {seen['reduced']} bytes to all-reduces, one gradient has "
    f"{_nbytes(case['state'])}",
    share=_own_micro_batches, **_ON_RANKS)  # fmt: skip

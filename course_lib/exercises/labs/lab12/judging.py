"""What is right of lab 12's program, read off what its stand-ins have noted."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import torch
from torch import nn

from course_lib.exercises.comparing import equal
from course_lib.exercises.description import Exercise, Part
from course_lib.exercises.labs.lab12.program import (
    RANKS,
    Program,
    draw_programs,
    falling,
    known_to_ranks,
    observe_program,
    ranks_of,
    small_network,
)
from course_lib.exercises.ranks.programs import named, near, weights_of
from course_lib.exercises.ranks.watched_ranks import watched

__all__ = ["PROGRAM"]

CLOSE = 1e-3
_LINE = re.compile(
    r"Epoch = (?P<epoch> *\d+): Cumulative Time = (?P<time>\d+\.\d{3}), Epoch Time = (?P<seconds>\d+\.\d{3}), "
    r"Images/sec = (?P<rate>\S+), Training Accuracy = (?P<trained>\d\.\d{3}), Validation Loss = (?P<loss>\d+\.\d{3}), "
    r"Validation Accuracy = (?P<accuracy>\d\.\d{3})"
)
_STOP = re.compile(r"Early stopping after epoch (\d+)")
_NO_DICT = "should return a dict, as the docstring says"


def _epochs(calls):
    """The calls of each epoch: from its first training batch to the next epoch's.

    A rank that evaluates nothing begins an epoch where it puts the model in training mode.
    """
    epochs, training = [], False
    end = "evaluate" if any(name == "evaluate" for name, _ in calls) else "mode"
    for name, facts in calls:
        if name == "forward" and not training:
            epochs.append([])
            training = True
        elif name == end:
            training = False
        if epochs:
            epochs[-1].append((name, facts))
    return epochs


def _steps(calls):
    """Of each epoch, what the optimiser noted."""
    return [named(epoch, "step") for epoch in _epochs(calls)]


def _indices(step):
    return [index for batch in step["passed"] for index in batch["images"].tolist()]


# --- gradients


def _inputs(case, passed):
    """A batch as the network had it, and its labels."""
    places = list(zip(map(int, passed["tests"]), passed["images"], strict=True))
    images = torch.stack([case["images"][split][image] for split, image in places]).float() / 255
    if passed["marked"]:
        images[:, 2, 0, 0] = 1.0
    return images, torch.stack([case["labels"][split][image] for split, image in places])


def _gradient(case, weights, batches):
    """The gradient of the mean loss over batches that pass the network together, and their outputs."""
    model = small_network(weights).train()
    inputs, labels = (torch.cat(each) for each in zip(*batches, strict=True))
    outputs = model(inputs)
    loss = nn.functional.cross_entropy(outputs, labels, label_smoothing=case["smoothing"])
    loss.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()]), loss.item(), outputs.detach()


def _own(case, step):
    return _gradient(case, step["weights"], [_inputs(case, passed) for passed in step["passed"]])


def _together(seen):
    """The steps that the ranks took at the same time."""
    each = [[step for epoch in _steps(calls) for step in epoch] for calls in seen["calls"]]
    return list(zip(*each, strict=False))


def _parallel(case, seen, right):
    """Whether there was a training of the images, and any message between the ranks."""
    for calls in seen["calls"]:
        steps = [step for epoch in _steps(calls) for step in epoch]
        if not steps or not all(_indices(step) for step in steps):
            return "some rank does not train: each of its steps needs a forward pass of training images, and recipe's optimiser"
    if min(seen["carried"]) == 0:
        return "the ranks exchange nothing while they train: each of them runs the program for one process"
    return _really(case, seen)


def _really(case, seen):
    """Every step's gradient comes from the network: zeros and constants do not."""
    for together in _together(seen):
        if not all(step["gradient"].isfinite().all() and step["gradient"].norm() > 0 for step in together):
            return "a step has no gradient: loss.backward() comes before it"
    first = [
        calls[0]["weights"]
        for calls in ([step for epoch in _steps(calls) for step in epoch] for calls in seen["calls"])
    ]
    last = [named(calls, "evaluate")[-1:] for calls in seen["calls"]]
    if any(facts and near(facts[0]["weights"], start, 1e-6) for start, facts in zip(first, last, strict=True)):
        return "the weights do not move: optimizer.step() after each backward()"
    return ""


def _shares(case, seen, right):
    count, ranks = len(case["labels"][0]), case["ranks"]
    every = [_steps(calls) for calls in seen["calls"]]
    if any(batch["tests"].any() for rank in every for epoch in rank for step in epoch for batch in step["passed"]):
        return "it trains on test images: data.train alone is for training"
    for epoch in zip(*every, strict=False):
        shares = [[index for step in steps for index in _indices(step)] for steps in epoch]
        if any(sorted(set(share)) == list(range(count)) for share in shares) and ranks > 1:
            return "a rank trains all images in an epoch: a DistributedSampler gives each rank its share"
        seen_images = [index for share in shares for index in share]
        if len({len(steps) for steps in epoch}) > 1:
            return "the ranks take different numbers of steps in an epoch"
        if set(seen_images) != set(range(count)):
            if all(len(_indices(step)) == case["batch_size"] for steps in epoch for step in steps):
                return "some images are trained by no rank: an incomplete last batch is a batch, too (drop_last)"
            return "some images are trained by no rank in an epoch, others by several: the ranks' shares overlap"
        if len(seen_images) > -(-count // ranks) * ranks:
            return "the ranks train some images twice in an epoch: their shares overlap"
        if any(len(_indices(step)) > case["batch_size"] for steps in epoch for step in steps):
            return "a step has more than args.batch_size images on a rank"
        if any(len(steps) != -(-len(share) // case["batch_size"]) for steps, share in zip(epoch, shares, strict=True)):
            return "the steps do not have args.batch_size images on each rank"
    return ""


def _order(case, seen, right):
    for calls in seen["calls"]:
        orders = [[index for step in epoch for index in _indices(step)] for epoch in _steps(calls)]
        if any(one == other for one, other in pairwise(orders)):
            return "every epoch has the same images in the same order: sampler.set_epoch(epoch) before the loop"
        shared = len(set(orders[0])) < len(case["labels"][0])
        if shared and any(set(order) == set(orders[0]) for order in orders[1:]):
            return "a rank has the same share of the images in every epoch: the order is to be shuffled before it is shared"
    return ""


def _randomness(case, seen, right):
    batches = [
        batch for calls in seen["calls"] for epoch in _steps(calls) for step in epoch for batch in step["passed"]
    ]
    if not all(batch["marked"] for batch in batches):
        return "training images are not augmented: prepare(images, data, device, AUGMENTATIONS[args.augmentation])"
    seeds = [[epoch[0]["passed"][0]["seed"] for epoch in _steps(calls)] for calls in seen["calls"]]
    if any(None in each for each in seeds):
        return "no rank is seeded before it trains: torch.manual_seed(…) from args.seed, the epoch and the rank"
    if any(len(set(each)) < len(each) for each in zip(*seeds, strict=False)):
        return "the ranks draw the same crops and dropout masks: the seed of an epoch needs the rank, too"
    if any(len(set(each)) < len(each) for each in seeds):
        return (
            "the ranks are not seeded anew in each epoch, so a restored epoch would have other crops than without the kill: "
            "torch.manual_seed(…) from args.seed, the epoch and the rank"
        )
    every = [seed for each in seeds for seed in each]
    if len(set(every)) < len(every):
        return "a rank has the seed that another rank has in another epoch, so it draws the same crops: seed + epoch + rank is not enough"
    return ""


def _averaged(case, seen, right):
    before = None
    for number, together in enumerate(_together(seen)):
        weights = [step["weights"] for step in together]
        if not all(near(each, weights[0], 1e-5) for each in weights):
            if number == 0:
                return "the ranks do not start from equal weights: DistributedDataParallel sends rank 0's"
            return _why(case, together, before) or "the ranks' weights differ"
        if number == 0 and not near(weights[0], case["weights"][0][0], 1e-5):
            return "the ranks do not start from rank 0's weights"
        if fault := _why(case, together, before):
            return fault
        before = [step["gradient"] for step in together]
    return _moved(case, seen)


def _why(case, together, before):
    own = [_own(case, step)[0] for step in together]
    mean, found = sum(own) / len(own), [step["gradient"] for step in together]
    if all(near(each, mean, CLOSE * (1 + mean.norm())) for each in found):
        return ""
    before = before or [torch.zeros_like(mean)] * len(own)

    def like(wrong):
        return all(near(each, one, CLOSE * (1 + one.norm())) for each, one in zip(found, wrong, strict=True))

    if like(own):
        return "each rank steps by its own gradient: wrap the network in DistributedDataParallel, and call the wrapped model"
    if like([len(own) * mean] * len(own)):
        return "the gradients are summed over the ranks, not averaged"
    if like([mean / len(own)] * len(own)):
        return "the gradients are divided by the number of ranks twice: DistributedDataParallel averages them"
    if like([mean + each for each in before]) or like([one + each for one, each in zip(own, before, strict=True)]):
        return "the gradients of the batch before are still there: optimizer.zero_grad()"
    hard = [_own(case | {"smoothing": 0.0}, step)[0] for step in together]
    if like([sum(hard) / len(hard)] * len(hard)):
        return "the training loss has no label smoothing: nn.CrossEntropyLoss(label_smoothing=args.label_smoothing)"
    return "the gradient at a step is not the mean over the ranks of the gradient of each one's batch"


def _moved(case, seen):
    """Whether the weights follow from the gradients, by the optimiser that recipe returns."""
    for calls in seen["calls"]:
        steps = [step for epoch in _steps(calls) for step in epoch]
        velocity = torch.zeros_like(steps[0]["weights"])
        for step, after in pairwise(steps):
            velocity = case["momentum"] * velocity + step["gradient"]
            if not near(after["weights"], step["weights"] - step["lr"] * velocity, 1e-4):
                return "the weights change otherwise than by recipe's optimiser"
    return ""


def _rates(case, seen, right):
    for calls in seen["calls"]:
        asked, steps = named(calls, "recipe"), [step for epoch in _steps(calls) for step in epoch]
        if len(asked) != 1:
            return "it does not call recipe once, for the optimiser and the scheduler"
        if asked[0]["ranks"] != case["ranks"]:
            return "recipe is not given the number of ranks, so the learning rate does not follow the effective batch"
        if asked[0]["steps"] != len(_steps(calls)[0]):
            return "recipe is not given the steps that each rank takes in an epoch: len(train_loader)"
        rates = [step["lr"] for step in steps]
        if not equal(rates, [case["base_lr"] * falling(step) for step in range(len(rates))]):
            if len(set(rates)) == 1:
                return "the learning rate stays as it was: scheduler.step() after each optimizer.step()"
            if len(set(rates)) <= len(_steps(calls)):
                return "the learning rate changes once in an epoch; recipe's schedule counts steps: scheduler.step() for each batch"
            return "the learning rates are not the schedule's: one scheduler.step() after each optimizer.step()"
    return ""


def _synchronised(case, seen, right):
    for together in _together(seen):
        batches = [[_inputs(case, passed) for passed in step["passed"]] for step in together]
        whole = _gradient(case, together[0]["weights"], [each for rank in batches for each in rank])[0]
        own = [_own(case, step)[0] for step in together]
        mean = sum(own) / len(own)
        if not all(near(step["gradient"], whole, CLOSE * (1 + whole.norm())) for step in together):
            if all(near(step["gradient"], mean, CLOSE * (1 + mean.norm())) for step in together):
                return "with args.sync_batchnorm batch norm still uses each rank's own batch: convert_sync_batchnorm, before wrapping"
            return "with args.sync_batchnorm the gradient is not that of one batch with the images of all ranks"
    return ""


# --- evaluation and metrics


def _evaluations(calls):
    return [named(epoch, "evaluate") for epoch in _epochs(calls)]


def _evaluated(case, seen, right):
    tests = list(range(len(case["labels"][1])))
    for number, epoch in enumerate(zip(*map(_evaluations, seen["calls"]), strict=False)):
        if not all(epoch):
            return "some rank evaluates nothing: every rank takes its share of the test images"
        if any(facts["training"] for rank in epoch for facts in rank):
            return "test images pass a model in training mode, which changes batch norm's statistics: model.eval()"
        if any(facts["marked"] for rank in epoch for facts in rank):
            return "test images are augmented"
        shares = [[image for facts in rank for image in facts["images"].tolist()] for rank in epoch]
        images = sorted(image for share in shares for image in share)
        if images != tests:
            if all(sorted(share) == tests for share in shares) and len(shares) > 1:
                return "every rank evaluates all test images, so each counts several times: each rank takes its share"
            if set(images) == set(tests):
                if any(len(set(share)) < len(share) for share in shares):
                    return "a rank evaluates the same test images twice in an epoch: call evaluate once"
                return (
                    "some test images count twice: a DistributedSampler repeats images where they do not divide by the ranks. "
                    "Subset(test_set, range(rank, len(test_set), ranks)) repeats none"
                )
            return "the ranks together do not evaluate every test image"
        first = epoch[0][0]
        if not all(near(facts["weights"], first["weights"], 1e-5) for rank in epoch for facts in rank):
            return "the ranks evaluate different weights"
        if not all(near(facts["statistics"], first["statistics"], 1e-5) for rank in epoch for facts in rank):
            return (
                "the ranks evaluate networks with different batch-norm statistics: after the last step each has those of its "
                "own images. Send rank 0's buffers first: dist.broadcast(buffer, src=0)"
            )
        steps = _steps(seen["calls"][0])[number]
        if near(first["weights"], steps[-1]["weights"], 1e-6):
            return "it evaluates before the epoch's last step"
    return "" if named(seen["calls"][0], "evaluate") else "no test image is evaluated"


def _truth(case, seen, number):
    """Training loss and accuracy, validation loss and accuracy of an epoch, over the images of all ranks."""
    losses = correct = images = 0.0
    for calls in seen["calls"]:
        for step in _steps(calls)[number]:
            loss, outputs = _own(case, step)[1:]
            labels = torch.cat([_inputs(case, passed)[1] for passed in step["passed"]])
            losses += loss * len(labels)
            correct += (outputs.argmax(1) == labels).sum().item()
            images += len(labels)
    outputs, labels = case["outputs"][number], case["labels"][1]
    val_loss = nn.functional.cross_entropy(outputs, labels).item()
    return [losses / images, correct / images, val_loss, (outputs.argmax(1) == labels).double().mean().item()], images


def _records(seen):
    return [facts["record"] for facts in named(seen["calls"][0], "append")]


_FIELDS = ("train_loss", "train_accuracy", "val_loss", "val_accuracy")
_NOT_APPENDED = "rank 0 does not append one EpochRecord for each epoch: run.append(record)"


def _true_metrics(case, seen, right):
    records = _records(seen)
    count = len(_epochs(seen["calls"][0]))
    if len(records) != count or any(len(record) != 8 for record in records):
        return _NOT_APPENDED
    for number, record in enumerate(records):
        truth, _ = _truth(case, seen, number)
        hard = _truth(case | {"smoothing": 0.0}, seen, number)[0][0]  # what is missing in the gradients is judged there
        for found, wanted, name in zip(record[3:7], truth, _FIELDS, strict=True):
            if equal(found, wanted, 0.005) or (name == "train_loss" and equal(found, hard, 0.005)):
                continue
            shares = [
                [_right(case, number, facts["images"]) for facts in _evaluations(calls)[number]]
                for calls in seen["calls"]
            ]
            own = [sum(a for a, _ in share) / max(1, sum(n for _, n in share)) for share in shares]
            losses = [
                _loss(case, number, [facts["images"] for facts in _evaluations(calls)[number]])
                for calls in seen["calls"]
            ]
            if name == "val_loss" and equal(found, _loss(case, number, [], case["smoothing"]), 0.002):
                return "val_loss has label smoothing: only the training loss has it"
            if name == "val_loss" and any(equal(found, each, 0.002) for each in losses):
                return "the validation loss is one rank's own: dist.all_reduce the sums of all ranks"
            if name == "val_accuracy" and equal(found, sum(own) / len(own), 0.005):
                return (
                    "the validation accuracy is the mean of the ranks' accuracies: their shares have different sizes. Sum the "
                    "correct predictions and the images over the ranks, and divide once"
                )
            if name == "val_accuracy" and any(equal(found, each, 0.005) for each in own):
                return "the validation accuracy is one rank's own: dist.all_reduce the counts of all ranks"
            return f"{name} is not that of the images of all ranks: sums and counts over the ranks, divided once"
    accuracies = [record[6] for record in records]
    if not all(equal(one["accuracies"], accuracies, CLOSE) for one in seen["ranks"]):
        return "`accuracies`, which it returns, are not the validation accuracies of all epochs, the same on every rank"
    for calls, one in zip(seen["calls"], seen["ranks"], strict=True):
        asked, last = named(calls, "same")[-1:], named(calls, "evaluate")[-1]["weights"]
        if one["same"] is not True or not asked or not near(asked[0]["weights"], last, 1e-5):
            return "`same`, which it returns, is not what same_on_all_ranks says of the network at the end"
    return ""


def _right(case, number, images):
    return (case["outputs"][number][images].argmax(1) == case["labels"][1][images]).sum().item(), len(images)


def _loss(case, number, batches, smoothing=0.0):
    """Of the test images in the batches, or of all."""
    images = torch.cat(batches) if batches else torch.arange(len(case["labels"][1]))
    outputs, labels = case["outputs"][number][images], case["labels"][1][images]
    return nn.functional.cross_entropy(outputs, labels, label_smoothing=smoothing).item()


def _times(case, seen, right):
    total, records = 0.0, _records(seen)
    if len(records) != len(_epochs(seen["calls"][0])) or any(len(record) != 8 for record in records):
        return _NOT_APPENDED
    for number, record in enumerate(records):
        took = [
            len(_steps(calls)[number]) * seconds for calls, seconds in zip(seen["calls"], case["seconds"], strict=True)
        ]
        images = _truth(case, seen, number)[1]
        total += max(took)
        if not equal(record[1], total, CLOSE):
            if record[1] > total + 500:
                return "an epoch's seconds contain those of the evaluation: stop the clock before it"
            if number == 0 and any(equal(record[1], each, CLOSE) for each in took):
                return (
                    "an epoch's seconds are one rank's own: an epoch takes as long as its slowest rank (ReduceOp.MAX)"
                )
            if number and equal(record[1], max(took), CLOSE):
                return "time is one epoch's seconds; it is the sum of all epochs so far"
            return "time is not the sum of the epochs' training seconds, of the slowest rank"
        if not equal(record[2], images / max(took), CLOSE):
            return "images per second are not the images of all ranks over the seconds of the slowest one"
        if not equal(record[0], float(number + 1)):
            return "a record's epoch does not count from 1"
        if not equal(record[7], _steps(seen["calls"][0])[number][0]["lr"], CLOSE):
            return "a record's lr is not that of the epoch's first step: read it before the loop over the batches"
    if not all(equal(one["time"], total, CLOSE) for one in seen["ranks"]):
        return "`time`, which it returns, is not the sum of the epochs' seconds"
    return ""


def _transcript(case, seen, right):
    records = _records(seen)
    for calls in seen["calls"][1:]:
        if named(calls, "print"):
            return "every rank prints, so the transcript has each epoch several times: rank 0 alone"
        if named(calls, "append") or named(calls, "save_model"):
            return "another rank than 0 writes to the run folder"
    if any(facts["twice"] for facts in named(seen["calls"][0], "append")):
        return "run.append is given seconds: then the run folder writes the transcript's line itself, a second time"
    lines = [facts["text"] for facts in named(seen["calls"][0], "print")]
    if len(lines) != len(records) or not lines:
        return "rank 0 does not assessment_print one line for each epoch"
    before = 0.0
    for line, record in zip(lines, records, strict=True):
        found = _LINE.fullmatch(line)
        if found is None or len(record) != 8:
            return "a line of the transcript does not have the format EPOCH_LINE"
        wanted = {"epoch": record[0], "time": record[1], "seconds": record[1] - before, "trained": record[4],
                  "loss": record[5], "accuracy": record[6]}  # fmt: skip
        before = record[1]
        rate = re.fullmatch(r"(?:tensor\()?([0-9.e+]+)\)?", found["rate"])
        if rate is None or not math.isclose(float(rate[1]), record[2], rel_tol=0.01):
            return "Images/sec of a line is not that of the epoch's record"
        for name, value in wanted.items():
            if abs(float(found[name]) - value) > 0.00051:
                return "the numbers of a line are not those of the epoch's record, in EPOCH_LINE's order"
    saved = named(seen["calls"][0], "save_model")
    if len(saved) != 1 or not isinstance(saved[0]["weights"], torch.Tensor):
        return "rank 0 does not save the network once, at the end: run.save_model(model.module)"
    if not near(saved[0]["weights"], named(seen["calls"][0], "evaluate")[-1]["weights"], 1e-5):
        return "the weights that rank 0 saves are not the last epoch's"
    return "" if all(one["up"] is True for one in seen["ranks"]) else _DESTROYED


_DESTROYED = "it destroys a process group that it has not made: `launch` still needs it"


def _due(case):
    """Epochs until the last two accuracies have reached the target."""
    labels = case["labels"][1]
    good = [(each.argmax(1) == labels).double().mean().item() >= case["target"] for each in case["outputs"]]
    return next((n + 1 for n in range(1, len(good)) if good[n - 1] and good[n]), len(good))


def _stopped(case, seen, right):
    due, trained = _due(case), [len(_epochs(calls)) for calls in seen["calls"]]
    if len(set(trained)) > 1:
        return "the ranks leave the loop in different epochs"
    if trained[0] != due:
        if trained[0] == 1:
            return "training ends at the first epoch that reaches the target: args.patience epochs in a row must"
        sooner = "before" if trained[0] < due else "after"
        return (
            f"training ends {sooner} the epoch in which the last args.patience accuracies have all reached the target"
        )
    if not all(one["stopped"] is True for one in seen["ranks"]):
        return "`stopped`, which it returns, is not True on every rank where the target has ended the training"
    lines = [facts["text"] for facts in named(seen["calls"][0], "print")]
    if not lines or (found := _STOP.fullmatch(lines[-1])) is None or int(found[1]) != due:
        return "the transcript does not end with STOP_LINE and the epoch that ended the training"
    return ""


def _resumes(case, seen, right):
    killed, most = case["killed"], case["most"]
    if killed > most:  # never
        return _rests(case, seen)
    written = [one["files"] for one in seen["ranks"]]
    if written[0] != [True]:
        return (
            "no rank writes args.checkpoint"
            if not any(each == [True] for each in written)
            else "rank 0 does not write it"
        )
    if any(each != [False] for each in written[1:]):
        return "every rank writes the checkpoint, all into the same file: rank 0 alone"
    if seen["saved"] is not True:
        return "the checkpoint does not have the weights that were trained"
    expected = velocity = None
    for rank, (calls, one) in enumerate(zip(seen["calls"], seen["ranks"], strict=True)):
        cut = [name for name, _ in calls].index("again")
        first, second = calls[:cut], calls[cut + 1 :]
        steps = [step for epoch in _steps(second) for step in epoch]
        if len(_epochs(second)) == most:
            return "the second start trains from the first epoch: it does not restore the checkpoint"
        if len(_epochs(second)) != most - killed or not steps:
            return "the second start does not continue with the epoch after the last saved one"
        per_epoch = len(_steps(second)[0])
        wanted = [case["base_lr"] * falling(killed * per_epoch + number) for number in range(len(steps))]
        if not equal([step["lr"] for step in steps], wanted):
            return "the second start begins the schedule anew: restore scheduler, too"
        # By the first start's notes: the epoch that was killed had begun.
        if velocity is None:  # rank 0's, which is in the checkpoint
            velocity = torch.zeros_like(steps[0]["weights"])
            for step in [step for epoch in _steps(first)[:killed] for step in epoch]:
                velocity = case["momentum"] * velocity + step["gradient"]
        moved = steps[0]["weights"] - steps[0]["lr"] * (case["momentum"] * velocity + steps[0]["gradient"])
        if not near(steps[1]["weights"], moved, 1e-4):
            return "the second start has lost the optimiser's momentum: restore optimizer, too"
        if expected is None:
            last = small_network(named(first, "evaluate")[-1]["weights"])
            last[-1].weight.data.copy_(seen["changed"])
            expected = weights_of(last)
        if not near(steps[0]["weights"], expected, 1e-5):
            return "the second start does not have the weights of the checkpoint on every rank"
        seeds = [facts["seed"] for facts in named(first, "forward")]
        if named(second, "forward")[0]["seed"] != seeds[-1] or seeds[-1] is None:
            return "a restored epoch draws other crops and dropout masks than without the kill: seed each epoch by its number"
        orders = [[i for step in epoch for i in _indices(step)] for epoch in _steps(second)]
        if any(one == other for one, other in pairwise(orders)):
            return "the epochs of the second start have one order: sampler.set_epoch with the epoch's own number"
        begun = [index for step in _steps(first)[0] for index in _indices(step)]
        if [begun, orders[0]] not in [
            [_order_of(case, rank, number + one, seed) for number in (0, killed)]
            for one in (0, 1) for seed in (case["seed"], 0)  # epochs may count from 1; 0 is the sampler's default
        ]:  # fmt: skip
            return "the second start shuffles by other epoch numbers than the first: sampler.set_epoch with the epoch's own number"
        if rank == 0 and [facts["epochs"] for facts in named(second, "restore")] != [list(range(1, killed + 1))]:
            return "the run folder does not get the restored epochs: on rank 0, run.restore(records, seconds)"
        if not isinstance(one["accuracies"], list) or len(one["accuracies"]) != most:
            return "after the second start there is not one accuracy for each epoch of both"
        if one["up"] is not False:
            return "at the end the process group that main made is still there: dist.destroy_process_group()"
    return ""


def _rests(case, seen):
    """The first start has reached the target, so the second trains nothing. A first one that did not is judged elsewhere."""
    for calls, one in zip(seen["calls"], seen["ranks"], strict=True):
        cut = [name for name, _ in calls].index("again")
        if len(_epochs(calls[:cut])) != _due(case):
            continue
        if named(calls[cut:], "forward"):
            return "a restored training that has reached its target trains another epoch: ask reached(…) before the first one"
        if (
            one["stopped"] is not True
            or not isinstance(one["accuracies"], list)
            or len(one["accuracies"]) != _due(case)
        ):
            return (
                "a restored training that has reached its target does not return its accuracies, and True for `stopped`"
            )
    return ""


def _order_of(case, rank, number, seed):
    from torch.utils.data import DistributedSampler

    sampler = DistributedSampler(range(len(case["labels"][0])), case["ranks"], rank, seed=seed)
    sampler.set_epoch(number)
    return list(sampler)


def _shown(case, seen):
    """The case; and how many images each rank trained in its first epoch, if that is wrong."""
    if not isinstance(seen, dict) or not any(seen.get("calls", ())):
        return case["about"]
    trained = []
    for calls in seen["calls"]:
        steps = _steps(calls)
        trained.append(sum(len(_indices(step)) for step in steps[0]) if steps else 0)
    share = -(-len(case["labels"][0]) // case["ranks"])
    if all(images == share for images in trained):
        return case["about"]
    return f"{case['about']}; images trained in the first epoch: " + ", ".join(
        f"{images} on rank {rank}" for rank, images in enumerate(trained)
    )


def _whole(about, judge, points_to="", cases="whole"):
    return Part(about, _NO_DICT, points_to, cases=cases, judge=judge, needs="parallel")


PROGRAM = Exercise(("main",), draw_programs, observe_program, {
    "parallel": Part("", _NO_DICT, cases="whole", judge=_parallel),
    "shares": _whole("Each rank trains its share, and no image is left out", _shares,
                     "print the indices of each rank's sampler for 14 images on 3 ranks"),
    "order": _whole("Every epoch has an order of its own", _order, "print the first labels of two epochs"),
    "randomness": _whole("Crops and masks differ between ranks and epochs, and can be repeated", _randomness,
                         "print torch.initial_seed() and some pixels on each rank, in each epoch"),
    "gradients": _whole("All ranks step by the mean of their gradients", _averaged,
                        "on two ranks, print the loss, and the gradient of one weight, in each step"),
    "rates": _whole("Uses recipe's learning rates, step by step", _rates, "print scheduler.get_last_lr() in the loop"),
    "evaluation": _whole("All ranks evaluate one network, each test image once", _evaluated,
                         "print the indices of the test images that each rank evaluates, for 7 images on 3 ranks"),
    "metrics": _whole("Losses and accuracies of all images", _true_metrics, "write down two ranks' sums, and divide them by hand"),
    "time": _whole("Seconds and throughput of the whole job", _times, "print the record of each epoch, and let rank 1 sleep for a second in each"),
    "transcript": _whole("Rank 0 reports, in the format", _transcript, "compare what each rank prints and writes with the docstring and EPOCH_LINE"),
    "sync": _whole("Synchronised batch norm where it is asked for", _synchronised, "print(model) after wrapping it", "sync"),
    "stop": _whole("All ranks stop in the right epoch", _stopped,
                   "write down the accuracies of seven images on three ranks, epoch by epoch", "stopping"),
    "resumes": _whole("Continues from rank 0's checkpoint as if nothing had happened", _resumes,
                      "run it twice with the same args.checkpoint, and stop the first run after an epoch", "resumed"),
}, "run it on two ranks: launch(main, 2, (parse_arguments(few),), backend=\"gloo\")", _shown,
    guarded="sync stopping resumed", share=known_to_ranks, **watched(RANKS, Program, ranks_of))  # fmt: skip

"""Lab 05's answers of data and training, right and wrong."""

from __future__ import annotations

import math
import shutil

import torch
from torch import nn
from torch.nn import functional as F

from course_lib.exercises.description import Answers, Mistake

__all__ = ["ANSWERS", "crops_with"]

# --- crop_and_flip: judged by its crops, so it needs no reference. `crops_with` makes wrong ones for the tests.


def crops_with(
    each=True, high=1, border="constant", dim=3, shared=False, seeded=True, inplace=False, again=False, flipped=None,
):  # fmt: skip
    def crop_and_flip(images, padding, generator):
        if again:
            generator.manual_seed(1)
        n, _, height, width = images.shape
        generator = generator if seeded else None
        count = n if each else 1
        top, left = (torch.randint(2 * padding + high, (count,), generator=generator).expand(n) for _ in range(2))
        left = top if shared else left
        flips = torch.rand(n, generator=generator) < 0.5 if flipped is None else flipped(n, generator, top)
        padded = F.pad(images, (padding,) * 4, mode=border)
        out = images if inplace else torch.empty_like(images)
        for i in range(n):
            crop = padded[i, :, top[i] : top[i] + height, left[i] : left[i] + width]
            out[i] = crop.flip(dim - 1) if flips[i] else crop
        return out

    return crop_and_flip


crops = Answers()  # its mistakes are in tests/exercises/tables: every part has a judge that names them

# --- create_val_folder


def _val_folder(
    folder=lambda wnid, place, order: wnid, empty=True, place_file=shutil.copyfile, checks=True, message="{} does not fit",
    error=ValueError, again=True,
):  # fmt: skip
    def create_val_folder(tree, target):
        wnids = (tree / "wnids.txt").read_text().split()
        lines = [line.split("\t")[:2] for line in (tree / "val" / "val_annotations.txt").read_text().splitlines()]
        there = {path.name for path in (tree / "val" / "images").iterdir()}
        odd = there ^ {name for name, _ in lines} | {name for name, wnid in lines if wnid not in wnids}
        if checks and odd:
            raise error(message.format(*sorted(odd)))
        for wnid in wnids if empty else {wnid for _, wnid in lines}:
            (target / folder(wnid, wnids.index(wnid), lines)).mkdir(parents=True, exist_ok=again)
        for name, wnid in lines:
            source = tree / "val" / "images" / name
            if source.exists() and wnid in wnids:
                place_file(source, target / folder(wnid, wnids.index(wnid), lines) / name)

    return create_val_folder


def _move(source, target):
    target.write_text(source.read_text())
    source.unlink()


def _moved(tree, target):
    if (tree / "val" / "images").exists() and any((tree / "val" / "images").iterdir()):
        _val_folder(place_file=_move)(tree, target)


val_folder = Answers((_val_folder(),), {
    "nothing": Mistake("there is no folder, or nothing in it", lambda tree, target: None),
    "numbers": Mistake("name each folder by the identifier, as train/ does: ImageFolder's numbers then agree with the "
        "training set's", _val_folder(folder=lambda wnid, place, lines: str(place))),
    "no empty class": Mistake("make a folder for every class of wnids.txt, also for one without an image: a class that is "
        "missing shifts the numbers of all later ones", _val_folder(empty=False)),
    "moved": Mistake("the originals are gone: copy or link them, others read the same files", _moved),
    "once alone": Mistake("a second call raises an error: mkdir(parents=True, exist_ok=True)", _val_folder(again=False)),
    "unnoticed": Mistake("raises no error", _val_folder(checks=False)),
    "unnamed": Mistake("does not name the image", _val_folder(message="a file does not fit")),
    "another error": Mistake("yours is another error", _val_folder(error=KeyError)),
})  # fmt: skip

# --- parameter_groups, warmup_cosine


def _groups(weights=lambda p: p.dim() > 1, others=True, twice=False, swap=False, everything=False):
    def parameter_groups(model, weight_decay):
        if everything:
            return [{"params": list(model.parameters()), "weight_decay": weight_decay}]
        some = [p for p in model.parameters() if weights(p)]
        rest = [p for p in model.parameters() if not weights(p)]
        some, rest = (rest, some) if swap else (some, rest)
        groups = [{"params": some, "weight_decay": weight_decay}]
        return [*groups, {"params": rest + (some[:1] if twice else []), "weight_decay": 0.0}] if others else groups

    return parameter_groups


def _schedule(
    rise=lambda step, warm: 1 / 25 + (1 - 1 / 25) * step / warm,
    fall=lambda x, step, total: 0.5 * (1 + math.cos(math.pi * x)),
    warms=lambda step, warm: step < warm, without=None,
):  # fmt: skip
    def warmup_cosine(step, total, warm):
        if warm == 0 and without is not None:
            return without(step, total)
        if warms(step, warm):
            return rise(step, warm)
        return fall((step - warm) / (total - warm), step, total)

    return warmup_cosine


recipe = Answers((_groups(), _schedule()), {
    "nothing": Mistake("is there a return?", lambda *_: None, lambda *_: None),
    "everything decays": Mistake("biases and batch norm have weight decay 0", _groups(everything=True), None),
    "others left out": Mistake("a parameter is in no group, so it would never be trained", _groups(others=False), None),
    "swapped": Mistake("the two groups are swapped: weights decay, biases and batch norm do not", _groups(swap=True), None),
    "from 0": Mistake("it starts from 1/25, not from 0", None, _schedule(rise=lambda step, warm: step / warm)),
    "a step ahead": Mistake("you are a step ahead: the first step is step 0", None,
        _schedule(rise=lambda step, warm: 1 / 25 + (1 - 1 / 25) * (step + 1) / warm)),
    "a cosine rise": Mistake("the warm-up is linear; yours follows a cosine, as torch's OneCycleLR does", None,
        _schedule(rise=lambda step, warm: 1 / 25 + (1 - 1 / 25) * (1 - math.cos(math.pi * step / warm)) / 2)),
    "a line": Mistake("that is a straight line; the decay is half a cosine", None,
        _schedule(fall=lambda x, step, total: 1 - x)),
    "whole cosine": Mistake("the cosine begins when the warm-up is over: count its steps from there", None,
        _schedule(fall=lambda x, step, total: 0.5 * (1 + math.cos(math.pi * step / total)))),
    "quarter": Mistake("that is a quarter of a period of a cosine; half a period is 1/2 in the middle", None,
        _schedule(fall=lambda x, step, total: math.cos(math.pi * x / 2))),
    "divides by zero": Mistake("without warm-up yours divides by zero; the factor begins at 1", None,
        _schedule(without=lambda step, total: 1 / 0)),
})  # fmt: skip

# --- transfer


def _transfer(
    new=True, inputs=None, outputs=None, head=True, rate=None, freezes=True, leaves=True, resets=False, zero=False
):
    def transfer(network, classes, lr_head, lr_body):
        body = [p for name, p in network.named_parameters() if not name.startswith("classifier.")]
        if new:
            network.classifier = nn.Linear(network.classifier.in_features, outputs or classes)
        if zero:
            nn.init.zeros_(network.classifier.weight)
        if resets:
            nn.init.normal_(body[0])
        groups = [{"params": list(network.classifier.parameters()), "lr": lr_head}] if head else []
        if lr_body == 0 and freezes:
            for parameter in body:
                parameter.requires_grad_(False)
        if lr_body != 0 or not leaves:
            groups.append({"params": body, "lr": lr_body if rate is None else lr_head})
        return groups

    return transfer


def _old_head_in_groups(network, classes, lr_head, lr_body):
    groups = _transfer(new=False)(network, classes, lr_head, lr_body)
    network.classifier = nn.Linear(network.classifier.in_features, classes)
    return groups


def _froze_all(network, classes, lr_head, lr_body):
    groups = _transfer()(network, classes, lr_head, lr_body)
    network.requires_grad_(lr_body != 0)
    return groups


transfer = Answers((_transfer(),), {
    "old head": Mistake("the old head is still there: set network.classifier to a new nn.Linear", _transfer(new=False)),
    "of zeros": Mistake("the new head is not initialised at random: an nn.Linear is, when it is made", _transfer(zero=True)),
    "body reset": Mistake("the body's weights changed: they are what was learned, only the head is new", _transfer(resets=True)),
    "no groups": Mistake("return the groups: is there a return?", lambda *given: (_transfer()(*given), None)[1]),
    "body alone": Mistake("the head is in no group, so it would never be trained", _transfer(head=False)),
    "one rate": Mistake("the body has the head's learning rate", _transfer(rate="head")),
    "groups too early": Mistake("the groups hold the old head's parameters: replace the head first", _old_head_in_groups),
    "not frozen": Mistake("with lr_body = 0 the body still asks for gradients: requires_grad_(False)", _transfer(freezes=False)),
    "frozen but in a group": Mistake("with lr_body = 0 the frozen body is in a group", _transfer(leaves=False)),
    "all frozen": Mistake("with lr_body = 0 the head is frozen, too", _froze_all),
})  # fmt: skip

# --- train_one_epoch, evaluate


def _train(mode=True, clears=True, order="step first", scheduled="batch", counts=lambda loss, n: (loss * n, n), steps=True,
           right=lambda correct, images, batches: correct / images, pair=lambda loss, accuracy: (loss, accuracy)):  # fmt: skip
    def train_one_epoch(model, batches, optimizer, scheduler, loss_fn):
        if mode is not None:
            model.train(mode)
        total = correct = divisor = images_seen = number = 0
        for images, labels in batches:
            logits = model(images)
            loss = loss_fn(logits, labels)
            if clears:
                optimizer.zero_grad()
            loss.backward()
            if order == "schedule first":
                scheduler.step()
            if steps:
                optimizer.step()
            if scheduled == "batch" and order != "schedule first":
                scheduler.step()
            added, weight = counts(loss.item(), len(labels))
            total, divisor = total + added, divisor + weight
            correct += int((logits.argmax(1) == labels).sum())
            images_seen, number = images_seen + len(labels), number + 1
        if scheduled == "epoch":
            scheduler.step()
        return pair(total / divisor, right(correct, images_seen, number))

    return train_one_epoch


def _evaluate(mode=False, graph=False, counts=lambda loss, n: (loss * n, n), trains=False):
    def evaluate(model, batches, loss_fn):
        if mode is not None:
            model.train(mode)
        total = divisor = correct = images_seen = 0
        with torch.set_grad_enabled(graph):
            for images, labels in batches:
                logits = model(images)
                added, weight = counts(loss_fn(logits, labels).item(), len(labels))
                total, divisor = total + added, divisor + weight
                correct += int((logits.argmax(1) == labels).sum())
                images_seen += len(labels)
        return total / divisor, correct / images_seen

    return evaluate


def _per_batch(loss, n):
    return loss, 1


loop = Answers((_train(), _evaluate()), {
    "nothing": Mistake("return a pair (loss, accuracy) from both: is there a return?",
        lambda *given: (_train()(*given), None)[1], lambda *given: None),
    "no train()": Mistake("call model.train(): an evaluation has left the model in evaluation mode", _train(mode=None), None),
    "gradients pile up": Mistake("the gradients of earlier steps are still there: call optimizer.zero_grad()",
        _train(clears=False), None),
    "no step": Mistake("the weights did not move: call optimizer.step()", _train(steps=False), None),
    "schedule first": Mistake("the schedule steps before the optimiser: call scheduler.step() after optimizer.step()",
        _train(order="schedule first"), None),
    "once per epoch": Mistake("the schedule counts batches: call scheduler.step() after each of them",
        _train(scheduled="epoch"), None),
    "no schedule": Mistake("the schedule never steps: call scheduler.step() after each batch", _train(scheduled="never"), None),
    "mean of means": Mistake("the mean over batches counts the images of the small last batch more: weight each loss by "
        "its number of images", _train(counts=_per_batch), None),
    "a count": Mistake("that is the number of right predictions: divide by the number of images",
        _train(right=lambda correct, images, batches: correct), None),
    "turned": Mistake("return (loss, accuracy), in this order", _train(pair=lambda loss, accuracy: (accuracy, loss)), None),
    "no eval()": Mistake("call model.eval() in evaluate: batch norm then uses its running averages", None, _evaluate(mode=None)),
    "evaluates means of means": Mistake("the mean over batches counts the small last batch's images more, in evaluate",
        None, _evaluate(counts=_per_batch)),
    "a graph": Mistake("evaluate builds a graph for gradients: with torch.no_grad()", None, _evaluate(graph=True)),
})  # fmt: skip

ANSWERS = {
    "crop-flip": crops, "val-folder": val_folder, "recipe": recipe, "transfer": transfer, "training-loop": loop,
}  # fmt: skip

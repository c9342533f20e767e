"""Lab 01's answers, right and wrong."""

from __future__ import annotations

import contextlib
import copy
import types

import torch
from torch.utils.checkpoint import checkpoint

from course_lib.exercises.description import Answers, Mistake

__all__ = ["ANSWERS"]


def _step(order="clear, backward, update", scale=1, loss=None, mode=None, own=None, result=None, again=False):
    """A training step, in which `order` says what happens after the forward pass."""

    def train_step(model, images, labels, optimizer, loss_fn):
        if mode is not None:
            model.train(mode)
        if own is not None:
            optimizer = torch.optim.SGD(model.parameters(), own)
        logits = model(images)
        value = (loss or loss_fn)(logits, labels)
        for event in order.split(", "):
            if event == "clear":
                optimizer.zero_grad()
            elif event == "backward":
                (scale * value).backward()
            elif event == "update":
                optimizer.step()
        if again:
            logits = model(images)
            value = loss_fn(logits, labels)
        return (value.detach(), logits.detach()) if result is None else result(value, logits)

    return train_step


_STILL = (
    "the weights are where they were: backward() or step() is missing, or the gradients were cleared between backward() "
    "and step(); zero_grad() belongs before backward()"
)

step = Answers((_step(),), {
    "no zero_grad": Mistake(_STILL, _step("backward, update")),
    "no step": Mistake(_STILL, _step("clear, backward")),
    "no backward": Mistake(_STILL, _step("clear, update")),
    "zero_grad after backward": Mistake(_STILL, _step("backward, clear, update")),
    "two updates": Mistake("call optimizer.step() once: yours moved the weights twice",
        _step("clear, backward, update, update")),
    "scaled": Mistake("call backward() on the loss as loss_fn gives it; yours is multiplied", _step(scale=2)),
    "its own loss": Mistake("call the loss_fn that was given; yours is plain cross-entropy's",
        _step(loss=torch.nn.functional.cross_entropy)),
    "its own optimiser": Mistake("use the optimizer that was given; yours is a new one, which has forgotten lr and "
        "momentum", _step(own=0.01)),
    "evaluation mode": Mistake("train_step put the network into evaluation mode, in which dropout and batch norm do not "
        "train; leave the mode alone", _step(mode=False)),
    "graph kept": Mistake("what it returns still carries its graph, so every step's activations stay in memory: return "
        "loss.detach() and logits.detach()", _step(result=lambda loss, logits: (loss, logits))),
    "turned": Mistake("the two are turned: return (loss, logits)",
        _step(result=lambda loss, logits: (logits.detach(), loss.detach()))),
    "a float": Mistake("return loss.detach(), a tensor: .item() makes a GPU wait for Python in every step",
        _step(result=lambda loss, logits: (loss.item(), logits.detach()))),
    "predictions": Mistake("return the logits, of shape (batch, classes), and not the predicted classes",
        _step(result=lambda loss, logits: (loss.detach(), logits.detach().argmax(1)))),
    "after the update": Mistake("loss and logits are to be those of before the update; yours were computed after it",
        _step(again=True)),
    "the loss alone": Mistake("return a tuple of two tensors, loss and logits: is there a return?",
        _step(result=lambda loss, logits: loss.detach())),
    "nothing": Mistake("return a tuple of two tensors, loss and logits: is there a return?",
        _step(result=lambda loss, logits: None)),
})  # fmt: skip


def _evaluate(
    mode=lambda model: model.eval(), grad=False, weight=len, hits=lambda logits, labels: (logits.argmax(1) == labels).sum(),
    count=len, batches=lambda each: each, result=lambda loss, correct, images, n: (loss, correct, images),
):  # fmt: skip
    def evaluate(model, some, loss_fn):
        mode(model)
        loss_sum = correct = images = 0.0
        with torch.set_grad_enabled(grad):
            for x, labels in batches(some):
                logits = model(x)
                loss_sum += loss_fn(logits, labels).item() * weight(labels)
                correct += hits(logits, labels).item()
                images += count(labels)
        return result(loss_sum, correct, images, len(some))

    return evaluate


def _norm_alone(model):
    for module in model.modules():
        if "Norm" in type(module).__name__:
            module.eval()


_MEANS = "loss_fn gives a batch's mean; multiply it by the number of the batch's images before adding"

evaluation = Answers((_evaluate(),), {
    "means added": Mistake(f"you added the batches' means, so a short batch weighs as much as a long one: {_MEANS}",
        _evaluate(weight=lambda labels: 1)),
    "mean of means": Mistake(f"that is the mean of the batches' means: {_MEANS}",
        _evaluate(weight=lambda labels: 1, result=lambda loss, correct, images, n: (loss / n, correct, images))),
    "mean": Mistake("return the sum of the losses, not their mean: sums of several batches or ranks can be added",
        _evaluate(result=lambda loss, correct, images, n: (loss / images, correct, images))),
    "means": Mistake("return sums, not means: the sum of the images' losses, the number of correct predictions, the number "
        "of images", _evaluate(result=lambda loss, correct, images, n: (loss / images, correct / images, images))),
    "batches counted": Mistake("the third number counts images, not batches", _evaluate(count=lambda labels: 1)),
    "argmin": Mistake("a prediction is the class with the largest logit, logits.argmax(1)",
        _evaluate(hits=lambda logits, labels: (logits.argmin(1) == labels).sum())),
    "accuracy": Mistake("count the correct predictions of all batches; yours adds accuracies",
        _evaluate(hits=lambda logits, labels: (logits.argmax(1) == labels).double().mean())),
    "another order": Mistake("the three numbers are right, in another order: return (loss_sum, correct, images)",
        _evaluate(result=lambda loss, correct, images, n: (correct, loss, images))),
    "first batch": Mistake("that is the first batch alone: is the return inside the loop?",
        _evaluate(batches=lambda each: each[:1])),
    "no eval": Mistake("evaluating changed the model: batch norm's statistics moved", _evaluate(mode=lambda model: None)),
    "train": Mistake("evaluating changed the model: batch norm's statistics moved", _evaluate(mode=lambda model: model.train())),
    "batch norm alone": Mistake("the sums of a network with batch norm and dropout are not those of evaluation mode",
        _evaluate(mode=_norm_alone)),
    "graph recorded": Mistake("a graph is recorded in the forward passes", _evaluate(grad=True)),
    "nothing": Mistake("return (loss_sum, correct, images): is there a return?", lambda *given: None),
})  # fmt: skip


train_step, evaluate = _step(), _evaluate()  # under the names by which a training loop calls them


def _train(
    modes="epoch", rate="step", before=False, weighted=True, again=False, divided=True, fresh=True, unit=1.0,
    checks="epoch", on="validation", val_mean=True, seen="val_accuracy", given=lambda found: list(found), last=False,
    stops=True, first=1, rows=list, times=lambda n: n, copies=True, result=lambda rows: rows, own=lambda *given: given,
    some=lambda batches: batches,
):  # fmt: skip
    """A training loop; each option makes a mistake. It has global names of its own, as a notebook's function has."""

    def train(
        model, train_batches, validation_batches, optimizer, loss_fn, epochs, scheduler=None, stop=None, report=None
    ):
        model, optimizer, loss_fn = own(model, optimizer, loss_fn)
        kept, accuracies, row, sums = rows(), [], {}, [0.0] * 3
        if modes == "once":
            model.train()
        for epoch in range(times(epochs)):
            if modes == "epoch":
                model.train()
            if fresh:
                sums = [0.0] * 3
            for images, labels in some(train_batches):
                if modes == "step":
                    model.train()
                if scheduler is not None and before:
                    scheduler.step()
                loss, logits = train_step(model, images, labels, optimizer, loss_fn)
                if scheduler is not None and rate == "step" and not before:
                    scheduler.step()
                part = 1 if not weighted else len(labels)
                hits = (logits.argmax(1) == labels).sum().item()
                new = [loss.item() * part, hits if weighted else hits / len(labels), part]
                sums = new if last else [a + b for a, b in zip(sums, new, strict=True)]
                if checks == "step":
                    evaluate(model, validation_batches, loss_fn)
            if scheduler is not None and rate == "epoch":
                scheduler.step()
            trained = evaluate(model, train_batches, loss_fn) if again else sums
            checked = evaluate(model, train_batches if on == "training" else validation_batches, loss_fn)
            row = {} if copies else row
            row["train_loss"] = trained[0] / (trained[2] if divided else 1)
            row["train_accuracy"] = unit * trained[1] / (trained[2] if divided else 1)
            row["val_loss"] = checked[0] / (checked[2] if val_mean else len(validation_batches))
            row["val_accuracy"] = unit * checked[1] / checked[2]
            accuracies.append(row[seen])
            if stops == "before" and stop is not None and stop(given(accuracies)):
                break
            kept.append(row)
            if report is not None and first is not None:
                report(epoch + first, row)
            if stops is True and stop is not None and stop(given(accuracies)):
                break
            if stops == "asked" and stop is not None:
                stop(given(accuracies))
        return result(kept)

    return types.FunctionType(train.__code__, dict(globals()), "train", train.__defaults__, train.__closure__)


_OTHERS = (
    "another model, optimizer or loss_fn than train was given reaches train_step: pass on those, and make no others"
)


def _trained(diagnosis, **options):
    return Mistake(diagnosis, _train(**options))


training = Answers((_train(),), {
    "scheduler per epoch": _trained("the scheduler is stepped once an epoch: call scheduler.step() after each step",
        rate="epoch"),
    "no scheduler": _trained("the scheduler is never stepped: call scheduler.step() after each step", rate="never"),
    "scheduler first": _trained("the scheduler is stepped before the optimiser, so the first learning rate is left out",
        before=True),
    "its own optimiser": _trained(_OTHERS,
        own=lambda model, optimizer, loss_fn: (model, torch.optim.SGD(model.parameters(), 0.1), loss_fn)),
    "its own loss": _trained(_OTHERS,
        own=lambda model, optimizer, loss_fn: (model, optimizer, torch.nn.functional.cross_entropy)),
    "a copy": _trained(_OTHERS, own=lambda model, optimizer, loss_fn: (copy.deepcopy(model), optimizer, loss_fn)),
    "no gradients": Mistake("the training runs under torch.no_grad() or torch.inference_mode(), where train_step cannot "
        "call backward(): evaluate alone needs that", torch.no_grad()(_train())),
    "the first batch": _trained("only the first batch of each epoch is trained on: is something indented too far?",
        some=lambda batches: list(batches)[:1]),
    "one epoch less": _trained("that is one epoch less", times=lambda n: n - 1),
    "one epoch": _trained("that is the first epoch alone: is the return inside the loop?", times=lambda n: 1),
    "never train": _trained("some step was made in evaluation mode", modes="never"),
    "train once": _trained("some step was made in evaluation mode", modes="once"),
    "evaluates every step": _trained("the validation batches are evaluated more than once an epoch",
        modes="step", checks="step"),
    "means of means": _trained("the training numbers are means of the batches' means: weight each by its images, "
        "because batches differ in size", weighted=False),
    "not divided": _trained("the training numbers are sums: divide them by the number of images", divided=False),
    "the last batch": _trained("the training numbers are those of the last batch alone: add up over the epoch",
        last=True),
    "sums go on": _trained("the training sums are not set to 0 at the start of an epoch", fresh=False),
    "evaluated after": _trained("the training numbers come from another pass over the training images; take the losses "
        "and logits that train_step returned, which cost nothing", again=True),
    "by batches": _trained("val_loss is the sum that evaluate returned, divided by the images, not by the batches",
        val_mean=False),
    "on the training batches": _trained("val_loss and val_accuracy are of the training batches", on="training"),
    "per cent": _trained("accuracies are between 0 and 1; yours are per cent", unit=100.0),
    "one dict": _trained("all rows are one and the same dict: make a new one in each epoch", copies=False),
    "the last row": _trained("return the list of all rows; yours is the last row", result=lambda rows: rows[-1]),
    "no return": _trained("return the list of rows: is there a return?", result=lambda rows: None),
    "stop ignored": _trained("the training continues after stop returned true", stops="asked"),
    "stop never asked": _trained("stop is never called", stops="never"),
    "training accuracy": _trained("stop is given the training accuracies; it decides on the validation accuracies",
        seen="train_accuracy"),
    "losses": _trained("stop is given losses; it decides on the validation accuracies", seen="val_loss"),
    "the last accuracy": _trained("stop is given the last accuracy alone: give it the list of all so far",
        given=lambda found: found[-1:]),
    "a number": _trained("stop is given one number: give it the list of all validation accuracies so far",
        given=lambda found: found[-1]),
    "stops before the row": _trained("the epoch after which stop returns true is a row too, and is reported",
        stops="before"),
    "from 0": _trained("report counts epochs from 1", first=0),
    "no report": _trained("report is never called: report(epoch, row) once for each epoch", first=None),
})  # fmt: skip


def _accumulate(
    clear="first", share=lambda labels, batches: len(labels) / sum(len(y) for _, y in batches), steps="once",
    together=False, joined=False, graph=False, loss_dtype=True, backward=False, cast=False, type_=lambda dtype: dtype,
    loss_of=lambda losses, shares: sum(loss * share for loss, share in zip(losses, shares, strict=True)),
):  # fmt: skip
    """One update from several batches; each option makes a mistake."""

    def accumulated_step(model, batches, optimizer, loss_fn, dtype=None):
        if clear == "first":
            optimizer.zero_grad()
        if joined:
            batches = [tuple(torch.cat(each) for each in zip(*batches, strict=True))]
        if cast and dtype is not None:
            model.to(dtype)
        losses, shares, whole = [], [], 0.0
        for images, labels in batches:
            wanted = type_(dtype)
            with contextlib.ExitStack() as inside:
                if wanted is not None:
                    inside.enter_context(torch.autocast(images.device.type, wanted))
                logits = model(images)
                if not loss_dtype:
                    inside.close()
                loss = loss_fn(logits, labels)
                if not backward:
                    inside.close()
                part = share(labels, batches)
                if clear == "each":
                    optimizer.zero_grad()
                if together:
                    whole = whole + part * loss
                else:
                    (part * loss).backward(retain_graph=graph)
                losses.append(loss if graph else loss.detach())
                shares.append(part)
                if steps == "each":
                    optimizer.step()
        if together:
            whole.backward()
        if steps == "once":
            optimizer.step()
        return float(loss_of([loss.item() for loss in losses], shares))

    return accumulated_step


def _own_type(model, batches, optimizer, loss_fn, dtype=None):
    """Converts the images and the network, in the place of autocast."""
    if dtype is None:
        return _accumulate()(model, batches, optimizer, loss_fn)
    before = next(model.parameters()).dtype
    model.to(dtype)
    loss = _accumulate()(model, [(images.to(dtype), labels) for images, labels in batches], optimizer, loss_fn)
    model.to(before)
    return loss


_SCALE = (
    "Each micro-batch's gradient is that of its own mean: multiply its loss by its share of all images before "
    "backward()"
)

accumulation = Answers((_accumulate(),), {
    "not divided": Mistake(f"the micro-batches' gradients are added in full. {_SCALE}",
        _accumulate(share=lambda labels, batches: 1, loss_of=lambda losses, shares: sum(losses) / len(losses))),
    "not divided at all": Mistake(f"the micro-batches' losses and gradients are added in full. {_SCALE}",
        _accumulate(share=lambda labels, batches: 1)),
    "by their number": Mistake("divided by the number of micro-batches, a small one weighs as much as a large one. "
        f"{_SCALE}", _accumulate(share=lambda labels, batches: 1 / len(batches))),
    "loss by their number": Mistake("the gradient is right, the loss is the mean of the micro-batches' means: weight "
        "each by its images", _accumulate(loss_of=lambda losses, shares: sum(losses) / len(losses))),
    "cleared in between": Mistake("the gradients are cleared before each micro-batch, so that only the last one counts: "
        "call zero_grad() once, before the first", _accumulate(clear="each")),
    "never cleared": Mistake("the gradient that the model came with went into the step: call zero_grad() before the "
        "first backward()", _accumulate(clear="never")),
    "a step for each": Mistake("that is a step for each micro-batch, with less than its gradient: call step() once, at "
        "the end", _accumulate(steps="each")),
    "separate steps": Mistake("those are separate training steps: one update is wanted, with the mean gradient",
        _accumulate(clear="each", steps="each", share=lambda labels, batches: 1,
            loss_of=lambda losses, shares: sum(losses) / len(losses))),
    "no step": Mistake("the weights did not move: call optimizer.step() at the end", _accumulate(steps="never")),
    "graphs kept": Mistake("all graphs are in memory at a time, which is what accumulation is to avoid: call backward() "
        "for each micro-batch, and give it no retain_graph", _accumulate(together=True)),
    "retain_graph": Mistake("all graphs are in memory at a time, which is what accumulation is to avoid: call backward() "
        "for each micro-batch, and give it no retain_graph", _accumulate(graph=True)),
    "joined": Mistake("all graphs are in memory at a time, which is what accumulation is to avoid: call backward() "
        "for each micro-batch, and give it no retain_graph", _accumulate(joined=True)),
    "the last loss": Mistake("the loss that came back is the last micro-batch's, not the mean over all images",
        _accumulate(loss_of=lambda losses, shares: losses[-1])),
    "the last share": Mistake("the loss that came back is the last micro-batch's share alone: add up the shares of all",
        _accumulate(loss_of=lambda losses, shares: losses[-1] * shares[-1])),
    "the sum of losses": Mistake("the loss that came back is the sum of the means", _accumulate(
        loss_of=lambda losses, shares: sum(losses))),
    "no dtype": Mistake("the forward pass did not run under torch.autocast(device_type, dtype)",
        _accumulate(type_=lambda dtype: None)),
    "always bfloat16": Mistake("the forward pass did not run under torch.autocast(device_type, dtype)",
        _accumulate(type_=lambda dtype: dtype and torch.bfloat16)),
    "always autocast": Mistake("without a dtype the forward pass runs without autocast",
        _accumulate(type_=lambda dtype: dtype or torch.bfloat16)),
    "backward inside": Mistake("the backward pass ran under autocast", _accumulate(backward=True)),
    "loss outside": Mistake("the loss did not run under torch.autocast(device_type, dtype)",
        _accumulate(loss_dtype=False)),
    "converted": Mistake("the forward pass did not run under torch.autocast(device_type, dtype)", _own_type),
})  # fmt: skip


def _saved_bytes(
    size=lambda tensor: tensor.untyped_storage().nbytes(), key=lambda tensor, n: tensor.untyped_storage().data_ptr(),
    where="pack", wanted=lambda tensor: True, scale=1,
):  # fmt: skip
    def saved_bytes(function):
        kept, alive = {}, []

        def count(tensor):
            alive.append(tensor)
            if wanted(tensor):
                kept[key(tensor, len(alive))] = size(tensor)
            return tensor

        hooks = (count, lambda tensor: tensor) if where == "pack" else (lambda tensor: tensor, count)
        with torch.autograd.graph.saved_tensors_hooks(*hooks):
            function()
        return float(sum(kept.values())) * scale

    return saved_bytes


def _result_bytes(function):
    result = function()
    return float(result.numel() * result.element_size())


def _no_grad_bytes(function):
    with torch.no_grad():
        return _saved_bytes()(function)


def _forward(
    each=lambda block, x: checkpoint(block, x, use_reentrant=False), order=lambda blocks: blocks, between=None
):
    def forward_checkpointed(blocks, x):
        for block in order(blocks):
            x = each(block, x)
            x = x if between is None else between(x)
        return x

    return forward_checkpointed


def _as_one(blocks, x):
    return checkpoint(torch.nn.Sequential(*blocks), x, use_reentrant=False)


def _last_without(blocks, x):
    return blocks[-1](_forward()(blocks[:-1], x))


def _pairs(blocks, x):
    for n in range(0, len(blocks), 2):
        x = _as_one(blocks[n : n + 2], x)
    return x


def _late(blocks, x):
    for block in blocks:
        x = checkpoint(lambda y: block(y), x, use_reentrant=False)  # noqa: B023
    return x


def _without_graph(blocks, x):
    with torch.no_grad():
        return _forward(lambda block, x: block(x))(blocks, x)


_NONE = (
    "nothing is counted: count in the pack hook, and not under torch.no_grad(); the unpack hook is called in the backward "
    "pass, which does not take place"
)
_CUT = "the blocks get no gradient: is there a detach(), a .data or a torch.no_grad()?"
_STORAGE = "count each storage once: a tensor may be saved twice, and views share their storage"

memory = Answers((_saved_bytes(), _forward()), {
    "counted twice": Mistake(_STORAGE, _saved_bytes(key=lambda tensor, n: n), None),
    "views": Mistake(_STORAGE, _saved_bytes(key=lambda tensor, n: (tensor.data_ptr(), tensor.shape, tensor.stride())), None),
    "by address": Mistake("a tensor's data_ptr() is where its first element is, so a view of a part has another: "
        "tell storages apart by tensor.untyped_storage().data_ptr(), and count the storage's nbytes()",
        _saved_bytes(lambda tensor: tensor.numel() * tensor.element_size(), lambda tensor, n: tensor.data_ptr()), None),
    "by shape": Mistake("two tensors of one shape are two tensors: tell them apart by their storage's address",
        _saved_bytes(key=lambda tensor, n: tuple(tensor.shape)), None),
    "elements": Mistake("those are elements: multiply by element_size(), or ask the storage for nbytes()",
        _saved_bytes(size=lambda tensor: tensor.numel()), None),
    "four bytes": Mistake("an element has 4 bytes in float32 only: ask element_size()",
        _saved_bytes(size=lambda tensor: 4 * tensor.numel()), None),
    "unpacked": Mistake(_NONE,
        _saved_bytes(where="unpack"), None),
    "no leaves": Mistake("parameters and inputs that autograd saves count too",
        _saved_bytes(wanted=lambda tensor: not tensor.is_leaf), None),
    "with a gradient alone": Mistake("tensors without requires_grad count too, where autograd saves them",
        _saved_bytes(wanted=lambda tensor: tensor.requires_grad), None),
    "the result": Mistake("that is the size of the result; autograd saves what the backward pass needs", _result_bytes, None),
    "no_grad": Mistake(_NONE, _no_grad_bytes, None),
    "megabytes": Mistake("return bytes, not megabytes", _saved_bytes(scale=1e-6), None),
    "plain": Mistake("no block is computed again: give each to torch.utils.checkpoint.checkpoint",
        None, _forward(lambda block, x: block(x))),
    "as one": Mistake("all blocks are one checkpoint, so that all activations are in memory in the backward pass: give "
        "checkpoint one block at a time", None, _as_one),
    "in pairs": Mistake("a checkpoint holds two blocks: give checkpoint one block at a time", None, _pairs),
    "last without": Mistake("the last block is not checkpointed", None, _last_without),
    "reentrant": Mistake("where the input needs no gradient, the blocks' gradients are lost: use_reentrant=False",
        None, _forward(lambda block, x: checkpoint(block, x, use_reentrant=True))),
    "last block alone": Mistake("the backward pass computes the last block again in the place of each: a lambda in a "
        "loop uses the loop variable's last value; give checkpoint the block itself", None, _late),
    "detached": Mistake(_CUT,
        None, _forward(between=lambda x: x.detach().requires_grad_())),
    "no graph": Mistake(_CUT, None, _without_graph),
    "turned": Mistake("the blocks are applied from the last to the first", None, _forward(order=lambda blocks: blocks[::-1])),
    "one left out": Mistake("a block is left out", None, _forward(order=lambda blocks: blocks[:-1])),
    "nothing": Mistake("return the output of the last block: is there a return?", None, lambda blocks, x: None),
})  # fmt: skip

ANSWERS = {
    "train-step": step, "loaders": Answers(), "evaluate": evaluation, "throughput": Answers(), "training": training,
    "accumulate": accumulation, "memory": memory,
}  # fmt: skip

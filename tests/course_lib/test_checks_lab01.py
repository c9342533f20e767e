"""Lab 01's visible checks: the reference passes, and typical mistakes are told apart."""

import time

import pytest
import torch
from notebook_answers import answers

from course_lib.checks import CheckFailed, check

REFERENCE = answers("01_single_gpu")


@pytest.mark.parametrize(
    "exercise, name",
    [
        ("train-step", "train_step"),
        ("evaluate", "evaluate"),
        ("throughput", "images_per_second"),
        ("speedup", "speedup_and_efficiency"),
    ],
)
def test_the_reference_passes_and_says_so(exercise, name, capsys):
    assert check(f"lab01.{exercise}", REFERENCE[name]) is None
    assert capsys.readouterr().out.startswith(f"{name}: ")


def refused(exercise, answer, *words):
    with pytest.raises(CheckFailed) as raised:
        check(f"lab01.{exercise}", answer)
    assert all(word in str(raised.value) for word in words), str(raised.value)


# The step


def step(body):
    """A training step from its lines."""

    def answer(model, images, labels, optimizer, loss_fn):
        names = dict(model=model, images=images, labels=labels, optimizer=optimizer, loss_fn=loss_fn)
        exec("\n".join(body), names)
        return names["result"]

    return answer


FORWARD = ["logits = model(images)", "loss = loss_fn(logits, labels)"]
RESULT = "result = loss.detach(), logits.detach()"


@pytest.mark.parametrize(
    "body, words",
    [
        (["import torch", "logits = model(images)", "loss = torch.nn.functional.cross_entropy(logits, labels)", "optimizer.zero_grad()",
          "loss.backward()", "optimizer.step()", RESULT], ("loss_fn that was given", "plain cross-entropy's")),
        (["model.eval()", *FORWARD, "optimizer.zero_grad()", "loss.backward()", "optimizer.step()", RESULT], ("evaluation mode",)),
        ([*FORWARD, "optimizer.zero_grad()", "optimizer.step()", RESULT], ("loss.backward() or optimizer.step() is missing",)),
        ([*FORWARD, "optimizer.zero_grad()", "loss.backward()", "optimizer.step()", "result = loss.item(), logits.detach()"],
         ("the loss in yours is a float", "loss.detach()")),
        ([*FORWARD, "loss.backward()", "optimizer.step()", RESULT], ("zero_grad() before backward()", "both steps")),
        ([*FORWARD, "optimizer.zero_grad()", "loss.backward()", RESULT], ("did not move", "step() is missing")),
        ([*FORWARD, "loss.backward()", "optimizer.zero_grad()", "optimizer.step()", RESULT], ("did not move", "before backward")),
        ([*FORWARD, "optimizer.zero_grad()", "loss.backward()", "optimizer.step()", "result = loss, logits"], ("detach()",)),
        ([*FORWARD, "optimizer.zero_grad()", "loss.backward()", "optimizer.step()", "result = None"], ("two tensors", "return")),
        ([*FORWARD, "optimizer.zero_grad()", "loss.backward()", "optimizer.step()", "result = loss.detach()"], ("two tensors",)),
        (
            [*FORWARD, "optimizer.zero_grad()", "loss.backward()", "optimizer.step()", "logits = model(images)",
             "loss = loss_fn(logits, labels)", RESULT],
            ("before the update",),
        ),
        ([*FORWARD, "optimizer.zero_grad()", "(loss * 2).backward()", "optimizer.step()", RESULT], ("plain gradient descent",)),
        ([*FORWARD, "optimizer.zero_grad()", "loss.backward()", "optimizer.step()", "optimizer.step()", RESULT], ("once",)),
        (
            [*FORWARD, "optimizer.zero_grad()", "loss.backward()", "optimizer.step()",
             "result = loss.detach(), logits.detach().argmax(1)"],
            ("(8, 5)",),
        ),
    ],
    ids=["its own loss", "evaluation mode", "no backward", "a float", "no zero_grad", "no step", "zero_grad after backward", "not detached", "no return", "loss only", "after the update",
         "scaled", "two updates", "predictions"],
)  # fmt: skip
def test_wrong_steps(body, words):
    refused("train-step", step(body), *words)


def test_a_right_step_written_otherwise_passes():
    body = ["optimizer.zero_grad()", *FORWARD, "loss.backward()", "optimizer.step()", RESULT]
    check("lab01.train-step", step(body))
    check("lab01.train-step", step([*body[:-1], "model.zero_grad()", RESULT]))


# The evaluation


def evaluation(*, eval_mode=True, no_grad=True, weigh=True, average=False, mean_accuracy=False, first_only=False):
    def answer(model, batches, loss_fn):
        if eval_mode:
            model.eval()
        loss_sum = correct = seen = 0
        with torch.set_grad_enabled(not no_grad):
            for images, labels in batches[:1] if first_only else batches:
                logits = model(images)
                loss_sum += loss_fn(logits, labels).item() * (len(labels) if weigh else 1)
                right = (logits.argmax(1) == labels).float()
                correct += right.mean().item() if mean_accuracy else right.sum().item()
                seen += len(labels)
        return (loss_sum / len(batches) if average else loss_sum), correct, seen

    return answer


def test_the_wrong_evaluations_are_right_when_nothing_is_wrong():
    check("lab01.evaluate", evaluation())


@pytest.mark.parametrize(
    "mistake, words",
    [
        ({"eval_mode": False}, ("model.eval()", "training mode")),
        ({"no_grad": False}, ("torch.no_grad()",)),
        ({"weigh": False}, ("batches' means", "weight of 9")),
        ({"weigh": False, "average": True}, ("batches' means",)),
        ({"mean_accuracy": True}, ("of 21 predictions are right",)),
        ({"first_only": True}, ("3 batches", "called 1 times")),
    ],
    ids=str,
)
def test_wrong_evaluations(mistake, words):
    refused("evaluate", evaluation(**mistake), *words)


def test_an_evaluation_that_returns_the_mean_or_nothing():
    refused("evaluate", lambda model, batches, loss_fn: None, "three numbers", "return")
    refused("evaluate", lambda model, batches, loss_fn: 0.5, "three numbers")


# Throughput


def stopwatch(*, warm=True, wait_before=True, wait_after=True, clock_first=False, count_warmup=False):
    def answer(step, batch_size, steps, warmup, synchronize):
        start = time.perf_counter()
        for _ in range(warmup if warm else 0):
            step()
        if wait_before:
            synchronize()
        if not clock_first:
            start = time.perf_counter()
        for _ in range(steps):
            step()
        if wait_after:
            synchronize()
        return batch_size * (steps + (warmup if count_warmup else 0)) / (time.perf_counter() - start)

    return answer


def slower(by):
    """A stopwatch whose result is too small by a factor; `by(batch_size, steps)`."""
    return lambda step, batch_size, steps, *more: stopwatch()(step, batch_size, steps, *more) / by(batch_size, steps)


def waits_in_each_step(step, batch_size, steps, warmup, synchronize):
    def one():
        step()
        synchronize()
        time.sleep(0.02)  # Python's own work, for which the device now waits

    return stopwatch()(one, batch_size, steps, warmup, synchronize)


@pytest.mark.parametrize(
    "answer, words",
    [
        (slower(lambda batch_size, steps: batch_size), ("50 times too little", "multiply by batch_size")),
        (slower(lambda batch_size, steps: steps), ("20 times too little", "multiply by steps")),
        (waits_in_each_step, ("synchronize() was called 25 times",)),
    ],
    ids=["steps", "one step's images", "waits in each step"],
)
def test_other_factors_are_not_blamed_on_the_warm_up(answer, words):
    refused("throughput", answer, *words)


def test_the_three_numbers_in_another_order_are_told():
    def swapped(*given):
        loss, correct, images = REFERENCE["evaluate"](*given)
        return correct, loss, images

    refused("evaluate", swapped, "in another order", "(loss_sum, correct, images)")


@pytest.mark.parametrize(
    "mistake, words",
    [
        ({"wait_after": False}, ("still at work", "synchronize()")),
        ({"wait_before": False, "wait_after": False}, ("still at work",)),
        ({"clock_first": True}, ("warm-up steps", "timed too")),
        ({"wait_before": False}, ("before the device has finished",)),
        ({"clock_first": True, "count_warmup": True}, ("warm-up steps",)),
        ({"warm": False}, ("3 + 20 = 23 times", "20 times")),
    ],
    ids=str,
)
def test_wrong_stopwatches(mistake, words):
    refused("throughput", stopwatch(**mistake), *words)


def test_a_throughput_that_is_no_number_or_the_inverse():
    refused("throughput", lambda *a: None, "returns a number", "return")

    def inverse(step, batch_size, steps, warmup, synchronize):
        return 1 / stopwatch()(step, batch_size, steps, warmup, synchronize)

    refused("throughput", inverse, "images/s")


# Speed-up


@pytest.mark.parametrize(
    "answer, words",
    [
        (lambda times, n: (times[n] / times[1], times[n] / times[1] / n), ("inverse",)),
        (lambda times, n: (times[1] / times[n], times[1] / times[n]), ("per rank",)),
        (lambda times, n: (times[1] / times[n], times[1] / times[n] * n), ("efficiency",)),
        (lambda times, n: times[1] / times[n], ("pair",)),
        (lambda times, n: (times[1] - times[n], 1.0), ("speed-up is 120 / 120",)),
    ],
    ids=["inverse", "efficiency not divided", "multiplied", "one number", "difference"],
)
def test_wrong_speedups(answer, words):
    refused("speedup", answer, *words)


# The run


def test_unknown_exercises_are_said():
    with pytest.raises(KeyError, match="lab99"):
        check("lab99.train-step", None)
    with pytest.raises(KeyError, match="train-step"):
        check("lab01.nope", None)

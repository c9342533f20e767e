"""The training loop against one written by hand, on one process and on two."""

import copy
import math
import os
import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib.data.batches import Batches, load
from course_lib.distributed import RankFailedError, launch
from course_lib.models import WideResNet
from course_lib.optim.schedules import warmup_then_steps
from course_lib.runs.records import RunFolder, TrainingDivergedError
from course_lib.training.loop import EarlyStopping, evaluate, fit, train_epoch, train_step, warmup_then_decay
from course_lib.training.precision import accelerate_model

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Dropout(0.3), nn.Linear(9, 4))


def batches_of(*sizes, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(size, 1, 3, 4, generator=generator), torch.randint(4, (size,), generator=generator)) for size in sizes
    ]  # fmt: skip


def same_weights(a, b):
    return all(torch.equal(p, q) for p, q in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def test_train_epoch_is_the_loop_by_hand():
    batches, loss_fn = batches_of(7, 7, 5), nn.CrossEntropyLoss()
    model = network().eval()
    by_hand = copy.deepcopy(model).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    torch.manual_seed(3)
    totals = train_epoch(model, batches, optimizer, loss_fn, scheduler=schedule)

    torch.manual_seed(3)
    velocity = [torch.zeros_like(p) for p in by_hand.parameters()]
    loss_sum = correct = 0
    for number, (images, labels) in enumerate(batches):
        logits = by_hand(images)
        loss = loss_fn(logits, labels)
        gradients = torch.autograd.grad(loss, list(by_hand.parameters()))
        with torch.no_grad():
            for p, v, g in zip(by_hand.parameters(), velocity, gradients, strict=True):
                v.mul_(0.9).add_(g)
                p.sub_(0.1 * 0.5**number * v)
        loss_sum += loss.item() * len(labels)
        correct += int((logits.argmax(1) == labels).sum())
    for (name, ours), theirs in zip(model.state_dict().items(), by_hand.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6, msg=name)
    assert totals.dtype == torch.float64 and totals[1:].tolist() == [correct, 19]
    assert totals[0].item() == pytest.approx(loss_sum, rel=1e-6)
    assert model.training


def test_evaluate_weighs_a_short_last_batch_by_its_images():
    batches = batches_of(9, 9, 3)
    model, loss_fn = network(), nn.CrossEntropyLoss()
    model(batches[0][0])  # some statistics
    whole = torch.cat([images for images, _ in batches]), torch.cat([labels for _, labels in batches])
    with torch.no_grad():
        logits = copy.deepcopy(model).eval()(whole[0])
    before = copy.deepcopy(model)
    loss_sum, correct, images = evaluate(model.train(), batches, loss_fn)
    assert (correct, images) == (int((logits.argmax(1) == whole[1]).sum()), 21)
    assert loss_sum / images == pytest.approx(loss_fn(logits, whole[1]).item(), rel=1e-6)
    assert same_weights(model, before)
    means = sum(loss_fn(logits[cut], whole[1][cut]).item() for cut in (slice(0, 9), slice(9, 18), slice(18, 21))) / 3
    assert abs(means - loss_sum / images) > 1e-3  # the mean of means is another number here


def test_no_batches_is_one_line():
    with pytest.raises(ValueError, match="no batches to train on"):
        train_epoch(network(), [], None, nn.CrossEntropyLoss())
    with pytest.raises(ValueError, match="no batches"):
        evaluate(network(), [], nn.CrossEntropyLoss())


def test_without_a_target_nothing_stops_early():  # with one: tests/autograde/test_early_stop_rule.py
    for off in (0, None):
        assert not any(EarlyStopping(off, 1).update(1.0) for _ in range(5))
    with pytest.raises(ValueError, match="patience"):
        EarlyStopping(0.5, 0)


def test_steps_down_come_after_their_shares():
    sgd = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    schedule, rates = warmup_then_steps(sgd, 20, 4), []
    for _ in range(20):
        rates.append(sgd.param_groups[0]["lr"])
        sgd.step()
        schedule.step()
    assert rates == pytest.approx([0.5, 1.0, 1.5] + [2.0] * 4 + [0.2] * 8 + [0.02] * 3 + [0.002] * 2)


@pytest.mark.parametrize("total, warmup", [(10, 0), (10, 4), (7, 6), (1, 0)])
def test_warmup_then_decay_is_its_closed_form(total, warmup):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.4)
    schedule = warmup_then_decay(optimizer, total, warmup)
    rates = []
    for _ in range(total):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    expected = [0.4 * (i + 1) / warmup if i < warmup else 0.4 * (total - i) / (total - warmup) for i in range(total)]
    assert rates == pytest.approx(expected)
    assert optimizer.param_groups[0]["lr"] == 0 and max(rates) == pytest.approx(0.4)


@pytest.mark.parametrize("total, warmup", [(10, 10), (10, -1), (0, 1)])
def test_a_warmup_that_does_not_fit_is_one_line(total, warmup):
    with pytest.raises(ValueError) as raised:
        warmup_then_decay(torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0), total, warmup)
    assert "warmup_steps" in str(raised.value) and "\n" not in str(raised.value)


class Scripted:
    """An evaluation that gives prepared accuracies."""

    def __init__(self, *accuracies):
        self.accuracies = list(accuracies)
        self.calls = 0

    def __call__(self, model, batches, loss_fn):
        self.calls += 1
        return 2.0 * 100, self.accuracies[self.calls - 1] * 100, 100


def test_fits_history_and_its_hooks(capsys):
    model, batches, steps = network(), batches_of(6, 6), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    schedule = warmup_then_decay(optimizer, 10)

    def step(*arguments):
        steps.append(train_step(*arguments))
        return steps[-1]

    evaluation = Scripted(0.2, 0.9, 0.4, 0.8, 0.85)
    history = fit(
        model, batches, None, optimizer, epochs=5, scheduler=schedule, step=step, evaluation=evaluation,
        early_stopping=EarlyStopping(0.8, 2), quiet=True,
    )  # fmt: skip
    assert history.stopped_early and evaluation.calls == 5 and len(steps) == 10
    assert not any(tensor.requires_grad for step in steps for tensor in step)  # no graph outlives its step
    assert [record.epoch for record in history.epochs] == [1, 2, 3, 4, 5]
    assert [record.val_accuracy for record in history.epochs] == pytest.approx([0.2, 0.9, 0.4, 0.8, 0.85])
    assert [record.lr for record in history.epochs] == pytest.approx([0.05 * (10 - 2 * i) / 10 for i in range(5)])
    assert all(record.val_loss == 2.0 for record in history.epochs)
    times = [record.time for record in history.epochs]
    assert times == pytest.approx([sum(history.epoch_times[: i + 1]) for i in range(5)]) and times[0] > 0
    for record, seconds in zip(history.epochs, history.epoch_times, strict=True):
        assert record.images_per_sec == pytest.approx(12 / seconds)
    assert history.best_accuracy == pytest.approx(0.9) and history.final_accuracy == pytest.approx(0.85)
    assert history.curve()["val_accuracy"][0] == 0.0 and history.curve()["time"][1:] == times
    assert capsys.readouterr().out == ""


def test_fit_stops_at_the_first_epoch_that_allows_it_and_not_without_a_target(capsys):
    for early, epochs in ((EarlyStopping(0.8, 1), 1), (EarlyStopping(0.0, 1), 3), (None, 3)):
        optimizer = torch.optim.SGD((model := network()).parameters(), lr=0.05)
        history = fit(
            model, batches_of(6), None, optimizer, epochs=3, evaluation=Scripted(0.9, 0.9, 0.9), early_stopping=early
        )
        assert len(history.epochs) == epochs and history.stopped_early == (epochs == 1)
        assert len([line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch")]) == epochs


def diverging_run(folder):
    """Two epochs at an impossible learning rate; recorded where there is a folder."""
    optimizer = torch.optim.SGD((model := network()).parameters(), lr=1e30)
    run = RunFolder(folder, "01_single_gpu", {}, {"name": "toy"}) if folder else None
    if run is not None and not (dist.is_initialized() and dist.get_rank()):
        run.start(1, None, "cpu")
    return fit(model, batches_of(6, 6, 6), batches_of(6), optimizer, epochs=2, run=run, quiet=True)


def test_a_recorded_training_that_diverges_ends_at_once_and_another_does_not(tmp_path, capsys):
    assert not any(math.isfinite(record.val_loss) for record in diverging_run(None).epochs)  # labs 03 and 04 break it
    with pytest.raises(TrainingDivergedError, match="in epoch 1; take a lower base_lr"):
        diverging_run(str(tmp_path))
    assert len((tmp_path / "unfinished" / "learning_curve.csv").read_text().splitlines()) == 3
    with pytest.raises(RankFailedError, match="TrainingDivergedError: the training diverged"):
        launch(diverging_run, 2, (str(tmp_path / "ranks"),))
    os.environ.pop("ASSESSMENT_OUT", None)


def tiny_run(epochs=2, seed=0, samples=192):
    """Train on one process or as one of several ranks: records without times, weights, orders."""
    rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    data = load("fashion-mnist-small", train_samples=samples, test_samples=301)  # does not divide by two
    shares = dict(mean=data.mean, std=data.std, rank=rank, world_size=size)
    train = Batches(data.train, 16, shuffle=True, seed=seed, **shares)
    test = Batches(data.test, 100, **shares)
    torch.manual_seed(seed + rank)
    model = accelerate_model(WideResNet((4, 4, 8)), "cpu", "float32")
    if size > 1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    epoch_numbers = []
    set_epoch = train.set_epoch
    train.set_epoch = lambda epoch: (epoch_numbers.append(epoch), set_epoch(epoch))
    history = fit(model, train, test, optimizer, epochs=epochs, quiet=True)
    bare = getattr(model, "module", model)
    rows = [(r.epoch, r.train_loss, r.train_accuracy, r.val_loss, r.val_accuracy, r.lr) for r in history.epochs]
    weights = {name: tensor.detach().clone() for name, tensor in bare.state_dict().items()}
    return {"history": history, "rows": rows, "weights": weights, "epochs": epoch_numbers}


@pytest.fixture(scope="module")
def two_ranks():
    return launch(tiny_run, 2, timeout=100)


def test_both_ranks_have_the_same_history(two_ranks):
    first, second = two_ranks
    assert first["history"].epochs == second["history"].epochs  # times and throughput too
    assert first["history"].epoch_times == second["history"].epoch_times
    assert first["epochs"] == [0, 1]  # a new order each epoch
    for record, seconds in zip(first["history"].epochs, first["history"].epoch_times, strict=True):
        assert record.images_per_sec >= 192 / seconds * 0.999  # the sum of both ranks' rates


def test_two_ranks_accuracy_is_one_evaluation_of_rank_0s_weights(two_ranks):
    first = two_ranks[0]
    model = WideResNet((4, 4, 8))
    model.load_state_dict(first["weights"])
    data = load("fashion-mnist-small", test_samples=301)
    loss_sum, correct, images = evaluate(
        model, Batches(data.test, 301, mean=data.mean, std=data.std), nn.CrossEntropyLoss()
    )
    last = first["history"].epochs[-1]
    assert images == 301 and last.val_accuracy == correct / 301
    assert last.val_loss == pytest.approx(loss_sum / 301, rel=1e-5)


def test_same_seed_and_world_size_give_the_same_curve(two_ranks):
    again = launch(tiny_run, 2, timeout=100)
    assert again[0]["rows"] == two_ranks[0]["rows"]
    assert tiny_run(epochs=1)["rows"] == tiny_run(epochs=1)["rows"] != tiny_run(epochs=1, seed=1)["rows"]


def hooked():
    return accelerate_model(nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 4, 3)), "cpu", "bfloat16")


def test_bfloat16_inside_float32_outside():
    model, inside = hooked(), []
    model[0].register_forward_hook(lambda module, args, output: inside.append(output.dtype))
    x = torch.randn(2, 1, 4, 4)
    logits = model(x)
    assert inside == [torch.bfloat16] and logits.dtype == torch.float32
    logits.sum().backward()
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in model.parameters())
    assert not torch.is_autocast_enabled("cpu")
    twin = copy.deepcopy(model)
    assert torch.equal(twin(x), logits) and list(twin.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    inside.clear()
    with torch.no_grad():
        accelerate_model(plain := nn.Sequential(nn.Conv2d(1, 4, 3)), "cpu", "float32")
        plain.register_forward_hook(lambda module, args, output: inside.append(output.dtype))
        plain(x)
    assert inside == [torch.float32]


def test_an_exception_inside_leaves_no_autocast_behind():
    model = hooked()
    for _ in range(3):
        with pytest.raises(RuntimeError):
            model(torch.randn(2, 5, 4, 4))  # five channels for one
        assert not torch.is_autocast_enabled("cpu")
    assert model(torch.randn(2, 1, 4, 4)).dtype == torch.float32
    assert not torch.is_autocast_enabled("cpu")


def test_precision_is_checked():
    with pytest.raises(ValueError, match="precision must be"):
        accelerate_model(nn.Linear(1, 1), "cpu", "float16")

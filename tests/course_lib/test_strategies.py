"""The harness: each strategy against the arithmetic that it stands for, its bytes against closed forms, its files."""

import functools
import json
import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from course_lib.data.batches import Batches
from course_lib.training.loop import evaluate
from course_lib.training.strategies import (
    STRATEGIES,
    CurvePoint,
    StrategyResult,
    Task,
    WeightHealth,
    check_weight_health,
    compare,
    results_table,
    run_strategy,
    state_vector,
)
from course_lib.training.strategies.clock import Clock
from course_lib.training.strategies.worker_shard import WorkerShard, load_state_vector

TASK = Task(
    dataset="fashion-mnist-small", workers=2, epochs=2, batch_size=16, lr=0.05, train_samples=200, test_samples=100,
    network="logistic_regression", points=4, average_every=3,
)  # fmt: skip
PARAMETERS = 7850
STEPS = 2 * (192 // 32)  # of each of two workers: 200 images are cut to 192


@pytest.fixture(scope="module")
def data():
    return TASK.data()


@functools.cache
def records_of(name):
    """The records of one run, seed 3; several tests look at them."""
    return STRATEGIES[name](TASK, 3)


def fresh(data, seed):
    torch.manual_seed(seed)
    return TASK.model(data)


def dealt(data, seed, rank, workers):
    """A worker's batches of all epochs, as `Batches` and DistributedSampler deal them."""
    batches = Batches(
        data.train, 16, mean=data.mean, std=data.std, shuffle=True, seed=seed, rank=rank, world_size=workers
    )
    for epoch in range(2):
        batches.set_epoch(epoch)
        yield from batches


def gradient(model, images, labels):
    return torch.autograd.grad(F.cross_entropy(model(images), labels), list(model.parameters()))


@torch.no_grad()
def move(model, gradients, lr):
    for parameter, step in zip(model.parameters(), gradients, strict=True):
        parameter -= lr * step


def alone(data, seed, rank=0, workers=1):
    model = fresh(data, seed)
    for batch in dealt(data, seed, rank, workers):
        move(model, gradient(model, *batch), 0.05)
    return state_vector(model)


def together(data, seed):
    """Both workers' gradients added at every step."""
    model = fresh(data, seed)
    for first, second in zip(dealt(data, seed, 0, 2), dealt(data, seed, 1, 2), strict=True):
        pairs = zip(gradient(model, *first), gradient(model, *second), strict=True)
        move(model, [a + b for a, b in pairs], 0.05)
    return state_vector(model)


def averaged(data, seed, every):
    models = [fresh(data, seed), fresh(data, seed)]
    for step, batches in enumerate(zip(dealt(data, seed, 0, 2), dealt(data, seed, 1, 2), strict=True), 1):
        for model, batch in zip(models, batches, strict=True):
            move(model, gradient(model, *batch), 0.05)
        if step % every == 0 or step == STEPS:
            mean = (state_vector(models[0]) + state_vector(models[1])) / 2
            for model in models:
                load_state_vector(model, mean)
    return state_vector(models[0])


EXPECTED = {
    "single": alone,
    "synchronous": together,
    "parallel SGD": lambda data, seed: averaged(data, seed, STEPS),
    "local SGD": lambda data, seed: averaged(data, seed, 3),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_weights_are_those_of_the_algorithm(name, data):
    records = records_of(name)
    assert len(records) == (1 if name == "single" else 2)
    for record in records:
        assert record.seconds > 0 and record.cpu_seconds > 0
        torch.testing.assert_close(record.snapshots[-1].weights, EXPECTED[name](data, 3), rtol=0, atol=1e-5)
    points = records[0].snapshots
    assert points[-1].samples == 384 and [point.seconds for point in points] == sorted(p.seconds for p in points)
    ring = 2 * (2 - 1) / 2  # of each of two ranks, times the payload
    averages = {"parallel SGD": 1, "local SGD": math.ceil(STEPS / 3)}
    # The gradients travel with the number of samples.
    payload = {"synchronous": STEPS * (PARAMETERS + 1), **{k: n * PARAMETERS for k, n in averages.items()}}
    for record in records:
        assert record.bytes_sent == ring * 4 * payload.get(name, 0)
        assert record.messages == {"synchronous": STEPS, **averages}.get(name, 0)
    assert sum(record.updates for record in records) == {"synchronous": STEPS}.get(name, 2 * STEPS)
    if name != "local SGD":
        assert [point.samples for point in points] == [96, 192, 288, 384]


def test_points_passed_over_share_a_copy():
    """A late process, which had no core for a while, leaves as many points as the others."""
    model = torch.nn.Linear(2, 1)
    clock = Clock(total=100, points=4)
    for samples in (10, 30, 80, 90, 100):
        clock.take(samples, model)
    assert [point.samples for point in clock.snapshots] == [30, 80, 80, 100]
    clock.take(110, model)
    assert len(clock.stop().snapshots) == 4


@pytest.mark.parametrize("name, processes", [("parameter server", 2), ("HogWild", 1)])
def test_asynchronous_with_one_worker_is_plain_sgd(name, processes, data):
    task = replace(TASK, workers=1)
    records = STRATEGIES[name](task, 5)
    assert len(records) == processes
    torch.testing.assert_close(records[0].snapshots[-1].weights, alone(data, 5), rtol=0, atol=1e-5)
    assert set(records[0].staleness) == {0} and len(records[0].staleness) == 24
    assert sum(record.updates for record in records) == 24


@pytest.mark.parametrize("name", ["parameter server", "HogWild"])
def test_at_a_vanishing_rate_both_take_the_step_of_all_samples(name, data):
    """Where the weights hardly move, order and staleness do not matter, and every sample's gradient must be in the sum."""
    task = replace(TASK, lr=1e-5)
    records = STRATEGIES[name](task, 7)
    model = fresh(data, 7)
    everything = [gradient(model, *batch) for rank in range(2) for batch in dealt(data, 7, rank, 2)]
    step = -task.lr * torch.cat([torch.stack(parts).sum(0).flatten() for parts in zip(*everything, strict=True)])
    moved = records[0].snapshots[-1].weights - state_vector(model)
    apart = ((moved - step).norm() / step.norm()).item()
    assert apart < (0.1 if name == "HogWild" else 0.01), apart  # a race may lose some


def test_the_parameter_servers_messages():
    server, *workers = records_of("parameter server")
    assert [point.samples for point in server.snapshots] == [96, 192, 288, 384]
    assert not any(worker.snapshots for worker in workers)
    pushes, message, header = STEPS, 4 * PARAMETERS + 24, 24
    for worker in workers:  # hello (a header), pushes, goodbye
        assert worker.messages == pushes + 2
        assert header + pushes * message <= worker.bytes_sent <= header + (pushes + 1) * message
    assert server.messages == 2 * (pushes + 2)
    assert server.bytes_sent == 2 * ((pushes + 1) * message + header)
    assert server.updates == 2 * STEPS and len(server.staleness) == 2 * STEPS and max(server.staleness) <= 2 * STEPS


def test_hogwild_shares_the_work_and_sends_nothing():
    records = records_of("HogWild")
    assert [record.updates for record in records] == [STEPS, STEPS]
    assert all(record.bytes_sent == record.messages == 0 for record in records)
    points, other = records[0].snapshots, records[1].snapshots
    assert not other and points[-1].samples == 384
    assert all(point.samples >= due for point, due in zip(points, (96, 192, 288, 384), strict=False))
    assert not torch.equal(points[0].weights, points[-1].weights)


@pytest.fixture
def recorded(monkeypatch):
    """`run_strategy` with the records of a run that was made already."""
    for name in ("single", "synchronous", "parallel SGD"):
        records = records_of(name)
        monkeypatch.setitem(STRATEGIES, name, lambda task, seed, records=records: records)


def expected_accuracy(vector, data):
    """The test accuracy of a model with these weights."""
    model = fresh(data, 0)
    load_state_vector(model, vector)
    _, correct, images = evaluate(model, Batches(data.test, 100, mean=data.mean, std=data.std), F.cross_entropy)
    return pytest.approx(correct / images, abs=0.011)  # rounding may turn one image


def test_a_result_has_all_that_was_measured(data, recorded):
    result = run_strategy("synchronous", TASK, 3)
    assert (result.workers, result.processes, result.samples, result.updates) == (2, 2, 384, STEPS)
    assert [point.samples for point in result.curve] == [96, 192, 288, 384]
    assert result.final_accuracy == expected_accuracy(together(data, 3), data)
    assert 0 < result.curve[0].seconds <= result.curve[-1].seconds <= result.seconds
    assert 0 < result.busiest_seconds <= result.cpu_seconds
    assert math.isnan(result.staleness)
    moved = (together(data, 3) - state_vector(fresh(data, 3))).norm().item()
    assert result.moved == pytest.approx(moved, rel=1e-4) and result.finite and not result.constant
    assert not any(point.hypothetical for point in result.curve)
    alone = run_strategy("single", TASK, 3)
    assert (alone.workers, alone.processes, alone.samples, alone.updates) == (1, 1, 384, 2 * STEPS)


def test_the_curve_of_an_average_is_scored_as_an_average(data, recorded):
    first, second = records_of("parallel SGD")
    result = run_strategy("parallel SGD", TASK, 3)
    for point, mine, other in zip(result.curve[:3], first.snapshots, second.snapshots, strict=False):
        assert not torch.equal(mine.weights, other.weights) and mine.samples == other.samples
        assert point.accuracy == expected_accuracy((mine.weights + other.weights) / 2, data)
    # No training could have stopped there: no time is read from it.
    assert [point.hypothetical for point in result.curve] == [True, True, True, False]
    assert result.points() == [(result.curve[3].seconds, 384, result.final_accuracy)]
    assert result.seconds_to(0.0) == result.curve[3].seconds and math.isnan(result.seconds_to(1.01))
    assert not any(point.hypothetical for record in records_of("local SGD") for point in record.snapshots)


def test_a_training_that_diverges_says_so(data):
    """Its accuracy is the share of class 0, which looks like that of a fresh network."""
    result = run_strategy("single", replace(TASK, lr=1e38), 0)
    assert not result.finite and result.health.problem.startswith("diverged")
    labels = data.test.labels
    assert result.final_accuracy == pytest.approx((labels == 0).double().mean().item())


def test_the_conditions_of_a_model(data):
    batches = list(Batches(data.test, 50, mean=data.mean, std=data.std))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 8), torch.nn.ReLU(), torch.nn.Linear(8, 10))
    start = state_vector(model)
    assert check_weight_health(model, start, batches) == WeightHealth(True, 0.0, False)
    assert check_weight_health(model, start, batches).problem.startswith("unmoved") and model.training
    with torch.no_grad():
        model[3].bias[2] += 0.125
        health = check_weight_health(model, start, batches)
        assert health == WeightHealth(True, pytest.approx(0.125, rel=1e-3), False)
        assert not health.problem and str(health) == "the weights moved by 0.12"
        model[1].bias -= 1e6  # all ReLUs at zero
        dead = check_weight_health(model, start, batches)
        assert dead.finite and dead.constant and "one answer for all images" in dead.problem
        model[3].weight[0, 0] = math.nan
        assert check_weight_health(model, start, batches).problem.startswith("diverged")
        model[3].weight.fill_(3e38)  # finite weights, infinite outputs
        model[1].bias += 2e6
        assert state_vector(model).isfinite().all() and not check_weight_health(model, start, batches).finite


def test_batch_norm(monkeypatch):
    """Its statistics are averaged, taken from the workers, or shared; those of the start classify nothing."""
    task = replace(TASK, network="small_cnn", train_samples=512, epochs=1, lr=0.05)
    records = STRATEGIES["synchronous"](task, 0)
    models = [task.model(task.data()) for _ in records]
    for model, record in zip(models, records, strict=True):
        load_state_vector(model, record.snapshots[-1].weights)
        assert record.messages == 512 // 32  # the statistics cost none
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
    means = [[b for name, b in model.named_buffers() if name.endswith("running_mean")] for model in models]
    assert not torch.equal(means[0][0], means[1][0])  # each rank's own
    scored, module = [], "course_lib.training.strategies.run"
    monkeypatch.setitem(STRATEGIES, "synchronous", lambda task, seed: records)
    monkeypatch.setattr(f"{module}.load_state_vector", lambda model, vector: scored.append(vector))
    run_strategy("synchronous", task)
    monkeypatch.undo()
    assert torch.equal(scored[-1], (records[0].snapshots[-1].weights + records[1].snapshots[-1].weights) / 2)
    assert run_strategy("HogWild", task).final_accuracy > 0.25
    model = task.model(task.data())
    load_state_vector(model, STRATEGIES["parameter server"](task, 0)[0].snapshots[-1].weights)
    means = [buffer for name, buffer in model.named_buffers() if name.endswith("running_mean")]
    assert all(mean.abs().max() > 0.01 for mean in means)


def test_getting_ready_leaves_the_model_as_it_was():
    """The first step of a process is made before the clock starts, on a copy."""
    share = WorkerShard(replace(TASK, network="small_cnn"), seed=0, rank=1, workers=2)
    assert all(parameter.grad is None for parameter in share.model.parameters())
    assert all(int(buffer) == 0 for name, buffer in share.model.named_buffers() if name.endswith("tracked"))
    assert share.model.training and len(share) == STEPS and share.total == 384


# Tasks


def test_images_are_cut_to_whole_batches_of_all_workers():
    assert len(replace(TASK, train_samples=201).data().train) == 192
    with pytest.raises(ValueError, match="40 training images are fewer than one batch of 16 for each of 3 workers"):
        replace(TASK, train_samples=40, workers=3).data()


@pytest.mark.parametrize(
    "wrong", [{"workers": 0}, {"epochs": 0}, {"points": 0}, {"average_every": 0}, {"network": "vgg"}]
)
def test_tasks_that_cannot_be(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        replace(TASK, **wrong)


def test_unknown_strategies():
    with pytest.raises(ValueError, match="no strategy 'gossip'; there are single, synchronous"):
        run_strategy("gossip", TASK)
    with pytest.raises(ValueError, match="no strategy 'gossip'"):
        compare(TASK, strategies=["single", "gossip"])


# Comparisons, without training


def result(name="single", seed=0, accuracies=(0.5, 0.8), **more):
    curve = tuple(CurvePoint(1.0 + place, 100 * (place + 1), a) for place, a in enumerate(accuracies))
    entries = dict(strategy=name, seed=seed, workers=2, processes=2, cores=2, samples=200, updates=20, seconds=2.0,
                   cpu_seconds=3.0, busiest_seconds=1.6, bytes_sent=0, messages=0, staleness=math.nan, finite=True, moved=2.0,
                   constant=False, curve=curve)  # fmt: skip
    return StrategyResult(**{**entries, **more})


@pytest.fixture
def made(monkeypatch):
    """Runs are made up; those that were asked for."""
    calls = []

    def run(name, task, seed):
        calls.append((name, seed, task.lr))
        if name == "local SGD" and seed == 1 and len(calls) < 5:
            raise RuntimeError("the machine went away")
        return result(name, seed)

    monkeypatch.setattr("course_lib.training.strategies.comparison.run_strategy", run)
    monkeypatch.setattr("course_lib.training.strategies.comparison.available_cores", lambda: 2)
    return calls


def test_a_comparison_goes_on_where_it_was_interrupted(made, tmp_path, capsys):
    names = ["single", "local SGD"]
    with pytest.raises(RuntimeError, match="went away") as raised:
        compare(TASK, (0, 1), names, tmp_path / "kept")
    assert raised.value.__notes__ == ["in the strategy local SGD, seed 1"]
    assert len(made) == 4 and len(list((tmp_path / "kept").iterdir())) == 3
    assert "kept" not in capsys.readouterr().out
    results = compare(TASK, (0, 1), names, tmp_path / "kept")
    note = f"3 of 4 runs were kept from earlier ({tmp_path / 'kept'}; delete it to measure again)"
    assert capsys.readouterr().out.count(note) == 1
    assert made[4:] == [("local SGD", 1, 0.05)]
    assert [(one.strategy, one.seed) for one in results] == [(n, s) for s in (0, 1) for n in names]
    compare(replace(TASK, lr=0.06), (0,), ["single"], tmp_path / "kept")
    assert made[-1] == ("single", 0, 0.06)  # another task's runs are not taken for this one's
    assert not capsys.readouterr().err


def test_files_that_are_none_are_made_again(made, tmp_path):
    compare(TASK, (0,), ["single"], tmp_path)
    (path,) = tmp_path.iterdir()
    whole = path.read_text()
    for text in (whole[: len(whole) // 2], "[]", json.dumps({**json.loads(whole), "unknown": 1}), "{}"):
        path.write_text(text)
        before = len(made)
        compare(TASK, (0,), ["single"], tmp_path)
        assert len(made) == before + 1 and path.read_text() == whole


def test_runs_of_another_machine_are_made_again(made, tmp_path, monkeypatch):
    compare(TASK, (0,), ["single"], tmp_path)
    monkeypatch.setattr("course_lib.training.strategies.comparison.available_cores", lambda: 4)
    compare(TASK, (0,), ["single"], tmp_path)
    assert len(made) == 2


def test_runs_that_learned_nothing_are_named(made, monkeypatch, capsys):
    spoilt = result("HogWild", 4, finite=False, moved=math.nan)
    monkeypatch.setattr("course_lib.training.strategies.comparison.run_strategy", lambda name, task, seed: spoilt)
    compare(TASK, (4,), ["HogWild"])
    output = capsys.readouterr()
    assert "HogWild, seed 4: diverged" in output.out and not output.err


def test_without_a_folder_nothing_is_kept(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    compare(TASK, (0,), ["single"])
    assert not list(tmp_path.iterdir())


def test_a_result_comes_back_as_it_was(tmp_path):
    written = result(staleness=1.5)
    written.write(tmp_path / "one.json")
    assert StrategyResult.read(tmp_path / "one.json") == written
    assert StrategyResult.read(tmp_path / "none.json") is None


def test_table_and_targets():
    up_and_down = result("HogWild", 1, (0.7, 0.6, 0.9), processes=3)
    table = results_table([result(), up_and_down], 0.65)
    assert list(table["time_to_target"]) == [2.0, 1.0] and list(table["crowded"]) == [False, True]
    assert list(table["final_accuracy"]) == [0.8, 0.9] and "curve" not in table
    assert math.isnan(results_table([result()], 0.81)["time_to_target"].iloc[0])
    assert result().seconds_to(0.8) == 2.0  # an accuracy that is met counts


def test_digests_tell_tasks_apart():
    assert TASK.digest() == replace(TASK).digest() != replace(TASK, epochs=3).digest()

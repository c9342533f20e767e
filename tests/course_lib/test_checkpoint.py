"""A training that is interrupted and resumed ends with the bytes of one that was not."""

import copy

import pytest
import torch
from torch import nn

from course_lib.data.augment import CropAndFlip
from course_lib.data.batches import Batches, load
from course_lib.distributed import RankFailedError, launch
from course_lib.optim import NovoGrad, no_decay_groups
from course_lib.runs.records import EpochRecord, RunFolder
from course_lib.training.checkpoint import Checkpoint, CheckpointError
from course_lib.training.loop import EarlyStopping, fit

EPOCHS = 4


@pytest.fixture(scope="module")
def data():
    return load("cifar10-synthetic", train_samples=256, test_samples=64)


def network():
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=4), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.LazyLinear(10)
    )


def training(data, optimiser="sgd", rank=0, world_size=1):
    model = network()
    model(torch.zeros(2, 3, 32, 32))
    model = model.to(memory_format=torch.channels_last)
    if optimiser == "sgd":
        groups = no_decay_groups(model, 1e-3)
        made = torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True, fused=True)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(made, 0.05, total_steps=200, cycle_momentum=False)
    elif optimiser == "adamw":
        made = torch.optim.AdamW(model.parameters(), lr=1e-3)
        scheduler = torch.optim.lr_scheduler.LambdaLR(made, lambda step: 1 / (1 + step))
    else:
        made = NovoGrad(model.parameters(), lr=0.01)
        rising = torch.optim.lr_scheduler.LinearLR(made, 0.1, total_iters=10)
        steps = torch.optim.lr_scheduler.MultiStepLR(made, [10, 20])
        scheduler = torch.optim.lr_scheduler.SequentialLR(made, [rising, steps], [10])
    common = {"mean": data.mean, "std": data.std, "rank": rank, "world_size": world_size}
    train = Batches(data.train, 32, shuffle=True, seed=1, augment=CropAndFlip(4), **common)
    return model, train, Batches(data.test, 64, **common), made, scheduler


def trained(data, checkpoint, epochs, optimiser="sgd", **options):
    model, train, test, made, scheduler = training(data, optimiser)
    history = fit(
        model, train, test, made, epochs=epochs, scheduler=scheduler, checkpoint=checkpoint, quiet=True, **options
    )
    return model, made, history


def losses(history):
    return [(record.epoch, record.train_loss, record.val_loss, record.lr) for record in history.epochs]


def equal(model, other):
    return all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))


@pytest.mark.parametrize("optimiser", ["sgd", "adamw", "novograd"])
def test_a_resumed_training_is_the_uninterrupted_one_to_the_bit(data, tmp_path, optimiser):
    whole, whole_optimiser, straight = trained(data, Checkpoint(tmp_path / "whole"), EPOCHS, optimiser)
    half = Checkpoint(tmp_path / "half")
    trained(data, half, 2, optimiser)
    torch.manual_seed(99)  # whatever the new process has drawn before
    model, made, resumed = trained(data, half, EPOCHS, optimiser)
    assert losses(resumed) == losses(straight)
    assert equal(model, whole)
    momenta = [value for state in made.state_dict()["state"].values() for value in state.values()]
    expected = [value for state in whole_optimiser.state_dict()["state"].values() for value in state.values()]
    assert all(torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(momenta, expected, strict=True))


def two_ranks(path, epochs):
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    given = load("cifar10-synthetic", train_samples=256, test_samples=64)
    model, train, test, made, scheduler = training(given, rank=dist.get_rank(), world_size=2)
    history = fit(
        DistributedDataParallel(model), train, test, made, epochs=epochs, scheduler=scheduler,
        checkpoint=Checkpoint(path), quiet=True,
    )  # fmt: skip
    return losses(history), [tensor.numpy() for tensor in model.state_dict().values()]


def test_two_ranks_resume_to_the_bit(tmp_path):
    straight = launch(two_ranks, 2, (tmp_path / "whole", EPOCHS))
    launch(two_ranks, 2, (tmp_path / "half", 2))
    resumed = launch(two_ranks, 2, (tmp_path / "half", EPOCHS))
    assert resumed[0][0] == straight[0][0] == resumed[1][0]
    for rank in range(2):
        assert all((a == b).all() for a, b in zip(resumed[rank][1], straight[rank][1], strict=True))


def one_of_two_sees_the_checkpoint(folder, epochs):
    import torch.distributed as dist

    return two_ranks(folder / f"of rank {dist.get_rank()}", epochs)


def test_ranks_that_do_not_see_the_same_checkpoint_do_not_train(tmp_path):
    launch(one_of_two_sees_the_checkpoint, 2, (tmp_path, 1))  # rank 0 alone writes
    with pytest.raises(RankFailedError, match="holds 1 epochs for some ranks and 0 for others; it must be in a folder"):
        launch(one_of_two_sees_the_checkpoint, 2, (tmp_path, 2))


def test_any_seed_that_the_programs_take_will_do(data, tmp_path):
    trained(data, Checkpoint(tmp_path / "c", seed=2**31 - 1), 1)


def test_time_goes_on_and_a_finished_training_is_not_trained_again(data, tmp_path):
    kept = Checkpoint(tmp_path / "c")
    _, _, first = trained(data, kept, 2)
    _, _, second = trained(data, kept, 3)
    times = [record.time for record in second.epochs]
    assert times[:2] == [record.time for record in first.epochs] and times[2] > times[1]
    before = kept.path.read_bytes()
    _, _, third = trained(data, kept, 3)
    assert [record.time for record in third.epochs] == times
    assert kept.path.read_bytes() == before


def test_early_stopping_remembers(data, tmp_path):
    kept = Checkpoint(tmp_path / "c")
    trained(data, kept, 1, early_stopping=EarlyStopping(1e-9, patience=2))
    _, _, history = trained(data, kept, EPOCHS, early_stopping=EarlyStopping(1e-9, patience=2))
    assert len(history.epochs) == 2 and history.stopped_early
    _, _, again = trained(data, kept, EPOCHS, early_stopping=EarlyStopping(1e-9, patience=2))
    assert len(again.epochs) == 2 and again.stopped_early


def test_the_run_folder_is_that_of_an_uninterrupted_run(data, tmp_path, capsys):
    def run(folder, *lengths):
        for length in lengths:
            kept = RunFolder(str(tmp_path / folder), "05_resnet_hw", {"seed": 0}, {"name": "toy"}, {"program": "p"})
            kept.start(1, None, "cpu", resume=True)
            stop = EarlyStopping(1e-9, patience=EPOCHS)
            trained(data, Checkpoint(tmp_path / f"{folder}.safetensors"), length, run=kept, early_stopping=stop)
        kept.finish(True)
        return tmp_path / folder

    straight, resumed = run("straight", EPOCHS), run("resumed", 2, 3, EPOCHS)
    columns = [[line.split(",") for line in (folder / "learning_curve.csv").read_text().splitlines()]
               for folder in (straight, resumed)]  # fmt: skip
    kept = [0, 3, 4, 5, 6, 7]  # times differ
    assert [[row[i] for i in kept] for row in columns[0]] == [[row[i] for i in kept] for row in columns[1]]
    lines = (resumed / "assessment.out").read_text().splitlines()
    assert [line.split(":")[0] for line in lines] == [
        *(f"Epoch = {epoch:2d}" for epoch in range(1, EPOCHS + 1)), f"Early stopping after epoch {EPOCHS}",
    ]  # fmt: skip
    assert (straight / "model.safetensors").read_bytes() == (resumed / "model.safetensors").read_bytes()
    record = RunFolder(str(resumed), "", {}, {}).finished_run()
    assert record["program"] == "p" and len(record["resumed"]) == 2
    assert record["started"] <= record["resumed"][0] <= record["ended"]


def test_a_stop_that_was_not_yet_written_is_written(data, tmp_path, capsys):
    """Killed after the last checkpoint, before the run was finished."""
    kept = Checkpoint(tmp_path / "c.safetensors")
    trained(data, kept, EPOCHS, early_stopping=EarlyStopping(1e-9, patience=2))
    run = RunFolder(str(tmp_path), "05_resnet_hw", {}, {}).start(1, None, "cpu", resume=True)
    trained(data, kept, EPOCHS, run=run, early_stopping=EarlyStopping(1e-9, patience=2))
    lines = (run.finish(True) / "assessment.out").read_text().splitlines()
    assert lines[-1] == "Early stopping after epoch 2" and len(lines) == 3


def test_another_file_is_no_checkpoint(data, tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(b"not a checkpoint")
    with pytest.raises(CheckpointError, match=r"cannot be read .*; remove it to start again"):
        trained(data, Checkpoint(path), 1)
    whole = Checkpoint(tmp_path / "whole")
    trained(data, whole, 1)
    path.write_bytes(whole.path.read_bytes()[:-10])
    with pytest.raises(CheckpointError, match="cannot be read"):
        trained(data, Checkpoint(path), 1)
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(CheckpointError, match="not a checkpoint of this version"):
        trained(data, Checkpoint(path), 1)


def test_another_model_optimiser_or_schedule_is_one_line(data, tmp_path):
    kept = Checkpoint(tmp_path / "c")
    trained(data, kept, 1)
    _, _, _, optimiser, scheduler = training(data)
    with pytest.raises(CheckpointError, match="does not fit this training") as raised:
        kept.restore(nn.Linear(3, 2), optimiser, scheduler)
    assert "\n" not in str(raised.value)
    assert "weight" in str(raised.value), "what does not fit has a name"
    model, _, _, optimiser, _ = training(data)
    with pytest.raises(CheckpointError, match="only one of the two trainings has a schedule"):
        kept.restore(model, optimiser, None)
    with pytest.raises(CheckpointError, match="does not fit"):
        kept.restore(model, torch.optim.SGD(model.parameters(), lr=1.0), training(data)[4])


def test_only_plain_values_are_kept(tmp_path):
    model = nn.Linear(2, 2)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    optimiser.param_groups[0]["odd"] = object()
    with pytest.raises(CheckpointError, match="cannot hold object"):
        Checkpoint(tmp_path / "c").save(model, optimiser, None, [], [])
    assert not (tmp_path / "c").exists()


def test_with_it_goes_what_a_kill_left_of_its_writing(tmp_path):
    kept = Checkpoint(tmp_path / "c")
    (tmp_path / ".c.half").touch()
    (tmp_path / ".d.half").touch()
    kept.remove()
    assert [path.name for path in tmp_path.iterdir()] == [".d.half"]


def test_shared_parameters_survive(tmp_path):
    model = nn.ModuleList([nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)])
    model[1].weight = model[0].weight
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    record = EpochRecord(1, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.1)
    kept = Checkpoint(tmp_path / "c")
    kept.save(model, optimiser, None, [record], [1.0])
    other = copy.deepcopy(model)
    nn.init.zeros_(other[0].weight)
    assert kept.restore(other, torch.optim.SGD(other.parameters(), lr=0.1), None) == ([record], [1.0])
    assert torch.equal(other[0].weight, model[0].weight) and other[1].weight is other[0].weight


def test_what_a_checkpoint_holds_can_be_counted(tmp_path):
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 1.0)
    model(torch.randn(4, 3)).sum().backward()
    optimiser.step()
    kept = Checkpoint(tmp_path / "state.safetensors")
    kept.save(model, optimiser, schedule, [], [])
    weights = 4 * (3 * 2 + 2 + 2 + 2)
    assert kept.contents() == {"model": (7, weights + 4 * 4 + 8), "optimizer": (4, weights), "scheduler": (0, 0)}


def test_each_epoch_draws_anew_and_again_alike(tmp_path):
    checkpoint, draws = Checkpoint(tmp_path / "c.safetensors", seed=3), []
    for epoch in (1, 2, 1):
        checkpoint.seed_epoch(epoch)
        draws.append(torch.rand(4).tolist())
    assert draws[0] == draws[2] != draws[1]

"""`run_grid`: a function over a grid and seeds, inside a notebook."""

import os
import threading
import time
from pathlib import Path

import pandas as pd
import pytest
import torch
import torch.distributed as dist

from course_lib.distributed import LaunchStoppedError, RankFailedError, launch
from course_lib.runs.sweep import grid
from course_lib.training.run_grid import run_grid, write_curves

CORES = len(os.sched_getaffinity(0))


def note(batch_size, seed):
    return {"ranks": dist.get_world_size(), "product": batch_size * seed, "threads": torch.get_num_threads()}


def test_a_row_for_each_trial_and_seed_in_the_grids_order(capfd):
    trials = grid(num_gpus=[1, min(2, CORES)], batch_size=[3, 5])
    frame = run_grid(note, trials, repeats=2, seed=10)
    assert list(frame.columns) == ["num_gpus", "batch_size", "seed", "ranks", "product", "threads"]
    assert list(zip(frame["num_gpus"], frame["batch_size"], frame["seed"], strict=True)) == [
        (p["num_gpus"], p["batch_size"], seed) for p in trials for seed in (10, 11)
    ]
    assert (frame["ranks"] == frame["num_gpus"]).all() and set(frame["threads"]) == {1}
    assert (frame["product"] == frame["batch_size"] * frame["seed"]).all()
    out = capfd.readouterr()
    assert out.err == "" and "8/8" in out.out  # nbgrader takes what is on stderr for a failure


def when(seed, folder):
    """Ends when `CORES` of them have begun, so that as many run together on a busy machine too."""
    start = time.time()
    (Path(folder) / f"{seed}-{os.getpid()}").touch()
    while len(os.listdir(folder)) < CORES and time.time() < start + 300:
        time.sleep(0.02)
    time.sleep(0.2)
    return {"start": start, "end": time.time()}


@pytest.mark.skipif(CORES < 2, reason="one core")
def test_as_many_at_a_time_as_there_are_cores_and_no_more(tmp_path):
    trial = {"folder": str(tmp_path)}
    frame = run_grid(when, [trial], repeats=2 * CORES)
    together = [sum((frame["start"] <= t) & (t < frame["end"])) for t in frame["start"]]
    assert max(together) == CORES
    frame = run_grid(when, [trial | {"num_gpus": CORES}], repeats=2)
    assert frame["start"][1] > frame["end"][0]
    frame = run_grid(when, [trial], repeats=3, jobs=1)
    assert frame["start"][1] > frame["end"][0] and frame["start"][2] > frame["end"][1]


def fail_at(seed, rate):
    if rate == 2:
        raise ValueError("ran away")
    time.sleep(600 if rate == 3 else 0)
    return {}


def test_a_failure_names_its_trial_and_ends_the_others():
    start = time.monotonic()
    with pytest.raises(RankFailedError, match="ran away") as raised:
        run_grid(fail_at, grid(rate=[2, 3]), repeats=1)
    assert raised.value.__notes__ == ["at rate = 2, seed = 0"] and time.monotonic() - start < 300


@pytest.mark.parametrize(
    "trials, repeats, told", [([], 1, "0 trials"), ([{}], 0, "0 repeats"), ([{"num_gpus": 10**4}], 1, "this machine has"), ([{"num_gpus": 0}], 1, "num_gpus = 0")]
)  # fmt: skip
def test_what_cannot_run_is_refused(trials, repeats, told):
    with pytest.raises(ValueError, match=told):
        run_grid(note, trials, repeats=repeats)


def sleeper():
    time.sleep(600)


def test_a_launch_can_be_stopped_from_another_thread():
    stop = threading.Event()
    threading.Timer(1.0, stop.set).start()
    start = time.monotonic()
    with pytest.raises(LaunchStoppedError):
        launch(sleeper, 2, stop=stop)
    assert time.monotonic() - start < 300


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2"])
def test_threads_are_a_positive_whole_number(threads):
    with pytest.raises(ValueError, match="threads must be"):
        launch(sleeper, 1, threads=threads)


def test_threads_can_be_chosen():
    assert launch(torch.get_num_threads, 2, threads=3) == [3, 3]


def test_curves_have_the_tutorials_names(tmp_path):
    settings = {"optimizer": "sgd", "seed": 3, "batch_size": 64, "lr": 0.1, "momentum": 0.9, "warmup_epochs": 2.0}
    write_curves(pd.DataFrame([{**settings, "time": [1.26, 2.5], "val_accuracy": [0.5, 0.87654]}]), tmp_path)
    (file,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert file == tmp_path / "curves/sgd/seed-3/1ranks-64bs-0.1lr-0.9m-2.0w.csv"
    assert file.read_text().split() == ["time,val_accuracy", "0.0,0.0", "1.3,0.5", "2.5,0.8765"]

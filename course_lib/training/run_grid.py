"""A small sweep inside a notebook: a function, over a grid and several seeds, as many at a time as the cores carry."""

from __future__ import annotations

import csv
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from tqdm import tqdm

from course_lib.distributed import launch
from course_lib.system.hardware import available_cores

__all__ = ["run_grid", "write_curves"]


def run_grid(
    worker: Callable[..., Mapping[str, Any]],
    trials: Sequence[Mapping[str, Any]],
    repeats: int = 3,
    seed: int = 0,
    jobs: int | None = None,
) -> pd.DataFrame:
    """Call ``worker(**trial, seed=…)`` for each trial and seed, on ``trial["num_gpus"]`` ranks (by default 1).

    Every rank has one CPU thread, so that times can be compared. Without GPUs several trials run at a time, with no more
    ranks than cores. On GPUs trials run one after another.

    Parameters
    ----------
    worker : callable
        As for `launch`, without the argument ``num_gpus``. Returns a flat mapping of numbers or lists; rank 0's is kept.
    trials : sequence of mappings
        As `grid` makes them.
    repeats : int
        Seeds: ``seed``, ``seed + 1``, …
    jobs : int, optional
        Trials at a time, at most.

    Returns
    -------
    DataFrame
        A row per trial and repeat, in the order of `trials`: its parameters, ``seed``, and what the worker returned.

    Raises
    ------
    ValueError
        No trials, no repeats, or a trial with more ranks than there are cores (GPUs, where there are GPUs).
    RankFailedError
        With a note that names the trial; the others end.
    """
    if not trials or repeats < 1:
        raise ValueError(f"nothing to run: {len(trials)} trials, {repeats} repeats")
    gpus = torch.cuda.device_count()
    room = gpus or available_cores()
    for trial in trials:
        if not 1 <= trial.get("num_gpus", 1) <= room:
            raise ValueError(f"num_gpus = {trial['num_gpus']}: this machine has {room} {'GPUs' if gpus else 'cores'}")
    at_a_time = min(jobs or room, room) if not gpus else 1
    runs = [{**trial, "seed": seed + repeat} for trial in trials for repeat in range(repeats)]
    results: dict[int, Mapping[str, Any]] = {}
    stop = threading.Event()

    def run(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        ranks = parameters.get("num_gpus", 1)
        arguments = {name: value for name, value in parameters.items() if name != "num_gpus"}
        return launch(worker, ranks, kwargs=arguments, threads=None if gpus else 1, stop=stop)[0]

    # Longest first would fill the cores best, but a reader of the bar expects the order in which the grid was given.
    waiting = list(range(len(runs)))
    running: dict[Future, int] = {}
    with ThreadPoolExecutor(at_a_time) as pool, _bar(len(runs)) as bar:
        try:
            while waiting or running:
                free = room - sum(runs[index].get("num_gpus", 1) for index in running.values())
                for index in list(waiting):
                    ranks = runs[index].get("num_gpus", 1)
                    if ranks > free or len(running) == at_a_time:
                        break
                    running[pool.submit(run, runs[index])] = index
                    waiting.remove(index)
                    free -= ranks
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    index = running.pop(future)
                    try:
                        results[index] = future.result()
                    except Exception as error:
                        error.add_note("at " + ", ".join(f"{name} = {value}" for name, value in runs[index].items()))
                        raise
                    bar.update()
        except BaseException:
            stop.set()
            for future in running:
                future.cancel()
            raise
    return pd.DataFrame([{**parameters, **results[index]} for index, parameters in enumerate(runs)])


def write_curves(table: pd.DataFrame, folder: str | Path) -> None:
    """Write each training of a `run_grid` table as a CSV file with the multi-GPU tutorial's name.

    The file is ``curves/OPTIMIZER/seed-N/1ranks-BATCHbs-LRlr-MOMENTUMm-WARMUPw.csv`` below `folder`, with the columns
    ``time`` (seconds, one decimal) and ``val_accuracy`` (0 to 1), a row per epoch after a row of zeros.

    Parameters
    ----------
    table : DataFrame
        With the columns ``optimizer``, ``seed``, ``batch_size``, ``lr``, ``momentum``, ``warmup_epochs``, and the lists
        ``time`` and ``val_accuracy``. Trials on one rank.
    """
    for row in table.itertuples():
        name = f"1ranks-{row.batch_size}bs-{row.lr}lr-{row.momentum}m-{row.warmup_epochs}w.csv"
        path = Path(folder, "curves", row.optimizer, f"seed-{row.seed}", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        points = [(0.0, 0.0), *zip(row.time, row.val_accuracy, strict=True)]
        with open(path, "w", newline="") as file:
            rows = [(round(time, 1), round(accuracy, 4)) for time, accuracy in points]
            csv.writer(file).writerows([("time", "val_accuracy"), *rows])


def _bar(total: int) -> tqdm:
    # On stdout: for nbgrader, output on stderr is a failure. Rarely: without a terminal, each update is a line.
    return tqdm(total=total, unit="run", file=sys.stdout, ncols=70, mininterval=5.0)

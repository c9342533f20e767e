"""Run all strategies with several seeds, as one table; an interrupted comparison can be resumed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from course_lib.system.hardware import available_cores
from course_lib.training.strategies.result import StrategyResult
from course_lib.training.strategies.run import STRATEGIES, run_strategy
from course_lib.training.strategies.task import Task

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["compare", "results_table"]


def compare(
    task: Task,
    seeds: Sequence[int] = (0, 1, 2),
    strategies: Sequence[str] | None = None,
    folder: str | Path | None = None,
) -> list[StrategyResult]:
    """Run every strategy with every seed, one after the other, so that each has the machine to itself.

    The outer loop is over seeds, the inner one over strategies: a temporary load on the machine affects all strategies.

    Parameters
    ----------
    strategies : sequence of str, optional
        Names of `STRATEGIES`; by default all of them.
    folder : str or Path, optional
        Each run is saved there, as a file written atomically. The same comparison called again makes only the missing
        runs and prints how many it found. Runs of another task are left alone; a run from a machine with another number
        of cores is repeated.

    Returns
    -------
    list of StrategyResult
        In the order in which they ran.

    Raises
    ------
    ValueError
        An unknown name, or a task that cannot be trained.
    RankFailedError
        A process failed; the note names the run. Finished runs are kept in `folder`.
    """
    names = list(STRATEGIES) if strategies is None else list(strategies)
    unknown = [name for name in names if name not in STRATEGIES]
    if unknown:
        raise ValueError(f"no strategy {unknown[0]!r}; there are {', '.join(STRATEGIES)}")
    runs = [(name, seed) for seed in seeds for name in names]
    kept = {} if folder is None else {run: _read(Path(folder), task, *run) for run in runs}
    if earlier := sum(result is not None for result in kept.values()):
        print(f"{earlier} of {len(runs)} runs were kept from earlier ({folder}; delete it to measure again)")
    results = []
    # On stdout: nbgrader takes anything on stderr for a failure.
    for name, seed in tqdm(runs, unit="run", file=sys.stdout, ncols=70, mininterval=5.0):
        result = kept.get((name, seed))
        if result is None:
            result = _run(name, task, seed)
            if folder is not None:
                result.write(_path(Path(folder), task, name, seed))
        results.append(result)
    for result in results:
        if result.health.problem:
            print(f"{result.strategy}, seed {result.seed}: {result.health}")
    return results


def _path(folder: Path, task: Task, name: str, seed: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name.replace(' ', '-')}-{task.workers}-workers-seed-{seed}-{task.digest()}.json"


def _read(folder: Path, task: Task, name: str, seed: int) -> StrategyResult | None:
    result = StrategyResult.read(_path(folder, task, name, seed))
    return result if result is not None and result.cores == available_cores() else None


def _run(name: str, task: Task, seed: int) -> StrategyResult:
    try:
        return run_strategy(name, task, seed)
    except Exception as error:
        error.add_note(f"in the strategy {name}, seed {seed}")
        raise


def results_table(results: Sequence[StrategyResult], target: float) -> pd.DataFrame:
    """A row for each run: `StrategyResult`'s numbers, ``final_accuracy``, ``time_to_target`` (s; NaN: never reached).

    Parameters
    ----------
    target : float
        Accuracy in 0…1.
    """
    import pandas as pd  # here, because every rank imports this package

    rows = []
    for result in results:
        row = asdict(result)
        del row["curve"]
        row |= {"crowded": result.crowded, "final_accuracy": result.final_accuracy}
        rows.append({**row, "time_to_target": result.seconds_to(target)})
    return pd.DataFrame(rows)

"""All strategies over several seeds, as one table; a comparison that was interrupted goes on."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from course_lib.strategies.result import StrategyResult
from course_lib.strategies.run import STRATEGIES, run_strategy
from course_lib.strategies.task import Task

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

    Seeds go round outside, strategies inside: what disturbs the machine for a while disturbs all strategies alike.

    Parameters
    ----------
    strategies : sequence of str, optional
        Names of `STRATEGIES`; by default all of them.
    folder : str or Path, optional
        Each run is kept there, as a file written whole; the same comparison called again runs what is missing. Runs of
        another task are left alone.

    Returns
    -------
    list of StrategyResult
        In the order in which they ran.

    Raises
    ------
    ValueError
        A name that is none, or a task that cannot be trained.
    RankFailedError
        A process failed; the note says in which run. What was finished is kept in `folder`.
    """
    names = list(STRATEGIES) if strategies is None else list(strategies)
    unknown = [name for name in names if name not in STRATEGIES]
    if unknown:
        raise ValueError(f"no strategy {unknown[0]!r}; there are {', '.join(STRATEGIES)}")
    runs = [(name, seed) for seed in seeds for name in names]
    results = []
    # On stdout: nbgrader takes anything on stderr for a failure.
    for name, seed in tqdm(runs, unit="run", file=sys.stdout, ncols=70, mininterval=5.0):
        results.append(_kept(Path(folder), name, task, seed) if folder is not None else _run(name, task, seed))
    return results


def _kept(folder: Path, name: str, task: Task, seed: int) -> StrategyResult:
    path = folder / f"{name.replace(' ', '-')}-{task.workers}-workers-seed-{seed}-{task.digest()}.json"
    result = StrategyResult.read(path)
    if result is None:
        result = _run(name, task, seed)
        folder.mkdir(parents=True, exist_ok=True)
        result.write(path)
    return result


def _run(name: str, task: Task, seed: int) -> StrategyResult:
    try:
        return run_strategy(name, task, seed)
    except Exception as error:
        error.add_note(f"in the strategy {name}, seed {seed}")
        raise


def results_table(results: Sequence[StrategyResult], target: float) -> pd.DataFrame:
    """A row for each run: `StrategyResult`'s numbers, ``final_accuracy``, and ``time_to_target`` (s; NaN: never reached).

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

"""What the benchmarks share: options from defaults, rounds in which candidates alternate, and the lines that are printed."""

import argparse
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from course_lib.system.hardware import machine_line

Result = TypeVar("Result")


def parse_options(about: str, *parts: str, **defaults: Any) -> argparse.Namespace:
    """Read the command line: each name is an option, of its default's type; False makes a flag, a list takes values.

    A default with a help text is a tuple of both. A default that is a type makes an option that may be left out (None); a
    set makes one that is one of its words.
    `parts`: the values of the first argument, ``part``, where a script has several.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    if parts:
        parser.add_argument("part", choices=parts)
    for name, default in defaults.items():
        default, text = default if isinstance(default, tuple) else (default, None)
        values: dict[str, Any] = {"type": type(default)}
        if default is False:
            values = {"action": "store_true"}
        elif isinstance(default, type):
            values, default = {"type": default}, None
        elif isinstance(default, set):
            values, default = {"choices": sorted(default)}, None
        elif isinstance(default, list):
            values = {"type": type(default[0]), "nargs": "+"}
        flags = [f"--{name.replace('_', '-')}", *(["-o"] if name == "output" else [])]
        parser.add_argument(*flags, default=default, help=text, **values)
    return parser.parse_args()


def alternate(candidates: Mapping[str, Callable[[], Result]], rounds: int) -> dict[str, list[Result]]:
    """Call every candidate once a round, every second round in reverse order; the results by candidate and round."""
    results: dict[str, list[Result]] = {name: [] for name in candidates}
    for number in range(rounds):
        for name in list(candidates)[:: 1 if number % 2 == 0 else -1]:
            results[name].append(candidates[name]())
    return results


def seconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """How long one call takes."""
    start = clock()
    work()
    return clock() - start


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """Round by round: a disturbance that lasts longer than a round cancels."""
    return [above / below for above, below in zip(numerators, denominators, strict=True)]


def conditions(**facts: object) -> str:
    """Machine, versions, threads, and whatever else bears on the figures."""
    named = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items())
    return (
        f"{machine_line()}; {torch.get_num_threads()} threads; Python {platform.python_version()}, "
        f"PyTorch {torch.__version__}; {named}"
    )


def summary(values: Sequence[float], digits: int = 3) -> str:
    """Median, least and greatest of several runs."""
    return (
        f"{statistics.median(values):.{digits}f} (least {min(values):.{digits}f}, greatest {max(values):.{digits}f}, "
        f"{len(values)} runs)"
    )

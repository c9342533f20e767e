"""Where and for how long: the form before a server that is a Slurm job, and what is made of its answers.

The answers come from a browser or a client of the hub's API, so they may be anything. Each is looked up
among the site's partitions, or read as a whole number within bounds; what goes into the batch script is what the site
wrote, or a number that we formatted. Everything else is refused.
"""

import html
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FIELDS = ("partition", "gpus", "hours")


@dataclass(frozen=True)
class Partition:
    """What a site offers in one partition: at most so many GPUs and hours; `gres` is Slurm's name of a GPU."""

    name: str
    cores: int = 2
    gpus: int = 0
    hours: int = 4
    gres: str = "gpu"
    label: str = ""


@dataclass(frozen=True)
class Request:
    """A checked wish."""

    partition: Partition
    gpus: int
    hours: int

    @property
    def gres(self) -> str:
        """For ``--gres``; empty without GPUs."""
        return f"{self.partition.gres}:{self.gpus}" if self.gpus else ""

    @property
    def runtime(self) -> str:
        """For ``--time``: hours:minutes:seconds."""
        return f"{self.hours:d}:00:00"


def partitions_of(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, Partition]:
    """The tables ``[slurm.partitions.NAME]`` of a site's file.

    Raises
    ------
    ValueError
        A table has a name that is not known here, or a value of another kind.
    """
    found = {}
    for name, values in settings["slurm"]["partitions"].items():
        try:
            found[name] = Partition(name, **values)
        except TypeError as error:
            raise ValueError(f"[slurm.partitions.{name}]: {error}") from None
        for field in ("cores", "gpus", "hours"):
            if type(getattr(found[name], field)) is not int or getattr(found[name], field) < 0:
                raise ValueError(f"[slurm.partitions.{name}] {field} is to be a whole number")
    return found


def form(partitions: Mapping[str, Partition]) -> str:
    """The form's HTML."""
    choices = "".join(
        f'<option value="{html.escape(one.name)}">{html.escape(one.label or one.name)}: {one.cores} cores, '
        f"{f'up to {one.gpus} GPUs' if one.gpus else 'no GPU'}, up to {one.hours} h</option>"
        for one in partitions.values()
    )
    most_gpus = max(one.gpus for one in partitions.values())
    most_hours = max(one.hours for one in partitions.values())
    return f"""
<label for="partition">Partition</label>
<select class="form-control" id="partition" name="partition">{choices}</select>
<label for="gpus">GPUs</label>
<input class="form-control" id="gpus" name="gpus" type="number" min="0" max="{most_gpus}" value="0">
<label for="hours">Hours</label>
<input class="form-control" id="hours" name="hours" type="number" min="1" max="{most_hours}" value="1">
"""


def read_request(answers: Mapping[str, Any], partitions: Mapping[str, Partition]) -> Request:
    """What was asked for, if the site offers it; without an answer: the first partition, no GPU, one hour.

    Parameters
    ----------
    answers : mapping
        A form's fields, each a list with one string, or the API's, each a string or a number.
    partitions : mapping of str to Partition

    Raises
    ------
    ValueError
        Another field than the form's, a partition that is not offered, no whole number, or more than is offered.
    """
    if not isinstance(answers, Mapping):
        raise ValueError("the server's options are to be fields with values")
    if unknown := sorted(str(name)[:40] for name in answers if name not in FIELDS):
        raise ValueError(f"no such option: {unknown[0]!r}; there are {', '.join(FIELDS)}")
    first = next(iter(partitions))
    name = _single(answers.get("partition", first))
    if name not in partitions:
        raise ValueError(f"no such partition; there are {', '.join(partitions)}")
    partition = partitions[name]
    gpus = _number("gpus", answers.get("gpus", 0), 0, partition.gpus)
    hours = _number("hours", answers.get("hours", 1), 1, partition.hours)
    return Request(partition, gpus, hours)


def _single(answer: Any) -> str:
    if isinstance(answer, (list, tuple)) and len(answer) == 1:
        answer = answer[0]
    return answer if isinstance(answer, str) else ""


def _number(field: str, answer: Any, least: int, most: int) -> int:
    text = str(answer) if type(answer) is int else _single(answer)
    # ASCII digits only: int() also takes blanks, underscores, signs and other scripts' digits.
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and least <= int(text) <= most):
        raise ValueError(f"{field} is to be a whole number from {least} to {most}")
    return int(text)

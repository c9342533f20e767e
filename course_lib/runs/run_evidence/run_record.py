"""``run.json``: what was run, on what, from when to when."""

import contextlib
import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from course_lib.runs.run_evidence.errors import EvidenceError
from course_lib.runs.run_evidence.quoting import quote

__all__ = ["MAX_BYTES", "RunRecord", "parse_run_record"]

MAX_BYTES = 256 * 1024
LARGEST = 1e12
_MISSING = object()


@dataclass(frozen=True)
class RunRecord:
    """The fields of ``run.json`` that grading uses, with their types checked.

    Attributes
    ----------
    parameters : dict
        As written; `number` and `count` return a checked one.
    data_provenance : str
        ``official``, ``copy`` or ``synthetic``.
    ended : datetime or None
        None where the run has not finished.
    program : str or None
        The hand-in program that wrote it; None where the record names none.
    train_images : int
        Of an epoch; 0 where the record does not say.
    """

    lab: str
    parameters: dict[str, Any]
    world_size: int
    device: str
    data_name: str
    data_provenance: str
    data_source: str
    started: datetime
    ended: datetime | None
    stopped_early: bool
    program: str | None = None
    train_images: int = 0

    def number(self, name: str) -> float:
        """A numeric parameter.

        Raises
        ------
        EvidenceError
            If ``parameters`` has no such number.
        """
        value = _field(self.parameters, name, (int, float), "a number", "parameters.")
        if not abs(value) <= LARGEST:  # 1e999 is infinity to Python, and an integer may have thousands of digits
            raise EvidenceError(f"run.json: parameters.{name} is beyond {LARGEST:g}: run the lab again")
        return value

    def count(self, name: str) -> int:
        """A parameter that is a whole number of at least 1.

        Raises
        ------
        EvidenceError
            If it is anything else.
        """
        value = self.number(name)
        if value != int(value) or value < 1:
            raise EvidenceError(
                f"run.json: parameters.{name} is {quote(value)}, a whole number from 1 was expected: run the lab again"
            )
        return int(value)


def parse_run_record(text: str) -> RunRecord:
    """Read ``run.json``.

    Raises
    ------
    EvidenceError
        Not JSON, a field missing, or one of a wrong type; names the field.
    """
    try:
        whole = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise EvidenceError(
            f"run.json is not JSON (line {error.lineno}, column {error.colno}: {error.msg}): run the lab again"
        ) from None
    except RecursionError:
        raise EvidenceError("run.json is nested too deeply: hand in the file as the lab wrote it") from None
    except ValueError as error:  # a number of thousands of digits, NaN or Infinity
        raise EvidenceError(f"run.json: {quote(str(error))}: hand in the file as the lab wrote it") from None
    if not isinstance(whole, dict):
        raise EvidenceError(f"run.json holds {quote(whole)}, an object was expected: run the lab again")

    data = _field(whole, "data", dict, "an object")
    images = _field(data, "train_samples", int, "a whole number", "data.") if "train_samples" in data else 0
    record = RunRecord(
        lab=_field(whole, "lab", str, "a string"),
        parameters=_field(whole, "parameters", dict, "an object"),
        world_size=_field(whole, "world_size", int, "a whole number"),
        device=_field(whole, "device", str, "a string"),
        data_name=_field(data, "name", str, "a string", "data."),
        data_provenance=_field(data, "provenance", str, "a string", "data."),
        data_source=_field(data, "source", str, "a string", "data."),
        started=_moment(whole, "started"),
        ended=None if whole.get("ended", _MISSING) is None else _moment(whole, "ended"),
        stopped_early=_field(whole, "stopped_early", bool, "true or false"),
        program=_field(whole, "program", str, "a string") if "program" in whole else None,
        train_images=max(0, images),
    )
    if not 1 <= record.world_size <= LARGEST:
        raise EvidenceError("run.json: world_size is not a number of ranks: run the lab again")
    if record.data_provenance not in ("official", "copy", "synthetic"):
        raise EvidenceError(
            f"run.json: data.provenance is {quote(record.data_provenance)}, "
            "official, copy or synthetic was expected: stage the data with `lab data` and run the lab again"
        )
    if record.ended is not None and record.ended < record.started:
        raise EvidenceError("run.json: the run ended before it started: run the lab again")
    return record


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _field(whole: dict, name: str, kind: type | tuple[type, ...], expected: str, prefix: str = "") -> Any:
    value = whole.get(name, _MISSING)
    if value is _MISSING:
        raise EvidenceError(f"run.json: {prefix}{name} is missing, {expected} was expected: run the lab again")
    # bool is an int to Python, and not to us
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise EvidenceError(f"run.json: {prefix}{name} is {quote(value)}, {expected} was expected: run the lab again")
    return value


def _moment(whole: dict, name: str) -> datetime:
    text = _field(whole, name, str, "a time (ISO 8601, UTC)")
    with contextlib.suppress(ValueError):
        if (moment := datetime.fromisoformat(text)).tzinfo is not None:
            return moment
    raise EvidenceError(
        f"run.json: {name} is {quote(text)}, a time with its zone (ISO 8601, UTC) was expected: run the lab again"
    )

"""The run folder: the files that a run writes, and `assessment_print`.

A run writes into ``<output_dir>/unfinished/``; `RunFolder.finish` moves the files up, ``run.json`` last. So
an earlier run's results stay as they were until the new ones are complete, whatever happens in between. A folder
with a ``run.json`` holds the files of one run. If the move was interrupted there is no ``run.json``, and the next
`start` completes the move.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import platform
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as safetensors_bytes

from course_lib.live_view.listener import Listeners, TrainingListener, default_callbacks
from course_lib.runs.run_evidence.errors import EvidenceError
from course_lib.runs.run_evidence.learning_curve import COLUMNS, parse_learning_curve
from course_lib.runs.run_evidence.transcript import EPOCH_FORMAT, STOP_FORMAT
from course_lib.system.atomic import write_atomically

__all__ = [
    "EpochRecord", "RunFolder", "TrainingDivergedError", "assessment_print", "differences", "divergence",
    "raise_if_diverged", "read_learning_curve",
]  # fmt: skip

RESULTS = ("learning_curve.csv", "model.safetensors", "assessment.out", "run.json")  # published in this order


class TrainingDivergedError(RuntimeError):
    """The loss of a recorded training is not finite any more: further epochs would only take time. One line."""


@dataclass(frozen=True)
class EpochRecord:
    """One row of the learning curve.

    ``time`` is cumulative training time in seconds (validation excluded, as in the multi-GPU tutorial),
    ``images_per_sec`` is summed over ranks, accuracies are in 0…1.
    """

    epoch: int
    time: float
    images_per_sec: float
    train_loss: float
    train_accuracy: float
    val_loss: float
    val_accuracy: float
    lr: float


@dataclass
class RunFolder:
    """The folder of one run's results. It can be sent to ranks; only rank 0 writes.

    Parameters
    ----------
    path : str
        The notebook's ``output_dir``.
    lab : str
        ``01_single_gpu``…
    parameters : mapping
        The notebook's.
    data : mapping
        Name, provenance, source and sizes of the data set (`course_lib.data.batches.ImageData.describe`).
    more : mapping
        Further entries of ``run.json``: the program's name, where it is one of several.
    callbacks : sequence of TrainingListener, optional
        They receive each epoch that is appended; by default `course_lib.live_view.listener.default_callbacks` of the
        process and the cell that trains.

    Raises
    ------
    OSError
        From `start`, in one line, when the folder cannot be written.
    """

    path: str
    lab: str
    parameters: Mapping[str, Any]
    data: Mapping[str, Any]
    more: Mapping[str, Any] = field(default_factory=dict)
    callbacks: Sequence[TrainingListener] | None = None

    def __post_init__(self) -> None:
        self.path = os.path.abspath(self.path)
        self.rows: list[EpochRecord] = []
        self._listeners: Listeners | None = None

    def report_to(self, listeners: Listeners) -> None:
        """Report to these listeners from now on; they know already that the training has begun."""
        self._listeners = listeners

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_listeners": None}  # the listeners belong to this process

    def __setstate__(self, state: dict[str, Any]) -> None:
        """On the rank that receives it: its listeners learn of the training before the first epoch is over."""
        self.__dict__.update(state)
        self._begun_listeners(self.rows)

    def _begun_listeners(self, before: Sequence[EpochRecord]) -> Listeners:
        """The listeners, which know of the training: from `fit`, or from here where the loop is the caller's own.

        Without a known number of epochs there are no listeners.
        """
        epochs = self.parameters.get("epochs")
        if self._listeners is None and isinstance(epochs, int) and epochs > 0:
            self._listeners = Listeners(default_callbacks() if self.callbacks is None else self.callbacks)
            self._listeners.began(epochs, before)
        return self._listeners or Listeners(())

    @property
    def unfinished(self) -> Path:
        """The folder of the files until the run is complete."""
        return Path(self.path) / "unfinished"

    def start(self, world_size: int, backend: str | None, device: str, resume: bool = False) -> RunFolder:
        """Begin a run: complete an interrupted publication, clear an unfinished run, write ``run.json``.

        With `resume`, an unfinished run with this one's identity keeps its start and gets one more entry in ``resumed``;
        `restore` brings back its curve and transcript.
        """
        try:
            self.unfinished.mkdir(parents=True, exist_ok=True)
            self.publish_if_complete()
            self.unfinished.mkdir(exist_ok=True)  # a completed publication has removed it
            before = self.unfinished_run() if resume else None
            before = before if before and differences(before, self.identity(world_size)) == [] else None
            for left in self.unfinished.iterdir():
                if left.name in RESULTS or left.name.startswith("."):  # dot files: our own temporary names
                    left.unlink()
            self._record = self.identity(world_size) | {
                "backend": backend, "device": device, "versions": versions(),
                "started": _now(), "ended": None, "stopped_early": False,
            }  # fmt: skip
            if before is not None:
                resumed = [*before.get("resumed", []), self._record["started"]]
                self._record |= {"started": before["started"], "resumed": resumed}
            self._write_record()
        except OSError as error:
            raise OSError(f"output_dir {self.path} cannot be written ({error.strerror}); choose another with "
                          "-p output_dir DIR") from None  # fmt: skip
        os.environ["ASSESSMENT_OUT"] = str(self.unfinished / "assessment.out")
        self._begun_listeners(())
        return self

    def identity(self, world_size: int) -> dict[str, Any]:
        """The entries of ``run.json`` that two runs must share for one to be the other's continuation."""
        return {
            "lab": self.lab,
            **self.more,
            "parameters": {key: value for key, value in self.parameters.items() if key != "output_dir"},
            "world_size": world_size,
            "data": dict(self.data),
        }

    def unfinished_run(self) -> dict[str, Any] | None:
        """``run.json`` of a run that was interrupted in this folder; None where there is none."""
        record = _read_record(self.unfinished / "run.json")
        return record if record is not None and record.get("ended") is None else None

    def finished_run(self) -> dict[str, Any] | None:
        """``run.json`` of the finished run in this folder; None where there is none."""
        return _read_record(Path(self.path) / "run.json")

    def restore(self, rows: Sequence[EpochRecord], epoch_times: Sequence[float]) -> None:
        """Write the curve and the transcript of epochs that an earlier, interrupted process trained."""
        self.rows = list(rows)
        self._write_curve()
        lines = [_epoch_line(row, seconds) + "\n" for row, seconds in zip(rows, epoch_times, strict=True)]
        write_atomically(self.unfinished / "assessment.out", "".join(lines))

    def append(self, row: EpochRecord, epoch_time: float | None = None) -> None:
        """Add an epoch to the learning curve; and to the transcript, if `epoch_time` is given (else the caller does).

        Raises
        ------
        TrainingDivergedError
            The epoch's loss is not finite. The curve and ``run.json`` say so and stay in `unfinished`.
        """
        self.rows.append(row)
        self._write_curve()
        listeners = self._begun_listeners(self.rows[:-1])
        if epoch_time is not None:
            self._transcribe(_epoch_line(row, epoch_time))
        listeners.epoch_done(row)
        try:
            raise_if_diverged(row)
        except TrainingDivergedError as error:
            self._record["diverged"] = str(error)
            self._write_record()
            raise

    def _transcribe(self, line: str) -> None:
        """As `assessment_print`, but a listener may show the line in its own place."""
        self._begun_listeners(self.rows).line(line)
        _append_to_transcript(line)

    def _write_curve(self) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerow({"epoch": 0, "time": 0.0, "val_accuracy": 0.0})  # where every curve starts
        for record in self.rows:
            row = asdict(record)
            writer.writerow({k: str(v) if isinstance(v, int) else f"{v:.6g}" for k, v in row.items()})
        write_atomically(self.unfinished / "learning_curve.csv", text.getvalue())

    def early_stop(self, epoch: int) -> None:
        """Write the early-stopping line to the transcript."""
        self._transcribe(STOP_FORMAT.format(epoch))

    def save_model(self, model: torch.nn.Module) -> None:
        """Write the weights, and only those: safetensors cannot hold code."""
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
        write_atomically(self.unfinished / "model.safetensors", safetensors_bytes(tensors))
        self._begun_listeners(self.rows).ended()

    def finish(self, stopped_early: bool) -> Path:
        """Mark the run complete and move its files to ``output_dir``; return that folder."""
        self._record |= {"ended": _now(), "stopped_early": stopped_early}
        self._write_record()
        self.publish_if_complete()
        os.environ.pop("ASSESSMENT_OUT", None)
        return Path(self.path)

    def _write_record(self) -> None:
        write_atomically(self.unfinished / "run.json", json.dumps(self._record, indent=1, default=str) + "\n")

    def publish_if_complete(self) -> None:
        """Move up the files of a complete run, or finish such a move that was interrupted; else do nothing."""
        record = _read_record(self.unfinished / "run.json")
        if record is None or record.get("ended") is None:
            return
        # Beside a run.json, every file is of the same run: so the old one goes first, and the new one comes last.
        if any((self.unfinished / name).exists() for name in RESULTS[:-1]):
            (Path(self.path) / "run.json").unlink(missing_ok=True)
        for name in RESULTS:  # repeatable: what was moved already is no longer here
            if (self.unfinished / name).exists():
                os.replace(self.unfinished / name, Path(self.path) / name)
        if not any(self.unfinished.iterdir()):
            shutil.rmtree(self.unfinished)


def raise_if_diverged(row: EpochRecord) -> None:
    """Raise `TrainingDivergedError` where a loss of this epoch is nan or infinite."""
    for name, loss in (("training", row.train_loss), ("validation", row.val_loss)):
        if not math.isfinite(loss):
            raise TrainingDivergedError(
                f"the training diverged: its {name} loss is {loss:g} in epoch {row.epoch}; take a lower base_lr or a "
                "longer warm-up"
            )


def divergence(path: str | Path, since: str) -> str:
    """Why the run in folder `path`, started at or after `since` (ISO, UTC), diverged; empty if it did not."""
    record = _read_record(Path(path) / "unfinished" / "run.json") or {}
    return str(record.get("diverged", "")) if str(record.get("started", "")) >= since else ""


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The entries in which a run differs from `now` (a `RunFolder.identity`), a phrase for each."""
    now = json.loads(json.dumps(now, default=str))  # as json reads it back from run.json
    differing = []
    for key, value in now.items():
        if key == "parameters":
            old = before.get(key) or {}
            for name in sorted({*old, *value}):
                if old.get(name) != value.get(name):
                    differing.append(f"{name} {old.get(name)}, not {value.get(name)}")
        elif before.get(key) != value:
            differing.append(f"another {key}" if isinstance(value, dict) else f"{key} {before.get(key)}, not {value}")
    return differing


def assessment_print(*values: object) -> None:
    """Print, and append the same line to ``assessment.out``.

    The file is the current run's (``$ASSESSMENT_OUT``, set by `RunFolder.start`), else ``assessment.out``
    in the working folder, as in the multi-GPU tutorial.
    """
    line = " ".join(str(value) for value in values)
    print(line, flush=True)
    _append_to_transcript(line)


def _append_to_transcript(line: str) -> None:
    path = Path(os.environ.get("ASSESSMENT_OUT", "assessment.out"))
    path.parent.mkdir(parents=True, exist_ok=True)
    before = path.read_text() if path.exists() else ""
    write_atomically(path, before + line + "\n")


def read_learning_curve(path: str | Path):
    """Read a learning curve as a pandas frame.

    Any CSV with at least ``time`` and ``val_accuracy`` is a learning curve (the multi-GPU tutorial wrote just these).

    Raises
    ------
    ValueError
        One line: the file is cut short, lacks a column, or has a time or an accuracy that cannot be.
    """
    import pandas as pd

    try:
        parse_learning_curve(Path(path).read_text(encoding="utf-8"))
    except (EvidenceError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no learning curve: {error}") from None
    frame = pd.read_csv(path)
    if "epoch" not in frame:
        frame.insert(0, "epoch", range(len(frame)))
    return frame


def versions() -> dict[str, str]:
    """Versions of the software, for ``run.json``."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "course_lib": version("distributed-training-labs"),
    }


def _read_record(path: Path) -> dict[str, Any] | None:
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def _epoch_line(row: EpochRecord, epoch_time: float) -> str:
    return EPOCH_FORMAT.format(
        row.epoch, row.time, epoch_time, row.images_per_sec, row.train_accuracy, row.val_loss, row.val_accuracy
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")

"""The kinds of criterion that a rubric may use: each examines the evidence and says yes or no, and why.

A kind is a function of the evidence and its settings. It returns a `Finding`. Where it raises `EvidenceError` (a file
is missing or broken), the answer is no, and that error is the reason; the caller sees to that.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from course_lib.runs.run_evidence.early_stopping import reaches, stopping_epoch
from course_lib.runs.run_evidence.errors import EvidenceError
from course_lib.runs.run_evidence.evidence import Evidence
from course_lib.runs.run_evidence.quoting import quote
from course_lib.runs.run_evidence.training_time import more_than_wall_clock
from course_lib.runs.run_evidence.transcript import disagreement

__all__ = ["KINDS", "NEEDS_MODEL", "Finding", "Kind"]

# Kinds that need the predictions of the submitted weights.
NEEDS_MODEL = ("held_out_accuracy", "own_network")


@dataclass(frozen=True)
class Finding:
    """Whether a criterion holds, the one-line reason, and a remedy where the kind's own does not fit."""

    passed: bool
    reason: str
    remedy: str = ""


Check = Callable[["Evidence", Mapping[str, Any]], Finding]
Settings = Mapping[str, tuple[Callable[[Any], bool], str]]


@dataclass(frozen=True)
class Kind:
    """A kind of criterion.

    Attributes
    ----------
    check : callable
        ``check(evidence, settings) -> Finding``; may raise `EvidenceError`.
    remedy : str
        How a student finds what went wrong; ``{run}`` means the run folder.
    settings : mapping
        Name of each setting that a rubric must give, to a test of its value and what the test expects in words.
    optional : mapping
        The same, of the settings that a rubric may give.
    description : str
        What it asks for, where a rubric says nothing else. ``{run}`` means the program, or "this lab",
        ``{threshold}`` for that setting.
    """

    check: Check
    remedy: str
    settings: Settings
    optional: Settings = field(default_factory=dict)
    description: str = ""


KINDS: dict[str, Kind] = {}


def _kind(
    description: str, remedy: str, settings: Settings | None = None, optional: Settings | None = None
) -> Callable[[Check], Check]:
    """Enter the function below into `KINDS`, under its own name."""

    def enter(check: Check) -> Check:
        KINDS[check.__name__] = Kind(check, remedy, settings or {}, optional or {}, description)
        return check

    return enter


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_PROVENANCE = (
    lambda v: isinstance(v, list) and v and all(p in ("official", "copy", "synthetic") for p in v),
    'a list of "official", "copy", "synthetic"',
)
_DATASETS = {
    "datasets": (lambda v: isinstance(v, list) and v and all(isinstance(n, str) for n in v), "a list of data sets' names")
}
_MINIMUM = (lambda v: isinstance(v, int) and not isinstance(v, bool) and v >= 1, "a whole number from 1")
_SECONDS = (lambda v: _is_number(v) and 0 < v < float("inf"), "a number of seconds above 0")
_THRESHOLD = (lambda v: _is_number(v) and 0 < v <= 1, "a number above 0 and at most 1")


def _not_one_run(evidence: Evidence) -> Finding | None:
    """A finding where times or figures of the three files cannot be those of one run."""
    if not (ordered := monotone(evidence, {})).passed:  # or the last row's time would not be the longest
        return ordered
    curve = evidence.curve
    reason = disagreement(evidence.transcript, curve) or more_than_wall_clock(curve, evidence.record)
    return Finding(False, reason) if reason else None


def _on_other_data(evidence: Evidence, settings: Mapping[str, Any]) -> Finding | None:
    """A finding where the run's data set is none of the setting ``datasets``, if a rubric gives it: others are easier."""
    name, asked = evidence.record.data_name, settings.get("datasets")
    if asked is None or name in asked:
        return None
    return Finding(False, f"the run's data set {quote(name)} is not {' or '.join(asked)}", "run it on the lab's data set")


def _learned_nothing(evidence: Evidence, settings: Mapping[str, Any]) -> Finding | None:
    """A finding where no epoch reaches the setting ``accuracy``, if a rubric gives it."""
    if "accuracy" not in settings:  # then the curve, which may be missing, is not looked at
        return None
    best = max(evidence.curve.accuracies)
    if reaches(best, settings["accuracy"]):
        return None
    return Finding(False, f"the network has learned nothing: its best validation accuracy is {best:.3f}")


@_kind(
    "run.json records a finished run of {run} on real data",
    "open {run}/run.json: `ended` holds a time once the run has ended, and `data` says what it ran on",
    {"provenance": _PROVENANCE},
    {"accuracy": _THRESHOLD},
)
def run_record(evidence: Evidence, settings: Mapping[str, Any]) -> Finding:
    """The record is complete, of this lab, of a finished run, on data of an accepted provenance.

    With `accuracy`, the run has also learned something: its best validation accuracy is at least that.
    """
    record = evidence.record
    if record.lab != evidence.lab:
        return Finding(False, f"run.json is of lab {quote(record.lab)}, expected {evidence.lab!r}")
    if record.ended is None:
        return Finding(False, "run.json has no end: the run was not finished when it was handed in")
    if record.data_provenance not in settings["provenance"]:
        accepted = (
            f"accepted are {' and '.join(settings['provenance'])}: figures on other data say nothing about the task"
        )
        return Finding(False, f"the run used {record.data_provenance} data, {accepted}")
    return _learned_nothing(evidence, settings) or Finding(True, f"finished, on {record.data_provenance} data")


@_kind(
    "The run used at least two ranks",
    "set the notebook's parameter num_gpus to 2 or more (on a machine without GPUs these are CPU processes)",
    {"minimum": _MINIMUM},
    {"accuracy": _THRESHOLD},
)
def world_size(evidence: Evidence, settings: Mapping[str, Any]) -> Finding:
    """At least `minimum` ranks took part; with `accuracy`, in a training that has learned something, as of `run_record`."""
    ranks, minimum = evidence.record.world_size, settings["minimum"]
    reason = f"the run used {ranks} rank{'s' * (ranks != 1)}, at least {minimum} are asked for"
    return _learned_nothing(evidence, settings) or Finding(ranks >= minimum, reason)


@_kind(
    "learning_curve.csv has its columns, finite values, and starts from a row of zeros",
    "open {run}/learning_curve.csv in a text editor; the notebook's training loop writes it, an editor should not",
)
def curve_schema(evidence: Evidence, settings: Mapping[str, Any]) -> Finding:
    """The CSV has its columns and only finite values, and starts at zero."""
    if problems := evidence.curve.problems:
        return Finding(False, problems[0])
    return Finding(True, f"{len(evidence.curve.epochs)} epochs, all values finite")


@_kind(
    "Time and epochs grow from row to row",
    "look at the columns epoch and time of {run}/learning_curve.csv; time adds up the epochs, it is not one epoch's",
)
def monotone(evidence: Evidence, settings: Mapping[str, Any]) -> Finding:
    """Cumulative time grows strictly, epochs by one."""
    rows = evidence.curve.rows
    # The multi-GPU tutorial writes tenths of a second, in which two short epochs may end at the same time.
    tenths = "epoch" not in evidence.curve.columns
    for before, row in pairwise(rows):
        if row.time < before.time or (row.time == before.time and not tenths):
            times = f"time {row.time:g} after {before.time:g}"
            return Finding(False, f"line {row.line}: {times}; cumulative seconds can only grow")
        if row.epoch != before.epoch + 1:
            expected = before.epoch + 1
            return Finding(False, f"line {row.line}: epoch {row.epoch} after {before.epoch}; expected {expected}")
    return Finding(True, f"{len(rows)} rows in order")


@_kind(
    "One row per epoch asked for, fewer only after an early stop",
    "compare the last row of {run}/learning_curve.csv with parameters.epochs in {run}/run.json; run the lab to its end",
)
def epochs(evidence: Evidence, settings: Mapping[str, Any]) -> Finding:
    """As many epochs as ``parameters.epochs``, or fewer after an early stop."""
    asked, done = evidence.record.count("epochs"), len(evidence.curve.epochs)
    if done > asked:
        return Finding(False, f"the learning curve has {done} epochs, run.json asked for {asked}")
    if done < asked and not evidence.record.stopped_early:
        return Finding(False, f"the learning curve has {done} of {asked} epochs, and run.json records no early stop")
    return Finding(True, f"{done} of {asked} epochs" + (", stopped early" if done < asked else ""))


@_kind(
    "Training stopped exactly where the early-stopping rule says",
    "write down val_accuracy epoch by epoch and mark where the last `patience` values all reach target_accuracy",
)
def early_stop(evidence: Evidence, settings: Mapping[str, Any]) -> Finding:
    """Training ended at the first epoch at which the last `patience` epochs all reached the target."""
    record, accuracies = evidence.record, evidence.curve.accuracies
    target, patience, asked = record.number("target_accuracy"), record.count("patience"), record.count("epochs")
    if not 0.0 < target <= 1.0:
        raise EvidenceError(f"run.json: parameters.target_accuracy is {target:g}, a fraction in 0...1 was expected")
    due, last = stopping_epoch(accuracies, target, patience), len(accuracies)
    rule = f"{patience} epochs in a row at {target:g} or more"
    if due is None and record.stopped_early:
        return Finding(False, f"stopped too soon, after epoch {last}: there were not yet {rule}")
    if due is None and last < asked:
        return Finding(False, f"ended after epoch {last} of {asked}, though there were not yet {rule}")
    if due is None:
        return Finding(True, f"never {rule}, and the run continued to its last epoch")
    if last > due:
        return Finding(False, f"should have stopped after epoch {due} ({rule}) and continued to epoch {last}")
    if due < asked and not record.stopped_early:
        return Finding(False, f"ended after epoch {due} as the rule asks, but run.json records no early stop")
    return Finding(True, f"stopped after epoch {due}: {rule}")


@_kind(
    "Best validation accuracy reaches {threshold:.2f}",
    "plot val_accuracy over epochs: is it still rising at the end, or was the step too large?",
    {"threshold": _THRESHOLD},
    _DATASETS,
)
def best_accuracy(evidence: Evidence, settings: Mapping[str, Any]) -> Finding:
    """The best epoch reaches the threshold."""
    best = max(evidence.curve.accuracies)
    compared = _compare("best", best, evidence.curve.accuracies.index(best) + 1, settings["threshold"])
    return _on_other_data(evidence, settings) or compared


@_kind(
    "Final validation accuracy reaches {threshold:.2f}",
    "compare the last epoch with the best: a late drop points at a learning rate too large",
    {"threshold": _THRESHOLD},
    _DATASETS,
)
def final_accuracy(evidence: Evidence, settings: Mapping[str, Any]) -> Finding:
    """The last epoch reaches the threshold."""
    accuracies = evidence.curve.accuracies
    compared = _compare("final", accuracies[-1], len(accuracies), settings["threshold"])
    return _on_other_data(evidence, settings) or compared


@_kind(
    "Validation accuracy reaches {threshold:.2f} in two epochs in a row, from at most 800,000 training images",
    "look at the last rows of {run}/learning_curve.csv: a schedule that ends within the budget, augmentation and warm-up "
    "reach more with the same images",
    {"threshold": _THRESHOLD, "images": _MINIMUM},
    {"in_a_row": _MINIMUM, **_DATASETS},
)
def accuracy_within_images(evidence: Evidence, settings: Mapping[str, Any]) -> Finding:
    """So many epochs in a row (2) reach the threshold, before the epochs have used more training images than the budget.

    An epoch uses the training images that ``run.json`` names. The curve's throughput times its seconds must not be more.
    """
    curve, record, rows = evidence.curve, evidence.record, settings.get("in_a_row", 2)
    if refused := _not_one_run(evidence) or _on_other_data(evidence, settings):
        return refused
    due = stopping_epoch(curve.accuracies, settings["threshold"], rows)
    if due is None:
        once = reaches(max(curve.accuracies), settings["threshold"])
        said = "reached once, and not" if once else "never reached"
        return Finding(False, f"{settings['threshold']:g} was {said} in {rows} epochs in a row")
    if not record.train_images:
        raise EvidenceError("run.json: data.train_samples is missing, a whole number was expected: run the lab again")
    for before, row in pairwise(curve.rows):
        images = (row.images_per_sec or 0.0) * (row.time - before.time)
        if images > 1.01 * record.train_images + record.world_size:
            said = f"line {row.line} of learning_curve.csv makes {images:,.0f} images of an epoch"
            return Finding(False, f"{said}, run.json {record.train_images:,}: hand in the files of one run")
    used = due * record.train_images
    relation = "at most" if used <= settings["images"] else "more than"
    summary = f"{settings['threshold']:g} in {rows} epochs in a row after epoch {due}, from {used:,} images"
    return Finding(used <= settings["images"], f"{summary}: {relation} the {settings['images']:,} allowed")


@_kind(
    "The training took at most 15 minutes on a CPU, 10 on a GPU",
    "look at the last row of {run}/learning_curve.csv, and at started and ended in {run}/run.json: fewer epochs, "
    "an earlier stop or a larger learning rate save time",
    {"seconds": _SECONDS},
    {"seconds_gpu": _SECONDS},
)
def time_budget(evidence: Evidence, settings: Mapping[str, Any]) -> Finding:
    """The cumulative training time of the curve's last row is within the budget, and fits transcript and record."""
    curve, record = evidence.curve, evidence.record
    last, device = curve.rows[-1], record.device.split(":")[0][:40]
    own = "seconds_gpu" if "seconds_gpu" in settings and not record.device.lower().startswith("cpu") else "seconds"
    budget = settings[own]
    if refused := _not_one_run(evidence):
        return refused
    relation = "at most" if last.time <= budget else "more than"
    summary = f"training took {last.time:g} s until epoch {last.epoch}, the last row of learning_curve.csv"
    return Finding(last.time <= budget, f"{summary}: {relation} the {budget:g} s allowed on {quote(device)}")


@_kind(
    "assessment.out is in the assessment's format and agrees with the learning curve",
    "print through assessment_print with the given format, unchanged, and hand in all files from the same run",
)
def transcript(evidence: Evidence, settings: Mapping[str, Any]) -> Finding:
    """The transcript parses and is of the same run as the learning curve and the record."""
    printed, curve, record = evidence.transcript, evidence.curve, evidence.record
    if reason := disagreement(printed, curve):
        return Finding(False, reason)
    if record.stopped_early and printed.stopped_after is None:
        return Finding(False, "run.json records an early stop, assessment.out has no early-stopping line")
    if printed.stopped_after is not None and not record.stopped_early and len(curve.epochs) < record.count("epochs"):
        return Finding(False, "assessment.out has an early-stopping line, run.json does not")
    return Finding(True, f"{len(printed.rows)} epochs, in agreement with the learning curve")


@_kind(
    "The submitted weights reach {threshold:.2f} on held-out images",
    "load {run}/model.safetensors into the network that it was saved from, and evaluate it on the test images yourself",
    {"threshold": _THRESHOLD},
)
def held_out_accuracy(evidence: Evidence, settings: Mapping[str, Any]) -> Finding:
    """The submitted weights reach the threshold on held-out images, but for what so few images leave open."""
    held = evidence.held_out
    score = f"{held.accuracy:.3f} ± {held.uncertainty:.3f} on {held.images:,} held-out {held.unit}"
    passed = reaches(held.accuracy + held.uncertainty, settings["threshold"])
    return Finding(passed, f"the submitted weights score {score}, asked for {settings['threshold']:g}")


@_kind(
    "The network is the student's own, its weights reach {threshold:.2f}, and no part is another library's network",
    "build_network builds the network from PyTorch's layers and your blocks: nothing of torchvision.models, timm or course_lib",
    {"threshold": _THRESHOLD},
)
def own_network(evidence: Evidence, settings: Mapping[str, Any]) -> Finding:
    """A network that the student's program makes by itself, and that has learned something."""
    held = evidence.held_out
    if held.borrowed:
        return Finding(False, f"the network is not your own: it has a {quote(held.borrowed)}")
    if not reaches(held.accuracy + held.uncertainty, settings["threshold"]):
        score = f"{held.accuracy:.3f} on held-out images, asked for {settings['threshold']:g}"
        return Finding(False, f"the network has not learned: its weights score {score}")
    return Finding(True, "made of PyTorch's layers and the program's own classes")


def _compare(which: str, accuracy: float, epoch: int, threshold: float) -> Finding:
    passed = reaches(accuracy, threshold)
    relation = "reaches" if passed else "is below"
    return Finding(passed, f"{which} validation accuracy {accuracy:.4f} (epoch {epoch}) {relation} {threshold:g}")

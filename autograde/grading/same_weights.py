"""Weights that are handed in more than once: by several students, in several labs, for several runs of one submission.

Two trainings do not end in the same file, bit for bit, unless one repeats the other's seed on the same machine. A copy
is a flag, a reason to look and talk. Within one submission the same weights earn points once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from autograde.rubric.verdict import FOLDER, Flag, RunSummary, Verdict, load_verdict, verdict_lock, verdict_path

__all__ = ["flag_copies", "repeated_weights"]


def repeated_weights(runs: Sequence[RunSummary]) -> list[Flag]:
    """One flag for each file of weights that several runs of one submission share."""
    names = defaultdict(list)
    for run in runs:
        if run.weights is not None:
            names[run.weights].append(run.id or "the notebook's run")
    return [Flag("copy", f"{' and '.join(same)} have the same weights") for same in names.values() if len(same) > 1]


def flag_copies(course: Path, lab: str, students: Sequence[str]) -> dict[str, Verdict]:
    """Flag students whose weights are the same file as another student's, or as their own in another lab or run.

    Parameters
    ----------
    course : Path
        Its saved verdicts are read, and saved again where their flags have changed.
    lab : str
        Full name.

    Returns student → verdict, for all readable verdicts.
    """
    everybody: dict[str, Verdict] = {}
    elsewhere: dict[str, dict[str, str]] = {}
    for student in students:
        labs = {}
        for path in sorted((course / FOLDER / student).glob("*/verdict.json")):
            try:
                labs[path.parent.name] = load_verdict(path)
            except ValueError:
                continue
        if lab in labs:
            everybody[student] = labs.pop(lab)
            elsewhere[student] = {
                run.weights: f"{other}{', ' if run.id else ''}{run.id}"
                for other, verdict in labs.items()
                for run in verdict.runs
                if run.weights is not None
            }
    same = defaultdict(list)
    for student, verdict in everybody.items():
        for weights in {run.weights for run in verdict.runs} - {None}:
            same[weights].append(student)
    for student, verdict in everybody.items():
        flags = [flag for flag in verdict.flags if flag.kind != "copy"] + repeated_weights(verdict.runs)
        for run in verdict.runs:
            where = f"{run.id}: " if run.id else ""
            others = [other for other in same.get(run.weights, []) if other != student]
            if others:
                names = ", ".join(others[:5]) + (f" and {len(others) - 5} more" if len(others) > 5 else "")
                flags.append(Flag("copy", f"{where}the same model.safetensors as {names}"))
            if run.weights in elsewhere[student]:
                flags.append(Flag("copy", f"{where}the same model.safetensors as in {elsewhere[student][run.weights]}"))
        if tuple(flags) != verdict.flags:
            everybody[student] = _saved(course, replace(verdict, flags=tuple(flags)))
    return everybody


def _saved(course: Path, flagged: Verdict) -> Verdict:
    """Save a verdict with other flags, unless another process has replaced it since it was read."""
    with verdict_lock(course, flagged.student, flagged.lab):
        try:
            now = load_verdict(verdict_path(course, flagged.student, flagged.lab))
        except ValueError:
            return flagged
        if now.graded_at != flagged.graded_at or now.digests != flagged.digests:
            return now
        flagged.save(course)
    return flagged

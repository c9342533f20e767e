"""The leaderboard: who ranks where, by nothing but what the grader measured itself; no accounts, no scripts.

Accuracy is the grader's own trial of the weights. Work is the processor time of the grader's own run of the notebook,
in reference steps (`autograde.grading.rerun`). A run folder's claims are in no column and in no order.
"""

from __future__ import annotations

import csv
import io
import os
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from traitlets.config import Config
from traitlets.config.loader import LazyConfigValue

from autograde.gradebook.scores import CourseError, nbgrader_settings
from autograde.reports.export.csv_file import neutral
from autograde.reports.export.scores import StudentScore, read_scores
from autograde.reports.report.class_results import read_verdicts
from autograde.reports.report.pages import environment
from autograde.rubric.form import Rubric
from autograde.rubric.verdict import RunSummary, Verdict
from autograde.submission.run_folder import EvidenceError, open_submission, read_plain_text
from autograde.submission.student_id import is_student_id
from course_lib.runs.run_evidence.early_stopping import reaches, stopping_epoch
from course_lib.runs.run_evidence.evidence import HeldOut

__all__ = ["Board", "Entry", "board_csv", "board_page", "nickname", "read_board"]

NICKNAME = "nickname.txt"  # beside the notebook
LONGEST = 24  # characters
DISTRUST = ("forged", "escape", "copy", "unsandboxed", "grader")  # with such a flag nobody is ranked
# Letters of other alphabets that look like Latin ones.
TWINS = frozenset("асԁеһіјӏорԛѕԝхуүѵАВЕЅІЈКМНОРСТУҮХ" "αγικνορυχΑΒΕΖΗΙΚΜΝΟΡΤΥΧ")
LEAST_WORK = 0.1  # of the smallest baseline's: less is trained weights brought along, or a person must look


@dataclass(frozen=True)
class Entry:
    """One row: a student's figures, or a baseline's, whose `student` is empty. A late one is not ranked.

    `rank` is that in the ranking that the row is of; `submitted` and `tie` order equal figures.
    """

    name: str
    student: str
    accuracy: float
    uncertainty: float = 0.0
    steps: float | None = None
    late: bool = False
    submitted: datetime | None = None
    tie: str = ""
    rank: int | None = None


@dataclass(frozen=True)
class Board:
    """The two rankings, and a line for each submission that is in neither, for the instructor.

    `images`: the most held-out images on which the grader has tested a row's weights.
    """

    by_accuracy: tuple[Entry, ...]
    by_work: tuple[Entry, ...]
    left_out: tuple[str, ...]
    images: int = 0


def read_board(rubric: Rubric, course: Path) -> Board:
    """The leaderboard of a lab from the saved verdicts.

    Raises `CourseError`: the rubric has no leaderboard, or the gradebook cannot be read.
    """
    if rubric.leaderboard is None:
        raise CourseError(f"{rubric.lab} has no leaderboard; its rubric needs [model] and [leaderboard]")
    verdicts, left_out = read_verdicts(rubric.lab, course)
    scores = {each.student: each for each in read_scores(course, rubric.lab).students}
    entries, images = [], 0
    for verdict in verdicts:
        if (why := _refused(rubric, verdict)) is not None:
            left_out.append(f"{verdict.student} is left out: {why}")
        else:
            entries.append(_entry(rubric, verdict, scores.get(verdict.student)))
            images = max(images, _run(rubric, verdict).held_out_images)
    off = _nicknames_off(nbgrader_settings(course))
    wanted = {each.student: nickname(course / "submitted" / each.student / rubric.lab) for each in entries}
    taken = {*scores, *(verdict.student for verdict in verdicts), *(each.name for each in rubric.leaderboard.baselines)}
    names = _names(sorted(entries, key=_by_accuracy), {s: name for s, name in wanted.items() if s not in off}, taken)
    entries = [replace(each, name=names[each.student]) for each in entries]
    entries += [Entry(each.name, "", each.accuracy, steps=each.steps) for each in rubric.leaderboard.baselines]
    fast = [each for each in entries if each.steps is not None]
    # A page of baselines alone would say that somebody's work was measured.
    work = _ranked(fast, _by_work) if any(each.student for each in fast) else ()
    return Board(_ranked(entries, _by_accuracy), work, tuple(left_out), images)


def _nicknames_off(settings: Config) -> set[str]:
    off = settings.get("Leaderboard", {}).get("nicknames_off", [])
    if isinstance(off, LazyConfigValue):  # c.Leaderboard.nicknames_off.append("ada")
        off = off.get_value([])
    if isinstance(off, str) or not all(isinstance(each, str) for each in off):
        raise CourseError('c.Leaderboard.nicknames_off is to be a list of accounts, such as ["ada"]')
    return set(off)


def _refused(rubric: Rubric, verdict: Verdict) -> str | None:
    """Why a submission is not ranked; None if it is."""
    rules, run = rubric.runs[0], _run(rubric, verdict)
    if verdict.digests.get("rubric") != rubric.digest:
        return "its verdict is by another rubric; grade the lab again"
    if flags := [flag for flag in verdict.flags if flag.kind in DISTRUST]:
        return f"{flags[0].kind}: {flags[0].detail}"
    if run.held_out_accuracy is None or not run.held_out_images:
        return "the grader could not test its weights"
    if not any(result.points for result in verdict.results if result.cell == rules.cell):
        return "its run has no points"
    floor = LEAST_WORK * min((each.steps for each in rubric.leaderboard.baselines if each.steps), default=0.0)
    steps = _steps(run)
    if steps is not None and steps < floor:
        return (
            f"{steps:,.0f} reference steps are too few for a training; look whether the notebook brings weights along"
        )
    return None


def _run(rubric: Rubric, verdict: Verdict) -> RunSummary:
    return next((run for run in verdict.runs if run.id == rubric.runs[0].id), RunSummary())


def _steps(run: RunSummary) -> float | None:
    return run.work_seconds / run.step_seconds if run.work_seconds and run.step_seconds else None


def _entry(rubric: Rubric, verdict: Verdict, score: StudentScore | None) -> Entry:
    run, rules = _run(rubric, verdict), rubric.leaderboard
    images = run.held_out_images
    uncertainty = HeldOut(round(run.held_out_accuracy * images), images, "", "").uncertainty
    # The curve is that of the grader's own run here. Its weights must confirm the target, too.
    accuracies = [accuracy for epoch, _, accuracy in run.curve if epoch > 0]
    there = reaches(run.held_out_accuracy + uncertainty, rules.target)
    there = there and stopping_epoch(accuracies, rules.target, rules.in_a_row) is not None
    return Entry(
        name="",
        student=verdict.student,
        accuracy=run.held_out_accuracy,
        uncertainty=uncertainty,
        steps=_steps(run) if there else None,
        late=score is not None and score.seconds_late > 0,
        submitted=score.timestamp if score else None,
        tie=verdict.digests.get("submission", ""),  # no order of accounts
    )


def _by_accuracy(entry: Entry) -> tuple:
    return (entry.late, -entry.accuracy, entry.submitted or datetime.max, entry.tie)


def _by_work(entry: Entry) -> tuple:
    return (entry.late, entry.steps, entry.submitted or datetime.max, entry.tie)


def _ranked(entries: Iterable[Entry], order) -> tuple[Entry, ...]:
    """In order, with ranks: equal figures share one. Baselines stand between, and late rows behind, without a rank."""
    ordered = sorted(entries, key=order)
    own = [order(each)[:2] for each in ordered if each.student]
    return tuple(
        replace(each, rank=1 + own.index(order(each)[:2])) if each.student and not each.late else each
        for each in ordered
    )


def nickname(submission: Path) -> str:
    """The nickname in ``submitted/STUDENT/LAB``; empty if there is none or it cannot be shown. Never raises for it."""
    try:
        folder = open_submission(submission)
        try:
            text = read_plain_text(folder, NICKNAME, 200, shown=NICKNAME, missing="", remedy="")
        finally:
            os.close(folder)
    except (OSError, EvidenceError):
        return ""
    words = unicodedata.normalize("NFKC", text).split()
    name = " ".join(words)
    # The characters of an id: nothing invisible, no sign that turns the direction, nothing that begins a formula.
    return name if len(name) <= LONGEST and all(map(is_student_id, words)) and not _looks_like_another(name) else ""


def _looks_like_another(name: str) -> bool:
    """Whether it would be read as Latin letters and is not: it could be somebody's account."""
    letters = {letter for letter in name if letter.isalpha()}
    return bool(letters & TWINS) and all("LATIN" in unicodedata.name(letter, "") for letter in letters - TWINS)


def _names(entries: Sequence[Entry], wanted: Mapping[str, str], taken: Iterable[str]) -> dict[str, str]:
    """Each student's name: a nickname that is nobody else's, no account and no baseline; else a number, by place."""
    names, anonymous = {}, 0
    used = {unicodedata.normalize("NFKC", name).casefold() for name in taken}
    for entry in sorted(entries, key=lambda each: (each.submitted or datetime.max, each.tie)):
        name = wanted.get(entry.student, "")
        if name and name.casefold() not in used and not name.casefold().startswith("anonymous"):
            used.add(name.casefold())
            names[entry.student] = name
    for entry in entries:
        if entry.student not in names:
            anonymous += 1
            names[entry.student] = f"anonymous {anonymous}"
    return names


def board_page(rubric: Rubric, board: Board) -> str:
    """The page as HTML; nothing on it names an account."""
    template = environment(Path(__file__).parent).get_template("leaderboard.html")
    written = datetime.now(UTC).strftime("%d %B %Y, %H:%M UTC")
    return template.render(rubric=rubric, board=board, rules=rubric.leaderboard, written=written)


def board_csv(board: Board) -> bytes:
    """The same rows for the instructor, with the accounts; UTF-8."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["rank", "work_rank", "name", "student_id", "accuracy", "uncertainty", "reference_steps", "late"])
    work = {(each.student, each.name): each.rank for each in board.by_work}
    for each in board.by_accuracy:
        figures = [f"{each.accuracy:.4f}", f"{each.uncertainty:.4f}" if each.student else None]
        steps = f"{each.steps:.0f}" if each.steps is not None else None
        ranks = [each.rank, work.get((each.student, each.name))]
        writer.writerow([*ranks, neutral(each.name), neutral(each.student), *figures, steps, "late" * each.late])
    return text.getvalue().encode(errors="replace")

"""The visible check of a run folder: the grader's own criteria and points, but for the trial of the weights."""

from pathlib import Path

from course_lib.live_view.check_failed import CheckFailed
from course_lib.runs.run_evidence.course import course_criteria
from course_lib.runs.run_evidence.criteria import KINDS, NEEDS_MODEL
from course_lib.runs.run_evidence.errors import EvidenceError
from course_lib.runs.run_evidence.evidence import Evidence, parse_evidence

__all__ = ["check_run"]

FILES = ("run.json", "learning_curve.csv", "assessment.out")
WEIGHTS = "model.safetensors"


def check_run(folder: str | Path, lab: str, program: str = "") -> float:
    """Print a line for each criterion of the run, with its points.

    Parameters
    ----------
    folder : str or Path
        The run folder.
    lab : str
        The lab's full name.
    program : str
        The hand-in program whose run it is; empty for the notebook's own.

    Returns
    -------
    float
        The points so far. Only the grader tries the weights on held-out images: those points are missing in a sum that
        is not full, and counted in one that is, because nbgrader's *Validate* calls a cell failed that has fewer points
        than it is worth.

    Raises
    ------
    CheckFailed
        There is no finished run of the notebook. A program's run may come later; its absence is 0 points.
    """
    folder, criteria = Path(folder), course_criteria(lab, program)
    total = sum(criterion["points"] for criterion in criteria)
    needed = "run.json", "learning_curve.csv", WEIGHTS
    missing = " and no ".join(name for name in needed if not (folder / name).is_file())
    if missing and program:
        print(f"0 of {total:g} points: no finished run of {program}.py in {folder}: there is no {missing}")
        return 0.0
    if missing:
        raise CheckFailed(
            f"no finished run in {folder}: there is no {missing}. Run the notebook from its top to its end"
        )
    evidence = parse_evidence(lab, {name: _read(folder / name) for name in FILES})
    refused = _other_program(evidence, program)
    earned = open_points = 0.0
    for criterion in criteria:
        points, passed, reason = criterion["points"], False, refused
        if criterion["kind"] in NEEDS_MODEL:
            open_points += points
            print(f" ? of {points:2g}  {criterion['description']}: checked by the grader")
            continue
        if refused is None:
            try:
                finding = KINDS[criterion["kind"]].check(evidence, criterion)
                passed, reason = finding.passed, finding.reason
            except EvidenceError as error:
                reason = str(error)
        earned += points if passed else 0
        print(f"{points if passed else 0:2g} of {points:2g}  {criterion['description']}: {reason}")
    rest = f"; the other {open_points:g} are the grader's, who tries the weights on held-out images"
    print(f"{earned:g} of {total - open_points:g} points{rest if open_points else ''}")
    return float(total if earned == total - open_points else earned)


def _read(path: Path) -> bytes | EvidenceError:
    try:
        return path.read_bytes()
    except OSError as error:
        return EvidenceError(f"{path.name} cannot be read ({error.strerror})")


def _other_program(evidence: Evidence, program: str) -> str | None:
    try:
        found = evidence.record.program
    except EvidenceError as error:
        return str(error) if program else None
    return f"run.json is of {found}, not of {program}.py" if program and found != program else None

"""Compare the training time of a learning curve with the run's wall-clock time."""

from course_lib.runs.run_evidence.learning_curve import LearningCurve
from course_lib.runs.run_evidence.run_record import RunRecord
from course_lib.runs.run_evidence.transcript import SIX_DIGITS

__all__ = ["more_than_wall_clock"]

WHOLE_SECONDS = 1.0  # run.json's times are cut to seconds


def more_than_wall_clock(curve: LearningCurve, record: RunRecord) -> str | None:
    """Why the cumulative training time of the curve's last row is impossible, by ``started`` and ``ended``; else None.

    Training is a part of the run, so its time is at most ``ended - started``, but for what the files round away: whole
    seconds in ``run.json``, six significant digits in the CSV, tenths of a second in the multi-GPU tutorial's.
    """
    if record.ended is None:
        return "run.json has no end: the run was not finished when it was handed in"
    last = curve.rows[-1]
    wall = (record.ended - record.started).total_seconds()
    tenths = 0.0 if "epoch" in curve.columns else 0.05
    if last.time <= wall + WHOLE_SECONDS + SIX_DIGITS * last.time + tenths:
        return None
    return (
        f"learning_curve.csv adds up to {last.time:g} s of training until epoch {last.epoch}, run.json has "
        f"{wall:g} s from started to ended: hand in the files of one run"
    )

"""Finding a check by its exercise's id, and showing what it says."""

import re
import sys
import traceback
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from course_lib.live_view.check_failed import CheckFailed, wrapped
from course_lib.runs.run_evidence.course import full_name, known_labs, programs_of

__all__ = ["CheckFailed", "check"]

HERE = Path(__file__).parent
OURS = (HERE, HERE.parent / "exercises")


def check(exercise: str, answer: Any, **context: Any) -> float | None:
    """Check an exercise's answer.

    Parameters
    ----------
    exercise : str
        ``lab01.train-step``: the lab and the exercise's id.
    answer
        The student's function, or the run folder.

    Returns
    -------
    float or None
        Points for an exercise with partial credit, else None.

    Raises
    ------
    CheckFailed
        Also where the answer is still blank, and where the check cannot read what the answer returned.
    Exception
        What the student's code raised. A notebook shows the frames of that code and no others.
    KeyError
        No such exercise.
    """
    lab, _, name = exercise.partition(".")
    if lab not in known_labs():
        raise KeyError(f"no checks for {lab!r}; there are {', '.join(known_labs())}")
    checks = _checks_of(lab)
    if name not in checks:
        raise KeyError(f"{lab} has no exercise {name!r}; it has {', '.join(checks)}")
    notebook = sys._getframe(1).f_globals
    try:
        return checks[name](answer, **context)
    except CheckFailed as failed:
        if _RAISED_BLANK.search(str(failed)):
            raise CheckFailed(_BLANK.format(what=exercise)) from None
        raise
    except Exception as error:
        *_, innermost = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
        if type(error) is NotImplementedError and not error.args:  # as nbgrader's stub raises it
            raise CheckFailed(_BLANK.format(what=f"{innermost.f_code.co_name} ({exercise})")) from None
        if _RAISED_BLANK.search(getattr(error, "reason", "")):
            raise CheckFailed(_BLANK.format(what=exercise)) from None
        if any(Path(innermost.f_code.co_filename).is_relative_to(each) for each in OURS):
            notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
            raise CheckFailed(_UNREADABLE.format(what=f"{type(error).__name__}: {error}{notes}")) from error
        _show_frames_of(notebook, error)
        raise


def _checks_of(lab: str) -> dict[str, Callable[..., Any]]:
    """A lab's checks by name: of the run folders, and what `course_lib.exercises` describes."""
    from course_lib.checks.run_evidence import check_run  # imports what a notebook may need later or never
    from course_lib.exercises import exercises_of
    from course_lib.exercises.visible import check_described

    checks: dict[str, Callable[..., Any]] = {"run": partial(check_run, lab=full_name(lab))}
    for program in programs_of(full_name(lab)):
        checks[program.replace("_", "-")] = partial(check_run, lab=full_name(lab), program=program)
    described = exercises_of(lab)
    return checks | {name: partial(check_described, lab, name, each) for name, each in described.items()}


_BLANK = (
    "{what} is not answered yet: its cell still raises NotImplementedError. Write your code in the place of that line, "
    "run the cell, then this one again"
)
_UNREADABLE = (
    "the check cannot use what your answer returned or left behind ({what}). Compare its type and shape with what the "
    "docstring asks for"
)
_RAISED_BLANK = re.compile(r"NotImplementedError:?\s*$", re.MULTILINE)  # in a rank's report


def _show_frames_of(notebook: dict[str, Any], error: Exception) -> None:
    """Have IPython show `error` with the frames of the notebook's own code; other programs show it as always."""
    entries = [error.__traceback__]
    while (deeper := entries[-1].tb_next) is not None:
        entries.append(deeper)
    kept = None
    for entry in reversed(entries):
        if entry.tb_frame.f_globals is notebook:
            kept = types.TracebackType(kept, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)

    def render() -> list[str]:
        if kept is None:  # raised on a rank, whose own report is in the message
            return wrapped("\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())]))
        from IPython import get_ipython

        return get_ipython().InteractiveTB.structured_traceback(type(error), error, kept)

    error._render_traceback_ = render

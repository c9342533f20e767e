"""Run folders of hand-in programs, below ``run/``, that are something else, of something else, or took longer."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path

from exhibits import HONEST_RUN, LAB, Submission, World, exhibit


def _times(folder: Path, change) -> None:
    """Write other times into the learning curve; `change` makes a field of an epoch and its time."""
    curve = folder / "learning_curve.csv"
    head, zeros, *rows = curve.read_text().splitlines()
    fields = [row.split(",") for row in rows]
    rows = [",".join([row[0], change(int(row[0]), float(row[1])), *row[2:]]) for row in fields]
    curve.write_text("\n".join([head, zeros, *rows]) + "\n")


@exhibit(reason="run/program/ is not a plain folder")
def program_folder_is_a_link(submission: Submission, world: World) -> None:
    """The program's folder is a link to an honest student's."""
    (submission.folder / "run").mkdir()
    (submission.folder / "run" / "program").symlink_to(world.course / "submitted" / "ada" / LAB / "run" / "program")


@exhibit(reason="run/program/ is not a plain folder")
def program_folder_is_a_file(submission: Submission, world: World) -> None:
    """The program's folder is a file, which holds a record."""
    (submission.folder / "run").mkdir()
    (submission.folder / "run" / "program").write_text(json.dumps({"program": "program"}))


@exhibit(reason="run/program/ is not a plain folder")
def program_folder_is_a_pipe(submission: Submission, world: World) -> None:
    """The program's folder is a pipe that nobody writes."""
    (submission.folder / "run").mkdir()
    os.mkfifo(submission.folder / "run" / "program")


@exhibit(reason="no run folder of program.py")
def program_folder_is_above(submission: Submission, world: World) -> None:
    """The program's files lie where a name such as ".." would lead, and under other cases and spellings of its name."""
    folder = submission.program()
    for name in ("Program", "program ", "prog\u0280am", "..program"):
        shutil.copytree(folder, folder.parent / name)
    for path in folder.iterdir():
        shutil.copy(path, submission.folder)
    shutil.rmtree(folder)


@exhibit(flags="missing", reason="run/program/run.json is a symbolic link")
def program_files_are_links(submission: Submission, world: World) -> None:
    """Each file of the program's run is a link to an honest student's."""
    folder = submission.program()
    for path in folder.iterdir():
        path.unlink()
        path.symlink_to(world.course / "submitted" / "ada" / LAB / "run" / "program" / path.name)
    (folder / "learning_curve.csv").unlink()
    shutil.copy(HONEST_RUN / "learning_curve.csv", folder)


@exhibit(flags="missing", reason="run/program/model.safetensors has 1,099,511,627,776 bytes")
def program_files_are_giants(submission: Submission, world: World) -> None:
    """The program's transcript and weights are a terabyte each, of which the disk holds nothing."""
    folder = submission.program()
    for name in ("assessment.out", "model.safetensors"):
        os.truncate(folder / name, 1 << 40)


@exhibit(program=10, flags="copy")
def program_left_a_checkpoint(submission: Submission, world: World) -> None:
    """Other files beside the run's own, a pickle, a pipe and a link among them: none of them is opened."""
    folder = submission.program()

    class Payload:
        def __reduce__(self):
            return os.mkdir, (str(world.folder / "unpickled"),)

    (folder / "checkpoint.pt").write_bytes(pickle.dumps(Payload()))
    os.mkfifo(folder / "checkpoint.safetensors")
    (folder / "plot.png").symlink_to(world.course / "grading_secret")


@exhibit(run=10, flags="missing copy", reason="run.json names no program, expected 'program'")
def one_run_for_two(submission: Submission, world: World) -> None:
    """The notebook's own run, handed in a second time as the program's."""
    submission.run()
    submission.program(None)


@exhibit(flags="missing", reason=r"run.json is of program '<script>hostile\(\)</script>'")
def another_program(submission: Submission, world: World) -> None:
    """A run of another program, whose name is markup."""
    submission.program("<script>hostile()</script>")


@exhibit(program=7, reason="time is 'nan', a finite number was expected")
def times_that_are_no_numbers(submission: Submission, world: World) -> None:
    """Not a number is neither more nor less than any budget, nor than the run's wall clock; the weights are honest."""
    _times(submission.program(), lambda epoch, time: "nan")


@exhibit(program=7, reason="cumulative time is .* in assessment.out")
def times_made_shorter(submission: Submission, world: World) -> None:
    """A thousandth of the time in the learning curve: the rest of the run is honest, and the transcript tells."""
    _times(submission.program(), lambda epoch, time: f"{time / 1000:.6g}")


@exhibit(program=7, reason="cumulative seconds can only grow")
def last_time_made_shorter(submission: Submission, world: World) -> None:
    """Only the last row's time, the one that is compared with the budget, is made shorter."""
    _times(submission.program(), lambda epoch, time: "1" if epoch == 8 else f"{time:.6g}")


@exhibit(program=7, reason="run.json has 1 s from started to ended")
def trained_longer_than_it_ran(submission: Submission, world: World) -> None:
    """A record of a run that began when it ended."""
    with submission.record(submission.program()) as record:
        record |= {"started": "2026-11-20T10:00:00+00:00", "ended": "2026-11-20T10:00:01+00:00"}

"""Run folders of hand-in programs, below ``run/``, that are something else, of something else, or took longer."""

from __future__ import annotations

import os
import pickle
import shutil

from exhibits import HONEST_RUN, LAB, Submission, World, exhibit


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

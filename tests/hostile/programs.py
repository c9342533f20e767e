"""Run folders of hand-in programs, below ``run/``, that are something else, of something else, or took longer."""

from __future__ import annotations

import shutil

from exhibits import HONEST_RUN, LAB, Submission, World, exhibit


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


@exhibit(flags="missing", reason=r"run.json is of program '<script>hostile\(\)</script>'")
def another_program(submission: Submission, world: World) -> None:
    """A run of another program, whose name is markup."""
    submission.program("<script>hostile()</script>")

"""What the homework's programs (the HW4 slides) need beside their training: options, data, ranks, checkpoints, run folder."""

from course_lib.training.homework.homework_data import HomeworkData, split_for_homework
from course_lib.training.homework.homework_run import HomeworkRun
from course_lib.training.homework.options import check_options, program_options
from course_lib.training.homework.program_ranks import (
    KNOWN_ERRORS,
    ProgramError,
    exit_in_one_line,
    joined_ranks,
    on_ranks,
)

__all__ = [
    "KNOWN_ERRORS",
    "HomeworkData",
    "HomeworkRun",
    "ProgramError",
    "check_options",
    "exit_in_one_line",
    "joined_ranks",
    "on_ranks",
    "program_options",
    "split_for_homework",
]

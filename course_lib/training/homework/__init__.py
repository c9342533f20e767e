"""The common parts of the hand-in programs of the homework (the HW4 slides): options, recipe, checkpoints, run folder."""

from course_lib.training.homework.asynchronous_program import train_asynchronously
from course_lib.training.homework.homework_data import HomeworkData, split_for_homework
from course_lib.training.homework.homework_run import HomeworkRun
from course_lib.training.homework.options import check_options, program_options
from course_lib.training.homework.pretrained_weights import WeightsError, find_imagenet_weights, load_body
from course_lib.training.homework.program_ranks import ProgramError, on_ranks
from course_lib.training.homework.progressive_resize import ProgressiveResize
from course_lib.training.homework.recipe import Recipe, one_cycle_options, one_cycle_recipe, one_cycle_sgd
from course_lib.training.homework.student_function import write_own_function
from course_lib.training.homework.train_program import KNOWN_ERRORS, exit_in_one_line, joined_ranks, train_program

__all__ = [
    "KNOWN_ERRORS",
    "HomeworkData",
    "HomeworkRun",
    "ProgramError",
    "ProgressiveResize",
    "Recipe",
    "WeightsError",
    "check_options",
    "exit_in_one_line",
    "find_imagenet_weights",
    "joined_ranks",
    "load_body",
    "on_ranks",
    "one_cycle_options",
    "one_cycle_recipe",
    "one_cycle_sgd",
    "program_options",
    "split_for_homework",
    "train_asynchronously",
    "train_program",
    "write_own_function",
]

"""Which tests wait for `make test-ci` or `make test-all`: the classes of cost, in one place.

A test that no rule names is quick: `make test` runs it. A rule is a test file below tests/, or a test of it
(``folder/file.py::test``, `*` and `?` as in file names); it puts a test into a class:

exhibits
    Hostile submissions, graded in the sandbox.
labs
    Executes a lab's whole notebook, or trains with a program of the homework.
thorough
    Takes seconds of processor time where a quick test looks at the same thing from nearer.

`slow`, `gpu`, `slurm` and `browser` stand beside the tests. `SAMPLE` names what is quick nevertheless.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

CI = ("exhibits", "labs", "thorough")
LATER = ("slow", "gpu", "slurm", "browser")

RULES = {
    "exhibits": (
        "hostile/test_answers_from_elsewhere.py",
        "hostile/test_hostile_corpus.py",
        "hostile/test_memorised_order.py",
        "hostile/test_reading.py",
        "hostile/test_unearned_points.py::test_ranks_that_do_not_do_it",
        "hostile/test_unearned_points.py::test_a_network_that_computes_no_convolution",
    ),
    "labs": (
        "labs/test_homework_programs.py",
        "labs/test_lab_runs.py::test_a_failing_run_leaves_earlier_results_and_names_the_cell",
        "labs/test_labs_in_nbgrader.py::test_the_source_validates_and_leaves_a_run",
        "labs/test_labs_in_sweeps.py::test_what_is_left_is_a_whole_run",
        "labs/test_scaling_job.py",
        "labs/test_sgd_programs.py",
        "rehearsal/test_labs_on_gpus.py",
    ),
    "thorough": (
        "autograde/test_batch_resume.py",
        "autograde/test_hidden_checks_lab*.py",
        "autograde/test_known_mistakes.py::test_a_mistake_loses_its_parts_for_every_seed",
        "autograde/test_nbgrader_round_trip.py::test_either_order_*",
        "autograde/test_rerun.py",
        "course_lib/test_asynchronous_accuracy.py",
        "course_lib/test_hogwild.py::test_it_learns_what_one_process_learns",
        "course_lib/test_launch_process.py::test_processes_launch_at_once_and_do_not_collide",
        "course_lib/test_parameter_server_faults.py::test_a_killed_rank_is_named_under_torchrun",
        "course_lib/test_run_folder.py::test_kills_leave_whole_files_and_the_next_run_finishes",
        "course_lib/test_sweep_command.py::test_ctrl_c_stops_cleanly_and_says_how_to_go_on",
        "course_lib/test_sweep_command.py::test_killed_twice_and_resumed_each_point_is_there_once",
        "rehearsal/test_planted_mistakes.py",
    ),
}

# Test → the ids of its cases that are quick.
SAMPLE = {
    "hostile/test_hostile_corpus.py::test_exhibit": (
        # escape
        "looks_for_secrets", "other_processes", "writes_where_it_must_not", "network", "exits_in_a_function",
        "kills_everything", "daemon_that_outlives", "run_is_a_link",
        # exhaustion
        "loop_that_ignores_signals", "memory_in_one_process", "prints_a_gigabyte",
        # forgery
        "patched_comparisons", "answers_before_the_question", "text_that_unpacks", "forged_curve",
        "weights_that_are_a_pickle",
        # injection
        "markup_in_written_answers", "markup_in_the_record", "markup_in_an_exception",
        # library
        "library_is_read",
        # malformed
        "not_json", "nested_json", "points_of_one_s_own",
        # programs
        "program_files_are_links", "another_program",
    ),
    "labs/test_labs_in_nbgrader.py::test_the_source_validates_and_leaves_a_run": ("01_single_gpu", "02_ddp"),
}  # fmt: skip

# Tests of a class without cases, or of all cases, that are quick.
QUICK = (
    "autograde/test_hidden_checks_lab01.py",
    "autograde/test_hidden_checks_lab*.py::test_points_are_the_notebooks",
    # what the exhibits of the sample do together; the pages that people read wait
    "hostile/test_hostile_corpus.py::test_every_reason_*",
    "hostile/test_hostile_corpus.py::test_honest_students_have_full_marks",
    "hostile/test_hostile_corpus.py::test_nothing_*",
    "hostile/test_hostile_corpus.py::test_the*",
)


def _matches(name: str, rule: str) -> bool:
    return fnmatchcase(name, rule) or fnmatchcase(name, rule + "::*")


def classes(name: str, case: str | None, marks: set[str]) -> set[str]:
    """The classes of a test.

    Parameters
    ----------
    name : str
        ``folder/file.py::test``, without its case.
    case : str or None
        What stands in brackets behind the name.
    marks : set of str
        The marks that it has already.
    """
    found = {mark for mark, rules in RULES.items() if any(_matches(name, rule) for rule in rules)}
    chosen = case in SAMPLE.get(name, ()) or any(_matches(name, rule) for rule in QUICK)
    if not marks & set(LATER) and (chosen or not found):
        found.add("quick")
    return found

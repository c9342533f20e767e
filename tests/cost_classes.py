"""Which tests wait for `make test-ci` or `make test-all`: the classes of cost, in one place.

A test that no rule names is quick: `make test` runs it. A rule is a test file below tests/, or a test of it
(``folder/file.py::test``, `*` and `?` as in file names); it puts a test into a class:

exhibits
    Hostile submissions, graded in the sandbox.
labs
    Executes a lab's whole notebook, or trains with a program of the homework.
thorough
    Takes seconds of processor time where a quick test looks at the same thing from nearer.

`slow`, `gpu`, `slurm` and `browser` are marks in the test files. `SAMPLE` names what is quick nevertheless, `CI_SAMPLE` all
that CI has of a test with many cases.
"""

from __future__ import annotations

import re
from fnmatch import translate
from functools import cache

CI = ("exhibits", "labs", "thorough")
LATER = ("slow", "gpu", "slurm", "browser")

RULES = {
    "exhibits": (
        "hostile/test_answers_from_elsewhere.py",
        "hostile/test_hostile_corpus.py",
        "hostile/test_memorised_order.py",
        "hostile/test_reading.py",
        "hostile/test_unearned_points.py::test_answers_of_one_process",
        "hostile/test_unearned_points.py::test_ranks_that_do_not_do_it",
        "hostile/test_unearned_points.py::test_a_network_that_computes_no_convolution",
    ),
    "labs": (
        "labs/test_homework_programs.py",
        "labs/test_lab_runs.py::test_a_failing_run_leaves_earlier_results_and_names_the_cell",
        "labs/test_labs_in_nbgrader.py::test_the_source_validates_and_leaves_a_run",
        "labs/test_labs_in_sweeps.py::test_what_is_left_is_a_whole_run",
        "labs/test_parallel_sgd_notebook.py::test_the_program_runs_under_mpirun",
        "labs/test_scaling_job.py",
        "labs/test_sgd_programs.py",
        "rehearsal/test_labs_on_gpus.py",
        "rehearsal/test_programs_on_gpus.py::test_program_on_two_gpus",
        "test_packaging.py::test_a_student_without_a_checkout_starts_and_runs_a_lab",
    ),
    "thorough": (
        "autograde/test_answers.py::test_the_page_has_*",
        "autograde/test_backup.py::test_a_restoration_that_is_killed_*",
        "autograde/test_batch_resume.py",
        "autograde/test_cells_left_out.py",
        "autograde/test_cgroup.py::test_many_processes_together_*",
        "autograde/test_cgroup.py::test_without_a_group_*",
        "autograde/test_course_page.py::test_formgrader_s_page_*",
        "autograde/test_course_page.py::test_those_in_trouble_*",
        "autograde/test_exports.py::test_nbgrader_s_file_is_that_of_stock_nbgrader",
        "autograde/test_exports.py::test_students_text_is_neutralised_*",
        "autograde/test_extensions.py::test_grace_days_go_to_*",
        "autograde/test_gpu_sandbox.py::test_a_run_has_a_gpu_*",
        "autograde/test_gpu_sandbox.py::test_cuda_that_does_not_start_*",
        "autograde/test_gpu_sandbox.py::test_student_code_*",
        "autograde/test_grade_command.py::test_a_missing_run_folder_*",
        "autograde/test_grade_command.py::test_no_sandbox_is_said_aloud_*",
        "autograde/test_grade_on_submission.py::test_killed_at_*",
        "autograde/test_grade_on_submission.py::test_no_trick_*",
        "autograde/test_grade_on_submission.py::test_nothing_is_released_*",
        "autograde/test_grade_on_submission.py::test_what_nbgrader_would_*",
        "autograde/test_gradebook_scores.py::test_a_late_submission_*",
        "autograde/test_gradebook_scores.py::test_a_person_s_score_*",
        "autograde/test_gradebook_scores.py::test_an_answer_that_is_blanked_*",
        "autograde/test_gradebook_scores.py::test_one_bad_submission_*",
        "autograde/test_held_out.py::test_an_answer_that_never_returns_*",
        "autograde/test_held_out.py::test_honest_weights_*",
        "autograde/test_held_out.py::test_the_grader_s_figure_*",
        "autograde/test_late_penalties.py::test_a_penalty_reaches_*",
        "autograde/test_late_penalties.py::test_a_plugin_that_fails_loses_no_score",
        "autograde/test_late_penalties.py::test_hand_grading_that_came_between_*",
        "autograde/test_late_penalties.py::test_penalties_are_those_of_stock_nbgrader",
        "autograde/test_lti.py::test_a_kill_between_*",
        "autograde/test_nbgrader_round_trip.py::test_either_order_*",
        "autograde/test_nbgrader_round_trip.py::test_generate_and_validate",
        "autograde/test_nbgrader_round_trip.py::test_nbgrader_alone_*",
        "autograde/test_notebook_repair.py::test_any_mixture_*",
        "autograde/test_other_points.py::test_other_points_are_*",
        "autograde/test_rerun.py",
        "autograde/test_serve_command.py",
        "autograde/test_several_runs.py::test_each_run_*",
        "autograde/test_several_runs.py::test_scores_feedback_*",
        "autograde/test_several_runs.py::test_the_data_of_a_run_*",
        "autograde/test_similarity.py::test_a_disguise_*",
        "autograde/test_submitted_notebook.py::test_a_large_file_of_odd_pieces_*",
        "autograde/test_time_limits.py::test_processor_time_is_that_of_all_processes_*",
        "autograde/test_time_limits.py::test_waiting_for_a_processor_*",
        "autograde/test_worker.py::test_a_warm_interpreter_that_was_ended_*",
        "course_lib/test_backend_support.py::test_wrong_values_refusals_and_deaths_*",
        "course_lib/test_check_messages.py::test_without_a_front_end_*",
        "course_lib/test_checkpoint.py::test_two_ranks_resume_to_the_bit",
        "course_lib/test_collectives.py::test_values_bytes_and_rounds",
        "course_lib/test_data_parallel.py::test_five_steps_*",
        "course_lib/test_homework_run.py::test_a_call_that_is_missing_*",
        "course_lib/test_homework_run.py::test_killed_it_continues_to_the_same_weights",
        "course_lib/test_homework_run.py::test_ranks_started_by_the_program_*",
        "course_lib/test_interrupt_notebook.py",
        "course_lib/test_lab_command.py::test_an_interrupt_of_a_notebook_*",
        "course_lib/test_launch.py::test_processes_launch_at_once_*",
        "course_lib/test_launch_failures.py::test_a_hang_ends_*",
        "course_lib/test_launch_failures.py::test_a_rank_that_fails_*",
        "course_lib/test_launch_failures.py::test_no_rank_outlives_its_launcher",
        "course_lib/test_leave_process_group.py",
        "course_lib/test_live_view_notebook.py",
        "course_lib/test_main_script.py::test_a_script_*",
        "course_lib/test_metrics_and_parameters.py::test_the_notebooks_first_cell_refuses_*",
        "course_lib/test_mpi_launch.py::test_a_function_of_a_notebook_*",
        "course_lib/test_mpi_launch.py::test_an_mpirun_that_does_not_*",
        "course_lib/test_optim_layerwise.py::test_timm_is_imported_only_when_used_*",
        "course_lib/test_own_time.py::test_ranks_that_never_end",
        "course_lib/test_parameter_server_faults.py::test_a_killed_rank_is_named_under_torchrun",
        "course_lib/test_pipeline.py::test_any_number_of_micro_batches_*",
        "course_lib/test_pipeline.py::test_the_orders_*",
        "course_lib/test_run_folder.py::test_kills_leave_whole_files_*",
        "course_lib/test_run_grid.py::test_a_row_for_each_*",
        "course_lib/test_run_grid.py::test_as_many_at_a_time_*",
        "course_lib/test_sharding.py::test_as_pytorch_s_own_*",
        "course_lib/test_sharding.py::test_each_rank_holds_*",
        "course_lib/test_sharding.py::test_ten_steps_*",
        "course_lib/test_sweep_command.py::test_a_diverged_training_*",
        "course_lib/test_sweep_command.py::test_a_full_disk_*",
        "course_lib/test_sweep_command.py::test_a_profile_that_was_edited_*",
        "course_lib/test_sweep_command.py::test_a_trial_that_fails_*",
        "course_lib/test_sweep_command.py::test_ctrl_c_stops_cleanly_*",
        "course_lib/test_sweep_command.py::test_killed_twice_*",
        "course_lib/test_sweep_command.py::test_other_cores_*",
        "course_lib/test_sweep_command.py::test_what_is_done_is_not_run_again_*",
        "course_lib/test_sweep_results.py::test_figures_are_drawn_*",
        "course_lib/test_tensor_parallel.py::test_parts_compute_*",
        "course_lib/test_warm_kernels.py::test_plain_papermill_*",
        "exercises/test_collectives_of_ranks.py::test_a_wrapped_model_*",
        "exercises/test_in_the_sandbox.py::test_a_huge_answer_gets_nothing",
        "exercises/test_in_the_sandbox.py::test_through_the_sandbox",
        "exercises/test_in_the_sandbox.py::test_what_equals_everything_*",
        "exercises/test_ranks_and_messages.py::test_what_passes_beside_*",
        "labs/test_gpu_benchmark.py::test_all_measurements_*",
        "labs/test_labs_in_nbgrader.py::test_the_command_gives_*",
        "labs/test_results_gpu.py::test_kill_9_*",
        "labs/test_results_gpu.py::test_what_fits_*",
        "labs/test_scaling_notebook.py",
        "labs/test_sync_async_notebook.py",
        "rehearsal/test_gpu_suite.py",
        "rehearsal/test_planted_mistakes.py",
        "rehearsal/test_programs_on_gpus.py",
        "test_demo.py",
        "test_docs_site.py",
        "test_leftovers.py::test_a_forgotten_process_fails_the_run",
    ),
}

# Test → the ids of its cases that are quick.
SAMPLE = {
    "autograde/test_extensions.py::test_grace_days_go_to_late_submissions_in_the_order_of_due_dates": (
        "not enough is kept", "partly", "after the extension",
    ),
    "autograde/test_grade_on_submission.py::test_killed_at_any_moment_it_grades_each_once_and_loses_none": (
        "some, without pages",
    ),
    "autograde/test_grade_on_submission.py::test_no_trick_is_graded_before_its_time": ("another ending", "a copy"),
    "autograde/test_grade_on_submission.py::test_what_nbgrader_would_follow_or_believe_is_refused": (
        "a link to the solution", "markup", "two times",
    ),
    "autograde/test_time_limits.py::test_processor_time_is_that_of_all_processes_and_not_of_waiting": (
        "by a control group",
    ),
    "course_lib/test_collectives.py::test_values_bytes_and_rounds": ("1", "3", "4"),
    "course_lib/test_data_parallel.py::test_five_steps_are_those_of_one_process_on_the_whole_batch": ("2",),
    "course_lib/test_homework_run.py::test_a_call_that_is_missing_is_named_in_one_line": ("end_epoch",),
    "course_lib/test_launch_failures.py::test_a_rank_that_fails_is_named_and_ends_the_others": (
        "launch-raises", "launch-raises first", "launch-exits", "launch-leaves with a code",
        "launch-leaves without a word", "launch-is killed", "launch-is killed beside a sleeper", "launch-crashes",
        "launch-raises beside one that ignores SIGTERM", "mpi_run-is killed",
    ),
    "course_lib/test_main_script.py::test_a_script_without_a_guard_runs_once": ("process",),
    "course_lib/test_mpi_launch.py::test_an_mpirun_that_does_not_do_its_work": ("it fails",),
    "course_lib/test_pipeline.py::test_any_number_of_micro_batches_gives_the_sequential_gradients": ("2",),
    "course_lib/test_sharding.py::test_each_rank_holds_and_sends_what_the_ledger_says": ("2",),
    "course_lib/test_tensor_parallel.py::test_parts_compute_what_the_whole_computes": ("True-2",),
    # of each transport one
    "exercises/test_in_the_sandbox.py::test_through_the_sandbox": (
        "lab01-evaluate", "lab02-program", "lab04-novograd", "lab06-ring", "lab08-start", "lab09-program",
    ),
    "exercises/test_in_the_sandbox.py::test_what_equals_everything_and_a_blank_earn_nothing": ("lab02-epoch", "lab09-collision"),
    "hostile/test_hostile_corpus.py::test_exhibit": (
        # escape
        "looks_for_secrets", "inherited_descriptors", "other_processes", "network", "exits_in_a_function",
        "kills_everything", "daemon_that_outlives", "run_is_a_link",
        # exhaustion
        "loop_that_ignores_signals", "memory_in_one_process", "prints_a_gigabyte",
        # forgery
        "patched_comparisons", "answers_before_the_question", "text_that_unpacks", "forged_curve",
        "weights_that_are_a_pickle",
        # injection
        "markup_in_the_record", "markup_in_an_exception",
        # library
        "library_is_read",
        # malformed
        "not_json", "nested_json", "points_of_one_s_own",
        # programs
        "program_files_are_links", "another_program",
    ),
    "hostile/test_unearned_points.py::test_answers_of_one_process": (
        "an evaluation that never calls the network", "rows without a training",
    ),
    "labs/test_labs_in_nbgrader.py::test_the_source_validates_and_leaves_a_run": ("01_single_gpu",),
}  # fmt: skip

# Test → the ids of its cases that CI has; the others are slow.
CI_SAMPLE = {
    # of each lab and each transport one
    "exercises/test_in_the_sandbox.py::test_through_the_sandbox": (
        "lab01-evaluate", "lab02-epoch", "lab02-program", "lab03-gradient-norms", "lab04-novograd", "lab05-basic-block",
        "lab06-ring", "lab06-six", "lab07-average", "lab07-server", "lab08-averaging", "lab08-start", "lab09-program",
        "lab10-average", "lab11-measure", "lab12-program", "lab13-zero3", "lab14-layers",
    ),
    "exercises/test_in_the_sandbox.py::test_what_equals_everything_and_a_blank_earn_nothing": (
        "lab01-evaluate", "lab02-epoch", "lab03-gradient-norms", "lab04-novograd", "lab05-basic-block", "lab06-ring",
        "lab07-average", "lab08-averaging", "lab09-collision", "lab10-average", "lab11-measure", "lab12-program",
        "lab13-zero3", "lab14-layers",
    ),
    # CI executes every lab as a whole; of these, the labs that take longest are left out
    "labs/test_labs_in_sweeps.py::test_what_is_left_is_a_whole_run": (
        "02_ddp", "03_batch_size_scaling", "04_momentum_warmup_novograd", "06_communication", "07_sync_async_sgd",
        "09_hogwild", "10_kfac", "11_scaling_study", "12_assessment", "13_sharding", "14_model_parallel",
    ),
    "rehearsal/test_labs_on_gpus.py::test_lab_on_two_gpus": ("07_sync_async_sgd", "13_sharding"),
    "rehearsal/test_labs_on_gpus.py::test_lab_stays_on_the_cores_beside_two_gpus": ("09_hogwild",),
}  # fmt: skip

# Tests of a class without cases, or of all cases, that are quick.
QUICK = (
    # what the exhibits of the sample do together; the pages that people read wait
    "hostile/test_hostile_corpus.py::test_every_reason_*",
    "hostile/test_hostile_corpus.py::test_honest_students_have_full_marks",
    "hostile/test_hostile_corpus.py::test_nothing_*",
    "hostile/test_hostile_corpus.py::test_the*",
)


_MATCHES = {
    mark: re.compile("|".join(translate(rule) for each in rules for rule in (each, f"{each}::*"))).match
    for mark, rules in {**RULES, "quick": QUICK}.items()
}


@cache  # a test of many cases is asked about for each of them
def _by_rules(name: str) -> frozenset[str]:
    """The classes that rules put a test into; `quick` for one that is quick whatever its case."""
    return frozenset(mark for mark, matches in _MATCHES.items() if matches(name))


def classes(name: str, case: str | None, marks: set[str]) -> set[str]:
    """The classes of a test.

    Parameters
    ----------
    name : str
        ``folder/file.py::test``, without its case.
    case : str or None
        The text in brackets after the name.
    marks : set of str
        The marks that it has already.
    """
    if case not in CI_SAMPLE.get(name, (case,)):
        return {"slow"}
    found = _by_rules(name) - {"quick"} | marks & set(CI)
    chosen = case in SAMPLE.get(name, ()) or "quick" in _by_rules(name)
    return found | {"quick"} if not marks & set(LATER) and (chosen or not found) else found

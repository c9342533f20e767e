"""Rubrics with several run folders: each is judged on its own, and what is wrong with one costs only its own points."""

import json
import os
import re

import nbformat
import pytest
from fake_runs import LAB
from safetensors.torch import load_file, save_file
from three_runs import PROGRAMS, RUBRIC, hand_in_run, notebook_of_three, trained_run, write_rubric

from autograde.batch.grade_lab import _timeout, grade_lab
from autograde.gradebook.scores import CourseError, lab_points, nbgrader_settings, open_gradebook
from autograde.grading.grading_context import GradingContext
from autograde.grading.held_out import try_weights
from autograde.grading.one_submission import grade_submission, submission_digest
from autograde.grading.rubric_check import rubric_problems
from autograde.reports.reading.feedback import ShowReasons
from autograde.reports.report import write_report
from autograde.rubric.schema import RubricError, find_rubric, load_rubric
from autograde.rubric.verdict import load_verdict, verdict_path
from autograde.sandbox.warm import WarmInterpreter


@pytest.fixture
def rubric(tmp_path):
    return load_rubric(write_rubric(tmp_path / "rubrics"))


@pytest.fixture
def submission(tmp_path):
    folder = tmp_path / "submitted" / "ada" / LAB
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def grade(rubric, submission):
    """Grades with no sandbox at hand unless one is given: then weights are not tried, and files still are."""

    def grade(warm: WarmInterpreter | None = None, rubric=rubric):
        return grade_submission(GradingContext(rubric, notebook_of_three(), b"secret", warm), submission, "ada").verdict

    return grade


def scores(verdict):
    return {cell: sum(result.points for result in results) for cell, results in verdict.cells.items()}


def reasons(verdict, program):
    return {result.reason for result in verdict.cells[f"run-{program}"] if not result.passed}


def reason(verdict, program):
    """The one reason for which a program's run earned nothing."""
    assert scores(verdict)[f"run-{program}"] == 0
    (found,) = reasons(verdict, program)
    assert found.isprintable() and len(found) < 500
    return found


def forge(folder, accuracy="0.99"):
    rows = (folder / "learning_curve.csv").read_text().splitlines()
    rows[-1] = ",".join([*rows[-1].split(",")[:6], accuracy, "0.05"])
    (folder / "learning_curve.csv").write_text("\n".join(rows) + "\n")
    out = folder / "assessment.out"
    out.write_text(re.sub(r"(Validation Accuracy = )[0-9.]+\n\Z", rf"\g<1>{float(accuracy):5.3f}\n", out.read_text()))


# --- one honest, one forged, one missing ------------------------------------------------------------------------------


def test_each_run_is_judged_on_its_own(grade, submission, warm, monkeypatch):
    draws = []

    def try_and_note(rules, evidence, weights, warm, random, *rest):
        draws.append(random.bit_generator.state["state"])
        return try_weights(rules, evidence, weights, warm, random, *rest)

    monkeypatch.setattr("autograde.grading.held_out.try_weights", try_and_note)
    hand_in_run(submission, "alpha")
    forge(hand_in_run(submission, "beta"))
    verdict = grade(warm)
    assert scores(verdict)["run-alpha"] == 10, reasons(verdict, "alpha")
    assert reason(verdict, "beta").startswith("the learning curve ends at 0.990, the submitted weights score 0.")
    assert reason(verdict, "gamma") == (
        "no run folder of gamma.py in the submission: expected run/gamma/run.json beside the notebook; "
        "run gamma.py to its end, which writes it"
    )
    assert [flag.detail for flag in verdict.flags if flag.kind == "forged"] == [f"beta: {reason(verdict, 'beta')}"]
    assert [run.id for run in verdict.runs] == list(PROGRAMS)
    alpha, beta, gamma = verdict.runs
    curve = [float(row.split(",")[6]) for row in (trained_run() / "learning_curve.csv").read_text().splitlines()[1:]]
    assert [row[2] for row in alpha.curve] == curve and alpha.held_out_images == 400
    assert abs(alpha.held_out_accuracy - curve[-1]) < 0.09
    assert len(draws) == 2 and draws[0] != draws[1]  # other images for each run
    assert beta.final_accuracy == 0.99 and gamma.curve == [] and gamma.weights is None
    # One reason for all criteria is there once, and so is its remedy.
    assert verdict.comment("run-beta").count("the learning curve ends at 0.990") == 1
    assert "how to look at it" not in verdict.comment("run-beta")
    assert "how to look at it" not in verdict.comment("run-gamma")


def test_one_training_counts_for_one_program(grade, submission, warm):
    for program in ("alpha", "beta"):
        hand_in_run(submission, program)
    verdict = grade(warm)
    assert scores(verdict) == {"run-alpha": 10, "run-beta": 0, "run-gamma": 0}
    assert reason(verdict, "beta") == "its weights are those of alpha, where they count: hand in the files of one run"
    assert [flag.detail for flag in verdict.flags if flag.kind == "copy"] == ["alpha and beta have the same weights"]


def test_scores_feedback_report_and_copies_of_a_class(fresh_course, tmp_path, graded_here, monkeypatch, bench_of):
    nbformat.write(notebook_of_three(), tmp_path / "labs" / LAB / f"{LAB}.ipynb")
    write_rubric(tmp_path / "rubrics")
    for student in ("ada", "bob"):
        submission = fresh_course / "submitted" / student / LAB
        submission.mkdir(parents=True)
        nbformat.write(notebook_of_three(), submission / f"{LAB}.ipynb")
        hand_in_run(submission, "alpha")
    # Bob's beta is Ada's alpha: the same weights under another name.
    bob = fresh_course / "submitted" / "bob" / LAB
    (bob / "run" / "alpha").rename(bob / "run" / "beta")
    record = bob / "run" / "beta" / "run.json"
    record.write_text(record.read_text().replace('"program": "alpha"', '"program": "beta"'))

    def grade_all():
        return {each.student: each for each in grade_lab("1", fresh_course, jobs=1, rubrics=tmp_path / "rubrics")}

    verdicts = grade_all()
    assert {student: scores(each) for student, each in verdicts.items()} == {
        "ada": {"run-alpha": 10, "run-beta": 0, "run-gamma": 0},
        "bob": {"run-alpha": 0, "run-beta": 10, "run-gamma": 0},
    }
    copies = {name: [flag.detail for flag in each.flags if flag.kind == "copy"] for name, each in verdicts.items()}
    assert copies == {
        "ada": ["alpha: the same model.safetensors as bob"],
        "bob": ["beta: the same model.safetensors as ada"],
    }
    grade_all()
    assert graded_here == ["ada", "bob"]  # nothing changed, nobody was graded again
    weights = fresh_course / "submitted" / "ada" / LAB / "run" / "alpha" / "model.safetensors"
    save_file(load_file(weights), weights, metadata={"saved": "anew"})
    verdicts = grade_all()
    assert graded_here == ["ada", "bob", "ada"]
    assert [flag for each in verdicts.values() for flag in each.flags if flag.kind == "copy"] == []
    assert load_verdict(verdict_path(fresh_course, "ada", LAB)) == verdicts["ada"]

    config = nbgrader_settings(fresh_course)
    with open_gradebook(config) as gradebook:
        for student, each in verdicts.items():
            for cell, points in scores(each).items():
                assert gradebook.find_grade(cell, LAB, LAB, student).auto_score == points
    rubric = find_rubric("1", tmp_path / "rubrics")
    assert lab_points(config, rubric).evidence == 30

    # nbgrader's feedback shows each run's reasons in its own cell.
    monkeypatch.setattr("autograde.reports.reading.feedback.find_rubric", lambda lab: rubric)
    notebook = notebook_of_three()
    database = f"sqlite:///{fresh_course / 'gradebook.db'}"
    names = {"assignment": LAB, "notebook": LAB, "student": "ada", "db_url": database}
    ShowReasons().preprocess(notebook, {"nbgrader": names})
    shown = {cell.id: cell.outputs[0].text for cell in notebook.cells if cell.id.startswith("run-")}
    assert shown["run-alpha"].startswith("10 of 10 points") and "no run folder of beta.py" in shown["run-beta"]

    monkeypatch.setattr("autograde.reports.report.find_rubric", lambda lab, *_: rubric)
    page = write_report([LAB], fresh_course, fresh_course / "reports" / "page.html")
    text = page.read_text()
    for program in PROGRAMS:
        assert f"<b>Validation accuracy over epochs</b>, {program}, each line a run with points." in text
        assert f"Final acc.<small> {program}</small>" in text
    assert [chart.count('class="each"') for chart in text.split("<figure>")[2:5]] == [1, 1, 0]
    own = (page.parent / LAB / "ada.html").read_text()
    assert own.count('<polyline class="own"') == 1 and own.count("No learning curve could be read.") == 2
    assert own.count("<h2>Run <code>") == 3 and own.count("Claimed final accuracy") == 3


def test_the_data_of_a_run_must_be_there_where_somebody_hands_that_run_in(fresh_course, tmp_path, graded_here):
    nbformat.write(notebook_of_three(), tmp_path / "labs" / LAB / f"{LAB}.ipynb")
    first, mark, rest = RUBRIC.partition('id = "beta"')
    write_rubric(tmp_path / "rubrics", first + mark + rest.replace("cifar10-synthetic", "tiny-imagenet-200", 1))
    submission = fresh_course / "submitted" / "ada" / LAB
    submission.mkdir(parents=True)
    (verdict,) = grade_lab("1", fresh_course, jobs=1, rubrics=tmp_path / "rubrics")
    assert verdict.score == 0
    folder = hand_in_run(submission, "beta")
    with pytest.raises(
        CourseError, match=f"rubric {LAB}, beta: submitted weights cannot be tested: .*tiny-imagenet-200"
    ):
        grade_lab("1", fresh_course, jobs=1, rubrics=tmp_path / "rubrics")
    a_link(folder, tmp_path / "elsewhere")  # which is not tried
    grade_lab("1", fresh_course, jobs=1, rubrics=tmp_path / "rubrics")
    assert graded_here == ["ada", "ada"]


def test_a_worker_is_given_up_after_all_limits_and_no_sooner(rubric):
    # Twice a minute and three runs of 40 s, for itself and each worker that it may wait for.
    assert _timeout(rubric, 2) == 6 * (60 + 3 * 40)
    lab = find_rubric("1")  # seven exercises and a run
    assert _timeout(lab, 1) == 4 * (60 + 8 * lab.execution.seconds)


def test_what_lies_in_any_run_folder_is_part_of_the_digest(rubric, submission):
    hand_in_run(submission, "alpha")
    before = submission_digest(submission, rubric)
    folder = hand_in_run(submission, "beta")
    other = submission_digest(submission, rubric)
    forge(folder)
    assert len({before, other, submission_digest(submission, rubric)}) == 3


def test_runs_slash_lab_is_looked_in_for_each_run(grade, submission, warm):
    hand_in_run(submission, "alpha", where=f"runs/{LAB}")
    (submission / "run").mkdir()
    (submission / "run" / "beta").mkdir()  # it is there, and empty: what lies in runs/ is not looked at
    hand_in_run(submission, "beta", where=f"runs/{LAB}")
    verdict = grade(warm)
    assert scores(verdict) == {"run-alpha": 10, "run-beta": 0, "run-gamma": 0}
    assert reasons(verdict, "beta") == {
        f"run/beta/{name} is missing: run beta.py to its end, which writes it"
        for name in ("run.json", "learning_curve.csv")
    }


def test_the_notebook_s_own_run_may_stand_beside_them(grade, submission, tmp_path, make_run):
    own = """
cell = "run-evidence"
max_points = 3

[[criterion]]
id = "curve"
kind = "monotone"
points = 3
description = "Time grows"
"""
    head, mark, runs = RUBRIC.partition("\n[[run]]")
    rubric = load_rubric(write_rubric(tmp_path / "rubrics", head + own + mark + runs))
    make_run().write(submission)
    verdict = grade(rubric=rubric)
    assert scores(verdict) == {"run-evidence": 3, "run-alpha": 0, "run-beta": 0, "run-gamma": 0}
    assert rubric.total == 33 and [run.name for run in rubric.runs] == ["the notebook's run", *PROGRAMS]


def test_a_grader_that_fails_says_so_of_every_run(grade, monkeypatch):
    monkeypatch.setattr("autograde.grading.one_submission.parse_evidence", lambda *_: 1 / 0)
    verdict = grade()
    assert scores(verdict) == dict.fromkeys([f"run-{name}" for name in PROGRAMS], 0)
    assert [run.id for run in verdict.runs] == list(PROGRAMS)


# --- hostile folders --------------------------------------------------------------------------------------------------


def a_link(folder, elsewhere):
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)


@pytest.mark.parametrize("level", ["run/beta", "run"])
def test_what_is_no_plain_folder_is_not_opened(grade, submission, tmp_path, level):
    hand_in_run(submission, "beta")
    a_link(submission / level, tmp_path / "elsewhere")
    assert reason(grade(), "beta") == f"{level}/ is not a plain folder (a link or a file): hand in the folder itself"


def test_weights_that_do_not_fit_into_a_worker_several_times_are_not_read(grade, submission, warm):
    os.truncate(hand_in_run(submission, "beta") / "model.safetensors", (128 << 20) + 1)
    assert "run/beta/model.safetensors has 134,217,729 bytes, at most 134,217,728 are read" in reason(
        grade(warm), "beta"
    )


@pytest.mark.parametrize("key", ["id", "folder", "program"])
@pytest.mark.parametrize("name", ["..", ".", "a/b", "/etc", "", "-x", "a b", "x" * 65, "é", "a\\u0000"])
def test_a_folder_that_is_no_plain_name_is_refused_in_the_rubric(tmp_path, key, name):
    if key == "folder":
        text = RUBRIC.replace('id = "beta"', f'id = "beta"\nfolder = "{name}"')
    else:
        text = RUBRIC.replace(f'{key} = "beta"', f'{key} = "{name}"')
    with pytest.raises(RubricError, match=rf"run '.*'\.{key}: Expected `str` matching"):
        load_rubric(write_rubric(tmp_path / "rubrics", text))


# --- whose run it is --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "told"),
    [("alpha", "is of program 'alpha'"), (None, "names no program"), ("<b>\x1b", "is of program '<b>\\x1b'")],
)
def test_a_run_of_another_program_earns_nothing(grade, submission, warm, program, told):
    record = hand_in_run(submission, "beta") / "run.json"
    whole = json.loads(record.read_text())
    whole |= {"program": program}
    record.write_text(json.dumps({key: value for key, value in whole.items() if value is not None}))
    verdict = grade(warm)
    assert reason(verdict, "beta") == (f"run.json {told}, expected 'beta': hand in what beta.py writes as run/beta/")
    assert "missing" in {flag.kind for flag in verdict.flags if flag.detail.startswith("beta: ")}
    assert verdict.runs[1].held_out_accuracy is None  # its weights are not tried


def test_a_program_that_is_no_text_is_a_reason(grade, submission):
    record = hand_in_run(submission, "beta") / "run.json"
    record.write_text(record.read_text().replace('"program": "beta"', '"program": ["beta"]'))
    assert "nothing says that this is a run of beta.py: run.json: program is a list, a string was expected" in reason(
        grade(), "beta"
    )


# --- the rubric -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('id = "beta"', 'id = "alpha"', "run id 'alpha' is there twice"),
        ('id = "beta"', 'id = "beta"\nfolder = "alpha"', "run folder 'alpha' is there twice"),
        ('cell = "run-beta"', 'cell = "run-alpha"', "cell 'run-alpha' is there twice"),
        ('cell = "run-beta"\n', "", "run 'beta': The table lacks the required field `cell`"),
        ('cell = "run-beta"\nmax_points = 10', 'cell = "run-beta"', "run 'beta': The table lacks the required field `max_points`"),
        ('cell = "run-beta"\nmax_points = 10', 'cell = "run-beta"\nmax_points = 9', "run 'beta': the criteria add up to"),
        ('program = "beta"', 'program = "beta"\nbudget = 3', "run 'beta': The table contains unknown field `budget`"),
        ('mode = "evidence"', 'mode = "rerun"\nrerun = { parameters = {}, seconds = 9 }', "[[run]] needs mode 'evidence'"),
        ('mode = "evidence"', 'mode = "evidence"\ncell = "run-evidence"', "lacks the required field `max_points`"),
        ("seconds = 40", "seconds = 0", "run 'alpha'.model.seconds: Expected `float` > 0.0"),
        ("seconds = 3600", "seconds = 0", "run 'alpha': criterion 'time': seconds must be a number of seconds above 0"),
        ("seconds = 3600", 'seconds = 9\nseconds_gpu = "9"', "seconds_gpu must be a number of seconds above 0"),
        ("seconds = 3600", "seconds = 9\nminutes = 1", "kind time_budget has no setting 'minutes'"),
    ],
)  # fmt: skip
def test_a_broken_run_is_refused_by_name(tmp_path, old, new, expected):
    assert old in RUBRIC
    with pytest.raises(RubricError) as caught:
        load_rubric(write_rubric(tmp_path / "rubrics", RUBRIC.replace(old, new)))
    assert expected in str(caught.value)


def test_the_run_s_own_limits_hold_for_its_weights(tmp_path, grade, submission, warm):
    hand_in_run(submission, "alpha")
    text = RUBRIC.replace("seconds = 40", "seconds = 0.001", 1)
    verdict = grade(warm, load_rubric(write_rubric(tmp_path / "rubrics", text)))
    assert "the weights could not be tested: timed out after 0.001 s" in reason(verdict, "alpha")


def test_the_notebook_must_have_each_run_s_cell(rubric):
    notebook = notebook_of_three()
    assert rubric_problems(rubric, notebook) == []
    notebook.cells[-1].metadata.nbgrader["points"] = 9
    del notebook.cells[-2]
    assert rubric_problems(rubric, notebook) == [
        "the notebook has no grade cell 'run-beta'",
        "cell 'run-gamma' is worth 9 points in the notebook, 10 in the rubric",
    ]


def test_an_unknown_network_is_told_with_its_run(tmp_path):
    text = RUBRIC.replace("course_lib:wide_resnet_standardised", "course_lib:vgg", 1)
    (told,) = rubric_problems(load_rubric(write_rubric(tmp_path / "rubrics", text)), notebook_of_three())
    assert told.startswith("run 'alpha': [run.model] network is 'course_lib:vgg', expected course_lib:wide_resnet, ")

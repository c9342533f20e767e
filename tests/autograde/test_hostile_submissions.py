"""Submissions that try to hang, mislead or escape the grader. Each earns nothing, in one line, and stops nobody."""

import json
import os
import pickle

import pytest
from fake_runs import LAB, lab_path

from autograde.grading.grading_context import GradingContext, source_notebook
from autograde.grading.one_submission import grade_submission


@pytest.fixture
def submission(tmp_path, make_run):
    folder = tmp_path / "submitted" / "mallory" / LAB
    make_run().write(folder)
    return folder


@pytest.fixture
def grade(submission, folder_rubric, in_seconds):
    """Judges the run folder alone, whose files are worth 8 points; nothing of it is executed."""
    context = GradingContext(folder_rubric(), source_notebook(lab_path()), b"secret", None)

    def grade():
        """The verdict, which must come within seconds."""
        verdict = in_seconds(grade_submission, context, submission, "mallory").verdict
        for result in verdict.results:
            assert result.reason.isprintable() and len(result.reason) < 800
        return verdict

    return grade


def reasons(verdict):
    return {result.kind: result.reason for result in verdict.results if not result.passed}


FILES = {"run.json": "run_record", "learning_curve.csv": "curve_schema", "assessment.out": "transcript"}


def moved_and_linked(path, elsewhere):
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


SPOILT = {
    "missing": (lambda path, _: path.unlink(), "run/{} is missing: run the lab to its end"),
    "a link out of the submission": (moved_and_linked, "run/{} is a symbolic link"),
    "a folder": (lambda path, _: (path.unlink(), path.mkdir()), "run/{} is not a plain file"),
    "a pipe that nobody writes": (lambda path, _: (path.unlink(), os.mkfifo(path)), "run/{} is not a plain file"),
    "a huge sparse file": (lambda path, _: os.truncate(path, 1 << 40), "run/{} has 1,099,511,627,776 bytes"),
    "not UTF-8": (lambda path, _: path.write_bytes(b"\xff\xfe\x00"), "{} is not UTF-8 text (byte 0)"),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("spoil", SPOILT)
def test_a_spoilt_file_is_a_reason(grade, submission, tmp_path, spoil, name):
    change, expected = SPOILT[spoil]
    change(submission / "run" / name, tmp_path / "elsewhere")
    assert expected.format(name) in reasons(grade())[FILES[name]]


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_a_parser_fails_on_for_a_reason_nobody_thought_of(grade, monkeypatch, name):
    parser = {"run.json": "parse_run_record", "learning_curve.csv": "parse_learning_curve"}
    monkeypatch.setattr(
        f"course_lib.runs.run_evidence.evidence.{parser.get(name, 'parse_transcript')}", lambda text: 1 / 0
    )
    assert f"{name} could not be read (ZeroDivisionError)" in reasons(grade())[FILES[name]]


@pytest.mark.parametrize("level", ["run", "lab", "student"])
def test_a_link_in_place_of_a_folder_is_not_followed(grade, submission, tmp_path, level):
    path = {"run": submission / "run", "lab": submission, "student": submission.parent}[level]
    moved_and_linked(path, tmp_path / "elsewhere")
    verdict = grade()
    assert verdict.score == 0
    assert "is not a plain folder (a link or a file)" in reasons(verdict)["run_record"]


@pytest.mark.parametrize("what", ["nothing", "no run", "empty run"])
def test_no_run_folder(grade, submission, tmp_path, what):
    if what == "nothing":
        submission.rename(tmp_path / "gone")
    elif what == "no run":
        (submission / "run").rename(tmp_path / "gone")
    else:
        for path in (submission / "run").iterdir():
            path.unlink()
    verdict = grade()
    assert verdict.score == 0
    assert len(reasons(verdict)) == len(verdict.results)
    if what != "empty run":
        assert set(reasons(verdict).values()) == {
            "no run folder in the submission: expected run/run.json beside the notebook; "
            "run the lab to its end, which writes it"
        }


def test_runs_slash_lab_is_looked_in_after_run(grade, submission):
    (submission / "runs").mkdir()
    (submission / "run").rename(submission / "runs" / LAB)
    assert grade().score == 8
    (submission / "run").mkdir()
    assert grade().score == 0


class Bomb:
    def __reduce__(self):
        return (os.mkdir, (Bomb.target,))


def test_a_pickle_is_never_opened(grade, submission, tmp_path):
    Bomb.target = str(tmp_path / "owned")
    for name in ("model.safetensors", "model.pt", "run.pkl"):
        (submission / "run" / name).write_bytes(pickle.dumps(Bomb()))
    assert grade().score == 8
    for name in FILES:
        (submission / "run" / name).write_bytes(pickle.dumps(Bomb(), protocol=0))
    assert grade().score == 0
    assert not (tmp_path / "owned").exists()


def test_other_names_in_the_run_folder_are_not_even_looked_at(grade, submission):
    os.mkfifo(submission / "run" / "model.pt")
    (submission / "run" / "link").symlink_to("/etc/passwd")
    assert grade().score == 8


NO_RECORDS = [
    "", "{", "[]", "null", "[" * 200_000, '{"a":' * 40_000, '{"world_size": NaN}', '{"world_size": ' + "9" * 10_000 + "}",
    '{"lab": "\\ud800"}', '"' + "<script>" * 1000,
]  # fmt: skip


@pytest.mark.parametrize("text", NO_RECORDS)
def test_json_that_is_no_record(grade, submission, text):
    (submission / "run" / "run.json").write_text(text)
    assert reasons(grade())["run_record"].startswith("run.json")


def test_markup_terminal_codes_and_lone_surrogates_come_out_as_plain_ascii(grade, submission, tmp_path):
    path = submission / "run" / "run.json"
    odd = {"lab": "<script>alert(1)</script>\x1b[2J\n\u202e\N{SNOWMAN}", "device": "\ud800\x00"}
    path.write_text(json.dumps(json.loads(path.read_text()) | odd))
    verdict = grade()
    assert reasons(verdict)["run_record"].isascii() and reasons(verdict)["run_record"].isprintable()
    verdict.save(tmp_path)


def test_a_criterion_that_breaks_earns_nothing_and_the_others_go_on(grade, monkeypatch):
    from course_lib.runs.run_evidence import criteria

    broken = criteria.Kind(lambda evidence, settings: 1 / 0, "x", {})
    monkeypatch.setitem(criteria.KINDS, "monotone", broken)
    verdict = grade()
    assert verdict.score == 7
    assert "could not be checked (ZeroDivisionError)" in reasons(verdict)["monotone"]


def test_reading_that_breaks_altogether_fails_closed(grade, monkeypatch):
    monkeypatch.setattr("autograde.grading.one_submission.parse_evidence", lambda *_: 1 / 0)
    verdict = grade()
    assert verdict.score == 0
    assert "could not be graded (ZeroDivisionError)" in reasons(verdict)["transcript"]

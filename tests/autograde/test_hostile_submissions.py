"""Submissions that try to hang, mislead or escape the grader. Each earns nothing, in one line, and stops nobody."""

import json
import os
import pickle
import threading

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
def grade(submission, folder_rubric):
    """Judges the run folder alone, whose files are worth 8 points; nothing of it is executed."""
    context = GradingContext(folder_rubric(), source_notebook(lab_path()), b"secret", None)

    def grade():
        """The verdict, which must come within seconds."""
        found = []
        thread = threading.Thread(
            target=lambda: found.append(grade_submission(context, submission, "mallory").verdict), daemon=True
        )
        thread.start()
        thread.join(20)
        assert found, "grading hangs"
        for result in found[0].results:
            assert result.reason.isprintable() and len(result.reason) < 800
        return found[0]

    return grade


def reasons(verdict):
    return {result.kind: result.reason for result in verdict.results if not result.passed}


FILES = {"run.json": "run_record", "learning_curve.csv": "curve_schema", "assessment.out": "transcript"}


@pytest.mark.parametrize(("name", "kind"), FILES.items())
class TestEachFile:
    def test_missing(self, grade, submission, name, kind):
        (submission / "run" / name).unlink()
        assert f"run/{name} is missing: run the lab to its end" in reasons(grade())[kind]

    def test_a_link_out_of_the_submission(self, grade, submission, tmp_path, name, kind):
        path = submission / "run" / name
        path.rename(tmp_path / "secret")
        path.symlink_to(tmp_path / "secret")
        assert f"run/{name} is a symbolic link" in reasons(grade())[kind]

    def test_a_folder(self, grade, submission, name, kind):
        (submission / "run" / name).unlink()
        (submission / "run" / name).mkdir()
        assert f"run/{name} is not a plain file" in reasons(grade())[kind]

    def test_a_pipe_that_nobody_writes(self, grade, submission, name, kind):
        (submission / "run" / name).unlink()
        os.mkfifo(submission / "run" / name)
        assert f"run/{name} is not a plain file" in reasons(grade())[kind]

    def test_a_huge_file(self, grade, submission, name, kind):
        os.truncate(submission / "run" / name, 1 << 40)  # sparse
        assert f"run/{name} has 1,099,511,627,776 bytes" in reasons(grade())[kind]

    def test_not_utf8(self, grade, submission, name, kind):
        (submission / "run" / name).write_bytes(b"\xff\xfe\x00")
        assert f"{name} is not UTF-8 text (byte 0)" in reasons(grade())[kind]

    def test_unreadable_for_a_reason_nobody_thought_of(self, grade, monkeypatch, name, kind):
        parser = {"run.json": "parse_run_record", "learning_curve.csv": "parse_learning_curve"}
        monkeypatch.setattr(
            f"course_lib.runs.run_evidence.evidence.{parser.get(name, 'parse_transcript')}", lambda text: 1 / 0
        )
        assert f"{name} could not be read (ZeroDivisionError)" in reasons(grade())[kind]


@pytest.mark.parametrize("level", ["run", "lab", "student"])
def test_a_link_in_place_of_a_folder_is_not_followed(grade, submission, tmp_path, level):
    path = {"run": submission / "run", "lab": submission, "student": submission.parent}[level]
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
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


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "[" * 200_000,
        '{"a":' * 40_000,
        '{"world_size": NaN}',
        '{"world_size": ' + "9" * 10_000 + "}",
        '{"lab": "\\ud800"}',
        '"' + "<script>" * 1000,
    ],
)
def test_json_that_is_no_record(grade, submission, text):
    (submission / "run" / "run.json").write_text(text)
    assert reasons(grade())["run_record"].startswith("run.json")


def test_markup_and_terminal_codes_come_out_as_plain_ascii(grade, submission):
    path = submission / "run" / "run.json"
    record = json.loads(path.read_text())
    record["lab"] = "<script>alert(1)</script>\x1b[2J\n\u202e\N{SNOWMAN}"
    path.write_text(json.dumps(record))
    reason = reasons(grade())["run_record"]
    assert reason.isascii() and reason.isprintable()


def test_a_lone_surrogate_in_a_shown_field_survives_saving(grade, submission, tmp_path):
    path = submission / "run" / "run.json"
    record = json.loads(path.read_text())
    record["device"] = "\ud800\x00"
    path.write_text(json.dumps(record))
    grade().save(tmp_path)


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

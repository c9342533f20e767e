"""The leaderboard ranks what the grader measured, under names that show no account."""

import csv
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from click.testing import CliRunner
from fake_class import LAB, RUBRIC, RUN, Page, verdict
from traitlets.config import Config

from autograde.commands.leaderboard import leaderboard
from autograde.gradebook.scores import CourseError
from autograde.reports.export.scores import LabScores, StudentScore
from autograde.reports.leaderboard import _nicknames_off, nickname
from autograde.rubric.schema import RubricError, find_rubric
from autograde.rubric.verdict import Flag

BOARD = """
[model]
network = "course_lib:wide_resnet"
datasets = ["fashion-mnist"]
images = 2000
tolerance = 0.04

[leaderboard]
target = 0.85
in_a_row = 2
baselines = [{ name = "reference", accuracy = 0.87, steps = 1000 }, { name = "weak", accuracy = 0.1 }]
"""
NOON = datetime(2026, 11, 20, 12)
TWICE = [[0, 0.0, 0.0], [1, 9.0, 0.86], [2, 18.0, 0.87]]
ONCE = [[0, 0.0, 0.0], [1, 9.0, 0.70], [2, 18.0, 0.87]]


def lay_out(tmp_path):
    (tmp_path / "rubrics").mkdir(exist_ok=True)
    text = RUBRIC.format(lab=LAB, title="On one GPU")
    (tmp_path / "rubrics" / f"{LAB}.toml").write_text(text.replace("[[criterion]]", BOARD + "\n[[criterion]]", 1))
    return find_rubric(LAB, tmp_path / "rubrics")


@pytest.fixture
def board(fresh_course, tmp_path, monkeypatch):
    """Saves verdicts, and gives the rows of both rankings, the page and the lines about those left out.

    Of each student: accuracy, reference steps or None, hours after noon, further fields of the verdict.
    """
    rubric = lay_out(tmp_path)

    def board(**students):
        scores = []
        for name, (accuracy, steps, hours, fields) in students.items():
            clock = None if steps is None else steps * 0.25
            run = replace(
                RUN, held_out_accuracy=accuracy, final_accuracy=0.999, best_accuracy=0.999, seconds=0.5, epochs=1,
                work_seconds=clock, step_seconds=clock and 0.25, curve=fields.pop("curve", TWICE),
                held_out_images=fields.pop("images", RUN.held_out_images),
            )  # fmt: skip
            digests = {"rubric": rubric.digest, "submission": str(999 - ord(name[0]))}
            verdict(name, run=run, **{"digests": digests} | fields).save(fresh_course)
            when, late = NOON + timedelta(hours=hours), max(0, hours - 24) * 3600.0
            scores.append(StudentScore(name, None, None, None, True, when, seconds_late=late))
        known = LabScores(LAB, NOON, 10.0, tuple(scores))
        monkeypatch.setattr("autograde.reports.leaderboard.read_scores", lambda *_: known)
        done = CliRunner().invoke(
            leaderboard, [LAB, "--course", str(fresh_course), "--rubrics", str(tmp_path / "rubrics")]
        )
        assert done.exit_code == 0, done.output
        rows = list(csv.DictReader((fresh_course / "exports" / "leaderboard_01.csv").open()))
        return rows, Page(fresh_course / "reports" / "leaderboard_01.html"), done.stderr.splitlines()

    return board


def order(rows, column="rank"):
    return [(row["student_id"] or row["name"], row[column]) for row in rows]


def test_two_rankings_with_ties_late_ones_and_baselines(board):
    rows, page, left_out = board(
        ada=(0.88, 2000, 5, {}), bob=(0.9, 900, 30, {}), eve=(0.88, 4000, 3, {}), mia=(0.86, 900, 9, {}),
        zoe=(0.86, 400, 9, {"curve": ONCE}), low=(0.8, 500, 1, {}),
    )  # fmt: skip
    assert left_out == []
    # Equal figures: one rank, the earlier first; at the same time by the submission's digest, not by the account.
    assert order(rows) == [
        ("eve", "1"), ("ada", "1"), ("reference", ""), ("zoe", "3"), ("mia", "3"), ("low", "5"), ("weak", ""), ("bob", ""),
    ]  # fmt: skip
    # By work: zoe reached the target once, low not by the grader's test, bob was late.
    work = {row["student_id"] or row["name"]: row["work_rank"] for row in rows}
    assert work == {"mia": "1", "ada": "2", "eve": "3"} | dict.fromkeys(["reference", "weak", "zoe", "low", "bob"], "")
    assert [row["late"] for row in rows if row["student_id"] == "bob"] == ["late"]
    _, _, by_work = page.text.partition("Rank Name Reference steps Accuracy")
    assert by_work.startswith(" 1 anonymous 4 900 0.860 ± 0.016 – reference baseline 1,000 0.870 2 anonymous 2 2,000")
    assert "late anonymous 6 900 0.900" in by_work


def test_the_page_has_no_account_no_claim_and_no_script(board):
    _, page, _ = board(ada=(0.88, None, 5, {}), bob=(0.86, None, 4, {}))
    assert not {tag for tag, _ in page.tags} & {"script", "img", "iframe", "link", "form", "object"}
    assert "ada" not in page.text and "bob" not in page.text and "0.999" not in page.html
    assert "There is no ranking by work" in page.text  # nobody's notebook was run again
    assert len(page.all("table")) == 1 and len(page.all("th", scope="col")) == 3


@pytest.mark.parametrize(
    "fields, why",
    [
        ({"flags": (Flag("forged", "made up"),)}, "forged: made up"),
        ({"flags": (Flag("copy", "the same model.safetensors as bob"),)}, "copy: "),
        ({"flags": (Flag("escape", "x"),)}, "escape: "),
        ({"flags": (Flag("unsandboxed", "x"),), "sandbox": "none"}, "unsandboxed: "),
        ({"missed": [("run-evidence", "run-record"), ("run-evidence", "final")]}, "its run has no points"),
        ({"digests": {"rubric": "another"}}, "another rubric"),
    ],
)
def test_who_is_left_out(board, fields, why):
    rows, page, left_out = board(eve=(0.99, None, 0, fields), ada=(0.8, None, 0, {"flags": (Flag("crash", "x"),)}))
    assert order(rows) == [("reference", ""), ("ada", "1"), ("weak", "")]
    assert len(left_out) == 1 and left_out[0].startswith("eve is left out: ") and why in left_out[0]
    assert "0.99" not in page.text


def test_untested_weights_and_a_training_that_was_none_are_left_out(board):
    rows, _, left_out = board(eve=(None, None, 0, {}), bob=(0.9, 99, 0, {}), ada=(0.9, 101, 0, {}))
    assert [row["student_id"] for row in rows if row["student_id"]] == ["ada"]
    assert "99 reference steps are too few" in left_out[0] and "could not test its weights" in left_out[1]


def test_nicknames_are_one_s_own_and_can_be_switched_off(board, fresh_course):
    wanted = {
        "ada": "Grace <b>",
        "bob": "Turing",
        "eve": "ＢＯＢ",
        "mia": "turing",
        "zoe": "=1+1",
        "low": "Weak",
        "off": "Rude",
    }
    for student, text in wanted.items():
        folder = fresh_course / "submitted" / student / LAB
        folder.mkdir(parents=True)
        (folder / "nickname.txt").write_text(text)
    with (fresh_course.parent / "nbgrader_config.py").open("a") as config:
        config.write('\nc.Leaderboard.nicknames_off = ["off"]\n')
    rows, page, _ = board(**{student: (0.86, None, hours, {}) for hours, student in enumerate(wanted)})
    names = {row["student_id"]: row["name"] for row in rows if row["student_id"]}
    assert {student for student, name in names.items() if not name.startswith("anonymous")} == {"bob"}
    assert names["bob"] == "Turing" and "Turing" in page.text and len(set(names.values())) == len(names)


@pytest.mark.parametrize("off", ['.append("off")', '.extend(["off"])', ' = ("off",)'])
def test_nicknames_are_switched_off_in_each_of_traitlets_ways(board, fresh_course, off):
    (fresh_course / "submitted" / "off" / LAB).mkdir(parents=True)
    (fresh_course / "submitted" / "off" / LAB / "nickname.txt").write_text("Rude")
    with (fresh_course.parent / "nbgrader_config.py").open("a") as config:
        config.write(f"\nc.Leaderboard.nicknames_off{off}\n")
    rows, _, _ = board(off=(0.86, None, 0, {}))
    assert [row["name"] for row in rows if row["student_id"]] == ["anonymous 1"]


@pytest.mark.parametrize("wrong", ["official", ["ada", 5]])
def test_what_is_no_list_of_accounts_is_refused(wrong):
    with pytest.raises(CourseError, match="nicknames_off is to be a list of accounts"):
        _nicknames_off(Config(Leaderboard=Config(nicknames_off=wrong)))


def test_the_page_says_on_how_many_images_the_grader_tested(board):
    _, page, _ = board(ada=(0.86, None, 0, {"images": 1000}), bob=(0.5, None, 0, {"images": 900}))
    assert "on 1,000 held-out images" in page.text  # the rubric's 2,000 are a bound


@pytest.mark.parametrize(
    "content, name",
    [
        (b"  Grace\n Hopper\t", "Grace Hopper"), ("Zoë 数".encode(), "Zoë 数"), (b"x" * 24, "x" * 24), (b"x" * 25, ""), (b"x" * 300, ""),
        (b"\xff", ""), (b"", ""), (b"a\0b", ""), ("a\u202eb".encode(), ""), ("\u3164".encode(), ""), (b"\x1b[31mred", ""), (b"<i>", ""),
        ("\u0430da".encode(), ""), ("\u0422\u041e\u041c".encode(), ""), ("\u03bfne".encode(), ""),  # look like ada, TOM, one
        ("Саша".encode(), "Саша"), ("Zoë Фёдор".encode(), "Zoë Фёдор"),
    ],
)  # fmt: skip
def test_a_nickname_is_short_and_printable(tmp_path, content, name):
    folder = tmp_path / "submitted" / "ada" / LAB
    folder.mkdir(parents=True)
    (folder / "nickname.txt").write_bytes(content)
    assert nickname(folder) == name


def test_a_nickname_is_no_link_out_of_the_submission(tmp_path):
    (tmp_path / "secret").write_text("secret")
    folder = tmp_path / "submitted" / "ada" / LAB
    folder.mkdir(parents=True)
    assert nickname(folder) == ""
    (folder / "nickname.txt").symlink_to(tmp_path / "secret")
    assert nickname(folder) == "" == nickname(tmp_path / "nowhere" / LAB)


@pytest.mark.parametrize("lab", ["11", "12"])
def test_the_course_has_two_leaderboards_each_with_a_baseline_of_ours(lab, fresh_course, monkeypatch):
    monkeypatch.setattr("autograde.reports.leaderboard.read_scores", lambda *_: LabScores(lab, NOON, 10.0, ()))
    done = CliRunner().invoke(leaderboard, [lab, "--course", str(fresh_course)])
    assert done.exit_code == 0, done.output
    names = [row["name"] for row in csv.DictReader((fresh_course / "exports" / f"leaderboard_{lab}.csv").open())]
    assert "our solution, the laptop profile's own values" in names


def test_a_lab_without_a_leaderboard_is_one_line(fresh_course, tmp_path):
    done = CliRunner().invoke(leaderboard, ["02", "--course", str(fresh_course)])
    assert done.exit_code == 1 and done.output.count("\n") == 1 and "has no leaderboard" in done.output
    lay_out(tmp_path)
    path = tmp_path / "rubrics" / f"{LAB}.toml"
    path.write_text(RUBRIC.format(lab=LAB, title="t") + "[leaderboard]\ntarget = 0.85\n")
    with pytest.raises(RubricError, match=r"\[leaderboard\] needs \[model\]"):
        find_rubric(LAB, path.parent)

"""What `nbgrader release_feedback` needs beside each autograded notebook, whatever was handed in."""

import re
from types import SimpleNamespace

import pytest
from nbformat.v4 import new_notebook

from autograde.gradebook.autograded import submitted_at, write_autograded

DRAWN = "0a1b" * 32


@pytest.fixture
def written(tmp_path):
    """Writes a submission by a function of its folder; returns the text of the secret and of the time."""

    def write(put):
        submission = tmp_path / "submitted" / "ada" / "01"
        submission.mkdir(parents=True)
        put(submission)
        verdict = SimpleNamespace(student="ada", lab="01", cells={})
        folder = write_autograded(tmp_path, verdict, new_notebook(), submission).parent
        return [(folder / name).read_text() for name in ("submission_secret.txt", "timestamp.txt")]

    return write


def test_the_secret_that_was_drawn_goes_along(written):
    def put(folder):
        (folder / "submission_secret.txt").write_text(DRAWN)
        (folder / "timestamp.txt").write_text("2026-11-20 22:30:00.5 UTC")

    assert written(put) == [DRAWN, "2026-11-20 22:30:00.500000 UTC\n"]


NO_SECRET = {
    "none": lambda path: None,
    "empty": lambda path: path.write_text(""),
    "path": lambda path: path.write_text("../../ben"),
    "large": lambda path: path.write_text("a" * 1_000_000),
    "binary": lambda path: path.write_bytes(b"\xff" * 128),
    "link": lambda path: path.symlink_to("/etc/hostname"),
}


@pytest.mark.parametrize("put", NO_SECRET.values(), ids=NO_SECRET)
def test_without_one_there_is_a_secret_that_nobody_knows(written, put):
    secret, time = written(lambda folder: put(folder / "submission_secret.txt"))
    assert re.fullmatch("[0-9a-f]{128}", secret)
    assert time == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-20 22:00:00.5 UTC", "2026-11-20 22:00:00.500000"),
        ("2026-11-20 22:00:00 Europe/Berlin", "2026-11-20 21:00:00"),
        ("2026-11-20T22:00:00+01:00", "2026-11-20 21:00:00"),
        ("20 Nov 2026 22:00", "2026-11-20 22:00:00"),
        *((odd, None) for odd in ("yesterday", "", "12", "²⁰²⁶", "1e999", "9" * 50, "0001-01-01 00:00:00 +0500")),
        ("2026-11-20 22:00:00 9999999999999999999999", None),
        ("2026-11-20 22:00:00 /etc/passwd", None),  # dateutil would open it
        ("2026-11-20 22:00:00 ../../../etc/passwd", None),
        ("2026-11-20 22:00:00 \x1b[2J", None),
        ("2026-11-20 ²²:00:00 UTC", None),
        ("a" * 199, None),
        ("a" * 201, None),
    ],
)
def test_an_odd_time_stamp_is_one_line_and_no_error(tmp_path, text, expected):
    (tmp_path / "ada" / "01").mkdir(parents=True)
    (tmp_path / "ada" / "01" / "timestamp.txt").write_text(text)
    lines = []
    found = submitted_at(tmp_path / "ada" / "01", lines.append)
    assert (found and str(found)) == expected
    assert len(lines) == (expected is None)
    assert all(line.isascii() and line.isprintable() and "timestamp.txt" in line for line in lines)


def test_without_a_time_stamp_there_is_nothing_to_say(tmp_path):
    (tmp_path / "ada" / "01").mkdir(parents=True)
    assert submitted_at(tmp_path / "ada" / "01", pytest.fail) is None

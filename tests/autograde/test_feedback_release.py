"""What `nbgrader release_feedback` needs beside each autograded notebook, whatever was handed in."""

import os
import re
from types import SimpleNamespace

import pytest
from nbformat.v4 import new_notebook

from autograde.autograded import write_autograded

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


@pytest.mark.parametrize(
    "put",
    [
        lambda folder: None,
        lambda folder: (folder / "submission_secret.txt").write_text(""),
        lambda folder: (folder / "submission_secret.txt").write_text("../../ben"),
        lambda folder: (folder / "submission_secret.txt").write_text("a" * 1_000_000),
        lambda folder: (folder / "submission_secret.txt").write_bytes(b"\xff" * 128),
        lambda folder: (folder / "submission_secret.txt").symlink_to("/etc/hostname"),
        lambda folder: (folder / "submission_secret.txt").mkdir(),
        lambda folder: os.mkfifo(folder / "submission_secret.txt"),
    ],
    ids=["none", "empty", "path", "large", "binary", "link", "folder", "pipe"],
)
def test_without_one_there_is_a_secret_that_nobody_knows(written, put):
    secret, time = written(put)
    assert re.fullmatch("[0-9a-f]{128}", secret)
    assert time == ""

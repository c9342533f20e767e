"""Where the locks of graders that take turns are."""

import os
from types import SimpleNamespace

import pytest

from autograde.sandbox.bubblewrap import SandboxError
from autograde.sandbox.turns import in_turn


def test_a_folder_of_somebody_else_in_tmp_costs_no_student_points(tmp_path, monkeypatch):
    """Anybody can make one of that name there, before the account has graded."""
    taken, home = tmp_path / f"autograde-turns-{os.geteuid()}", tmp_path / "home"
    home.mkdir()
    taken.symlink_to(home)
    monkeypatch.setattr("autograde.sandbox.turns.tempfile", SimpleNamespace(gettempdir=lambda: str(tmp_path)))
    monkeypatch.setenv("HOME", str(home))
    assert in_turn(lambda: "an answer") == "an answer"
    (folder,) = home.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700 and {path.name for path in folder.iterdir()} == {"queue", "running"}
    monkeypatch.setenv("HOME", "/dev/null")
    with pytest.raises(SandboxError, match=f"{taken.name} in {tmp_path} belongs to somebody else; set TMPDIR"):
        in_turn(lambda: "an answer")

"""`lab doctor` names what keeps a sandbox from being made, and the step that helps."""

from pathlib import Path

import pytest

from autograde.sandbox import doctor
from autograde.sandbox.bubblewrap import MISSING

ROOT = Path(__file__).resolve().parents[2]
DENIED = MISSING.format(why="bwrap: setting up uid map: Permission denied")


@pytest.mark.parametrize(
    ("settings", "why", "found", "remedy"),
    [
        ({"kernel/apparmor_restrict_unprivileged_userns": "1\n"}, DENIED, "AppArmor", "deploy/bwrap.apparmor"),
        ({"kernel/apparmor_restrict_unprivileged_userns": "0\n"}, DENIED, "uid map: Permission denied", "lab grade"),
        ({"kernel/unprivileged_userns_clone": "0\n"}, DENIED, "forbid user namespaces", "unprivileged_userns_clone=1"),
        ({"user/max_user_namespaces": "0\n"}, DENIED, "forbid user namespaces", "max_user_namespaces=15000"),
        ({}, DENIED, "uid map: Permission denied", "lab grade refuses here"),
        ({"kernel/apparmor_restrict_unprivileged_userns": "1\n"}, MISSING.format(why="bwrap is not on PATH"), "not on PATH", "lab"),
        ({"kernel/apparmor_restrict_unprivileged_userns": "1\n"}, None, "makes namespaces", ""),  # such as root, or a profile
    ],
)  # fmt: skip
def test_what_forbids_it_is_named_with_its_remedy(tmp_path, monkeypatch, settings, why, found, remedy):
    for name, value in settings.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(value)
    monkeypatch.setattr(doctor, "SYSTEM", tmp_path)
    monkeypatch.setattr(doctor, "missing_sandbox", lambda: why)
    (finding,) = doctor.sandbox()
    assert finding.state == ("fine" if why is None else "absent") and "\n" not in finding.found + finding.remedy
    assert found in finding.found and remedy in finding.remedy


def test_the_profile_is_where_the_remedy_and_the_documentation_say():
    command = doctor.RESTRICTIONS[0][3]
    assert command in (ROOT / "docs/administrator.md").read_text()
    profile = (ROOT / "deploy/bwrap.apparmor").read_text()
    assert command in profile and "profile bwrap /usr/bin/bwrap " in profile and "\n  userns,\n" in profile

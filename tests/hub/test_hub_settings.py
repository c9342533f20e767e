"""A site's file: defaults, and what is refused."""

import grp
import os
import tomllib

import pytest
from demo_class import Demo, DemoError, to_toml
from hub_demo import only_one
from hub_settings import DEFAULTS, SettingsError, read_settings, roster


@pytest.fixture
def read(tmp_path):
    def read(text):
        (tmp_path / "site.toml").touch(0o600)
        (tmp_path / "site.toml").write_text(text)
        return read_settings(tmp_path / "site.toml")

    return read


def test_a_file_replaces_defaults_and_leaves_them_alone(read):
    assert read("") == DEFAULTS
    assert read("[servers]\nmemory_gib = 2\nspawner = 'local'\n")["servers"]["memory_gib"] == 2
    assert DEFAULTS["servers"]["memory_gib"] == 8.0


def test_the_example_is_read(deploy):
    settings = read_settings(deploy / "site.example.toml")
    assert roster(settings) == ({"ada", "ben"}, {"grace"})


def test_what_the_example_comments_out_is_right_too(deploy, read):
    text = (deploy / "site.example.toml").read_text()
    lines = [line.removeprefix("# ") if line.startswith("# [") or " = " in line else line for line in text.splitlines()]
    settings = read("\n".join(lines))
    assert set(settings["slurm"]["partitions"]) == {"cpu", "gpu"}
    assert settings["network"]["ip"] == "0.0.0.0"
    assert settings["people"]["authenticator"] == "lti" and settings["lti"]["context"] == "7"
    for other in ("oauth", "ldap"):
        assert read("\n".join(lines).replace('authenticator = "lti"', f'authenticator = "{other}"'))[other] == settings[other]


def test_the_demos_settings_are_read(tmp_path, read):
    demo = Demo(hub=tmp_path, state=tmp_path / "a b", prefix="x-")
    settings = read(to_toml(demo.site([1, 2, 3, 4])))
    assert settings["network"]["port"] == 1
    assert settings["course"]["folder"].startswith(str(tmp_path / "a b" / "homes" / "x-course"))
    assert roster(settings) == ({"x-ada", "x-ben"}, {"x-grace"})


WRONG = {
    "[server]\nspawner = 'local'": r"no table \[server\]", "servers = 3": "no table", "[servers]\nmemory_gb = 2": "no 'memory_gb'",
    "[servers]\nat_most = '40'": "is no int", "[servers]\nat_most = true": "is no int",
    "[servers]\nspawner = 'docker'": "local and slurm", "[servers]\nspawner = 'slurm'": "partitions",
    "[course]\nid = '../x'": "a-z", "[course]\nid = 'a b'": "a-z", "[network]\nip = '0.0.0.0'": "in the clear",
    "[network]\ntls_key = '/k'": "go together", "[course]\ngrade_on_submission = ['../x']": "labs' names",
    "[grading]\nexecutor = 'pbs'": "local and slurm", "[grading]\njobs = 0": "from 1 to 1000",
    "[grading]\nexecutor = 'slurm'\nslurm = ['short']": "partition=short", "[grading]\nslurm = ['time=60']": "goes with",
    "[people]\nauthenticator = 'none'": "pam, lti, oauth, ldap", "[people]\nauthenticator = 'lti'": r"needs \[lti\] issuer",
    "[people]\nauthenticator = 'oauth'\n[oauth]\nclient_id = 'c'": r"needs \[oauth\] client_secret",
    "[people]\nauthenticator = 'ldap'\n[ldap]\nserver_address = 'l'": r"needs \[ldap\] bind_dn_template",
    "[ldap]\ntls_strategy = 'insecure'": "without TLS", "[ldap]\nbind_dn_template = ['uid=ada', 'uid={username}']": "everybody",
    "[lti]\nissuer = 'http://lms.edu'\n[people]\nauthenticator = 'lti'": "no https address",
    "[network]\nmetrics_token = 'short'": "openssl rand", "[network": "no TOML|is not TOML",
}  # fmt: skip


@pytest.mark.parametrize(("text", "said"), WRONG.items())
def test_a_file_that_is_wrong_is_refused_in_one_line(read, text, said):
    with pytest.raises(SettingsError, match=said) as refused:
        read(text)
    assert "\n" not in str(refused.value)


SECRETS = ("[oauth]\nclient_secret = 's'", f"[network]\nmetrics_token = '{'0' * 32}'")


@pytest.mark.parametrize("text", SECRETS)
def test_a_secret_that_others_can_read_is_refused(read, text, tmp_path):
    assert read(text) != DEFAULTS
    (tmp_path / "site.toml").chmod(0o640)
    with pytest.raises(SettingsError, match="chmod 600"):
        read(text)
    assert read("") == DEFAULTS  # a file without a secret may be public


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(SettingsError, match="COURSE_HUB_SITE"):
        read_settings(tmp_path / "none.toml")


def test_an_instructor_is_no_student(read):
    settings = read("[people]\ninstructors = ['grace']\nstudents = ['grace', 'ada']")
    assert roster(settings) == ({"ada"}, {"grace"})


def test_the_members_of_a_group_are_students(read, monkeypatch):
    group = grp.struct_group(("dl", "x", 1, ["ada", "ben"]))
    monkeypatch.setattr(grp, "getgrnam", {"dl": group}.__getitem__)
    assert roster(read("[people]\nstudents_group = 'dl'"))[0] == {"ada", "ben"}
    with pytest.raises(SettingsError, match="no such group"):
        roster(read("[people]\nstudents_group = 'none'"))


def test_the_demo_needs_root(monkeypatch, capsys):
    import hub_demo

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert hub_demo.main([]) == 1
    said = capsys.readouterr().err
    assert "root" in said and said.count("\n") == 1


def test_the_pinned_hub_is_the_servers_hub(deploy):
    pins = [
        {line.strip() for line in (deploy / name).read_text().splitlines() if line.startswith("jupyterhub==")}
        for name in ("requirements-hub.txt", "requirements-students.txt")
    ]
    assert pins[0] == pins[1] and len(pins[0]) == 1


def test_toml_of_a_site(tmp_path):
    site = Demo(hub=tmp_path, state=tmp_path, prefix='quo"te-').site([1, 2, 3, 4])
    assert tomllib.loads(to_toml(site)) == site


def test_two_demos_do_not_share_a_folder(tmp_path):
    demo = Demo(hub=tmp_path, state=tmp_path / "state")
    with only_one(demo), pytest.raises(DemoError, match="running"), only_one(demo):
        pass
    with only_one(demo):
        pass

"""What jupyterhub_config.py makes of a site's file, without a hub."""

import os
import runpy
import sys
from types import ModuleType, SimpleNamespace

import pytest
from traitlets.config import Config

from autograde.commands.serve import serve

SLURM = """
[servers]
spawner = "slurm"
[slurm]
account = "teaching"
[slurm.partitions.cpu]
hours = 4
[slurm.partitions.gpu]
cores = 8
gpus = 2
"""
PEOPLE = '[people]\ninstructors = ["grace"]\nstudents = ["ada", "ben"]\n'


@pytest.fixture
def configure(deploy, tmp_path, monkeypatch):
    """Gives the configuration of a site."""

    def configure(text="", people="", by_roster=lambda authenticator, taught, teaching: authenticator):
        site = tmp_path / "site.toml"
        site.touch(0o600)
        site.write_text(f'{PEOPLE}{people}[paths]\nstate = "{tmp_path / "state"}"\n{text}')
        monkeypatch.setenv("COURSE_HUB_SITE", str(site))
        spawner = ModuleType("slurm_spawner")  # the hub's environment has what it needs, not this one
        spawner.refusal = lambda message, reason: ValueError(f"{reason}: {message}")
        monkeypatch.setitem(sys.modules, "slurm_spawner", spawner)
        sign_in = ModuleType("roster_sign_in")
        sign_in.by_roster = by_roster
        monkeypatch.setitem(sys.modules, "roster_sign_in", sign_in)
        monkeypatch.setattr(sys, "path", [*sys.path])
        config = Config()
        runpy.run_path(str(deploy / "jupyterhub_config.py"), init_globals={"get_config": lambda: config})
        return config

    return configure


NO_START = {
    "is no str": ("[lti]\nissuer = 3", ""), "no such group": ("", "students_group = 'no-such-group'\n"),
    "hours is to be a whole number": ("[slurm.partitions.cpu]\nhours = 'all'", ""),
}  # fmt: skip


@pytest.mark.parametrize("said", NO_START)
def test_what_is_wrong_in_the_sites_file_ends_the_start_in_one_line(configure, said):
    with pytest.raises(SystemExit, match=said) as ended:
        configure(*NO_START[said])
    assert "\n" not in ended.value.code


def test_packages_for_signing_in_that_are_absent_end_the_start_in_one_line(configure, monkeypatch):
    def absent(authenticator, taught, teaching):
        raise ModuleNotFoundError(f"No module named {authenticator.split('.')[0]!r}")

    with pytest.raises(SystemExit, match=r"No module named 'jupyterhub'.*pip install -r .*requirements-sign-on\.txt"):
        configure(by_roster=absent)


def test_only_the_roster_signs_in_and_nobody_rules(configure):
    config = configure()
    assert config.Authenticator.allowed_users == {"ada", "ben", "grace"}
    assert config.Authenticator.allow_existing_users is False
    assert config.Authenticator.admin_users == set()
    assert "allow_all" not in config.Authenticator
    assert config.JupyterHub.authenticator_class == "jupyterhub.auth.PAMAuthenticator"
    assert not {"LTI13Authenticator", "GenericOAuthenticator", "LDAPAuthenticator"} & config.keys()


def test_the_service_is_open_to_instructors_only(configure):
    config = configure()
    groups = config.JupyterHub.load_groups
    assert groups["formgrade-distributed-training"]["users"] == ["grace", "course"]
    assert groups["nbgrader-distributed-training"]["users"] == ["ada", "ben"]
    let_in = [role for role in config.JupyterHub.load_roles if any("access:services" in one for one in role["scopes"])]
    assert [role["groups"] for role in let_in] == [["formgrade-distributed-training"]]
    assert all(scope.endswith("!service=distributed-training") for scope in let_in[0]["scopes"] if "access" in scope)


def test_a_busy_machine_may_take_minutes_to_start_the_service(configure):
    service, _ = configure().JupyterHub.services
    assert service["name"] == "distributed-training"
    assert service["timeout"] >= 120  # JupyterHub's default, 30 seconds, ended the hub on a machine that was busy


def test_grading_on_submission_is_off_until_the_site_asks_for_it(configure):
    hub = configure('[course]\ngrade_on_submission = ["01_single_gpu", "02_ddp"]\n').JupyterHub
    [role] = [role for role in hub.load_roles if role.get("services") == ["grade-on-submission"]]
    assert "read:users:groups!user=course" in role["scopes"]  # nbgrader asks for its own account's courses
    services = hub.services
    assert [each["name"] for each in services[:-1]] == [each["name"] for each in configure().JupyterHub.services]
    formgrader, service = services[0], services[-1]
    assert service["user"] == formgrader["user"] == "course" and service["cwd"] == formgrader["cwd"]
    assert service["command"][1:] == ["serve", "01_single_gpu", "02_ddp", "--executor", "local", "--jobs", "1"]
    assert service["environment"].items() <= formgrader["environment"].items()  # nbgrader's settings, and the grader
    assert "url" not in service  # nobody can visit it


def test_it_grades_by_slurm_where_the_site_says_so(configure):
    grading = '[grading]\nexecutor = "slurm"\njobs = 20\nslurm = ["partition=short", "time=60"]\n'
    command = configure(f'[course]\ngrade_on_submission = ["02_ddp"]\n{grading}').JupyterHub.services[-1]["command"]
    given = serve.make_context("serve", command[2:]).params
    assert given["labs"] == ("02_ddp",) and (given["executor"], given["jobs"]) == ("slurm", 20)
    assert given["slurm"] == {"partition": "short", "time": "60"}


WRONG_SERVICE = {
    "grade_on_submission = ['99_none']": "99_none",
    "grade_on_submission = ['02_ddp']\n[grading]\nexecutor = 'slurm'\nslurm = ['array=1']": "array is set by the grader itself",
    "grade_on_submission = ['02_ddp']": "name it with --course",
}


@pytest.mark.parametrize(("text", "said"), WRONG_SERVICE.items())
def test_what_its_service_refuses_is_in_the_hubs_log_and_is_not_tried_again_at_once(
    configure, text, said, monkeypatch, capsys, tmp_path
):
    paused = []
    monkeypatch.setattr("autograde.commands.serve.time.sleep", lambda seconds: paused.append((seconds, capsys.readouterr().err)))
    monkeypatch.setenv("JUPYTERHUB_SERVICE_NAME", "grade-on-submission")
    command = configure(f"[course]\n{text}\n").JupyterHub.services[-1]["command"]
    command += ["--no-sandbox", "--course", str(tmp_path / "none")]
    with pytest.raises(SystemExit) as ended:
        serve.main(command[2:], "serve")
    [(seconds, before)] = paused
    assert ended.value.code and seconds >= 10 and said in before and before.count("Error: ") == 1
    assert "Error" not in capsys.readouterr().err


def test_its_service_finds_slurm_where_the_hub_does(configure, monkeypatch, tmp_path):
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "sbatch").touch(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/slurm:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_CONF", "/opt/slurm.conf")
    environment = configure('[course]\ngrade_on_submission = ["02_ddp"]\n').JupyterHub.services[-1]["environment"]
    assert environment["PATH"].endswith(f":{tmp_path}/slurm") and environment["SLURM_CONF"] == "/opt/slurm.conf"


def test_no_role_rules_the_hub(configure):
    scopes = {scope for role in configure().JupyterHub.load_roles for scope in role["scopes"]}
    assert not {scope for scope in scopes if scope.startswith(("admin", "access:servers!user", "tokens", "inherit"))}
    assert "access:servers" not in scopes


def test_the_state_is_roots_alone(configure, tmp_path):
    (tmp_path / "state").mkdir(mode=0o755)
    configure()
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


def test_settings_by_group(configure):
    choose = configure().Spawner.environment["JUPYTER_CONFIG_PATH"]

    def of(*groups):
        user = SimpleNamespace(groups=[SimpleNamespace(name=name) for name in groups])
        return choose(SimpleNamespace(user=user)).split(":")[0].rpartition("/")[2]

    assert of() == of("nbgrader-distributed-training") == of("formgrade-other") == "students"
    assert of("formgrade-distributed-training") == "instructors"


def test_an_empty_home_gets_a_page_of_welcome_and_no_other_home(deploy, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    start = deploy / "config/students/jupyter_server_config.py"
    (tmp_path / ".bashrc").touch()

    def first_page():
        settings = Config()
        runpy.run_path(str(start), {"get_config": lambda: settings})
        return settings.ServerApp.get("default_url")

    assert first_page() == "/lab/tree/WELCOME.md"
    assert "Assignment List" in (tmp_path / "WELCOME.md").read_text()
    (tmp_path / "WELCOME.md").rename(tmp_path / "work.md")
    assert first_page() is None
    assert not (tmp_path / "WELCOME.md").exists()


def test_the_page_of_welcome_has_the_labs_and_the_deadlines_of_today(deploy, tmp_path, monkeypatch, configure):
    deadlines = '[course.deadlines]\n01_a = "Friday, 18:00"\n02_b = "in June"\n'
    monkeypatch.setenv("COURSE_HUB_DEADLINES", configure(deadlines).Spawner.environment["COURSE_HUB_DEADLINES"])
    monkeypatch.setenv("COURSE_HUB_EXCHANGE", str(tmp_path / "exchange"))
    monkeypatch.setenv("COURSE_HUB_COURSE", "c")
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    start = str(deploy / "config/students/jupyter_server_config.py")
    runpy.run_path(start, {"get_config": Config})
    assert "| `01_a` | 01_a | later | Friday, 18:00 |" in (home / "WELCOME.md").read_text()
    for lab, text in (("01_a", '{"cells": [{"source": ["# Lab 01 · A | b\\n", "text"]}]}'), ("03_c", "no notebook")):
        folder = tmp_path / "exchange/c/outbound" / lab
        folder.mkdir(parents=True)
        (folder / f"{lab}.ipynb").write_text(text)
    (home / "work").mkdir()
    runpy.run_path(start, {"get_config": Config})
    rows = (home / "WELCOME.md").read_text().splitlines()[-3:]
    assert rows == [
        "| `01_a` | Lab 01 · A \\| b | now | Friday, 18:00 |",
        "| `02_b` | 02_b | later | in June |",
        "| `03_c` | 03_c | now | – |",
    ]


def test_a_deadline_of_several_lines_or_none_is_refused(configure):
    for text in ("[course.deadlines]\n01_a = 5\n", '[course.deadlines]\n01_a = "a\\nb"\n'):
        with pytest.raises(SystemExit, match=r"\[course.deadlines\] 01_a is to be a lab's name"):
            configure(text)


def test_a_local_server_has_its_limits(configure):
    config = configure("[servers]\nmemory_gib = 3\nprocesses = 99\nat_most = 25\n[network]\nserver_ports = 21000\n")
    assert config.JupyterHub.spawner_class == "local_spawner.CourseSpawner"
    assert (config.CourseSpawner.memory_gib, config.CourseSpawner.processes) == (3.0, 99)
    assert config.Spawner.mem_limit == "3G"
    assert config.CourseSpawner.first_port == 21000
    assert config.JupyterHub.active_server_limit == 25
    assert config.JupyterHub.concurrent_spawn_limit == 20 * os.cpu_count()
    assert config.Spawner.http_timeout >= 5 * 60
    assert config.JupyterHub.allow_named_servers is False


def test_tls(configure):
    config = configure(
        '[network]\nip = "0.0.0.0"\nport = 443\ntls_certificate = "/c"\ntls_key = "/k"\ndomain = "hub.edu"\n'
    )
    assert config.JupyterHub.bind_url == "https://0.0.0.0:443/"
    assert (config.JupyterHub.ssl_cert, config.JupyterHub.ssl_key) == ("/c", "/k")
    assert config.JupyterHub.subdomain_host == "https://hub.edu"


def test_slurm_takes_checked_answers_and_forgets_the_rest(configure):
    config = configure(SLURM)
    assert config.JupyterHub.spawner_class == "slurm_spawner.CourseSlurmSpawner"
    assert config.SlurmSpawner.req_options == "--account=teaching"
    spawner = SimpleNamespace(user_options={"partition": ["gpu"], "gpus": ["2"], "hours": ["3"]})
    config.Spawner.apply_user_options(spawner, spawner.user_options)
    assert vars(spawner) == {
        "req_partition": "gpu", "req_nprocs": "8", "req_gres": "gpu:2", "req_runtime": "3:00:00", "user_options": {},
    }  # fmt: skip
    assert config.Spawner.environment["OMP_NUM_THREADS"](spawner) == "8"
    spawner = SimpleNamespace(user_options={"cmd": "touch /tmp/x"})
    with pytest.raises(ValueError, match="options: no such option"):
        config.Spawner.apply_user_options(spawner, spawner.user_options)
    assert spawner.user_options == {}
    # The page's own field is no option.
    assert config.Spawner.options_from_form({"gpus": ["1"], "_xsrf": ["x"]}) == {"gpus": ["1"]}
    assert config.Spawner.start_timeout == 600

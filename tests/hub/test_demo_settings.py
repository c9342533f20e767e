"""A demo with settings of a site's, and what it remembers of its last start."""

import os
import socket
import subprocess
import tomllib
from types import SimpleNamespace

import demo_accounts
import pytest
from demo_class import Demo, DemoError, read_toml, reason_in_log, to_toml
from hub_demo import free_ports
from hub_settings import read_settings

SLURM = {"servers": {"spawner": "slurm"}, "slurm": {"start_seconds": 45, "partitions": {"a b": {"gpus": 2}, "cpu": {}}}}


def test_settings_replace_the_demos_own(tmp_path):
    demo = Demo(hub=tmp_path, state=tmp_path, settings=SLURM)
    (tmp_path / "site.toml").write_text(to_toml(demo.site([1, 2, 3, 4])))
    site = read_settings(tmp_path / "site.toml")
    assert site["servers"]["spawner"] == "slurm" and site["servers"]["memory_gib"] == 6.0
    assert site["slurm"]["partitions"] == SLURM["slurm"]["partitions"] and site["slurm"]["start_seconds"] == 45
    assert demo.has_jobs() and not Demo(hub=tmp_path, state=tmp_path).has_jobs()


def test_a_demo_knows_the_ports_and_jobs_of_its_last_start(tmp_path):
    demo = Demo(hub=tmp_path, state=tmp_path, settings=SLURM)
    assert demo.ports() == [0, 0, 0, 0]
    demo.private.mkdir()
    (demo.private / "site.toml").write_text(to_toml(demo.site([1, 2, 3, 4])))
    later = Demo(hub=tmp_path, state=tmp_path)
    assert later.ports() == [1, 2, 3, 4] and later.has_jobs()


def test_ports_stay_where_they_are_free():
    ports = free_ports(0, [0, 0, 0, 0])
    assert len(set(ports)) == 4 and free_ports(0, ports) == ports
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", ports[1]))
        taken.listen()
        now = free_ports(0, ports)
        assert now[1] != ports[1] and now[0] == ports[0]
        with pytest.raises(DemoError, match="HUB_PORT=0"):
            free_ports(ports[1], ports)


def test_a_settings_file_that_is_wrong_is_one_line(tmp_path):
    (tmp_path / "bad").write_text("[servers")
    for name in ("bad", "none"):
        with pytest.raises(DemoError, match=name) as refused:
            read_toml(tmp_path / name)
        assert "\n" not in str(refused.value)
    assert tomllib.loads(to_toml({"a": {"b": 1, "c": {"d": {"e": "x"}}}})) == {"a": {"b": 1, "c": {"d": {"e": "x"}}}}


def test_the_reason_why_a_hub_ended_is_jupyterhub_s_own_line():
    critical = "[C 2026-11-23 04:26:02.353 JupyterHub app:3819] Cannot connect to distributed-training service managed"
    log = f"[I 2026-11-23 04:26:01 JupyterHub app:1] fine\n{critical}\nError: connect ECONNREFUSED {{\n}}\n"
    assert reason_in_log(log) == critical
    assert reason_in_log("Traceback\nKeyError: 'x'\n\n") == "KeyError: 'x'" and reason_in_log("") == "it said nothing"


def test_an_account_s_number_is_that_of_no_account_and_no_process(monkeypatch):
    """A container's processes are in /proc with numbers that no account here has; the demo would end them as its own."""
    first = demo_accounts._unused_number()
    monkeypatch.setattr(demo_accounts.pwd, "getpwall", lambda: [SimpleNamespace(pw_uid=first)])
    second = demo_accounts._unused_number()
    assert second != first and min(first, second) >= 40_000
    if os.geteuid() != 0:
        pytest.skip("only root starts a process under another number")
    process = subprocess.Popen(["sleep", "600"], user=second)
    try:
        assert demo_accounts._unused_number() not in (first, second)
    finally:
        process.kill()
        process.wait()

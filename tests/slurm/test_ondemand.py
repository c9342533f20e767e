"""The Open OnDemand app: its templates render, and the job that they make serves a lab to the page's form."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests
import yaml

pytestmark = pytest.mark.skipif(shutil.which("ruby") is None, reason="no ruby on this machine")

APP = Path(__file__).parents[2] / "deploy" / "ondemand"
LAB = "01_single_gpu"
# As OnDemand: a form's fields are methods, and `context` has them too.
RENDER = """
fields = OpenStruct.new(JSON.parse(ARGV[1])); fields.context = fields
print ERB.new(File.read(ARGV[0]), trim_mode: "-").result(fields.instance_eval { binding })
"""
CHOSEN = {"environment": sys.prefix, "data": "/a b;c", "portal": "https://ood.edu", "lab": LAB}
CHOSEN |= {"cores": "2", "memory": "4", "gpus": "0", "bc_num_hours": "1"}
# What OnDemand's template `basic` puts around before.sh and script.sh, in short.
AROUND = """#!/bin/bash
find_port () {{ {python} -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'; }}
create_passwd () {{ tr -cd '[:alnum:]' < /dev/urandom | head -c$1; }}
export host=$(hostname) port
source before.sh
./script.sh &
(umask 077; echo "{{host: $host, port: $port, password: $password}}" > connection.new; mv connection.new connection.yml)
wait
"""


def render(name, **fields):
    command = ["ruby", "-rerb", "-rjson", "-rostruct", "-e", RENDER, APP / name, json.dumps(CHOSEN | fields)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 or "no such lab" in done.stderr, done.stderr
    return done.stdout


def test_the_form_offers_the_labs_of_the_environment(tmp_path):
    for name in (LAB, "02_ddp", "no lab", "__pycache__"):
        (tmp_path / "lib/python3.12/site-packages/course_lib/release_copies" / name).mkdir(parents=True)
    text = (APP / "form.yml.erb").read_text().replace("/opt/course-hub/students", str(tmp_path))
    (tmp_path / "form.yml.erb").write_text(text)
    form = yaml.safe_load(render(tmp_path / "form.yml.erb"))
    assert form["attributes"]["lab"]["options"] == [[LAB, LAB], ["02_ddp", "02_ddp"]]
    assert set(form["attributes"]) == set(form["form"]) == set(CHOSEN)
    assert yaml.safe_load((APP / "manifest.yml").read_text())["role"] == "batch_connect"


def test_what_is_submitted_are_numbers():
    submit = yaml.safe_load(render("submit.yml.erb", gpus="1", cores="4\n    - --wrap=id"))
    assert submit["batch_connect"] == {"template": "basic"}
    assert submit["script"]["native"] == [
        "--nodes=1",
        "--ntasks=1",
        "--cpus-per-task=4",
        "--mem=4G",
        "--gpus-per-node=1",
    ]
    assert not [each for each in yaml.safe_load(render("submit.yml.erb"))["script"]["native"] if "gpu" in each]


def test_a_lab_that_is_none_makes_no_script():
    assert "lab start 01_single_gpu\n" in render("template/script.sh.erb") and r"LAB_DATA=/a\ b\;c" in render(
        "template/script.sh.erb"
    )
    for lab in ("", "01_a; id", "01_a\nid", "../x"):
        assert render("template/script.sh.erb", lab=lab) == ""


@pytest.mark.slurm
@pytest.mark.slow
def test_the_job_serves_the_lab_to_who_presses_the_button(slurm, tmp_path):
    for name in ("before.sh", "script.sh"):
        (tmp_path / name).write_text(render(f"template/{name}.erb"))
        (tmp_path / name).chmod(0o700)
    (tmp_path / "job.sh").write_text(AROUND.format(python=sys.executable))
    (tmp_path / ".jupyter").mkdir()
    (tmp_path / ".jupyter/jupyter_server_config.json").write_text('{"ServerApp": {"allow_root": true}}')  # the test is
    native = yaml.safe_load(render("submit.yml.erb", memory="2"))["script"]["native"]
    command = ["sbatch", "--parsable", f"--chdir={tmp_path}", "--output=output.log", *native, tmp_path / "job.sh"]
    environment = os.environ | {"HOME": str(tmp_path)}
    number = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()
    try:
        connection, end = tmp_path / "connection.yml", time.monotonic() + 600
        browser = requests.Session()
        while True:
            try:
                fields = yaml.safe_load(connection.read_text())
                page = f"http://127.0.0.1:{fields['port']}/node/{fields['host']}/{fields['port']}"
                assert browser.get(f"{page}/api/contents/{LAB}").status_code == 403
                break
            except (OSError, requests.ConnectionError):
                assert time.monotonic() < end, (tmp_path / "output.log").read_text()
                time.sleep(0.5)
        form = render("view.html.erb", **fields)
        action = html.unescape(re.search(r'action="([^"]+)"', form)[1])
        inputs = dict(re.findall(r'name="(\w+)" value="(\w+)"', form))
        opened = browser.post(f"http://127.0.0.1:{fields['port']}{action}", data=inputs)
        assert opened.status_code == 200 and opened.url.startswith(f"{page}/lab")
        names = [each["name"] for each in browser.get(f"{page}/api/contents/{LAB}").json()["content"]]
        assert f"{LAB}.ipynb" in names and (tmp_path / "labs" / LAB).is_dir()
        assert fields["password"] not in (tmp_path / "output.log").read_text()
    finally:
        subprocess.run(["scancel", number], check=True)

"""What a job does before it becomes a server: it says its port, and ends where nobody waits for it."""

import http.server
import json
import os
import subprocess
import sys
import threading

import pytest

SERVER = """
import json, os, sys
print(json.dumps([sys.argv[1:], os.environ["JUPYTERHUB_SERVICE_URL"]]))
"""


@pytest.fixture
def hub():
    """Answers a job with the codes that a test lays down, one for each question; keeps what was asked."""

    class Hub(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            asked.append((self.path, self.headers["Authorization"], json.loads(body)))
            self.send_response(codes.pop(0))
            self.end_headers()

        def log_message(self, *_):
            pass

    asked, codes = [], []
    server = http.server.HTTPServer(("127.0.0.1", 0), Hub)
    server.asked, server.codes = asked, codes
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def begin(deploy, hub, tmp_path):
    """Start the program as a job does."""
    (tmp_path / "server.py").write_text(SERVER)

    def begin(*codes):
        hub.codes[:] = codes
        environment = {
            **os.environ,
            "JUPYTERHUB_API_URL": f"http://127.0.0.1:{hub.server_port}/hub/api",
            "JUPYTERHUB_API_TOKEN": "secret",
            "JUPYTERHUB_SERVICE_URL": "http://0.0.0.0:0/user/ada/",
            "http_proxy": "http://127.0.0.1:1",  # a site's, which the hub's network has nothing to do with
        }
        server = [sys.executable, tmp_path / "server.py", "-x"]
        program = [sys.executable, "-I", deploy / "config/slurm/start_server.py", *server]
        return subprocess.run(program, env=environment, capture_output=True, text=True, timeout=600)

    return begin


def test_the_server_listens_where_the_hub_was_told(hub, begin):
    done = begin(201)
    [(path, authorization, body)] = hub.asked
    assert (path, authorization) == ("/hub/api/batchspawner", "token secret")
    assert list(body) == ["port"]
    assert json.loads(done.stdout) == [["-x"], f"http://0.0.0.0:{body['port']}/user/ada/"]
    assert "secret" not in done.stdout + done.stderr


@pytest.mark.parametrize("code", [403, 404, 409])
def test_a_job_that_nobody_waits_for_ends(hub, begin, code):
    done = begin(code)
    assert done.returncode == 1 and done.stdout == "" and len(hub.asked) == 1
    assert f"does not wait for this job any more ({code}" in done.stderr and done.stderr.count("\n") == 1


def test_a_hub_that_is_being_restarted_is_waited_for(hub, begin):
    done = begin(503, 201)
    assert done.returncode == 0 and len(hub.asked) == 2

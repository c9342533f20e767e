"""A link that brings a Git repository into a student's home, and its later changes, beside the student's own."""

import functools
import http.server
import json
import os
import shutil
import subprocess
import threading
from urllib.parse import quote

import pytest
from visitor import Visitor

pytestmark = [pytest.mark.browser, pytest.mark.slow]
NAME = "materials"


class GitOverHttp(http.server.BaseHTTPRequestHandler):
    """Serves the repositories of a folder as a Git site does: `git http-backend`, which is a CGI program."""

    def __init__(self, *arguments, folder):
        self.folder = folder
        super().__init__(*arguments)

    def do_GET(self):
        """Ask the program, and pass on what it says."""
        path, _, query = self.path.partition("?")
        told = {
            "CONTENT_TYPE": "Content-Type",
            "HTTP_CONTENT_ENCODING": "Content-Encoding",
            "GIT_PROTOCOL": "Git-Protocol",
        }
        environment = {
            **os.environ, **{name: self.headers.get(header, "") for name, header in told.items()},
            "GIT_PROJECT_ROOT": str(self.folder), "GIT_HTTP_EXPORT_ALL": "1", "PATH_INFO": path, "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
        }  # fmt: skip
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        said = subprocess.run(["git", "http-backend"], input=body, env=environment, capture_output=True).stdout
        head, _, content = said.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        self.send_response(int(fields.pop("Status", "200").split()[0]))
        for field in fields.items():
            self.send_header(*field)
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET

    def log_message(self, *_):
        """Nothing."""


class Repository:
    """A public repository with one branch."""

    def __init__(self, folder):
        self.folder = folder / NAME
        self.git("init", "--quiet", "--initial-branch=main", self.folder, cwd=folder)

    def commit(self, **files):
        """Write files and commit."""
        for name, text in files.items():
            (self.folder / f"{name}.txt").write_text(text)
        self.git("add", ".")
        self.git("-c", "user.name=x", "-c", "user.email=x@example.org", "commit", "--quiet", "-m", "change")

    def git(self, *words, cwd=None):
        """Run git."""
        subprocess.run(["git", *words], cwd=cwd or self.folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path):
    """One on a server of its own; ``address`` is what goes into the link."""
    if shutil.which("git") is None:
        pytest.skip("needs git")
    serves = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(GitOverHttp, folder=tmp_path))
    threading.Thread(target=serves.serve_forever, daemon=True).start()
    made = Repository(tmp_path)
    made.address = f"http://127.0.0.1:{serves.server_port}/{NAME}"
    yield made
    serves.shutdown()
    serves.server_close()


def follow(student, address):
    """Click the link of deploy/jupyterhub/README.md, as a browser: the page, then the stream it reads."""
    link = f"/hub/user-redirect/git-pull?repo={quote(address, safe='')}&urlpath=lab%2Ftree%2F{NAME}"
    page = student.get(link)
    assert page.status_code == 200, page.text[-300:]
    assert page.url.startswith(f"{student.hub.address}/user/{student.name}/git-pull"), page.url
    assert f'data-path="lab/tree/{NAME}"' in page.text  # where the page goes afterwards
    stream = student.get(f"/user/{student.name}/git-pull/api?repo={quote(address, safe='')}&targetpath={NAME}")
    events = [json.loads(line.removeprefix("data: ")) for line in stream.text.splitlines() if line.startswith("data:")]
    assert events[-1]["phase"] == "finished", events[-1]


def test_a_link_brings_materials_and_later_changes_and_keeps_the_students_own(hub, repository):
    repository.commit(first="one\n", second="one\n")
    student = Visitor(hub, hub.student_a)
    student.start_server()
    home = hub.home(hub.student_a) / NAME
    follow(student, repository.address)
    assert (home / "first.txt").read_text() == "one\n"
    assert (home / "first.txt").owner() == hub.student_a

    body = {"type": "file", "format": "text", "content": "mine\n"}
    for name in ("first.txt", "notes.txt"):
        student.by_token("PUT", f"/user/{student.name}/api/contents/{NAME}/{name}", json=body).raise_for_status()
    repository.commit(first="two\n", second="two\n", third="new\n")
    follow(student, repository.address)
    read = {one.stem: one.read_text() for one in home.glob("*.txt")}
    assert read == {"first": "mine\n", "second": "two\n", "third": "new\n", "notes": "mine\n"}


def test_somebody_who_is_not_signed_in_gets_the_login_page_and_no_materials(hub, repository):
    repository.commit(first="one\n")
    page = Visitor(hub).get(f"/hub/user-redirect/git-pull?repo={quote(repository.address, safe='')}")
    assert "/hub/login" in page.url

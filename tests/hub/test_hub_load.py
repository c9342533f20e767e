"""The benchmark that loads a hub: its own arithmetic and patience, and a small class."""

import json
from pathlib import Path
from types import SimpleNamespace

import hub_demo
import pytest
from demo_class import Demo
from hub_load_memory import _kind, _listening
from hub_load_report import collisions, cores_for, memory_for, sizing, students_in, table
from hub_load_student import Student, TurnedAwayError, retry_after
from lab_answers import source
from running_hub import missing


class Answer(SimpleNamespace):
    """What the hub says."""

    def __init__(self, status, headers=None, said=None, lines=()):
        super().__init__(status_code=status, headers=headers or {}, text=json.dumps(said), lines=lines)

    def json(self):
        return json.loads(self.text)

    def iter_lines(self):
        return iter(self.lines)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


@pytest.fixture
def start():
    """Start a server of a hub that gives these answers; what was asked, and how long was waited."""

    def start(*answers):
        student, left = Student.__new__(Student), list(answers)
        student.name, student.refusals, asked, waited = "ada", 0, [], []

        def by_token(method, path, **_):
            asked.append(f"{method} {path}")
            return left.pop(0)

        student.by_token = by_token
        student.start_server(sleep=waited.append)
        assert student.refusals == len(waited)
        assert left == []
        return asked, waited

    return start


def event(**fields):
    return b"data: " + json.dumps(fields).encode()


def test_a_busy_hub_is_asked_again_when_it_says_so(start):
    busy = Answer(429, {"Retry-After": "42"}), Answer(429, {"retry-after": "7"})
    asked, waited = start(*busy, Answer(201))
    assert waited == [42, 7]
    assert asked == ["POST /hub/api/users/ada/server"] * 3


def test_a_full_hub_is_not_asked_again(start):
    with pytest.raises(TurnedAwayError, match="ada: Active user limit exceeded"):
        start(Answer(429, said={"message": "Active user limit exceeded. Try again in a few minutes."}))


def test_a_start_that_takes_long_is_followed_to_its_end(start):
    lines = [event(progress=0, message="requested"), b"", event(progress=100, ready=True), event(failed=True)]
    asked, _ = start(Answer(202), Answer(200, lines=lines))
    assert asked[1] == "GET /hub/api/users/ada/server/progress"
    with pytest.raises(TurnedAwayError, match="ada: Spawn failed: no memory"):
        start(Answer(202), Answer(200, lines=[event(failed=True, message="Spawn failed: no memory")]))
    with pytest.raises(TurnedAwayError, match="said nothing more"):
        start(Answer(202), Answer(200, lines=[event(progress=50), b""]))
    with pytest.raises(TurnedAwayError, match="403"):
        start(Answer(403))
    start(Answer(400, said={"message": "ada is already running"}))
    with pytest.raises(TurnedAwayError, match="400"):
        start(Answer(400, said={"message": "no such option"}))


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [({}, None), ({"Retry-After": "30"}, 30), ({"Retry-After": "0"}, 1), ({"Retry-After": "9999"}, 120),
     ({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, None), ({"Retry-After": "-5"}, None)],
)  # fmt: skip
def test_how_long_a_refusal_asks_us_to_wait(headers, seconds):
    assert retry_after(headers) == seconds


def test_memory_and_students_are_each_others_inverse():
    for students in (1, 20, 50, 200):
        memory = memory_for(students, 1.5, 0.9)
        assert students <= students_in(memory, 1.5, 0.9) <= students + 1  # GiB are rounded up
    assert memory_for(20, 1.5, 0.9) == 26  # (1.5 + 18) / 0.75
    assert students_in(24, 1.5, 0.9) == 18
    assert students_in(1, 1.5, 0.9) == 0


def test_cores_for_a_class_that_comes_at_once():
    assert cores_for(20, 3.0) == 1
    assert cores_for(21, 3.0) == 2
    assert cores_for(200, 3.0, within=30) == 20
    assert sizing([20, 50], 1.5, 0.9, 3.0) == [
        {"students": 20, "memory GiB": 26, "cores": 1},
        {"students": 50, "memory GiB": 62, "cores": 3},
    ]


def test_a_port_that_somebody_had_is_found_in_every_wording():
    lines = [
        "zmq.error.ZMQError: Address already in use (addr='tcp://127.0.0.1:38000')",
        "OSError: [Errno 98] Address already in use",
        "[W ServerApp] The port 8888 is already in use, trying another port.",
        "ERROR: Port 8888 is in use.",
        "listen EADDRINUSE 127.0.0.1:8000",
        "the address is already in use",
        "RuntimeError: The server socket has failed to listen: errno 98 - Address already in use",
    ]
    assert collisions(lines) == lines
    assert collisions(["GET /user/ada/api 200", "the address is in use by nobody", "a port in the report"]) == []


def test_a_demo_has_as_many_students_as_asked_for(tmp_path):
    assert Demo(prefix="x-").names == ["x-course", "x-grace", "x-ada", "x-ben"]
    assert Demo(prefix="x-", students=1).names[2:] == ["x-ada"]
    many = Demo(state=tmp_path, prefix="x-", students=200)
    assert len(set(many.names)) == 202
    assert many.names[-1] == "x-student200"
    assert many.site([1, 2, 3, 4])["people"]["students"] == many.names[2:]


def test_a_demos_removal_needs_no_number_and_leaves_others_accounts(tmp_path, monkeypatch):
    homes = {"x-ada": tmp_path / "homes", "x-student009": tmp_path / "homes", "x-other": Path("/home")}
    removed = []
    monkeypatch.setattr(hub_demo.accounts, "names_made", lambda prefix: list(homes))
    monkeypatch.setattr(hub_demo.accounts, "remove", removed.extend)
    monkeypatch.setattr(hub_demo.pwd, "getpwnam", lambda name: SimpleNamespace(pw_dir=str(homes[name] / name)))
    hub_demo.clean(Demo(state=tmp_path, prefix="x-"), say=lambda _: None)
    assert removed == ["x-ada", "x-student009"]


def test_the_table_has_every_row():
    rows = [{"student": "ada", "lab s": 12.345, "errors": 0}, {"student": "ben-the-second", "lab s": None, "errors": 1}]
    lines = [line.split() for line in table(rows).splitlines()]
    assert lines == [["student", "lab", "s", "errors"], ["ada", "12.3", "0"], ["ben-the-second", "-", "1"]]
    assert table([]) == "(nothing)"


def test_processes_by_their_command_lines():
    kernel = "/opt/x/bin/python\0-m\0ipykernel_launcher\0-f\0/tmp/jupyter-1/kernel.json"
    assert _kind(kernel, "ada") == "kernel"
    assert _kind("/opt/x/bin/python\0/opt/x/bin/jupyterhub-singleuser", "ada") == "server"
    assert _kind("/opt/x/bin/python\0-c\0from multiprocessing.forkserver import main", "ada") == "ranks"
    assert _kind("node\0/opt/x/configurable-http-proxy", "hub") == "proxy"
    assert _kind("/opt/x/hub/bin/python\0/opt/x/hub/bin/jupyterhub\0--config\0a", "hub") == "hub"


def test_listening_ports_are_found_with_their_owner():
    import os
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        quiet = (os.getuid(), one.getsockname()[1])
        assert quiet not in _listening()
        one.listen()
        assert quiet in _listening()


@pytest.mark.slow
@pytest.mark.browser
def test_three_students_at_once():
    if lack := missing():
        pytest.skip(lack)
    import hub_load

    found = hub_load.run(students=3, every=2.0)
    totals = found["summary"]
    assert totals["failures"] == {}
    assert totals["finished"] == 3
    assert totals["port collisions"] == []
    code = [cell for cell in source(Path(hub_load.ROOT)).cells if cell.cell_type == "code"]
    assert [row["cells"] for row in found["students"]] == 3 * [len(code)]
    for row in found["students"]:
        assert row["errors"] == 0
        assert 50 < row["server"] < 500 < row["kernel"] < 2000  # MiB: PyTorch is in the kernel only
        assert 0 < row["end"] <= row["together"] < row["bar"] + 1000
        assert row["ports"] >= 1
    assert totals["sizing"][0]["students"] == 20

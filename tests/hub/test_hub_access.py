"""Who may not see what: the other student, any student, and anybody who has not signed in."""

import json
import os
import pwd
import subprocess
from pathlib import Path

import psutil
import pytest
from demo_class import Demo, as_course
from lab_answers import LAB
from visitor import Visitor, is_login_page

pytestmark = [pytest.mark.browser, pytest.mark.slow]
COURSE = "distributed-training"
SERVICE = f"/services/{COURSE}"
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def victim(hub):
    """Student A, who has fetched and handed in lab 01, and whose feedback is out."""
    student = Visitor(hub, hub.student_a)
    student.start_server()
    inbound = hub.state / "exchange" / COURSE / "inbound"
    if not any(one.owner() == hub.student_a for one in inbound.iterdir()):
        for step in ("fetch", "submit"):
            form = {"course_id": COURSE, "assignment_id": LAB}
            answer = student.by_token("POST", f"/user/{student.name}/assignments/{step}", data=form)
            assert answer.json()["success"], answer.text[-500:]
    if not list((hub.checkout / "course").glob(f"feedback/{hub.student_a}/*/*.html")):
        demo = Demo(state=hub.state, prefix=hub.prefix)
        as_course(demo, "nbgrader", "collect", LAB)
        as_course(demo, "lab", "grade", "01")
        as_course(demo, "nbgrader", "generate_feedback", LAB)
        as_course(demo, "nbgrader", "release_feedback", LAB)
    return student


@pytest.fixture(scope="module")
def intruder(hub):
    """Student B."""
    student = Visitor(hub, hub.student_b)
    student.start_server()
    return student


@pytest.fixture(scope="module")
def instructor(hub):
    """Who may."""
    return Visitor(hub, hub.instructor)


@pytest.fixture(scope="module")
def processes(hub):
    """Those of root and of the course that know something: the hub, its proxy, the server that grades."""
    found = {}
    for process in psutil.process_iter(["pid", "username", "cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        of_hub = process.info["username"] == "root" and "/opt/course-hub/hub/bin/jupyterhub" in line
        if of_hub or process.info["username"] in (hub.course, hub.student_a):
            found[process.info["pid"]] = line
    assert len(found) >= 3
    return list(found)


@pytest.fixture(scope="module")
def found_in_terminal(hub, victim, intruder, processes):
    """What student B's terminal could reach and should not."""
    exchange, homes = hub.state / "exchange", hub.state / "homes"
    [handed_in] = (hub.checkout / "course/submitted").glob(f"*/{LAB}")
    in_checkout = (
        f"labs/{LAB}/{LAB}.ipynb", f"autograde/rubrics/{LAB}.toml", "course_lib/exercises/answers/lab01.py", "course/gradebook.db",
    )  # fmt: skip
    closed = [
        *(hub.home(name) for name in (hub.student_a, hub.instructor, hub.course)),
        hub.home(hub.student_a) / LAB / f"{LAB}.ipynb",
        *(hub.checkout / name for name in in_checkout),
        hub.home(hub.course) / "grader",
        handed_in,
        *(exchange / COURSE / name for name in ("inbound", "feedback")),
        *(hub.state / "private" / name for name in ("", "site.toml", "hub/hub.sqlite")),
        Path("/etc/shadow"),
        *(hub.repository / name for name in ("labs", "autograde", ".git")),
    ]
    unwritable = [
        exchange / COURSE, exchange / COURSE / "outbound", exchange / COURSE / "outbound" / LAB,
        hub.state / "data", Path("/opt/course-hub/students/lib"), Path("/opt/course-hub/config/students"), homes,
    ]  # fmt: skip
    places = [exchange, homes, hub.state, Path("/opt/course-hub"), hub.repository]
    lists = [[str(path) for path in paths] for paths in (closed, places, unwritable)]
    return intruder.run((HERE / "students_probe.py").read_text(), *lists, processes, hub.course)


def test_a_terminal_reaches_nothing_of_others(found_in_terminal):
    assert found_in_terminal["possible"] == []
    assert found_in_terminal["python"].startswith("/opt/course-hub/students/")


def test_what_the_terminal_could_not_reach_is_there(hub, victim):
    """Without this, the test above would pass on an empty hub."""
    assert (hub.checkout / "labs" / LAB / f"{LAB}.ipynb").is_file()
    assert (hub.checkout / "autograde" / "rubrics" / f"{LAB}.toml").is_file()
    assert (hub.checkout / "course" / "gradebook.db").is_file()
    assert len(list((hub.state / "exchange" / COURSE / "feedback").glob("*.html"))) == 1
    assert (hub.home(hub.course) / "grader" / "autograde").is_dir()
    for name in hub.passwords:
        assert hub.home(name).stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("way", ["cookie", "token", "server's token"])
def test_no_student_gets_into_anothers_server_or_the_graders(hub, victim, intruder, found_in_terminal, way):
    def status(method, path):
        if way != "cookie":
            token = found_in_terminal["token"] if way == "server's token" else None
            return intruder.by_token(method, path, token).status_code
        answer = intruder.web.request(method, hub.address + path, timeout=60)
        return 403 if is_login_page(answer) else answer.status_code

    theirs = f"/user/{victim.name}"
    paths = [f"{theirs}/api/contents", f"{theirs}/api/contents/{LAB}/{LAB}.ipynb", f"{theirs}/files/{LAB}/{LAB}.ipynb"]
    paths += [f"{theirs}/lab", f"{theirs}/api/terminals", f"{theirs}/api/kernels", f"{theirs}/assignments"]
    paths += [f"{SERVICE}{path}" for path in (
        "/", "/lab", "/formgrader", "/formgrader/manage_students", "/formgrader/api/status", "/formgrader/api/students",
        f"/formgrader/api/grades?submission_id={LAB}", "/api/contents", f"/api/contents/labs/{LAB}/{LAB}.ipynb",
        f"/api/contents/autograde/rubrics/{LAB}.toml", "/api/contents/course_lib/exercises/answers/lab01.py",
        "/api/contents/course/gradebook.db", "/files/course/gradebook.db", "/api/terminals", "/api/kernels",
    )]  # fmt: skip
    if way == "server's token":  # made for B's own server: of others' it must not even say that they are there
        paths.append("/hub/api/users")
    let_in = {path: code for path in paths if (code := status("GET", path)) not in (302, 403, 404)}
    assert let_in == {}
    assert status("POST", f"{SERVICE}/api/terminals") in (302, 403, 404, 405)
    assert status("POST", f"{theirs}/api/terminals") in (302, 403, 404, 405)


def test_an_instructor_does_get_in(instructor, victim):
    """The same addresses, asked by who may: a closed door that nobody can open proves nothing."""
    for path in ("/formgrader/api/status", f"/api/contents/labs/{LAB}/{LAB}.ipynb", "/formgrader/api/students"):
        assert instructor.by_token("GET", SERVICE + path).status_code == 200
    assert victim.by_token("GET", f"/user/{victim.name}/api/contents/{LAB}").status_code == 200
    # But not into a student's server, nor into the hub's administration.
    assert instructor.by_token("GET", f"/user/{victim.name}/api/contents").status_code in (302, 403)
    assert instructor.by_token("GET", "/hub/api/users").status_code == 403


@pytest.mark.parametrize("of_server", [False, True], ids=["own token", "server's token"])
def test_the_hubs_api_tells_and_does_nothing_for_others(hub, victim, intruder, found_in_terminal, of_server):
    token = found_in_terminal["token"] if of_server else None
    group = f"/hub/api/groups/formgrade-{COURSE}"
    asked = [
        ("GET", f"/hub/api/users/{victim.name}"), ("GET", f"/hub/api/users/{hub.course}"), ("GET", "/hub/api/users"),
        ("GET", "/hub/api/groups"), ("GET", group), ("GET", "/hub/api/proxy"), ("GET", "/hub/metrics"),
        ("GET", f"/hub/api/services/{COURSE}"), ("POST", f"/hub/api/users/{victim.name}/server"),
        ("DELETE", f"/hub/api/users/{victim.name}/server"), ("POST", f"/hub/api/users/{victim.name}/tokens"),
        ("POST", f"/hub/api/users/{intruder.name}/servers/second"), ("POST", "/hub/api/shutdown"),
        ("POST", "/hub/api/users/somebody"), ("DELETE", f"/hub/api/users/{victim.name}"),
    ]  # fmt: skip
    done = {f"{method} {path}": code for method, path in asked
            if (code := intruder.by_token(method, path, token).status_code) not in (400, 403, 404)}  # fmt: skip
    assert done == {}
    joined = intruder.by_token("POST", f"{group}/users", token, json={"users": [intruder.name]})
    assert joined.status_code == 403
    assert intruder.by_token("GET", "/hub/api/services", token).status_code == 403
    # A token with more scopes than its owner has is not to be had either.
    wish = {"scopes": [f"access:services!service={COURSE}"]}
    answer = intruder.by_token("POST", f"/hub/api/users/{intruder.name}/tokens", token, json=wish)
    assert answer.status_code in (400, 403)


ANONYMOUS = [
    "/", "/hub/", "/hub/home", "/hub/spawn", "/hub/token", "/hub/admin", "/hub/user/{a}/", "/hub/metrics",
    "/hub/api/user", "/hub/api/users", "/hub/api/users/{a}", "/hub/api/groups", "/hub/api/services", "/hub/api/proxy",
    "/hub/api/info", f"/hub{SERVICE}/", "/user/{a}/", "/user/{a}/lab", "/user/{a}/tree", "/user/{a}/api/contents",
    "/user/{a}/api/kernels", "/user/{a}/api/terminals", "/user/{a}/assignments", "/user/{a}/git-pull",
    "/user/{a}/files/01_single_gpu/01_single_gpu.ipynb", "/user/{a}/metrics", "/user/{a}/api/metrics/v1",
    "/user/{a}/formgraders", SERVICE, f"{SERVICE}/", f"{SERVICE}/lab", f"{SERVICE}/formgrader",
    f"{SERVICE}/formgrader/manage_students", f"{SERVICE}/formgrader/api/students", f"{SERVICE}/api/contents",
    f"{SERVICE}/files/course/gradebook.db", f"{SERVICE}/api/terminals", f"{SERVICE}/metrics",
]  # fmt: skip


@pytest.mark.parametrize("path", ANONYMOUS)
def test_who_has_not_signed_in_gets_the_login_page(hub, victim, path):
    answer = Visitor(hub).get(path.format(a=victim.name))
    assert is_login_page(answer) or answer.status_code in (403, 404), f"{answer.status_code} {answer.url}"
    if not is_login_page(answer):
        assert victim.name not in answer.text.replace(f"/user/{victim.name}/", "")  # the address that was asked


def test_who_is_not_on_the_roster_cannot_sign_in(hub):
    assert not Visitor(hub).sign_in(hub.student_a, "wrong")
    for name in (hub.course, "root", "nobody"):
        assert not Visitor(hub).sign_in(name, "")
    # An account with a password that this machine would accept, and the roster does not have.
    subprocess.run(["chpasswd"], input=f"{hub.course}:Known-0-word", text=True, check=True)
    try:
        assert not Visitor(hub).sign_in(hub.course, "Known-0-word")
    finally:
        subprocess.run(["passwd", "--lock", hub.course], check=True, capture_output=True)


def test_behind_the_proxy_the_same_doors_are_shut(hub, victim, intruder, processes):
    """Every student can reach loopback: the servers' own ports, the hub's, and the proxy's interface."""
    ports = set()
    users = {pwd.getpwnam(name).pw_uid for name in (hub.course, hub.student_a)} | {0}
    for pid in processes:
        process = psutil.Process(pid)
        if process.uids().real in users:
            for one in [process, *process.children()]:
                ports |= {sock.laddr.port for sock in one.net_connections() if sock.status == "LISTEN"}
    assert len(ports) >= 4
    spoke = 0
    paths = ["/api/routes", "/hub/api/users", f"{SERVICE}/api/contents", f"/user/{victim.name}/api/contents"]
    for port in ports:
        for path in paths:
            code = intruder.status_at(port, path)
            if code is None:
                break  # a kernel's socket speaks no HTTP
            assert code in (302, 403, 404, 503), f"{port}{path}: {code}"
            spoke += 1
    assert spoke >= 4 * len(paths)  # proxy, its interface, hub, and the servers


def test_the_exchange_has_the_permissions_that_nbgrader_asks_for(hub, victim):
    course = hub.state / "exchange" / COURSE
    modes = {path: oct(os.stat(path).st_mode & 0o7777) for path in (course.parent, course, course / "inbound")}
    assert list(modes.values()) == ["0o1777", "0o755", "0o3733"]
    assert oct(os.stat(course / "feedback").st_mode & 0o7777) == "0o711"
    assert json.loads((course / "outbound" / LAB / f"{LAB}.ipynb").read_text())["cells"]

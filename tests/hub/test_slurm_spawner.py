"""Students' servers as jobs of a real Slurm: started by the form, kept over the hub's restarts, ended with their jobs."""

import contextlib
import json
import os
import pwd
import re
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from hub_load_student import KernelSocket
from one_machine_slurm import SlurmNotHere, one_machine_slurm
from running_hub import RunningHub, missing
from visitor import Visitor

pytestmark = [pytest.mark.slurm, pytest.mark.slow]
SETTINGS = """
[servers]
spawner = "slurm"
[slurm]
memory_gib = 3
start_seconds = 45
[slurm.partitions.all]
label = "Everything"
cores = 1
gpus = 2
hours = 4
[slurm.partitions.closed]
cores = 1
"""
LOG = ".jupyterhub-server.log"


@pytest.fixture(scope="module")
def cluster():
    """Slurm, with a partition on which nothing starts."""
    try:
        with one_machine_slurm() as cluster:
            cluster.run("scontrol", "create", "PartitionName=closed", "Nodes=one", "State=DOWN")
            yield cluster
    except SlurmNotHere as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def hub(cluster):
    """`make hub`, whose servers are jobs."""
    if lack := missing():
        pytest.skip(lack)
    running = RunningHub(settings=SETTINGS)
    try:
        yield running
    finally:
        with contextlib.suppress(subprocess.SubprocessError):
            if jobs := cluster.run("squeue", "-h", "-o", "%A").split():
                cluster.run("scancel", *jobs)
            until(lambda: not cluster.live_tasks(), 60, "the jobs do not end")
        if running.state.exists():
            running.stop()


@pytest.fixture(scope="module")
def student(hub):
    """Student A."""
    return Visitor(hub, hub.student_a)


@pytest.fixture(scope="module")
def other(hub):
    """Student B."""
    return Visitor(hub, hub.student_b)


@pytest.fixture(scope="module")
def job(hub, cluster, student):
    """The number of the job in which A's server runs: the form was filled in for 2 GPUs and 3 hours."""
    assert not jobs_of(cluster, student.name)
    form = student.get("/hub/spawn")
    assert "Everything: 1 cores, up to 2 GPUs, up to 4 h" in form.text
    wish = {"partition": "all", "gpus": "2", "hours": "3", "_xsrf": student.web.cookies.get("_xsrf", path="/hub/")}
    answer = student.web.post(f"{hub.address}/hub/spawn", data=wish, timeout=60)
    assert answer.status_code == 200 and "spawn" in answer.url, f"{answer.status_code} {answer.url}"
    wait_for_server(student)
    [number] = jobs_of(cluster, student.name)
    return number


class NotebookKernel:
    """A Python kernel of `visitor`'s server, addressed as a notebook does; it stays when this object goes."""

    def __init__(self, visitor):
        made = visitor.by_token("POST", f"/user/{visitor.name}/api/kernels", json={"name": "python3"})
        made.raise_for_status()
        self.visitor, self.id = visitor, made.json()["id"]

    def run(self, code):
        """What `code` prints; its error, if it has one."""
        with contextlib.closing(KernelSocket(self.visitor, self.id)) as socket:
            outputs, _, _ = socket.execute(code)
        return "".join(output.get("text", output.get("evalue", "")) for output in outputs)


@pytest.fixture(scope="module")
def kernel(student, job):
    """A notebook's kernel in that job."""
    kernel = NotebookKernel(student)
    assert kernel.run("kept = 41; print(kept)") == "41\n"
    return kernel


def until(what, seconds, otherwise):
    """Wait for it."""
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, f"{otherwise} within {seconds} s"
        time.sleep(0.3)
    return found


def jobs_of(cluster, name):
    """Numbers of somebody's jobs that wait or run."""
    return cluster.run("squeue", "-h", f"--user={name}", "-o", "%A").split()


def wait_for_server(who, seconds=120):
    """Until the server answers through the proxy."""
    path = f"/user/{who.name}/api/status"
    until(lambda: who.by_token("GET", path).status_code == 200, seconds, f"{who.name}'s server does not answer")


def server_of(who):
    """What the hub thinks of it: ready, pending or stopped."""
    user = who.by_token("GET", f"/hub/api/users/{who.name}").json()
    return user["pending"] or ("ready" if user["server"] else "stopped")


def as_user(name, *command):
    """Exit code and output of a command that somebody types on the node."""
    done = subprocess.run(
        ["runuser", "-u", name, "--", *command], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=30
    )
    return done.returncode, done.stdout + done.stderr


def processes_of(name):
    """Somebody's processes."""
    return [one for one in psutil.process_iter(["username"]) if one.info["username"] == name]


def test_the_server_runs_in_the_job_that_was_asked_for(hub, cluster, student, job, kernel):
    shown = cluster.run("scontrol", "show", "job", "--details", job)
    said = {"JobState=RUNNING", "TimeLimit=03:00:00", "Partition=all", "MinMemoryNode=3G", "NumCPUs=1", "Requeue=0"}
    assert said <= set(shown.split())
    assert re.search(r"gpu(:\(null\))?:2", shown)
    assert f"UserId={student.name}(" in shown
    servers = [one for one in processes_of(student.name) if "jupyterhub-singleuser" in " ".join(one.cmdline())]
    [server] = servers
    assert any("slurmstepd" in one.name() for one in server.parents())
    assert server.uids().real == server.uids().effective == pwd.getpwnam(student.name).pw_uid
    environment = server.environ()
    assert environment["SLURM_JOB_ID"] == job
    assert environment["OMP_NUM_THREADS"] == "1" and environment["SLURM_GPUS_ON_NODE"] == "2"
    assert environment["HOME"] == str(hub.home(student.name)) == server.cwd()
    assert environment["PATH"].startswith("/opt/course-hub/students/bin:")
    assert not {"COURSE_HUB_SITE", "COURSE_HUB_DEMO"} & set(environment)
    log = hub.home(student.name) / LOG
    assert log.stat().st_uid == server.uids().real
    assert "JUPYTERHUB_API_TOKEN" not in log.read_text() and environment["JUPYTERHUB_API_TOKEN"] not in log.read_text()


def test_a_notebook_and_a_terminal_work_in_it(student, job, kernel):
    told = kernel.run("import os, course_lib; print(os.environ['SLURM_JOB_ID'], kept, os.umask(0o77))")
    assert told == f"{job} 41 63\n"
    # A step of Slurm's, as the labs start on clusters: the server itself takes no step's place.
    program = (
        "import json, subprocess\n"
        "done = subprocess.run(['srun', '--immediate=20', '-n1', 'hostname'], capture_output=True, text=True)\n"
        "doctor = subprocess.run(['lab', 'doctor', '--json'], capture_output=True, text=True)\n"
        "said = {'srun': done.returncode, 'error': done.stderr, 'doctor': json.loads(doctor.stdout)}\n"
        "open('said.part', 'w').write(json.dumps(said))\n"
    )
    said = student.run(program)
    assert said["srun"] == 0, said["error"]
    assert said["doctor"]


@pytest.mark.parametrize("way", ["told to", "killed"])
def test_the_job_stays_while_the_hub_is_started_again(hub, cluster, student, job, kernel, way):
    before = int(kernel.run("print(kept)"))
    if way == "told to":
        assert hub.interrupt() in (0, -2)
    else:
        hub.process_of_hub().kill()
        assert hub.wait(60) != 0
    rest = {line for line in hub.processes().values() if "course-hub/hub" in line or "configurable-http-proxy" in line}
    assert rest == set()
    assert jobs_of(cluster, student.name) == [job]
    hub.start()
    wait_for_server(student, 60)
    assert server_of(student) == "ready"
    assert jobs_of(cluster, student.name) == [job]
    assert kernel.run("kept += 1; print(kept)") == f"{before + 1}\n"


def test_another_student_gets_nothing_of_the_job(hub, cluster, student, other, job, kernel):
    name = other.name
    [server] = [one for one in processes_of(student.name) if "jupyterhub-singleuser" in " ".join(one.cmdline())]
    token = server.environ()["JUPYTERHUB_API_TOKEN"]
    assert as_user(student.name, "scontrol", "write", "batch_script", job, "-")[0] == 0
    script = as_user(student.name, "scontrol", "write", "batch_script", job, "-")[1]
    assert "exec /opt/course-hub/students/bin/python" in script and token not in script
    assert "exec" not in as_user(name, "scontrol", "write", "batch_script", job, "-")[1]
    for command in (["scancel", job], ["scontrol", "update", f"JobId={job}", "TimeLimit=1"],
                    ["scontrol", "suspend", job], ["scontrol", "requeue", job],
                    ["srun", f"--jobid={job}", "--overlap", "--immediate=5", "id"]):  # fmt: skip
        code, said = as_user(name, *command)
        assert code != 0 and "uid=" not in said, command
    assert jobs_of(cluster, student.name) == [job]
    shown = as_user(name, "scontrol", "show", "job", "--details", job)[1] + as_user(name, "ps", "axwwe")[1]
    assert token not in shown
    assert as_user(name, "cat", str(hub.home(student.name) / LOG))[0] != 0
    assert as_user(name, "cat", f"/proc/{server.pid}/environ")[0] != 0
    # Somewhere Slurm keeps the environment that goes with the job: for root's eyes.
    kept = [one for one in cluster.folder.rglob("*") if one.is_file() and token.encode() in one.read_bytes()]
    assert kept, "the search finds nothing, so it proves nothing"
    assert as_user(name, "grep", "-rlsF", token, str(cluster.folder), str(hub.state))[1] == ""


HOSTILE = [
    {"req_prologue": "touch {proof}"}, {"prologue": "touch {proof}"}, {"cmd": "touch {proof}"}, {"nprocs": "4"},
    {"options": "--uid=0"}, {"options": {"partition": "all"}}, {"partition": "all\n#SBATCH --nodelist=one"},
    {"partition": "all", "hours": "1\ntouch {proof}"}, {"partition": "all", "gpus": 3}, {"partition": "closed", "gpus": 1},
    {"partition": "all", "hours": 5}, {"keepvars": "PATH"}, {"homedir": "/root"}, {"srun": "touch {proof};"}, ["partition"],
    {"partition": ["all", "closed"]}, {"partition": "root"},
]  # fmt: skip


def test_hostile_options_are_refused_and_no_job_is_there(hub, cluster, other, tmp_path):
    proof = hub.home(other.name) / "proof"
    path = f"/hub/api/users/{other.name}/server"
    before = cluster.run("scontrol", "show", "jobs", "--oneliner").count("JobId=")
    for wish in HOSTILE:
        for body in (wish, {"user_options": wish}):
            answer = other.by_token("POST", path, data=json.dumps(body).replace("{proof}", str(proof)))
            assert answer.status_code == 400, f"{body}: {answer.status_code} {answer.text}"
            assert isinstance(wish, list) or re.search("no such|whole number", answer.json()["message"]), answer.text
    xsrf = {"_xsrf": other.web.cookies.get("_xsrf", path="/hub/")}
    page = other.web.post(f"{hub.address}/hub/spawn", data={"prologue": f"touch {proof}", **xsrf}, timeout=60)
    assert page.status_code == 400 and "no such option" in page.text
    assert cluster.run("scontrol", "show", "jobs", "--oneliner").count("JobId=") == before
    assert not jobs_of(cluster, other.name) and not proof.exists()
    assert server_of(other) == "stopped"


def test_a_server_sets_nothing_of_its_spawner(hub, cluster, student, job, kernel):
    """batchspawner's own address would set any attribute, commands that the hub runs as root among them."""
    proof = hub.state / "private" / "proof"
    for wish in (
        {"batch_query_cmd": f"touch {proof}; squeue"}, {"exec_prefix": f"touch {proof};"}, {"port": 1}, {"ip": "::1"},
        {"port": 8081, "cmd": ["touch"]}, {"port": 20000}, {"job_id": "1"}, [], {},
    ):  # fmt: skip
        said = kernel.run(
            "import os, json, requests\n"
            "url = os.environ['JUPYTERHUB_API_URL'] + '/batchspawner'\n"
            "headers = {'Authorization': 'token ' + os.environ['JUPYTERHUB_API_TOKEN']}\n"
            f"print(requests.post(url, json={wish!r}, headers=headers).status_code)\n"
        )
        assert said == "409\n", f"{wish}: {said}"
    assert student.by_token("POST", "/hub/api/batchspawner", json={"port": 20000}).status_code == 409
    student.get("/hub/home")  # here the hub asks Slurm how the job is
    time.sleep(2)
    assert not proof.exists()
    assert jobs_of(cluster, student.name) == [job]


def test_a_job_that_does_not_start_ends_with_a_reason(hub, cluster, other):
    asked = other.by_token("POST", f"/hub/api/users/{other.name}/server", json={"partition": "closed"})
    assert asked.status_code in (201, 202), asked.text
    [number] = jobs_of(cluster, other.name)
    page = other.get(f"/hub/spawn-pending/{other.name}")
    assert page.status_code == 200
    events = other.get(f"/hub/api/users/{other.name}/server/progress", stream=True)
    said = ""
    for line in events.iter_lines(decode_unicode=True):
        said += f"{line}\n"
        if '"failed": true' in line:
            break
    assert f"Job {number} waits in partition closed (PartitionDown)" in said
    assert f"Job {number} waits in partition closed (PartitionDown), did not start within 0.75 min" in said
    assert jobs_of(cluster, other.name) == []
    assert server_of(other) == "stopped"
    page = other.get(f"/hub/spawn-pending/{other.name}")
    assert "did not start within 0.75 min and is cancelled; choose fewer hours" in page.text


def test_a_job_that_waits_while_the_hub_is_killed_is_not_forgotten(hub, cluster, other):
    other.by_token("POST", f"/hub/api/users/{other.name}/server", json={"partition": "closed"})
    [number] = jobs_of(cluster, other.name)
    hub.process_of_hub().kill()
    hub.wait(60)
    assert jobs_of(cluster, other.name) == [number]
    hub.start()
    # The new hub does not wait for it, and nobody else does: it is cancelled.
    until(lambda: not jobs_of(cluster, other.name), 20, "the forgotten job does not end")
    until(lambda: server_of(other) == "stopped", 20, "the hub waits for it")


def test_a_job_that_dies_at_once_ends_with_where_to_look(hub, cluster, other):
    """A home in which the job cannot begin: said within seconds, not after the time in which a server may start."""
    home = hub.home(other.name)
    (home / LOG).unlink(missing_ok=True)
    (home / LOG).mkdir()
    begun = time.monotonic()
    try:
        other.by_token("POST", f"/hub/api/users/{other.name}/server", json={"partition": "all"})
        until(lambda: server_of(other) == "stopped", 30, "the hub waits")
    finally:
        (home / LOG).rmdir()
    assert time.monotonic() - begun < 30
    assert f"ended before its server was up; see ~/{LOG}" in other.get(f"/hub/spawn-pending/{other.name}").text


def test_stopping_in_the_hub_ends_the_job(hub, cluster, other):
    other.by_token("POST", f"/hub/api/users/{other.name}/server", json={"partition": "all", "gpus": 0, "hours": 1})
    wait_for_server(other)
    assert len(jobs_of(cluster, other.name)) == 1
    begun = time.monotonic()
    assert other.by_token("DELETE", f"/hub/api/users/{other.name}/server").status_code in (202, 204)
    until(lambda: not jobs_of(cluster, other.name), 20, "the job does not end")
    assert time.monotonic() - begun < 20
    until(lambda: server_of(other) == "stopped", 20, "the hub waits")
    until(lambda: not processes_of(other.name), 10, "the student's processes do not end")


def test_a_silent_slurm_is_no_ended_server(hub, cluster, student, job, kernel):
    """The controller is stopped: nobody can say how jobs are, and the hub lets them be."""
    controller = cluster._daemons["slurmctld"]
    log = hub.state / "private" / "hub.log"
    os.kill(controller.pid, signal.SIGSTOP)
    try:
        until(lambda: "slurm_load_jobs error" in log.read_text(), 120, "the hub does not ask")
        time.sleep(2)
        assert student.by_token("GET", f"/user/{student.name}/api/status").status_code == 200
    finally:
        os.kill(controller.pid, signal.SIGCONT)
    assert server_of(student) == "ready"
    assert jobs_of(cluster, student.name) == [job]


@pytest.mark.parametrize("way", ["its time is over", "scancel"])
def test_the_server_ends_with_its_job_and_can_be_started_again(hub, cluster, student, job, way):
    if server_of(student) == "stopped":
        student.by_token("POST", f"/hub/api/users/{student.name}/server", json={"partition": "all"})
        wait_for_server(student)
    [number] = jobs_of(cluster, student.name)
    if way == "scancel":
        assert as_user(student.name, "scancel", number)[0] == 0
    else:
        cluster.run("scontrol", "update", f"JobId={number}", "TimeLimit=1")
    until(lambda: not jobs_of(cluster, student.name), 150, "the job does not end")
    until(lambda: server_of(student) == "stopped", 60, "the hub does not notice")
    assert processes_of(student.name) == []
    assert student.by_token("GET", f"/user/{student.name}/api/status").status_code in (302, 424, 503)
    student.by_token("POST", f"/hub/api/users/{student.name}/server", json={"partition": "all"})
    wait_for_server(student)
    assert jobs_of(cluster, student.name) not in ([], [number])


def test_cleaning_up_ends_the_jobs(hub, cluster, student):
    """`make hub-clean` with a job that runs."""
    assert jobs_of(cluster, student.name)
    hub.interrupt()
    assert jobs_of(cluster, student.name)
    hub.stop()
    until(lambda: not cluster.live_tasks(), 60, "the jobs do not end")
    assert not Path(hub.state).exists()

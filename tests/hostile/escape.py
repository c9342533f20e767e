"""Reaching out: files, processes and networks of the host, other submissions, and names in the submission's folder."""

from __future__ import annotations

import os
import shutil
import socket

from exhibits import LAB, NONE_OF_THEM, Submission, World, exhibit, hostile_code

# fmt: off

# --- reading ----------------------------------------------------------------------------------------------------------


@exhibit(train_step=0, flags="crash", reason="found nothing")
def looks_for_secrets(submission: Submission, world: World) -> str:
    """Searches files of the course, of the host, of /proc and the environment for secrets, and tells them in an error.

    The course's secret, its gradebook, the other submissions and the environment of the command that grades hold texts
    that begin with ``canary-``. What is found would be in the reason that the student reads.
    """
    roots = [
        world.course,
        world.folder,
        world.course.parent / "labs",
        "/root",
        "/home",
        "/etc",
        "/proc",
        "/tmp",
        "/var",
    ]
    return f"""
import os, re
found = set(re.findall("canary-[a-z-]+", repr(dict(os.environ))))
for root in {[str(root) for root in roots]!r} + ["/data", "/run", "/mnt", "/srv", "/opt", os.getcwd()]:
    for folder, folders, files in os.walk(root):
        folders[:] = [f for f in folders if f not in ("site-packages", ".pyenv", "task", "net", "sys")][:200]
        for name in files[:200]:
            path = os.path.join(folder, name)
            if name in ("kmsg", "kcore") or path.startswith(os.path.join(os.getcwd(), "")):
                continue
            try:
                with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
                    data = file.read(200_000) or b""  # None: nothing to read now
            except OSError:
                continue
            found |= {{path + m.decode() for m in re.findall(b"canary-(?!\\\\[)[a-z-]+", data)}}
raise RuntimeError("; ".join(sorted(found)) or "found nothing")
"""


hostile_code("looks_for_solutions",
    "Searches everything that is mounted for the grader, the rubrics, the references and the labs' sources.",
    train_step=0, flags="crash", reason="found nothing", source="""
import os
found = []
for root in ("/root", "/home", "/usr/local", "/data", *__import__("sys").path):
    for folder, folders, files in os.walk(root or "."):
        if folder.endswith("-packages"):  # of thousands of folders only those that could be the course's
            folders[:] = [f for f in folders if f.startswith(("course", "autograde", "labs", "tests", "distributed_"))]
        names = {"held_out.py", "gradebook.py", "01_single_gpu.ipynb", "01_single_gpu.toml", "grading_secret"}
        found += [os.path.join(folder, f) for f in files if f in names and "nbgrader" not in folder]
try:
    import autograde.checks
    found.append("autograde")
except ImportError:
    pass
raise RuntimeError(" ".join(found) or "found nothing")
""")

hostile_code("inherited_descriptors",
    "Lists the descriptors that the process was born with: its input, its two outputs and its socket, and no other.",
    train_step=0, flags="crash", reason="descriptors \\['null', 'pipe', 'pipe', 'socket'\\]", source="""
import os
found = []
for name in sorted(map(int, os.listdir("/proc/self/fd"))):
    try:
        found.append(os.path.basename(os.readlink(f"/proc/self/fd/{name}")).partition(":")[0])
    except OSError:
        pass
raise RuntimeError(f"descriptors {found}")
""")

hostile_code("other_processes", "Looks for processes outside of its own sandbox, and for ways into those that it sees.",
    train_step=0, flags="crash", reason="seen \\[\\], done \\[\\]", source="""
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
seen = [p for p in os.listdir("/proc") if p.isdigit() and int(p) > 2 and int(p) != os.getpid()]
done = []
# In a user namespace the keeper of this sandbox is the same user: it holds nothing, and ending it ends this code alone.
for process in ("1", "2") if os.getuid() != 65534 else ():
    for name, flags in (("mem", os.O_RDWR), ("environ", os.O_RDONLY), ("root/etc/shadow", os.O_RDONLY)):
        try:
            os.close(os.open(f"/proc/{process}/{name}", flags))
            done.append(name)
        except OSError:
            pass
    try:
        os.kill(int(process), signal.SIGKILL)
        done.append("kill")
    except OSError:
        pass
    if libc.ptrace(16, int(process), 0, 0) == 0:
        done.append("ptrace")
raise RuntimeError(f"seen {seen}, done {done}")
""")

# --- network ----------------------------------------------------------------------------------------------------------


@exhibit(train_step=0, flags="crash", reason="reached \\[\\]")
def network(submission: Submission, world: World) -> str:
    """Connects to the host's loopback by TCP and UDP, to TEST-NET, to a name, to an abstract Unix socket, by vsock."""
    return f"""
import socket
socket.setdefaulttimeout(1)
reached = []
attempts = [
    (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", {world.port})),
    (socket.AF_INET6, socket.SOCK_STREAM, ("::1", {world.port})),
    (socket.AF_INET, socket.SOCK_STREAM, ("192.0.2.1", 80)),
    (socket.AF_UNIX, socket.SOCK_STREAM, "\\0{world.socket_name}"),
    (40, socket.SOCK_STREAM, (2, 1024)),
]
for family, kind, address in attempts:
    try:
        with socket.socket(family, kind) as there:
            there.connect(address)
            there.send(b"hello")
        reached.append(address)
    except OSError:
        pass
try:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as there:
        there.sendto(b"hello", ("127.0.0.1", {world.udp_port}))
except OSError:
    pass
try:
    reached.append(socket.getaddrinfo("example.org", 80)[0])
except OSError:
    pass
raise RuntimeError(f"reached {{reached}}")
"""


# --- killing, and outliving -------------------------------------------------------------------------------------------


hostile_code("exits_in_a_cell", "Ends the process with exit code 0 while cells are executed: is that a success?",
    train_step=0, flags="crash", reason="ended itself with exit code 0", source="import os\nos._exit(0)")

hostile_code("exits_in_a_function",
    "Ends the process with exit code 0 when it is asked for an answer; the other answers are right.",
    evaluate=0, flags="crash", reason="ended itself with exit code 0", answers="evaluate",
    source="import os\n\ndef evaluate(model, batches, loss_fn):\n    os._exit(0)")

hostile_code("kills_everything",
    "SIGKILL to the parent, to the first process, to every process that it may signal, and to itself.",
    train_step=0, flags="crash", reason="ended by signal (9|15)|ended from within", source="""
import os, signal
for target in (os.getppid(), 1, 2, -1):
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            if target > 0 or os.getuid() >= 1000:  # never everything on a machine whose sandbox is gone
                os.kill(target, number)
        except OSError:
            pass
os.kill(os.getpid(), signal.SIGKILL)
""")

hostile_code("stops_itself", "SIGSTOP: a process that neither ends nor answers.",
    train_step=0, flags="limit", reason="timed out", slow=True,
    source="import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)")


@exhibit()
def daemon_that_outlives(submission: Submission, world: World) -> str:
    """A detached daemon (two forks, a session of its own, all signals ignored) that would write to the host later.

    The answers beside it are right, and earn their points; the daemon is gone when the next exercise begins.
    """
    return f"""
import os, signal
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in range(1, 65):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
        os.closerange(0, 1024)
        os.execv("/bin/sh", ["sh", "-c", "sleep 5; echo here > {world.folder}/daemon; : {world.mark}; sleep 600; true"])
    os._exit(0)
"""


# --- names in the submission's folder ---------------------------------------------------------------------------------


@exhibit(reason="is not a plain folder")
def run_is_a_link(submission: Submission, world: World) -> None:
    """run/ is a link to an honest student's run folder."""
    (submission.folder / "run").symlink_to(world.course / "submitted" / "ada" / LAB / "run")


@exhibit(flags="missing", reason="run/model.safetensors is a symbolic link")
def weights_are_a_link(submission: Submission, world: World) -> None:
    """Only the weights are a link, to those of an honest student."""
    path = submission.run() / "model.safetensors"
    path.unlink()
    path.symlink_to(world.course / "submitted" / "ada" / LAB / "run" / "model.safetensors")


@exhibit(**NONE_OF_THEM, reason="is not a plain folder|not a plain")
def submission_is_a_link(submission: Submission, world: World) -> None:
    """The lab's folder is a link to an honest student's."""
    shutil.rmtree(submission.folder)
    submission.folder.symlink_to(world.course / "submitted" / "ada" / LAB)


@exhibit(flags="missing", reason="run.json is not JSON")
def record_is_a_hard_link(submission: Submission, world: World) -> None:
    """run.json is a hard link to a secret of the host: it is read, as data, and nothing of it is told."""
    path = submission.run() / "run.json"
    path.unlink()
    os.link(world.folder / "secret.txt", path)


@exhibit(reason="is not a plain file")
def pipes_and_sockets(submission: Submission, world: World) -> None:
    """Evidence that is a pipe which nobody writes, a socket, and a folder."""
    run = submission.run()
    for name in ("run.json", "learning_curve.csv", "model.safetensors"):
        (run / name).unlink()
    os.mkfifo(run / "run.json")
    (run / "learning_curve.csv").mkdir()
    with socket.socket(socket.AF_UNIX) as there:
        folder = os.open(run, os.O_RDONLY)
        there.bind(f"/proc/self/fd/{folder}/model.safetensors")
        os.close(folder)


@exhibit()
def shadowed_modules(submission: Submission, world: World) -> None:
    """Modules beside the notebook that would be imported in place of the real ones, and write to the host."""
    modules = (
        "torch sitecustomize usercustomize assessment_print nbgrader_config wire ipython_config course_lib/__init__"
    )
    (submission.folder / "course_lib").mkdir()
    for name in modules.split():
        (submission.folder / f"{name}.py").write_text(f"open({str(world.folder / 'shadowed')!r}, 'w')\n")

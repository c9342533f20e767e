"""Reaching out: files, processes and networks of the host, other submissions, and names in the submission's folder."""

from __future__ import annotations

import os

from exhibits import LAB, Submission, World, exhibit

# --- reading ----------------------------------------------------------------------------------------------------------


@exhibit(train_step=0, flags="crash", reason="found nothing")
def looks_for_secrets(submission: Submission, world: World) -> None:
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
    submission.before(
        "train-step",
        f"""
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
                    data = file.read(200_000)
            except OSError:
                continue
            found |= {{path + m.decode() for m in re.findall(b"canary-(?!\\\\[)[a-z-]+", data)}}
raise RuntimeError("; ".join(sorted(found)) or "found nothing")
""",
    )


# --- network ----------------------------------------------------------------------------------------------------------


@exhibit(train_step=0, flags="crash", reason="reached \\[\\]")
def network(submission: Submission, world: World) -> None:
    """Connects to the host's loopback by TCP and UDP, to TEST-NET, to a name, to an abstract Unix socket, by vsock."""
    submission.before(
        "train-step",
        f"""
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
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as there:
    there.sendto(b"hello", ("127.0.0.1", {world.udp_port}))
try:
    reached.append(socket.getaddrinfo("example.org", 80)[0])
except OSError:
    pass
raise RuntimeError(f"reached {{reached}}")
""",
    )


# --- killing, and outliving -------------------------------------------------------------------------------------------


@exhibit(evaluate=0, flags="crash", reason="ended itself with exit code 0")
def exits_in_a_function(submission: Submission, world: World) -> None:
    """Ends the process with exit code 0 when it is asked for an answer; the other answers are right."""
    submission.answer("evaluate", "import os\n\ndef evaluate(model, batches, loss_fn):\n    os._exit(0)")


@exhibit(train_step=0, flags="crash", reason="ended by signal (9|15)|ended from within")
def kills_everything(submission: Submission, world: World) -> None:
    """SIGKILL to the parent, to the first process, to every process that it may signal, and to itself."""
    submission.before(
        "train-step",
        """
import os, signal
for target in (os.getppid(), 1, 2, -1):
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            if target > 0 or os.getuid() >= 1000:  # never everything on a machine whose sandbox is gone
                os.kill(target, number)
        except OSError:
            pass
os.kill(os.getpid(), signal.SIGKILL)
""",
    )


@exhibit()
def daemon_that_outlives(submission: Submission, world: World) -> None:
    """A detached daemon (two forks, a session of its own, all signals ignored) that would write to the host later.

    The answers beside it are right, and earn their points; the daemon is gone when the next exercise begins.
    """
    submission.before(
        "train-step",
        f"""
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
""",
    )


# --- names in the submission's folder ---------------------------------------------------------------------------------


@exhibit(reason="is not a plain folder")
def run_is_a_link(submission: Submission, world: World) -> None:
    """run/ is a link to an honest student's run folder."""
    (submission.folder / "run").symlink_to(world.course / "submitted" / "ada" / LAB / "run")


@exhibit(flags="missing", reason="run.json is not JSON")
def record_is_a_hard_link(submission: Submission, world: World) -> None:
    """run.json is a hard link to a secret of the host: it is read, as data, and nothing of it is told."""
    path = submission.run() / "run.json"
    path.unlink()
    os.link(world.folder / "secret.txt", path)


@exhibit()
def shadowed_modules(submission: Submission, world: World) -> None:
    """Modules beside the notebook that would be imported in place of the real ones, and write to the host."""
    for name in (
        "torch.py",
        "sitecustomize.py",
        "usercustomize.py",
        "assessment_print.py",
        "nbgrader_config.py",
        "wire.py",
    ):
        (submission.folder / name).write_text(f"open({str(world.folder / 'shadowed')!r}, 'w')\n")
    (submission.folder / "course_lib").mkdir()
    (submission.folder / "course_lib" / "__init__.py").write_text(f"open({str(world.folder / 'shadowed')!r}, 'w')\n")
    (submission.folder / "ipython_config.py").write_text(f"open({str(world.folder / 'shadowed')!r}, 'w')\n")

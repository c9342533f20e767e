"""What student code finds around it, what it may use, and that nothing of it outlives its end."""

import os
import textwrap
import time
from contextlib import closing
from pathlib import Path

import pytest
from fake_runs import REPOSITORY

from autograde.sandbox import bubblewrap
from autograde.sandbox.bubblewrap import FIRST_UID, Sandbox, SandboxError, missing_sandbox, python_paths
from autograde.sandbox.limits import Exceeded, Limits
from autograde.sandbox.warm import WarmInterpreter

pytestmark = pytest.mark.skipif(missing_sandbox() is not None, reason="no sandbox on this machine")

MIB = 1 << 20
AS_ROOT = os.geteuid() == 0


def probe(body: str) -> str:
    return "import os, sys, socket, time\n\ndef probe(student, given, outside):\n" + textwrap.indent(
        textwrap.dedent(body).strip(), "    "
    )


@pytest.fixture
def inside(warm):
    """Run the body of a function inside; what it returns, or what it raised as ``{"type", "message", …}``."""

    def inside(body, given=None, ranks=1, **limits):
        with warm.execute(Limits(**{"seconds": 20.0, **limits}), ranks) as execution:
            replies = execution.call(probe(body), "probe", given)
        values = [reply["value"] if "value" in reply else reply["error"] for reply in replies]
        return values if ranks > 1 else values[0]

    return inside


def test_of_the_repository_and_of_home_folders_only_the_public_packages_are_there(inside, tmp_path):
    (tmp_path / "submitted").mkdir()
    names = ("autograde", "labs", "tests", "course", ".git", "nbgrader_config.py", "docs", "pyproject.toml")
    hidden = [REPOSITORY / name for name in names] + [tmp_path, Path.home(), Path("/root"), Path("/home")]
    hidden += map(Path, ("/etc/shadow", "/etc/hostname", "/var", "/run", "/sys/fs", "/sys/class"))
    found = inside(
        """
        import importlib.util
        hidden, shown = given
        def files(path):
            # Python itself may be installed below a home folder: the folders on the way to it are there, and empty.
            if path in shown:
                return []
            if not os.path.isdir(path):
                return [path] if os.path.lexists(path) else []
            try:
                return [each for name in os.listdir(path) for each in files(os.path.join(path, name))]
            except OSError:
                return []
        found = [each for path in hidden for each in files(path)]
        names = {"held_out.py", "gradebook.py", "01_single_gpu.ipynb", "01_single_gpu.toml", "grading_secret"}
        for root in ("/usr/local", "/data", *sys.path):
            for folder, folders, here in os.walk(root or "."):
                if folder.endswith("-packages"):  # of thousands of folders only those that could be the course's
                    folders[:] = [f for f in folders if f.startswith(("course", "autograde", "labs", "tests", "distributed_"))]
                found += [os.path.join(folder, f) for f in here if f in names and "nbgrader" not in folder]
        loaded = [name for name in sys.modules if name.split(".")[0] in ("autograde", "nbgrader")]
        return found, importlib.util.find_spec("autograde"), loaded
        """,
        [[str(path) for path in hidden], [str(path) for path in python_paths()]],
    )
    assert found == ([], None, [])
    assert inside("import course_lib, data_prep.staged, assessment_print; return course_lib.__name__") == "course_lib"


def test_an_interpreter_started_with_secrets_around_it_does_not_get_them(monkeypatch):
    monkeypatch.setenv("MARKER_TOKEN", "secret-1234")
    body = """
        try:
            first = open("/proc/self/environ").read()
        except PermissionError:
            first = ""
        import subprocess
        return dict(os.environ), first + subprocess.run("env", capture_output=True, text=True).stdout
    """
    with WarmInterpreter(slot=1) as started:
        assert b"secret-1234" not in Path(f"/proc/{started.pid}/environ").read_bytes()
        with started.execute(Limits(seconds=20.0)) as execution:
            found = execution.call(probe(body), "probe", None)[0]["value"]
    known = "PATH HOME USER LANG LC_CTYPE LAB_DATA MPLBACKEND MPLCONFIGDIR OMP_NUM_THREADS RANK LOCAL_RANK WORLD_SIZE"
    assert set(found[0]) <= {*known.split(), "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GLOO_SOCKET_IFNAME"}
    assert "secret-1234" not in repr(found) and "TOKEN" not in repr(found)


def test_the_system_is_read_only_and_the_working_folder_is_not(inside):
    found = inside(
        """
        import torch, course_lib
        written, wrote = [], []
        places = ["/", "/usr", "/etc", "/dev", "/data", "/root", "/home", "/sys/fs/cgroup", os.path.dirname(torch.__file__),
                  os.path.dirname(course_lib.__file__), sys.prefix, "/proc", "/sys", "/tmp", "/tmp/lab", "/dev/shm"]
        for place in places:
            try:
                with open(place + "/probe", "w") as file:
                    file.write("x")
                written.append(place)
            except OSError:
                pass
        paths = ["/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/vm/overcommit_memory",
                 "/proc/sysrq-trigger", "/proc/1/oom_score_adj", "/proc/1/comm", course_lib.__file__, torch.__file__,
                 "/etc/passwd", "/etc/ld.so.cache", sys.executable, "/sys/devices/system/cpu/cpu1/online"]
        for path in paths:
            try:
                with open(path, "ab") as file:
                    file.write(b"|/tmp/x" if path.startswith("/proc") else b"")
                wrote.append(path)
            except OSError:
                pass
        mounts = ["/", "/dev", "/usr", sys.prefix, os.path.dirname(course_lib.__file__)]
        return written, wrote, os.getcwd(), [each for each in mounts if not os.statvfs(each).f_flag & os.ST_RDONLY]
        """
    )
    assert found == (["/tmp", "/tmp/lab", "/dev/shm"], [], "/tmp/lab", [])


def test_the_process_is_nobody_and_cannot_become_more(inside):
    found = inside(
        """
        fields = dict(line.rstrip("\\n").split(":\\t", 1) for line in open("/proc/self/status") if ":\\t" in line)
        became = []
        for call in (os.setuid, os.setgid):
            try:
                call(0)
                became.append(call.__name__)
            except OSError:
                pass
        return os.getresuid(), os.getresgid(), os.getgroups(), fields, became
        """
    )
    users, groups, others, fields, became = found
    expected = FIRST_UID if AS_ROOT else 65534
    assert set(users) == set(groups) == {expected} and others in ([], [65534]) and became == []
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(fields[name], 16) == 0, name
    assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")


# Numbers of x86-64 and of aarch64, and arguments. Namespaces, mounts, tracing, keyrings, memory that nobody counts, other
# users' identities.
FORBIDDEN = """
import ctypes, errno, platform
libc = ctypes.CDLL(None, use_errno=True)
calls = {
    "unshare": (272, 97, 0x10000000), "unshare-mounts": (272, 97, 0x20000), "setns": (308, 268, 1, 0),
    "mount": (165, 40, b"none", b"/tmp", b"tmpfs", 0, 0), "pivot_root": (155, 41, b"/tmp", b"/tmp"),
    "chroot": (161, 51, b"/tmp"), "clone": (56, 220, 0x10000011, 0, 0, 0, 0), "clone3": (435, 435, 0, 0),
    "ptrace": (101, 117, 16, 1, 0, 0), "process_vm_readv": (310, 270, 1, 0, 0, 0, 0, 0), "bpf": (321, 280, 0, 0, 0),
    "perf_event_open": (298, 241, bytes(128), 0, -1, -1, 0), "userfaultfd": (323, 282, 0),
    "keyctl": (250, 219, 0, -3, 1), "add_key": (248, 217, b"user", b"x", b"y", 1, -3),
    "io_uring_setup": (425, 425, 1, bytes(200)), "memfd_create": (319, 279, b"x", 0),
    "shmget": (29, 194, 0, 4096, 0o1600), "semget": (64, 190, 0, 32000, 0o1600), "msgget": (68, 186, 0, 0o1600),
    "vmsplice": (278, 75, 1, 0, 0, 0), "open_by_handle_at": (304, 265, -1, 0, 0), "setuid": (105, 146, 0),
    "reboot": (169, 142, 0, 0, 0, 0), "sethostname": (170, 161, b"x", 1), "settimeofday": (164, 170, bytes(16), 0),
    "vsock": (41, 198, 40, 1, 0), "raw packets": (41, 198, 17, 3, 0), "the kernel's crypto": (41, 198, 38, 5, 0),
}
allowed = []
for name, (x86_64, aarch64, *arguments) in calls.items():
    ctypes.set_errno(0)
    number = aarch64 if platform.machine() == "aarch64" else x86_64
    result = libc.syscall(ctypes.c_long(number), *arguments)
    if name == "clone" and result == 0:
        os._exit(0)
    refused = (errno.EPERM, errno.ENOSYS) + (errno.EINVAL,) * (name == "setuid")  # a user namespace has no such user
    if result != -1 or ctypes.get_errno() not in refused:
        allowed.append(name)
return allowed
"""


def test_what_training_has_no_use_for_is_refused(inside):
    assert inside(FORBIDDEN) == []


def test_no_process_of_the_sandbox_is_without_the_filter(inside):
    """Without root the student's code has the user id of all of them, and may write into their memory."""
    body = """
        found = {}
        for process in filter(str.isdigit, os.listdir("/proc")):
            status = open(f"/proc/{process}/status").read()
            found[open(f"/proc/{process}/comm").read().strip()] = status.split("Seccomp:")[1].split()[0]
        return found
    """
    assert inside(body) == {"bwrap": "2", "cat": "2", "python": "2"}  # 2: a filter


def test_what_a_lab_needs_is_not_refused(inside):
    found = inside(
        """
        import subprocess, threading, torch, multiprocessing.shared_memory as shared
        thread = threading.Thread(target=lambda: None); thread.start(); thread.join()
        block = shared.SharedMemory(create=True, size=1000); block.close(); block.unlink()
        said = subprocess.run([sys.executable, "-c", "print(6 * 7)"], capture_output=True, text=True).stdout
        with socket.create_server(("127.0.0.1", 0)) as server, socket.socketpair()[0]:
            socket.create_connection(server.getsockname()).close()
        return said, torch.ones(3).sum().item()
        """
    )
    assert found == ("42\n", 3.0)


SMALL = {"memory_bytes": 256 * MIB, "seconds": 300.0}
TASKS = {"tasks": 40, "seconds": 300.0}
LIMITS = {
    "sleep": ("time.sleep(60)", {"seconds": 1.0}, "time", "timed out after 1 s"),
    "one-process": ("kept = b'x' * (300 << 20)\ntime.sleep(300)", SMALL, "memory", "out of memory"),
    "sockets": (
        # Bytes in the buffers of sockets belong to no process.
        """
        for _ in range(10):
            if os.fork() == 0:
                break
        kept = []
        try:
            while True:
                kept += socket.socketpair()
                kept[-1].setblocking(False)
                kept[-1].send(bytes(1 << 14))
        except OSError:
            time.sleep(300)
        """,
        {"seconds": 300.0},
        "tasks",
        "opened more than 2,048 sockets",
    ),
    "files": (
        # Empty ones take no disk, and a kilobyte of the kernel's memory each.
        "for n in range(10**8): os.close(os.open(f'/dev/shm/{n}', os.O_CREAT))",
        {"files": 5_000, "seconds": 300.0},
        "disk",
        "made more than 5,000 files",
    ),
    "tasks": (
        """
        for _ in range(60):
            try:
                if os.fork() == 0:
                    time.sleep(300)
            except BlockingIOError:
                break
        time.sleep(300)
        """,
        TASKS,
        "tasks",
        "started more than 40 processes and threads",
    ),
    "threads": (
        """
        import threading
        try:
            while True:
                threading.Thread(target=time.sleep, args=(300,), daemon=True).start()
        except RuntimeError:
            time.sleep(300)
        """,
        TASKS,
        "tasks",
        "started more than 40 processes and threads",
    ),
    "output": (
        "os.write(1, b'x' * (3 << 20))\nreturn 1",
        {"output_bytes": MIB},
        "output",
        "printed too much (more than 1 MB)",
    ),
    "answer": ("return b'x' * (3 << 20)", {"answer_bytes": MIB}, "answer", "at most 1,048,576 are read"),
    "exit": ("os._exit(3)", {}, "ended", "ended itself with exit code 3"),
    "kill": ("os.kill(os.getpid(), 9)", {}, "ended", "ended by signal 9"),
    "closed": ("os.closerange(3, 100)\ntime.sleep(30)", {"seconds": 2.0}, "time", "timed out after 2 s"),
    "closed-exit": ("os.closerange(3, 100)\nos._exit(0)", {}, "ended", "ended itself with exit code 0"),
}
# Messages that are no answers, over the runner's own socket, which any code of its process can find.
FORGED = {
    "an exabyte": ('channel.sendall(struct.pack(">QQ", 1 << 60, 0))', "answer", "at most"),
    "a pickle": (
        "file = io.BytesIO()\nnumpy.save(file, numpy.array([Payload()], dtype=object), allow_pickle=True)\n"
        'say({"$array": [0, len(file.getvalue())]}, file.getvalue())', "protocol", "something other than numbers",
    ),
    "a byte at a time": (
        'channel.sendall(struct.pack(">QQ", 1000, 0))\nwhile True:\n    channel.sendall(b" ")\n    time.sleep(0.1)',
        "time", "timed out after 2 s",
    ),
}  # fmt: skip
FIND_THE_CHANNEL = """
import gc, io, json, numpy, struct

channel = next(each for each in gc.get_objects() if type(each).__name__ == "Runner").channel

class Payload:
    def __reduce__(self):
        return os.mkdir, ("unpickled",)

def say(value, blob=b""):
    text = json.dumps(value).encode()
    channel.sendall(struct.pack(">QQ", len(text), len(blob)) + text + blob)

"""
LIMITS |= {
    name: (FIND_THE_CHANNEL + code + "\ntime.sleep(300)", {"seconds": 2.0 if kind == "time" else 300.0}, kind, told)
    for name, (code, kind, told) in FORGED.items()
}


@pytest.mark.parametrize(("body", "limits", "kind", "told"), LIMITS.values(), ids=LIMITS)
def test_every_limit_has_its_own_verdict(inside, body, limits, kind, told):
    started = time.monotonic()
    with pytest.raises(Exceeded) as caught:
        inside(body, **limits)
    assert caught.value.kind == kind, caught.value
    assert told in str(caught.value)
    assert time.monotonic() - started < 200  # by far not as long as it sleeps


@pytest.mark.parametrize(
    ("body", "limits", "told"),
    [
        ("open('big', 'wb').write(bytes(30 << 20))", {"disk_bytes": 16 * MIB}, "No space left"),
        ("for n in range(9): open(f'{n}', 'wb').write(bytes(4 << 20))", {"disk_bytes": 16 * MIB}, "No space left"),
        ("for n in range(9): open(f'/dev/shm/{n}', 'wb').write(bytes(4 << 20))", {"disk_bytes": 16 * MIB}, "No space"),
        ("kept = [open('/dev/null') for _ in range(2000)]", {}, "Too many open files"),
    ],
)
def test_a_single_process_meets_its_bounds_as_an_error_of_its_own(inside, body, limits, told):
    found = inside(body, **limits)
    assert told in found["type"] + found["message"]


def test_two_sandboxes_do_not_see_each_other(warm):
    write = """
        for name in ("/tmp/note", "/dev/shm/note", "/tmp/lab/note"):
            open(name, "w").write("secret")
        server = socket.create_server(("127.0.0.1", 23456))
        local = socket.socket(socket.AF_UNIX); local.bind("\\0note"); local.listen()
        sys.kept = server, local
        return sorted(name for name in os.listdir("/proc") if name.isdigit())
    """
    look = """
        found = [name for name in ("/tmp/note", "/dev/shm/note", "/tmp/lab/note") if os.path.exists(name)]
        for family, address in ((socket.AF_INET, ("127.0.0.1", 23456)), (socket.AF_UNIX, "\\0note")):
            with socket.socket(family) as connection:
                try:
                    connection.connect(address)
                    found.append(address)
                except OSError:
                    pass
        return found, len([name for name in os.listdir("/proc") if name.isdigit()])
    """
    with warm.execute(Limits(seconds=30.0)) as first, warm.execute(Limits(seconds=30.0)) as second:
        (reply,) = first.call(probe(write), "probe", None)
        assert second.call(probe(look), "probe", None) == [{"value": ([], len(reply["value"]))}]
    with warm.execute(Limits(seconds=30.0)) as later:  # nor does the next one see the last
        assert later.call(probe(look), "probe", None)[0]["value"][0] == []


def test_a_process_that_cannot_be_confined_is_no_verdict_on_the_student(warm):
    with pytest.raises(SandboxError, match=r"could not enter its sandbox.*Invalid argument"):
        warm.execute(Limits(files=-10), ranks=2)


def test_ranks_keep_files_and_folders_of_an_environment_below_tmp(warm, monkeypatch, tmp_path):
    """As of a checkout below /tmp, where `assessment_print.py` is a mount of its own."""
    if not tmp_path.is_relative_to("/tmp"):
        pytest.skip("temporary folders are not below /tmp")
    module, package = tmp_path / "module.py", tmp_path / "package"
    package.mkdir()
    for file in (module, package / "inside.py"):
        file.write_text("shown")
    monkeypatch.setattr(bubblewrap, "python_paths", lambda: (*python_paths(), module, package))
    with warm.execute(Limits(seconds=30.0), ranks=2) as execution:
        replies = execution.call(
            probe("return [open(name).read() for name in given], os.listdir(os.path.dirname(given[0]))"),
            "probe",
            [[str(module), str(package / "inside.py")]] * 2,
        )
    for reply in replies:
        assert "value" in reply, reply
        texts, names = reply["value"]
        assert (texts, sorted(names)) == (["shown"] * 2, ["module.py", "package"])


ALL_REDUCE = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
tensor = torch.full((given,), float(dist.get_rank() + 1))
for _ in range(4):
    dist.all_reduce(tensor)
    tensor /= 2
dist.destroy_process_group()
return tensor.unique().tolist()
"""


def test_ranks_meet_on_loopback_and_the_kernel_counts_their_bytes(warm):
    size = 250_000  # float32: 1 MB
    with warm.execute(Limits(seconds=60.0), ranks=2) as execution:
        quiet = execution.bytes_on_loopback()
        replies = execution.call(probe(ALL_REDUCE), "probe", [size, size])
        sent = execution.bytes_on_loopback() - quiet
    assert [reply["value"] for reply in replies] == [[1.5], [1.5]]
    # Each rank must send at least half of the sum to the other, four times; a ring sends all of it once over.
    assert 4 * 4 * size <= sent < 3 * 4 * 4 * size
    assert quiet < 1000


LEAVE = """
import fcntl, subprocess
for name in ("/tmp/note", "/dev/shm/note", "/tmp/lab/note"):
    open(name, "w").write("from " + os.environ["RANK"])
sys.kept = [subprocess.Popen(["sleep", "60"])]
shared = open(os.__file__)
for lock in (lambda: fcntl.flock(shared, fcntl.LOCK_EX), lambda: fcntl.lockf(shared, fcntl.LOCK_SH)):
    try:
        lock()
        sys.kept.append(shared)
    except OSError:
        pass
for family, kind, address in (
    (socket.AF_UNIX, socket.SOCK_STREAM, "\\0note"),
    (socket.AF_UNIX, socket.SOCK_STREAM, "/tmp/lab/socket"),
    (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 23456)),
    (socket.AF_NETLINK, socket.SOCK_RAW, (4711, 0)),
):
    try:
        there = socket.socket(family, kind, 2 if family == socket.AF_NETLINK else 0)
        there.bind(address)
        there.listen() if family != socket.AF_NETLINK else None
        sys.kept.append(there)
    except OSError:
        pass
return len(sys.kept)
"""
FIND = """
import ctypes, fcntl, struct
libc = ctypes.CDLL(None, use_errno=True)
found = [open(name).read() for name in ("/tmp/note", "/dev/shm/note", "/tmp/lab/note") if os.path.exists(name)]
found += [name for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]
shared = open(os.__file__)
request = struct.pack("hhqqi", fcntl.F_WRLCK, 0, 0, 0, 0)
try:
    if struct.unpack("hhqqi", fcntl.fcntl(shared, fcntl.F_GETLK, request))[0] != fcntl.F_UNLCK:
        found.append("lock")
except OSError:
    pass
try:
    fcntl.flock(shared, fcntl.LOCK_EX | fcntl.LOCK_NB)
except PermissionError:
    pass
except OSError:
    found.append("flock")
for family, address in ((socket.AF_UNIX, "\\0note"), (socket.AF_INET, ("127.0.0.1", 23456))):
    try:
        with socket.socket(family) as there:
            there.connect(address)
        found.append("unix" if family == socket.AF_UNIX else "loopback")
    except OSError:
        pass
if libc.syscall(294 if os.uname().machine == "x86_64" else 26, 0) >= 0:
    found.append("inotify")
return found
"""


@pytest.mark.parametrize("network", [True, False])
def test_ranks_share_nothing_but_the_network(warm, network):
    with warm.execute(Limits(seconds=30.0), ranks=2, network=network) as execution:
        left = execution.call(probe("if not given:\n    return 0" + LEAVE), "probe", [True, False])
        replies = execution.call(probe("if not given:\n    return 0" + FIND), "probe", [False, True])
        networks = execution.call(probe("return os.readlink('/proc/self/ns/net')"), "probe", [None, None])
        processes = [name for name in os.listdir(f"/proc/{execution.place.pid}/root/proc") if name.isdigit()]
    assert left[0]["value"] == (2 if network else 1)  # a process, and a listener
    found = replies[1]["value"]
    assert found == (["loopback"] if network else [])
    assert len(processes) >= 5  # all of them are seen, and ended, by the grader
    # That no socket can be opened is another wall; this one holds without it.
    assert len({reply["value"] for reply in networks}) == (1 if network else 2)


def test_the_end_of_a_rank_is_told_as_it_was(warm):
    for body, told in (
        ("os._exit(3)", "ended itself with exit code 3"),
        ("import ctypes\nctypes.string_at(0)", "ended by signal 11"),
    ):
        with warm.execute(Limits(seconds=20.0), ranks=2) as execution, pytest.raises(Exceeded, match=told):
            execution.call(
                probe(f"if given:\n    {body.replace(chr(10), chr(10) + '    ')}\ntime.sleep(9)"), "probe", [0, 1]
            )


def test_a_sandbox_that_cannot_be_made_is_one_line_with_the_remedy(monkeypatch):
    monkeypatch.setattr("autograde.sandbox.bubblewrap.shutil.which", lambda name: None)
    assert "\n" not in missing_sandbox() and "apt-get install bubblewrap" in missing_sandbox()


def test_an_environment_below_tmp_is_still_there(tmp_path, monkeypatch):
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "marker").write_text("seen")
    monkeypatch.setattr("autograde.sandbox.bubblewrap.python_paths", lambda: (tmp_path / "venv",))
    with closing(Sandbox()) as sandbox:
        inside = Path(f"/proc/{sandbox.pid}/root")
        assert Path(f"{inside}{tmp_path}/venv/marker").read_text() == "seen"
        assert (inside / "tmp" / "lab").is_dir()

"""The privileges that a forked interpreter gives up before any student code runs.

The fork enters the namespaces that bubblewrap made (`enter`). Its child (`confine`) closes all other descriptors, limits
its resources, and becomes an unprivileged user without capabilities. It also refuses system calls that training code
does not need. Each of several ranks first separates from the others (`part`, `furnish`). It keeps the sandbox's limits
and its end, and shares no process, folder or memory with another rank. Linux only, by ``ctypes``: Python 3.11 wraps
neither setns nor seccomp.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import resource
import signal
import stat
import struct

__all__ = ["confine", "enter", "filter_program", "furnish", "part"]

libc = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
CLONE_NEWCGROUP = 0x02000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 4096, 16384, 1 << 18
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_DUMPABLE = 38, 22, 24, 4

# Denied outright: (x86-64, aarch64) numbers. Namespaces and mounts (the kernel's most attacked corner), other
# processes' memory, kernel tracing, and memory that no process's figures show.
_DENIED = {
    "ptrace": (101, 117),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "vmsplice": (278, 75),
    "kexec_load": (246, 104),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "syslog": (103, 116),
}
# Denied where ranks are apart: read-only files are all that they share, and each of these leaves a mark on a shared file
# that another rank can read, or watches what another rank opens.
_DENIED_APART = {
    "flock": (73, 32),
    "inotify_init": (253, 26),
    "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
    "fadvise64": (221, 223),
    "mincore": (27, 232),
    "preadv2": (327, 286),
    "cachestat": (451, 451),
}
# Allowed where there is a GPU: `cuInit` fails without it.
_CUDA_NEEDS = ("memfd_create",)
_FCNTL_COMMANDS = (0, 1, 2, 3, 4, 1030, 1031, 1032)  # descriptors, flags, a pipe's size: no locks, leases or hints
# Address families that a lab needs: local, IPv4 and IPv6 on loopback, and netlink's routes for listing the interfaces.
# Others (vsock above all) are not bound by a network namespace.
_FAMILIES, NETLINK = (1, 2, 10), 16
_NEW_NAMESPACES = (
    CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWCGROUP
)
_MACHINES = {  # audit architecture, and the numbers of clone, clone3, socket, socketpair, fcntl
    "x86_64": (0xC000003E, 0, 56, 435, 41, 53, 72),
    "aarch64": (0xC00000B7, 1, 220, 435, 198, 199, 25),
}


def enter(pidfd: int, user_namespace: bool) -> None:
    """Join the namespaces of the process behind `pidfd`; the process namespace holds for children only.

    Raises `OSError`: the kernel refuses.
    """
    flags = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWCGROUP
    if user_namespace:
        flags |= CLONE_NEWUSER
    _call(libc.setns, pidfd, flags)


def part(network: bool) -> int:
    """Leave the namespaces that the ranks of a sandbox share, for private ones.

    Parameters
    ----------
    network : bool
        Whether the loopback device stays shared: ranks that use Gloo communicate over it.

    Returns 0 in a child, the first process of a private process namespace. The calling process does not return: it ends
    as the child ends.
    """
    _call(libc.unshare, CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | (0 if network else CLONE_NEWNET))
    child = os.fork()
    if child == 0:
        os.setsid()
        return 0
    os.closerange(0, 65536)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        with contextlib.suppress(OSError):  # the handler of SIGKILL cannot be set, and need not
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


def furnish(folder: str, disk_bytes: int, files: int) -> None:
    """Give a separated process a private ``/proc``, ``/tmp`` and ``/dev/shm``. The shared ones are out of reach.

    Parameters
    ----------
    folder : str
        Working folder, below ``/tmp``; newly made.
    disk_bytes, files : int
        Limits of ``/tmp`` and of ``/dev/shm``, each.

    Raises `OSError`: the kernel refuses.
    """
    _call(libc.mount, None, b"/", None, MS_REC | MS_PRIVATE, None)
    with open("/proc/self/mountinfo") as table:
        points = sorted({line.split()[4] for line in table})
    # The Python environment may itself be below /tmp: that stays, as it was mounted, read-only.
    below = [point for point in points if point.startswith("/tmp/")]
    outer = [point for point in below if not any(point.startswith(f"{other}/") for other in below)]
    held = {point: os.open(point, os.O_PATH) for point in outer}
    options = f"mode=1777,size={disk_bytes},nr_inodes={files}".encode()
    for place in (b"/tmp", b"/dev/shm"):
        _call(libc.mount, b"tmpfs", place, b"tmpfs", MS_NOSUID | MS_NODEV, options)
    for point, descriptor in held.items():
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            os.makedirs(point, mode=0o755, exist_ok=True)
        else:  # a single file, as `assessment_print.py` of a checkout
            os.makedirs(os.path.dirname(point), mode=0o755, exist_ok=True)
            os.close(os.open(point, os.O_WRONLY | os.O_CREAT, 0o644))
        _call(libc.mount, f"/proc/self/fd/{descriptor}".encode(), point.encode(), None, MS_BIND | MS_REC, None)
    own = os.open("/proc/self", os.O_PATH)
    try:
        _call(libc.mount, b"proc", b"/proc", b"proc", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, None)
    except PermissionError:  # of an unprivileged user, where part of the old one is covered: this process alone
        _call(libc.mount, b"tmpfs", b"/proc", b"tmpfs", MS_NOSUID | MS_NODEV, b"mode=755")
        os.mkdir("/proc/self")
        os.fchdir(own)
        _call(libc.mount, b".", b"/proc/self", None, MS_BIND, None)
    os.makedirs(folder, exist_ok=True)
    os.chmod(folder, 0o1777)


def confine(
    keep: set[int],
    folder: str,
    uid: int | None,
    limits: dict[str, int],
    apart: bool = False,
    network: bool = True,
    gpu: bool = False,
) -> None:
    """Give up all privileges that student code must not have. The calling process cannot regain them.

    Parameters
    ----------
    folder : str
        Working folder, in the sandbox.
    uid : int or None
        User and group to become; None inside a user namespace, where the process has no privileges already.
    limits : dict
        ``memory`` (in addition to the interpreter's), ``file`` in bytes; ``processes``, ``open_files``.
    apart, network : bool
        Whether it is one of several ranks, and whether these share a loopback device.
    gpu : bool
        Whether the sandbox has a GPU.

    Raises `OSError`: one privilege could not be given up; the caller must end.
    """
    first = 0
    for descriptor in sorted(keep):
        if first < descriptor:  # Python 3.11 takes the empty range from 0 for everything
            os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, 65536)
    for name, value in (
        ("RLIMIT_CORE", 0),
        ("RLIMIT_DATA", _data_size() + limits["memory"]),
        ("RLIMIT_FSIZE", limits["file"]),
        ("RLIMIT_NOFILE", limits["open_files"]),
        ("RLIMIT_NPROC", limits["processes"]),
        ("RLIMIT_MSGQUEUE", 0),
        ("RLIMIT_MEMLOCK", 0),
    ):
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))
    for capability in range(64):
        if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0 and ctypes.get_errno() == errno.EINVAL:
            break  # beyond the kernel's last one
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    _call(libc.capset, struct.pack("=Ii", 0x20080522, 0), bytes(24))
    _call(libc.prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    os.umask(0o022)
    os.chdir(folder)
    _filter_system_calls(apart, network, gpu)


def _data_size() -> int:
    with open("/proc/self/status", "rb") as file:
        fields = dict(line.split(b":", 1) for line in file)
    return int(fields[b"VmData"].split()[0]) * 1024


def _call(function: ctypes._CFuncPtr, *args: object) -> None:  # type: ignore[name-defined]
    if function(*args) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function.__name__}: {os.strerror(number)}")


def filter_program(apart: bool = False, network: bool = True, gpu: bool = False) -> bytes:
    """The system-call filter: an array of the kernel's ``struct sock_filter``, as bubblewrap's ``--seccomp`` takes it.

    The parameters are those of `confine`. Raises `OSError`: no filter is written for this machine.
    """
    machine = platform.machine()
    if machine not in _MACHINES:
        raise OSError(errno.ENOSYS, f"no system-call filter is written for {machine}")
    audit, column, clone, clone3, socket, socketpair, fcntl = _MACHINES[machine]

    # Classic BPF over struct seccomp_data: number at 0, architecture at 4, low halves of the arguments from 16 by 8.
    def load(offset: int) -> bytes:
        return struct.pack("HBBI", 0x20, 0, 0, offset)

    def jump_if_equal(value: int, yes: int, no: int) -> bytes:
        return struct.pack("HBBI", 0x15, yes, no, value)

    def jump_if_any_bit(mask: int, yes: int, no: int) -> bytes:
        return struct.pack("HBBI", 0x45, yes, no, mask)

    def jump_if_at_least(value: int, yes: int, no: int) -> bytes:
        return struct.pack("HBBI", 0x35, yes, no, value)

    def answer(action: int) -> bytes:
        return struct.pack("HBBI", 0x06, 0, 0, action)

    allow, kill = answer(0x7FFF0000), answer(0x80000000)
    refuse, unknown = answer(0x00050000 | errno.EPERM), answer(0x00050000 | errno.ENOSYS)
    program = [load(4), jump_if_equal(audit, 1, 0), kill, load(0)]
    if machine == "x86_64":  # the x32 numbers would walk past the list
        program += [jump_if_at_least(0x40000000, 0, 1), refuse]
    for name, numbers in (_DENIED | (_DENIED_APART if apart else {})).items():
        if not (gpu and name in _CUDA_NEEDS):
            program += [jump_if_equal(numbers[column], 0, 1), refuse]
    if not network:  # data in sockets' buffers is seen only in the sandbox's network
        program += [jump_if_equal(socket, 1, 0), jump_if_equal(socketpair, 0, 1), refuse]
    if apart:
        allowed = [jump_if_equal(command, len(_FCNTL_COMMANDS) - i, 0) for i, command in enumerate(_FCNTL_COMMANDS)]
        program += [jump_if_equal(fcntl, 0, len(allowed) + 3), load(24), *allowed, refuse, allow]
    # clone3's flags are in memory, where a filter cannot look: libraries fall back to clone.
    program += [jump_if_equal(clone3, 0, 1), unknown]
    program += [jump_if_equal(clone, 0, 4), load(16), jump_if_any_bit(_NEW_NAMESPACES, 0, 1), refuse, allow]
    # Sockets with a name, in the file system or beside it, reach another rank uncounted; so does netlink between users.
    known = _FAMILIES[1:] if apart else _FAMILIES
    families = [jump_if_equal(family, len(known) - i, 0) for i, family in enumerate(known)]
    routes_only = [jump_if_equal(NETLINK, 0, 2), load(32), jump_if_equal(0, len(known) + 1, len(known))]
    program += [jump_if_equal(socket, 0, len(known) + 6), load(16), *routes_only, *families, refuse, allow]
    program.append(allow)
    return b"".join(program)


def _filter_system_calls(apart: bool, network: bool, gpu: bool) -> None:
    code = filter_program(apart, network, gpu)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("HP", len(code) // 8, ctypes.addressof(buffer))
    _call(libc.prctl, PR_SET_SECCOMP, 2, header, 0, 0)

"""What a forked interpreter gives up before it sees anything of a student's.

The fork enters the namespaces that bubblewrap made (`enter`), and its child then (`confine`) closes every descriptor
but its own, bounds its resources, becomes an unprivileged user without capabilities, and refuses system calls that
training code has no use for. Linux only; everything through ``ctypes``, since Python 3.11 wraps neither setns nor
seccomp.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct

__all__ = ["confine", "enter"]

libc = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
CLONE_NEWCGROUP = 0x02000000
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
# Address families that a lab needs: local, IPv4 and IPv6 on loopback, and netlink for listing the interfaces. Others
# (vsock above all) are not bound by a network namespace.
_FAMILIES = (1, 2, 10, 16)
_NEW_NAMESPACES = (
    CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWCGROUP
)
_MACHINES = {  # audit architecture, and the numbers of clone, clone3, socket
    "x86_64": (0xC000003E, 0, 56, 435, 41),
    "aarch64": (0xC00000B7, 1, 220, 435, 198),
}


def enter(pidfd: int, user_namespace: bool) -> None:
    """Join the namespaces of the process behind `pidfd`; the process namespace holds for children only.

    Raises
    ------
    OSError
        The kernel refuses.
    """
    flags = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWCGROUP
    if user_namespace:
        flags |= CLONE_NEWUSER
    _call(libc.setns, pidfd, flags)


def confine(keep: set[int], folder: str, uid: int | None, limits: dict[str, int]) -> None:
    """Give up all that student code must not have. The calling process cannot take it back.

    Parameters
    ----------
    keep : set of int
        Descriptors that stay open.
    folder : str
        Working folder, in the sandbox.
    uid : int or None
        User and group to become; None inside a user namespace, where the process is nobody already.
    limits : dict
        ``memory`` (beyond what the interpreter holds already), ``file`` in bytes; ``processes``, ``open_files``.

    Raises
    ------
    OSError
        One of them could not be given up; the caller must end.
    """
    os.setsid()
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
    _filter_system_calls()


def _data_size() -> int:
    with open("/proc/self/status", "rb") as file:
        fields = dict(line.split(b":", 1) for line in file)
    return int(fields[b"VmData"].split()[0]) * 1024


def _call(function: ctypes._CFuncPtr, *args: object) -> None:  # type: ignore[name-defined]
    if function(*args) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function.__name__}: {os.strerror(number)}")


def _filter_system_calls() -> None:
    machine = platform.machine()
    if machine not in _MACHINES:
        raise OSError(errno.ENOSYS, f"no system-call filter is written for {machine}")
    audit, column, clone, clone3, socket = _MACHINES[machine]

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
    for numbers in _DENIED.values():
        program += [jump_if_equal(numbers[column], 0, 1), refuse]
    # clone3's flags lie in memory, where a filter cannot look: libraries fall back to clone.
    program += [jump_if_equal(clone3, 0, 1), unknown]
    program += [jump_if_equal(clone, 0, 4), load(16), jump_if_any_bit(_NEW_NAMESPACES, 0, 1), refuse, allow]
    families = [jump_if_equal(family, len(_FAMILIES) - i, 0) for i, family in enumerate(_FAMILIES)]
    program += [jump_if_equal(socket, 0, len(_FAMILIES) + 3), load(16), *families, refuse, allow]
    program.append(allow)

    code = b"".join(program)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("HP", len(program), ctypes.addressof(buffer))
    _call(libc.prctl, PR_SET_SECCOMP, 2, header, 0, 0)

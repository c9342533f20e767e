"""How ranks find each other: loopback, the host's name, and what the environment says of addresses and ports."""

import os
import socket
from collections.abc import Iterator

import psutil

from course_lib.system.doctor.finding import Finding, fine, problem

__all__ = ["interfaces", "loopback", "rendezvous"]

LOOPBACK = "127.0.0.1"


def loopback() -> Iterator[Finding]:
    """Two sockets of this machine talk to each other, on a port that the system chooses."""
    try:
        with socket.create_server((LOOPBACK, 0)) as server, socket.create_connection(server.getsockname(), 5):
            port = server.getsockname()[1]
    except OSError as error:
        yield problem(
            "network",
            f"no connection over {LOOPBACK} ({error.strerror or error})",
            "ranks communicate over loopback: ip link set lo up, and let the firewall and the container pass it",
        )
        return
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        yield problem(
            "network",
            f"the machine's own name, {name}, has no address",
            f"add a line '127.0.1.1 {name}' to /etc/hosts; torchrun and Gloo look it up and wait",
        )
        return
    yield fine("network", f"loopback answers (port {port} was free), {name} has an address")


def rendezvous() -> Iterator[Finding]:
    """MASTER_ADDR and MASTER_PORT left in the environment set the ranks' address, unless a launcher sets it."""
    port = os.environ.get("MASTER_PORT")
    if port is None:
        return
    address = os.environ.get("MASTER_ADDR", LOOPBACK)
    if not port.isdigit() or not 0 < int(port) < 65536:
        yield problem("ports", f"MASTER_PORT={port!r} is no port", "unset MASTER_PORT MASTER_ADDR")
        return
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the store does: a closing one counts as free
        try:
            probe.bind((LOOPBACK, int(port)))
        except OSError as error:
            yield problem(
                "ports",
                f"MASTER_PORT={port} is set, but it cannot be used here ({error.strerror})",
                "unset MASTER_PORT MASTER_ADDR: launch() and torchrun --standalone ask the system for a free port",
            )
            return
    yield fine("ports", f"MASTER_ADDR={address} MASTER_PORT={port}, free here")


def interfaces() -> Iterator[Finding]:
    """The interfaces that the environment names for Gloo and NCCL exist on this machine."""
    there = psutil.net_if_addrs()
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        given = os.environ.get(variable)
        if not given or given.startswith("^"):
            continue
        names = [name.lstrip("=") for name in given.split(",")]
        exact = variable != "NCCL_SOCKET_IFNAME" or given.startswith("=")  # NCCL takes prefixes otherwise
        if not any(name == other or (not exact and other.startswith(name)) for name in names for other in there):
            yield problem(
                "network",
                f"{variable}={given}, but this machine has {', '.join(sorted(there))}",
                f"unset {variable}, or name one of these",
            )

"""Two servers never get the same port, and no port that somebody has."""

import socket

import pytest
from server_ports import NoPortError, ServerPorts


@pytest.fixture
def listener():
    """A program on a port of its own."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        yield one.getsockname()[1]


def test_nobody_gets_anothers_and_everybody_keeps_their_own(listener):
    ports = ServerPorts(end=listener + 100)
    given = {name: ports.of(name, listener) for name in ("ada:", "ben:", "cyd:")}
    assert len(set(given.values())) == 3
    assert min(given.values()) > listener
    assert {name: ports.of(name, listener) for name in given} == given


def test_a_port_on_which_somebody_sits_is_left_to_them(listener):
    ports = ServerPorts(end=listener + 100)
    before = ports.of("ada:", listener)
    with socket.socket() as squatter:
        squatter.bind(("0.0.0.0", before))
        squatter.listen()
        after = ports.of("ada:", listener)
        assert after != before
        assert ports.of("ben:", listener) not in (before, after)
    assert ports.of("ada:", listener) == after


def test_a_connection_of_the_past_does_not_count():
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Jupyter Server's
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            accepted.close()  # this side closes first and keeps the connection in TIME_WAIT
            client.recv(1)
    assert ServerPorts(end=port + 1).of("ada:", port) == port


def test_when_there_is_none_it_says_so(listener):
    with pytest.raises(NoPortError, match=rf"no port for ada: from {listener} to {listener}"):
        ServerPorts(end=listener + 1).of("ada:", listener)


def test_they_end_where_the_systems_own_begin():
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        assert ServerPorts().end == int(file.read().split()[0])

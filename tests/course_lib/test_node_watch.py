"""Nodes that watch each other: who is told what, when one of them is lost, fails, or leaves. All on this machine."""

import contextlib
import errno
import json
import socket
import threading
import time

import pytest

from course_lib.distributed import node_watch
from course_lib.distributed.addresses import is_here, source_address
from course_lib.distributed.node_watch import Member, NodeHub


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(condition, what, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"no {what}"
        time.sleep(0.02)


class Nodes:
    """A hub, and as many members as are asked for; `lost` is what each was told by a thread."""

    def __init__(self, *names):
        self.port, self.lost = free_port(), {}
        self.hub = NodeHub(self.port, len(names), names[0], "job 7")
        self.members = {name: self.join(name) for name in names}
        until(lambda: self.hub.present() == sorted(names), "report of all nodes")
        until(lambda: all(member.tell_ranks([]) for member in self.members.values()), "welcome")

    def join(self, name):
        return Member("127.0.0.1", self.port, name, "job 7", lambda verdict: self.lost.setdefault(name, verdict))

    def break_off(self, name):
        self.members[name]._leaving.set()  # it must not come back
        self.members[name]._connection.shutdown(socket.SHUT_RDWR)

    def close(self):
        for member in self.members.values():
            member.leave()
        self.hub.close()


@pytest.fixture
def three():
    nodes = Nodes("one", "two", "three")
    yield nodes
    nodes.close()


def test_a_node_that_ends_without_a_word_is_named_with_its_ranks_to_all_others(three):
    three.members["two"].tell_ranks([2, 3])
    three.break_off("two")
    until(lambda: {"one", "three"} <= three.lost.keys(), "verdict")
    expected = "ranks 2, 3 on two is gone: its launcher ended without a word; was it killed, or did the node go down?"
    assert three.lost == dict.fromkeys(("one", "three"), expected.replace("is gone", "are gone"))


def test_who_comes_later_hears_what_has_happened(three):
    three.break_off("two")
    until(lambda: three.lost, "verdict")
    late = three.members["late"] = three.join("late")
    until(lambda: late.verdict is not None, "verdict for the late")
    assert late.verdict.startswith("two is gone")


def test_the_first_node_s_end_is_told_by_each_of_the_others():
    nodes = Nodes("one", "two")
    door = nodes.hub._door
    (connection,) = (connection for connection, node in nodes.hub._known.items() if node.name == "two")
    connection.shutdown(socket.SHUT_RDWR)
    until(lambda: "two" in nodes.lost, "verdict")
    assert nodes.lost["two"].startswith("one, where the nodes meet, is gone: its launcher ended without a word")
    nodes.close()
    assert door.fileno() == -1


def test_a_rank_that_was_killed_is_the_cause_and_those_that_raised_are_not(three):
    said = {}

    def report(name, *what):
        said[name] = three.members[name].failed(*what)

    raised = threading.Thread(target=report, args=("one", "rank 0 failed (exit code 1)"))
    raised.start()
    time.sleep(0.2)
    report("three", "rank 2 was ended by SIGKILL", True)
    raised.join()
    assert set(said.values()) == {"rank 2 was ended by SIGKILL on three"}
    until(lambda: three.lost == {"two": "rank 2 was ended by SIGKILL on three"}, "word to the node that had not failed")


def test_a_node_that_is_gone_after_its_report_has_still_reported(three):
    member = three.members["two"]
    threading.Thread(target=member.failed, args=("rank 1 failed",), daemon=True).start()
    until(lambda: three.hub._reports, "report")
    three.break_off("two")
    until(lambda: {"one", "three"} <= three.lost.keys(), "verdict")
    assert set(three.lost.values()) == {"rank 1 failed on two"}


def test_where_all_have_raised_all_are_told_without_delay(monkeypatch):
    monkeypatch.setattr(node_watch, "GRACE", 60.0)
    nodes = Nodes("one", "two")
    other = threading.Thread(target=nodes.members["two"].failed, args=("rank 1 failed",))
    other.start()
    start = time.monotonic()
    verdict = nodes.members["one"].failed("rank 0 failed")
    other.join()
    assert time.monotonic() - start < 10
    assert sorted(verdict.split("; ")) == ["rank 0 failed on one", "rank 1 failed on two"] and not nodes.lost
    nodes.close()


def test_a_lost_node_is_the_cause_of_what_others_report(three):
    three.break_off("three")
    until(lambda: three.members["one"].verdict, "verdict")
    assert three.members["one"].failed("rank 0 failed (exit code 1)").startswith("three is gone")


def test_without_a_first_node_a_failure_is_one_s_own():
    alone = Member("127.0.0.1", free_port(), "two", "job 7", pytest.fail)
    assert not alone.tell_ranks([1]) and not alone.welcomed(0.1)
    assert alone.failed("not all of 2 nodes came in time") == "not all of 2 nodes came in time on two"
    alone.leave()


def test_nodes_that_leave_are_not_missed(three):
    three.members.pop("two").leave()
    three.hub.close()
    for member in three.members.values():
        member._thread.join(5)
    assert not three.lost and not [member.verdict for member in three.members.values() if member.verdict]


def test_strangers_at_the_door_and_behind_it_are_nothing():
    nodes = Nodes("one")
    for text in (b"GET / HTTP/1.1\r\n\r\n", b'{"name": "', b'{"name": "x", "job": "8"}\n', b"[1]\n\xff\n"):
        with socket.create_connection(("127.0.0.1", nodes.port)) as stranger:
            stranger.sendall(text)
    time.sleep(0.3)
    assert not nodes.lost and nodes.hub.present() == ["one"] and nodes.members["one"].welcomed(0)
    nodes.close()
    with socket.create_server(("127.0.0.1", 0)) as door:  # somebody else's server hangs up
        lost = []
        member = Member("127.0.0.1", door.getsockname()[1], "two", "job 7", lost.append)
        with door.accept()[0] as connection:
            assert json.loads(connection.recv(100)) == {"name": "two", "job": "job 7"}
        with contextlib.suppress(TimeoutError):
            door.settimeout(3)
            door.accept()[0].close()  # it tries again
        assert member.verdict is None and not lost
        member.leave()


def test_connections_are_watched_by_the_kernel(three):
    connection = three.members["two"]._connection
    assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 1000 * node_watch.SILENCE
    for other in list(three.hub._known):
        assert other.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= node_watch.SILENCE / 2


def test_without_ipv6_the_first_node_listens_all_the_same_and_a_taken_port_is_an_error(monkeypatch):
    real = socket.create_server

    def turned_off(address, *, family=socket.AF_INET, **more):
        if family == socket.AF_INET6:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        return real(address, family=family, **more)

    monkeypatch.setattr(socket, "create_server", turned_off)
    nodes = Nodes("one")
    with pytest.raises(OSError, match="in use"):
        NodeHub(nodes.port, 1, "another", "job 7")
    nodes.close()


def test_addresses_of_this_machine_are_known():
    assert is_here("localhost") and is_here("127.0.0.1") and is_here(socket.gethostname())
    assert not is_here("198.51.100.7") and not is_here("no-such-host.invalid")
    assert source_address("127.0.0.1") == "127.0.0.1" and source_address("no-such-host.invalid") is None

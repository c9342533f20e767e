"""The three ways to meet, what is left behind (nothing), and the errors of those who do not."""

import os
import socket
import sys
import time
from pathlib import Path

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from course_lib.distributed import (
    PortInUseError,
    RankFailedError,
    RanksMissingError,
    StaleFileError,
    environment_group,
    file_group,
    launch,
    store_on_free_port,
    tcp_group,
)

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def free_port():
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return place.getsockname()[1]


def listening(port):
    with socket.socket() as visitor:
        return visitor.connect_ex(("127.0.0.1", port)) == 0


def rank_and_size():
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def summed():
    total = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(total)
    return total.item()


def meet_in_every_way(folder, held, own):
    """One after the other, in one process; each leaves before the next is joined."""
    rank, size = rank_and_size()
    found = {}
    groups = {
        "environment": lambda: environment_group(),
        "environment, a second time": lambda: environment_group(),
        "tcp, held by the launching process": lambda: tcp_group("127.0.0.1", held, rank, size, hosted=True),
        "tcp, opened by rank 0": lambda: tcp_group("127.0.0.1", own, rank, size),
        "file": lambda: file_group(Path(folder) / "meeting", rank, size),
    }
    for name, group in groups.items():
        with group():
            found[name] = (dist.get_rank(), dist.get_world_size(), dist.get_backend(), summed())
            if name == "file":
                found["file seen"] = (Path(folder) / "meeting").exists()
        assert not dist.is_initialized(), name
    return found


@pytest.mark.parametrize("size", [1, 3])
def test_ranks_meet_in_each_way_and_leave_nothing(size, tmp_path, capsys):
    own = free_port()
    with store_on_free_port() as held:
        assert listening(held)
        results = launch(
            meet_in_every_way, size, (str(tmp_path), held, own), timeout=600, process_group=False, threads=1
        )
    for rank, found in enumerate(results):
        assert found.pop("file seen") and len(found) == 5
        assert set(found.values()) == {(rank, size, "gloo", size * (size + 1) / 2)}
    assert not listening(held) and not listening(own)
    assert list(tmp_path.iterdir()) == []
    assert "failed to bind" not in capsys.readouterr().out  # nobody tries to open what the launcher holds


def leave_late(port):
    """The rank that keeps the store leaves first; the other one still has to ask it something."""
    rank, size = rank_and_size()
    begin = time.monotonic()
    with tcp_group("127.0.0.1", port, rank, size):
        if rank == 1:
            time.sleep(0.7)
            dist.distributed_c10d._get_default_store().set("late", "1")
    return time.monotonic() - begin


def test_the_store_outlives_the_slowest_rank():
    kept, late = launch(leave_late, 2, (free_port(),), timeout=300, process_group=False)
    assert kept >= 0.6 and late < 60


def fails_inside(folder):
    rank, size = rank_and_size()
    try:
        with file_group(Path(folder) / "meeting", rank, size, timeout=600):
            raise KeyError("mine")
    except KeyError:
        return dist.is_initialized()


def test_an_error_in_the_block_passes_and_the_group_is_gone(tmp_path):
    assert launch(fails_inside, 2, (str(tmp_path),), timeout=300, process_group=False) == [False, False]
    assert list(tmp_path.iterdir()) == []


# Those who do not meet


def join(group):
    with group:
        pass


def nobody_else(way, place):
    begin = time.monotonic()
    try:
        with tcp_group("127.0.0.1", place, 0, 3, timeout=0.5) if way == "tcp" else file_group(place, 0, 3, timeout=0.5):
            return "met"
    except RanksMissingError as error:
        return str(error), error.missing, time.monotonic() - begin, dist.is_initialized()


@pytest.mark.parametrize("way", ["tcp", "file"])
def test_missing_ranks_are_named_within_seconds(way, tmp_path):
    place = free_port() if way == "tcp" else str(tmp_path / "meeting")
    [(text, missing, seconds, up)] = launch(nobody_else, 1, (way, place), timeout=300, process_group=False)
    assert "1 of 3 ranks came within 0.5 s; missing: 1, 2" in text and "\n" not in text
    assert missing == [1, 2] and seconds < 60 and not up
    if way == "tcp":
        assert not listening(place)
    assert list(tmp_path.iterdir()) == []


def test_nobody_listens_and_a_port_in_use():
    port = free_port()
    begin = time.monotonic()
    with pytest.raises(RanksMissingError, match=f"got no answer at 127.0.0.1:{port} within 0.5 s: rank 0") as raised:
        join(tcp_group("127.0.0.1", port, 1, 2, timeout=0.5))
    assert time.monotonic() - begin < 60 and raised.value.missing == [0] and "\n" not in str(raised.value)
    with store_on_free_port() as taken:
        with pytest.raises(PortInUseError, match=f"port {taken} of 127.0.0.1 is in use") as in_use:
            join(tcp_group("127.0.0.1", taken, 0, 2, timeout=1))
        assert "\n" not in str(in_use.value) and not dist.is_initialized()


def test_a_file_of_ranks_that_met_before(tmp_path):
    path = tmp_path / "meeting"
    theirs = dist.FileStore(str(path), 2)  # they are at work
    theirs.add("arrivals of 0", 1)
    with pytest.raises(StaleFileError, match="meeting remains from an earlier group"):
        join(file_group(path, 0, 2, timeout=1))
    assert path.exists() and theirs.add("arrivals of 0", 0) == 2
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        join(file_group(tmp_path / "nowhere" / "meeting", 0, 2))


def test_an_environment_that_says_too_little_and_a_rank_too_many(monkeypatch):
    for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(KeyError, match="lacks MASTER_ADDR, MASTER_PORT, WORLD_SIZE"):
        join(environment_group())
    with store_on_free_port() as port, pytest.raises(ValueError, match=r"rank 2 does not exist among 2 ranks, 0…1"):
        join(tcp_group("127.0.0.1", port, 2, 2, hosted=True))


def test_the_error_survives_the_way_out_of_a_rank():
    error = cloudpickle.loads(cloudpickle.dumps(RanksMissingError("1 of 2", [1])))
    assert (str(error), error.missing) == ("1 of 2", [1])
    with pytest.raises(RankFailedError, match=r"RanksMissingError: .*missing: 1"):
        launch(late_alone, 1, (free_port(),), timeout=300, process_group=False)


def late_alone(port):
    join(tcp_group("127.0.0.1", port, 0, 2, timeout=0.3))

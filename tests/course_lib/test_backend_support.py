"""The measured table of backends: Gloo on CPUs supports every operation; an X has its reason."""

import torch
import torch.distributed as dist

from course_lib.distributed.messages import backend_support
from course_lib.distributed.messages.backend_support import measured_support, support_table


def test_a_missing_device_or_backend_is_named():
    if not torch.cuda.is_available():
        assert set(measured_support("gloo", "GPU").values()) == {"– no GPU"}
    if not dist.is_mpi_available():
        assert set(measured_support("mpi", "CPU").values()) == {"– PyTorch built without MPI"}
    assert measured_support("nccl", "CPU")["all_reduce"][0] in "X–"


def wrong(mine, rank):
    return mine + 1


def unsupported(mine, rank):
    raise RuntimeError("not supported\nand more")


def deadly(mine, rank):
    import os

    os._exit(3)


def test_wrong_values_refusals_and_deaths_are_no_support(monkeypatch):
    few = {name: backend_support._OPERATIONS[name] for name in ("send", "barrier")}
    monkeypatch.setattr(backend_support, "_OPERATIONS", few)
    monkeypatch.setattr(backend_support, "_try_operations", with_operations)
    support = measured_support("gloo", "CPU")
    assert support["send"] == "✓" and support["barrier"].startswith("X")


def with_operations(device, names):
    rank = dist.get_rank()
    backend_support._OPERATIONS = {
        "send": backend_support._OPERATIONS["send"],
        "barrier": (deadly if rank else wrong, [1], [2]),
    }
    return _try(device, names)


_try = backend_support._try_operations


def test_each_rank_reports_wrong_values_and_errors(monkeypatch):
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    operations = {"wrong": (wrong, [1.0], [2.0]), "refused": (unsupported, [1.0], [2.0])}
    monkeypatch.setattr(backend_support, "_OPERATIONS", operations)
    assert _try("CPU", ["wrong", "refused"]) == ["X wrong values: [2.0]", "X not supported"]


def test_the_table_has_both_columns_and_gloo_supports_every_operation():
    table = support_table()
    assert list(table.index[:4]) == ["send", "recv", "broadcast", "all_reduce"] and len(table) == 11
    assert list(table["nccl", "GPU", "slides"][:9]) == list("XX✓✓✓✓XX✓")
    assert set(table["gloo", "CPU", "here"]) == {"✓"}
    assert set(table["mpi", "GPU", "slides"][:9]) == {"?"}

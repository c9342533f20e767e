"""Ranks that do not do the same: a named error within seconds, nobody left running."""

import sys
from datetime import timedelta

import cloudpickle
import torch
import torch.distributed as dist

from course_lib import distributed as ours
from course_lib.distributed import CollectiveMismatchError, check_agreement, launch

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def mismatched():
    """What each rank is told in cases where the ranks differ; after each they go on together."""
    rank = dist.get_rank()
    last = dist.get_world_size() - 1
    cases = [
        lambda: ours.linear_broadcast(torch.zeros(4), 0) if rank else ours.ring_all_reduce(torch.zeros(4)),
        lambda: ours.ring_all_reduce(torch.zeros(5 if rank == last else 4)),
        lambda: ours.ring_all_reduce(torch.zeros(4, dtype=torch.float64 if rank == last else torch.float32)),
        lambda: ours.linear_reduce(torch.zeros(2, 3 if rank else 2), 0),
        lambda: ours.linear_reduce(torch.zeros(4), rank % 2),
        lambda: ours.linear_broadcast(torch.zeros(4), rank % 2),
        lambda: ours.whole_tensor_all_reduce(torch.zeros(4 + rank)),
    ]
    told = []
    for case in cases:
        try:
            case()
            told.append("nothing")
        except CollectiveMismatchError as error:
            told.append(str(error))
    total = torch.ones(3, dtype=torch.float64)
    ours.ring_all_reduce(total)
    keys = dist.distributed_c10d._get_default_group().get_group_store().num_keys()
    for _ in range(20):
        ours.ring_all_reduce(total)
    grown = dist.distributed_c10d._get_default_group().get_group_store().num_keys() - keys
    return told, total.tolist(), grown


def test_every_rank_is_told_who_called_what():
    results = launch(mismatched, 3, timeout=600, backend="gloo", threads=1)
    assert len({tuple(told) for told, _, _ in results}) == 1  # all say the same
    told, total, _ = results[0]
    words = [
        "rank 0 is in ring_all_reduce(float32 of shape (4,)), rank 1 in linear_broadcast(float32 of shape (4,), src=0)",
        "rank 2 in ring_all_reduce(float32 of shape (5,))",
        "rank 2 in ring_all_reduce(float64 of shape (4,))",
        "rank 1 in linear_reduce(float32 of shape (2, 3), dst=0)",
        "rank 1 in linear_reduce(float32 of shape (4,), dst=1)",
        "rank 1 in linear_broadcast(float32 of shape (4,), src=1)",
        "rank 1 in whole_tensor_all_reduce(float32 of shape (5,))",
    ]
    for text, expected in zip(told, words, strict=True):
        assert expected in text and "\n" not in text
    assert total == [3.0**21] * 3  # and afterwards they sum again
    assert max(grown for _, _, grown in results) <= 3  # the store does not fill up


def one_stays_away():
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:  # it calls nothing before the others have given up
        store.wait(["given up 0", "given up 2"], timedelta(seconds=250))
        return None
    try:
        check_agreement("ring_all_reduce", torch.zeros(2), timeout=0.5)
    except CollectiveMismatchError as error:
        return str(error)
    finally:
        store.set(f"given up {dist.get_rank()}", "")


def test_a_rank_that_makes_no_call_is_named_in_time():
    first, _, third = launch(one_stays_away, 3, timeout=300, backend="gloo", threads=1)
    for text in (first, third):
        assert "rank 1 called nothing within 0.5 s" in text and "ring_all_reduce(float32 of shape (2,))" in text

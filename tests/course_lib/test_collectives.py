"""Collectives built from messages: values as torch.distributed's own, bytes and rounds as the closed forms say."""

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from gloo_ranks import error_of, on_ranks
from torch.distributed import distributed_c10d

from course_lib import distributed as ours
from course_lib.distributed import trace_messages
from course_lib.distributed.messages.message_rounds import message_rounds
from course_lib.metrics.communication_cost import ALL_REDUCE_COSTS

DTYPES = (torch.float32, torch.float64, torch.int64, torch.bfloat16)


def lengths(size):
    return sorted({0, 1, max(0, size - 1), size, 10_007})


def numbers(rank, length, dtype):
    """Small whole numbers: their sums are exact in every dtype, in whatever order they are added."""
    return ((torch.arange(length) * (rank + 3) + rank) % 11 - 5).to(dtype)


def all_cases(length, dtype, root):
    """Name → (what ours leaves, what torch.distributed's leaves), both as lists of tensors, and ours as a function."""
    rank = dist.get_rank()
    mine = numbers(rank, length, dtype)

    def in_place(function, *arguments):
        tensor = mine.clone()
        return [tensor], lambda: function(tensor, *arguments)

    def theirs(function, *arguments):
        tensor = mine.clone()
        function(tensor, *arguments)
        return [tensor]

    everybody = theirs(dist.all_reduce)
    total = theirs(dist.reduce, root)
    yield "whole_tensor_all_reduce", *in_place(ours.whole_tensor_all_reduce), everybody
    yield "ring_all_reduce", *in_place(ours.ring_all_reduce), everybody
    yield "linear_broadcast", *in_place(ours.linear_broadcast, root), theirs(dist.broadcast, root)
    # PyTorch leaves other ranks' tensors undefined, ours as they were.
    yield "linear_reduce", *in_place(ours.linear_reduce, root), total if rank == root else [mine]


def compare(dtypes):
    rank, size = dist.get_rank(), dist.get_world_size()
    rows = []
    for dtype in dtypes:
        for length in lengths(size):
            for name, left, run, expected in all_cases(length, dtype, root=size // 2):
                with trace_messages() as trace:
                    run()
                equal = all(torch.equal(a, b) for a, b in zip(left, expected, strict=True))
                rows.append((name, dtype.itemsize, length, equal, trace))
            assert dist.get_rank() == rank
    return rows


def bytes_sent(name, rank, size, length):
    """Elements that a rank sends; None where the closed form is not one rank's but all ranks'."""
    root = size // 2
    return {
        "whole_tensor_all_reduce": (size - 1) * length,
        "linear_broadcast": (size - 1) * length if rank == root else 0,
        "linear_reduce": 0 if rank == root else length,
    }.get(name)


ROUNDS = {
    "ring_all_reduce": lambda n: ALL_REDUCE_COSTS["ring"](1, n)[0],
    "linear_broadcast": lambda n: ALL_REDUCE_COSTS["parameter server"](1, n)[0] / 2,
    "linear_reduce": lambda n: ALL_REDUCE_COSTS["parameter server"](1, n)[0] / 2,
    "whole_tensor_all_reduce": lambda n: n - 1,
}


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_values_bytes_and_rounds(size):
    results = on_ranks(compare, size, DTYPES)
    cases = list(zip(*results, strict=True))
    assert len(cases) == len(DTYPES) * len(lengths(size)) * 4
    for case in cases:
        name, itemsize, length, _, _ = case[0]
        label = f"{name} of {length} elements of {itemsize} bytes on {size} ranks"
        assert [equal for _, _, _, equal, _ in case] == [True] * size, label
        traces = [trace for *_, trace in case]
        sent = [trace.bytes_sent for trace in traces]
        assert sum(sent) == sum(trace.bytes_received for trace in traces), label
        for rank in range(size):
            if (expected := bytes_sent(name, rank, size, length)) is not None:
                assert sent[rank] == expected * itemsize, label
            assert not traces[rank].collectives, label  # no call of the backend's own
        if name == "ring_all_reduce":
            assert sum(sent) == 2 * (size - 1) * length * itemsize, label
            # Chunks differ by at most one element, and two of them are not sent.
            assert all(abs(one / itemsize - 2 * (size - 1) / size * length) < 2 for one in sent), label
            if length == size:
                assert sent == [2 * (size - 1) * itemsize] * size, label
        if name in ROUNDS and length == 10_007 and size > 1:
            assert max(message.round for message in message_rounds(traces)) == ROUNDS[name](size), label


def odd_layouts():
    """Names of the layouts whose values are wrong, and the errors of tensors that cannot be sent."""
    rank = dist.get_rank()
    base = torch.arange(120.0).reshape(2, 3, 4, 5) + rank
    made = {
        "2-D": base.reshape(10, 12).clone(),
        "transposed": base.reshape(10, 12).t(),
        "channels last": base.clone(memory_format=torch.channels_last),
        "every second": base.reshape(-1).clone()[::2],
        "a number": torch.tensor(2.5 + rank),
        "expanded then copied": base[:1].expand(4, 3, 4, 5).contiguous(),
        "a parameter": torch.nn.Parameter(base.reshape(12, 10).clone()),
    }
    wrong = []
    for name, tensor in made.items():
        expected = tensor.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(expected)
        strides, address = tensor.stride(), tensor.data_ptr()
        ours.ring_all_reduce(tensor)
        if not torch.equal(tensor.detach(), expected) or (tensor.stride(), tensor.data_ptr()) != (strides, address):
            wrong.append(name)
        first = tensor.detach().clone()
        ours.linear_broadcast(tensor.detach().add_(rank), 1)
        if not torch.equal(tensor.detach(), first + 1):
            wrong.append(f"{name}, broadcast")
    # Between the elements of a strided tensor lie somebody else's.
    whole = torch.zeros(10)
    ours.ring_all_reduce(whole[::2].fill_(1))
    if whole.tolist() != [dist.get_world_size(), 0.0] * 5:
        wrong.append("neighbours in memory")
    refused = (torch.eye(3).to_sparse(), [1.0])
    return wrong, [error_of(lambda t=t: ours.ring_all_reduce(t, check=False), kind=TypeError) for t in refused]


def test_any_layout_is_summed_in_place_and_sparse_ones_are_refused():
    for wrong, errors in on_ranks(odd_layouts, 3):
        assert wrong == [] and "sparse" in errors[0] and "list" in errors[1]


def wrong_roots():
    return [
        error_of(call, torch.zeros(1), root) for call in (ours.linear_broadcast, ours.linear_reduce) for root in (2, -1)
    ]


def test_a_root_that_does_not_exist_is_refused_in_one_line():
    expected = [f"{root} must be in 0…1, got {number}" for root in ("src", "dst") for number in (2, -1)]
    for errors in on_ranks(wrong_roots, 2):
        assert all(words in error for error, words in zip(errors, expected, strict=True)), errors


# The trace


def traced_everything():
    rank = dist.get_rank()
    peer = 1 - rank
    ten, five = torch.arange(10.0), torch.zeros(5, dtype=torch.int64)
    isend, irecv = distributed_c10d.isend, distributed_c10d.irecv  # names taken before the trace is open
    before = dict(vars(dist.ProcessGroup))
    with trace_messages() as outer:
        with trace_messages():  # as empty as the outer one when it ends
            pass
        if rank == 0:
            dist.send(ten, 1)
            dist.recv(five, 1, tag=7)
        else:
            dist.recv(ten, src=None)
            dist.send(five, 0, tag=7)
        with trace_messages() as inner:
            works = dist.batch_isend_irecv(
                [dist.P2POp(dist.isend, ten, peer), dist.P2POp(dist.irecv, torch.zeros(10), peer)]
            )
            works += [isend(five, peer), irecv(five.clone(), peer)]
            for work in works:
                work.wait()
        dist.all_reduce(ten)
        dist.all_gather([torch.zeros(5, dtype=torch.int64) for _ in range(2)], five)
        dist.broadcast(ten, 0, async_op=True).wait()
        dist.barrier()
        forgotten = isend(five, peer)
        irecv(five.clone(), peer).wait()
    forgotten.wait()
    dist.send(ten, peer) if rank == 0 else dist.recv(ten, peer)  # after the trace
    dist.broadcast(ten, 0)
    return outer, inner, dict(vars(dist.ProcessGroup)) == before


def test_the_trace_counts_every_message_however_it_was_sent():
    for rank, (outer, inner, restored) in enumerate(on_ranks(traced_everything, 2)):
        assert (outer.rank, outer.world_size) == (rank, 2)
        p2p = [(m.kind, m.peer, m.nbytes, m.tag) for m in outer.messages if m.kind in ("send", "recv")]
        first = [("send", 1, 40, 0), ("recv", 1, 40, 7)] if rank == 0 else [("recv", 0, 40, 0), ("send", 0, 40, 7)]
        peer = 1 - rank
        exchanged = [("send", peer, 40, 0), ("recv", peer, 40, 0)] * 2
        assert p2p == [*first, *exchanged, *exchanged[:2]]
        assert [(m.kind, m.peer, m.nbytes) for m in inner.messages] == [m[:3] for m in exchanged]
        assert (outer.bytes_sent, outer.bytes_received, outer.messages_sent) == (160, 160, 4)
        assert [(m.kind, m.nbytes) for m in outer.collectives] == [
            ("all_reduce", 40), ("all_gather", 40), ("broadcast", 40), ("barrier", 0)
        ]  # fmt: skip
        for message in outer.messages:
            assert message.end >= message.start or message.end != message.end
        assert restored
        assert len(cloudpickle.dumps(inner)) < 2000
        assert "4 messages sent, 160 bytes" in repr(outer)


def test_a_trace_needs_a_process_group():
    with pytest.raises(RuntimeError, match="inside the worker"), trace_messages():
        pass

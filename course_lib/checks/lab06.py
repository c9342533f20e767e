"""Checks of lab 06. What is built from messages runs on a few ranks, by `launch`, with its messages traced."""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from course_lib.checks.registry import CheckFailed
from course_lib.checks.run_evidence import check_run
from course_lib.communication_cost import ALL_REDUCE_COSTS, Link, bus_bandwidth
from course_lib.distributed import LaunchTimeoutError, MessageTrace, RankFailedError, launch, trace_messages
from course_lib.distributed.message_rounds import message_rounds

__all__ = ["CHECKS"]

TIMEOUT = 12.0


def on_ranks(ranks: int, worker: Callable[..., Any], *args: Any) -> list[Any]:
    told = io.StringIO()
    try:
        with contextlib.redirect_stdout(told):
            return launch(worker, ranks, args, timeout=TIMEOUT, backend="gloo", threads=1)
    except LaunchTimeoutError as error:
        raise CheckFailed(
            f"on {ranks} ranks it hangs: every rank waits for a message, or for its own to be received. Where each "
            f"stood tells which.\n{error}"
        ) from None
    except RankFailedError as error:
        raise CheckFailed(f"on {ranks} ranks it raised.\n{error}") from None
    finally:  # what the student's function prints is worth reading; how many cores there are is not
        lines = [line for line in told.getvalue().splitlines() if not line.startswith("note: ")]
        print(*lines, sep="\n", end="\n" if lines else "")


def check_traces(traces: Sequence[MessageTrace]) -> None:
    for trace in traces:
        if trace.collectives:
            raise CheckFailed(
                f"rank {trace.rank} calls dist.{trace.collectives[0].kind}: build it from dist.send, dist.recv, "
                "dist.isend and dist.irecv"
            )


def _try_send_receive(send_receive: Callable[..., Any], length: int) -> dict[str, Any]:
    rank, size = dist.get_rank(), dist.get_world_size()
    outgoing, incoming = torch.full((length,), float(10 + rank)), torch.zeros(length)
    with trace_messages() as trace:
        send_receive(outgoing, (rank + 1) % size, incoming, (rank - 1) % size)
    return {"incoming": incoming, "kept": bool((outgoing == 10 + rank).all()), "trace": trace}


def send_receive(answer: Callable[..., Any]) -> None:
    _send_receive(answer, 2)
    try:
        _send_receive(answer, 3)
    except CheckFailed as error:
        raise CheckFailed(f"2 ranks can swap, where `to` and `source` are the same rank. But {error}") from None
    print("send_receive: 2 ranks swapped 400,000 bytes, 3 passed them on; no rank waits for ever")


def _send_receive(answer: Callable[..., Any], ranks: int) -> None:
    results = on_ranks(ranks, _try_send_receive, answer, 100_000)
    check_traces([result["trace"] for result in results])
    for rank, result in enumerate(results):
        if not result["kept"]:
            raise CheckFailed(
                f"rank {rank}'s outgoing tensor has changed: receive into `incoming`, and leave the other be"
            )
        source, to = (rank - 1) % ranks, (rank + 1) % ranks
        if to != source and bool((result["incoming"] == 10 + to).all()):
            raise CheckFailed(f"on rank {rank} it receives from `to`, rank {to}; receive from `source`, rank {source}")
        wrong = int((result["incoming"] != 10 + source).sum())
        if wrong:
            raise CheckFailed(
                f"rank {source} sent 100,000 times {10 + source}. On rank {rank} {wrong:,} places of `incoming` hold "
                "something else: was the receive waited for, and does it receive from `source`?"
            )
        if (sent := result["trace"].messages_sent) != 1:
            raise CheckFailed(f"rank {rank} sent {sent} messages where one is enough")


def _try_broadcast(broadcast: Callable[..., Any], src: int) -> tuple[list[float], MessageTrace]:
    tensor = torch.full((250,), float(dist.get_rank()))
    with trace_messages() as trace:
        broadcast(tensor, src)
    return sorted(set(tensor.tolist())), trace


def tree_broadcast(answer: Callable[..., Any]) -> None:
    for ranks, src in ((4, 0), (5, 2)):
        limit = math.ceil(math.log2(ranks))
        results = on_ranks(ranks, _try_broadcast, answer, src)
        for rank, (values, _) in enumerate(results):
            if values != [src]:
                raise CheckFailed(
                    f"with src={src} on {ranks} ranks, rank {rank} holds {values} where the root sent {float(src)}"
                    + (". Is everything counted from the root, (rank − src) mod N?" if src else "")
                )
        traces = [trace for _, trace in results]
        check_traces(traces)
        arrivals = [sum(m.kind == "recv" for m in trace.messages) for trace in traces]
        if arrivals != [int(rank != src) for rank in range(ranks)]:
            raise CheckFailed(
                f"with src={src} on {ranks} ranks, ranks 0…{ranks - 1} received {', '.join(map(str, arrivals))} messages; "
                "every rank but the root needs one"
            )
        rounds = _rounds(traces)
        if rounds > limit:
            sends = [trace.messages_sent for trace in traces]
            raise CheckFailed(
                f"with src={src} on {ranks} ranks it takes {rounds} rounds, a tree takes ⌈log₂ {ranks}⌉ = {limit}. Ranks "
                f"0…{ranks - 1} send {', '.join(map(str, sends))} messages: whoever has the tensor should help to "
                "spread it"
            )
    print("tree_broadcast: 4 ranks in 2 rounds, 5 in 3, also from a root that is not rank 0")


def _rounds(traces: Sequence[MessageTrace]) -> int:
    try:
        return max((message.round for message in message_rounds(traces)), default=0)
    except ValueError as error:
        raise CheckFailed(f"messages do not match: {error}") from None


LENGTHS = (3, 10_007, 2, 1, 0)  # on 3 ranks


@contextlib.contextmanager
def _values_sent() -> Iterator[set[float]]:
    """What the messages of a few numbers carry: what is wrong at the end does not show which half went wrong."""
    send, values = dist.ProcessGroup.send, set()

    def recorded(group: Any, tensors: list[torch.Tensor], *args: Any, **options: Any) -> Any:
        values.update(*(tensor.tolist() for tensor in tensors if tensor.dim() == 1 and len(tensor) <= 3))
        return send(group, tensors, *args, **options)

    dist.ProcessGroup.send = recorded
    try:
        yield values
    finally:
        dist.ProcessGroup.send = send


def _try_ring(ring: Callable[..., Any]) -> list[tuple[int, Any, Any, MessageTrace, set[float]]]:
    rank = dist.get_rank()
    found = []
    for length in LENGTHS:
        tensor = 10.0**rank * torch.ones(length)
        with trace_messages() as trace, _values_sent() as sent:
            returned = ring(tensor)
        found.append((length, tensor, returned, trace, sent))
    return found


def ring_all_reduce(answer: Callable[..., Any]) -> None:
    ranks = 3
    results = on_ranks(ranks, _try_ring, answer)
    for case, length in enumerate(LENGTHS):
        for rank, result in enumerate(results):
            _, tensor, returned, _, _ = result[case]
            if bool((tensor == 111).all()):
                continue
            if isinstance(returned, torch.Tensor) and bool((returned == 111).all()):
                raise CheckFailed("it returns the sum, but works in place: the tensor that it is given becomes the sum")
            wrong = tensor[tensor != 111]
            kept = all(bool((other[case][1] == 10.0**peer).all()) for peer, other in enumerate(results))
            carried = set().union(*(other[case][4] for other in results))
            raise CheckFailed(
                f"3 ranks bring 1, 10 and 100 in each of {length:,} places; the sum is 111. On rank {rank} "
                f"{len(wrong):,} places hold something else, the first of them {wrong[0].item():g}. {_guess(length, wrong, kept, carried)}"
            )
    traces = [result[1][3] for result in results]
    check_traces(traces)
    size, sent = 4 * LENGTHS[1], [trace.bytes_sent for trace in traces]
    ideal = 2 * (ranks - 1) / ranks * size
    told = f"values: correct on {ranks} ranks. bytes: ranks 0…2 sent {', '.join(f'{one:,}' for one in sent)}, a ring sends {ideal:,.0f} (2·(3−1)/3·4·{LENGTHS[1]:,})."
    if max(sent) > ideal + 16:
        if min(sent) == max(sent) == (ranks - 1) * size or min(sent) == max(sent) == 2 * (ranks - 1) * size:
            reason = "Your ranks forward the whole tensor in every round; a ring forwards one chunk."
        elif max(sent) > 1.5 * min(sent):
            reason = (
                f"Rank {sent.index(max(sent))} sends for the others: its link is the bottleneck that a ring avoids."
            )
        else:
            reason = "Which rounds send more than one chunk of N?"
        raise CheckFailed(f"{told}\n{reason}")
    if min(sent) < ideal - 16:
        raise CheckFailed(f"{told}\nFewer than possible: what does not pass through send and receive is not counted.")
    steps = {(m.peer - t.rank) % ranks for t in traces for m in t.messages if m.kind == "send"}
    if len(steps) > 1:
        raise CheckFailed("ranks send to both others; on a ring each sends to its right neighbour only, rank + 1")
    rounds = _rounds(traces)
    print(
        f"ring_all_reduce: correct for {', '.join(f'{n:,}' for n in LENGTHS)} elements; {max(sent):,} bytes a rank in {rounds} rounds"
    )


def _guess(length: int, wrong: torch.Tensor, kept: bool, carried: set[float]) -> str:
    if length % 3:
        return f"{length:,} does not divide by 3: do the chunks together cover the tensor, and does the buffer fit each of them?"
    values = set(wrong.tolist())
    if kept and carried:
        return (
            "Messages were sent, but the tensor is unchanged on every rank: are your chunks copies? A slice, "
            "tensor[a:b], is a view of the tensor; clone(), torch.cat and an index that is a list make a copy."
        )
    if carried and carried <= {1.0, 10.0, 100.0}:
        return (
            "No message carried a sum, only one rank's numbers: in the reduce-scatter add what arrives to your chunk. "
            "copy_() or a receive into the chunk overwrites it; chunk = chunk + arriving leaves it as it is."
        )
    if values <= {1.0, 10.0, 100.0, 11.0, 101.0, 110.0}:
        return "That is a sum over some ranks only: which chunk does a rank hold when the reduce-scatter ends, and which does it pass on first?"
    if min(values) > 111:
        return "That counts some rank twice: in the second half chunks are overwritten, no longer added."
    return "Print the tensor on each rank after each round."


def _links() -> list[tuple[list[int], list[float], Link]]:
    sizes = [2**k for k in range(10, 25)]
    wobble = [1.06, 0.95, 0.94, 1.05, 1.01, 0.96, 1.05, 0.95, 1.02, 1.04, 0.96, 1.03, 1.05, 1.07, 0.93]
    links = [Link(40e-6, 1 / 2e9), Link(5e-6, 1 / 2e10)]
    return [(sizes, [link.seconds(1, n) * w for n, w in zip(sizes, wobble, strict=True)], link) for link in links] + [
        (sizes, [links[0].seconds(1, n) for n in sizes], links[0])
    ]


def fit(answer: Callable[..., Any]) -> None:
    for sizes, seconds, link in reversed(_links()):
        returned = answer(list(sizes), list(seconds))
        if not isinstance(returned, tuple | list) or len(returned) != 2:
            raise CheckFailed(f"return the pair (alpha, beta); yours returned {_shape(returned)}")
        alpha, beta = (float(part) for part in returned)
        noisy = seconds[0] != link.seconds(1, sizes[0])
        told = f"times of a link with α = {1e6 * link.alpha:g} µs and 1/β = {link.bandwidth / 1e9:g} GB/s{', each off by up to 7 %' if noisy else ''}"
        if math.isclose(alpha, link.beta, rel_tol=0.2):
            raise CheckFailed("(alpha, beta), in this order: the first is the latency in seconds")
        by_two = (seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0])
        if noisy and math.isclose(beta, by_two, rel_tol=1e-3):
            raise CheckFailed(f"{told}: yours is the line through two of them; let all of them count")
        if abs(alpha / link.alpha - 1) > (0.04 if noisy else 0.001):
            hint = (
                "The long messages decide your fit, and 7 % of 16 MiB is more than any latency: divide each equation "
                "α + βn = t by its t first" if noisy else "Two columns, 1 and n; the right-hand side is t"
            )  # fmt: skip
            raise CheckFailed(f"{told}: your α is {1e6 * alpha:.4g} µs. {hint}")
        if abs(beta / link.beta - 1) > (0.04 if noisy else 0.001):
            raise CheckFailed(f"{told}: your β gives {1 / beta / 1e9 if beta else math.inf:.4g} GB/s")
    print("fit_alpha_beta: α to 4 % and β to 4 % from times that are off by 7 %")


def cost(answer: tuple[Callable[..., Any], Callable[..., Any]]) -> None:
    seconds, bandwidth = answer
    link = Link(50e-6, 1e-9)
    for ranks in (2, 4, 6):
        for algorithm, mistake in (
            ("ring", "2(N−1) messages follow one another, each of n/N bytes"),
            ("tree", "⌈log₂ N⌉ messages up and ⌈log₂ N⌉ down, each of n bytes; 6 ranks need 3 levels"),
        ):
            expected = link.seconds(*ALL_REDUCE_COSTS[algorithm](1e6, ranks))
            found = seconds(algorithm, 1e6, ranks, link.alpha, link.beta)
            if not isinstance(found, int | float) or not math.isclose(found, expected, rel_tol=1e-6):
                raise CheckFailed(
                    f"1 MB, N = {ranks}, α = 50 µs, β = 1 ns: the {algorithm} takes {1000 * expected:.4g} ms, yours says "
                    f"{_milliseconds(found)}: {mistake}"
                )
    for ranks in (2, 8):
        expected, found = bus_bandwidth(1e9, 0.5, ranks), bandwidth(1e9, 0.5, ranks)
        if not isinstance(found, int | float) or not math.isclose(found, expected, rel_tol=1e-6):
            raise CheckFailed(
                f"1 GB in 0.5 s on {ranks} ranks: every rank sends 2({ranks}−1)/{ranks} GB, {expected / 1e9:g} GB/s; yours "
                f"says {found!r}"
            )
    print("cost: ring, tree and bus bandwidth agree with the formulas on 2, 4, 6 and 8 ranks")


def _milliseconds(value: Any) -> str:
    return f"{1000 * value:.4g} ms" if isinstance(value, int | float) else repr(value)


def _shape(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return "None: is there a return?" if value is None else repr(value)[:80]


CHECKS = {
    "send-receive": send_receive,
    "tree-broadcast": tree_broadcast,
    "ring": ring_all_reduce,
    "fit": fit,
    "cost": cost,
    "run": lambda folder: check_run(folder, "06_communication"),
}

"""A model cut into stages, one on each rank, which micro-batches pass through.

With one batch only one stage works at a time. Cut into m micro-batches, p stages work together once the pipeline is full.
While it fills and drains each rank waits for p − 1 of m + p − 1 turns: the bubble (Huang et al. 2019, "GPipe").

GPipe runs all forwards, then all backwards, and keeps m micro-batches' activations. 1F1B (Narayanan et al. 2019,
"PipeDream"; 2021, "Efficient large-scale language model training") starts each backward as soon as it can. It has the same
bubble, and keeps at most p micro-batches' activations.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

__all__ = ["SCHEDULES", "Action", "Pipeline", "Work", "all_forward_all_backward", "bubble", "one_forward_one_backward"]

Action = tuple[str, int]
"""``("forward" or "backward", micro-batch)``."""


def all_forward_all_backward(stage: int, stages: int, micro_batches: int) -> list[Action]:
    """GPipe's order, the same for every stage."""
    return [(kind, index) for kind in ("forward", "backward") for index in range(micro_batches)]


def one_forward_one_backward(stage: int, stages: int, micro_batches: int) -> list[Action]:
    """1F1B's order: as many forwards as there are stages after this one, then in turn, then the remaining backwards."""
    ahead = min(stages - 1 - stage, micro_batches)
    order = [("forward", index) for index in range(ahead)]
    for index in range(ahead, micro_batches):
        order += [("forward", index), ("backward", index - ahead)]
    return order + [("backward", index) for index in range(micro_batches - ahead, micro_batches)]


SCHEDULES: dict[str, Callable[[int, int, int], list[Action]]] = {
    "gpipe": all_forward_all_backward,
    "1f1b": one_forward_one_backward,
}


@dataclass(frozen=True)
class Work:
    """A forward or a backward of one micro-batch on one stage, without waiting for messages.

    Attributes
    ----------
    kind : str
        ``forward`` or ``backward``.
    micro_batch : int
    start, end : float
        Seconds on the machine's monotonic clock, the same for all processes of a machine.
    """

    kind: str
    micro_batch: int
    start: float
    end: float


class Pipeline:
    """This rank's stage of a model, and the messages to its neighbours.

    Parameters
    ----------
    stages : sequence of nn.Module
        All stages in order, one for each rank of the group, on this rank's device. Each takes and returns one tensor, whose
        first dimension is the batch. The rank keeps its own and drops the others.
    schedule : {"gpipe", "1f1b"}
    group : dist.ProcessGroup or None
        The ranks of the pipeline, in order; None means all. Every rank of the job must build the pipeline at the same
        place, because it makes a second group for the messages of backward. (On one NCCL communicator a send of forward
        would wait for a receive that comes after a message of backward.)

    Attributes
    ----------
    stage : nn.Module
        This rank's; build the optimiser from its parameters.
    timeline : list of Work
        Of the last step.
    most_in_flight : int
        Micro-batches whose activations were kept at the same time in the last step, at most.

    Raises
    ------
    ValueError
        Not one stage for each rank, a stage without layers, or an unknown schedule.
    """

    def __init__(
        self, stages: Sequence[nn.Module], schedule: str = "1f1b", group: dist.ProcessGroup | None = None
    ) -> None:
        ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        if len(stages) != len(ranks):
            raise ValueError(f"{len(stages)} stages for {len(ranks)} ranks; give one stage for each rank")
        for place, stage in enumerate(stages):
            if stage is None or (isinstance(stage, nn.Sequential) and not len(stage)):
                raise ValueError(
                    f"stage {place} of {len(stages)} has no layers; give each rank a layer, or use fewer ranks"
                )
        if schedule not in SCHEDULES:
            raise ValueError(f"schedule must be {' or '.join(SCHEDULES)}, got {schedule!r}")
        self.place, self.stages = ranks.index(dist.get_rank()), len(ranks)
        self.stage = stages[self.place]
        self._schedule, self._group = SCHEDULES[schedule], group
        self._backward_group = dist.new_group(ranks, use_local_synchronization=True)
        self._before = ranks[self.place - 1] if self.place else None
        self._after = ranks[self.place + 1] if self.place + 1 < len(ranks) else None
        self._last = ranks[-1]
        self.timeline: list[Work] = []
        self.most_in_flight = 0

    def step(
        self,
        inputs: torch.Tensor,
        targets: torch.Tensor,
        loss_fn: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        micro_batches: int,
    ) -> float:
        """Forward and backward of one batch. The stage's gradients grow by those of the batch's mean loss.

        Parameters
        ----------
        inputs : Tensor (B, …)
            Read by the first stage; the others look at its first dimension only.
        targets : Tensor (B, …)
            Read by the last stage.
        loss_fn : callable
            The mean loss over a micro-batch.
        micro_batches : int
            It must divide B.

        Returns
        -------
        float
            The batch's mean loss, on every rank.

        Raises
        ------
        ValueError
            `micro_batches` does not divide the batch.
        """
        return self._run(
            inputs, targets, loss_fn, self._schedule(self.place, self.stages, micro_batches), micro_batches
        )

    @torch.no_grad()
    def evaluate(
        self,
        inputs: torch.Tensor,
        targets: torch.Tensor,
        loss_fn: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        micro_batches: int = 1,
    ) -> float:
        """The mean loss of one batch, on every rank, without gradients. Parameters and errors as for `step`."""
        return self._run(
            inputs, targets, loss_fn, [("forward", index) for index in range(micro_batches)], micro_batches
        )

    def _run(self, inputs, targets, loss_fn, actions: list[Action], micro_batches: int) -> float:
        if micro_batches < 1 or len(inputs) % micro_batches:
            raise ValueError(
                f"{micro_batches} micro-batches do not divide a batch of {len(inputs)}; choose a divisor of the batch"
            )
        self._inputs, self._targets = inputs.chunk(micro_batches), targets.chunk(micro_batches)
        self._loss_fn, self._micro_batches = loss_fn, micro_batches
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._sending: list[tuple[dist.Work, torch.Tensor]] = []
        self._shape: tuple[int, ...] | None = None
        self._total = torch.zeros((), device=inputs.device)
        self.timeline, self.most_in_flight = [], 0
        for kind, index in actions:
            self._forward(index) if kind == "forward" else self._backward(index)
            self.most_in_flight = max(self.most_in_flight, len(self._kept))
        for work, _ in self._sending:
            work.wait()
        dist.broadcast(self._total, src=self._last, group=self._group)
        return self._total.item()

    def _forward(self, index: int) -> None:
        arrived = self._inputs[index] if self._before is None else self._receive_activations()
        with self._timed("forward", index):
            output = self.stage(arrived)
            if self._after is None:
                output = self._loss_fn(output, self._targets[index]) / self._micro_batches
                self._total += output.detach()
        if self._after is not None:
            self._send_activations(output.detach(), first=index == 0)
        if torch.is_grad_enabled():
            self._kept[index] = arrived, output

    def _backward(self, index: int) -> None:
        arrived, output = self._kept[index]
        gradient = None
        if self._after is not None:
            gradient = torch.empty_like(output, memory_format=torch.contiguous_format)
            dist.recv(gradient, src=self._after, group=self._backward_group)
        with self._timed("backward", index):
            output.backward(gradient)
        del self._kept[index]
        if self._before is not None:
            self._send(arrived.grad, self._before, self._backward_group)

    def _send_activations(self, output: torch.Tensor, first: bool) -> None:
        if first:  # the next stage does not know the shape yet
            shape = torch.zeros(8, dtype=torch.int64)
            shape[: output.dim() + 1] = torch.tensor([output.dim(), *output.shape])
            self._send(shape.to(output.device), self._after, self._group)
        self._send(output, self._after, self._group)

    def _receive_activations(self) -> torch.Tensor:
        reference = next(self.stage.parameters(), self._inputs[0])
        if self._shape is None:
            shape = torch.zeros(8, dtype=torch.int64, device=reference.device)
            dist.recv(shape, src=self._before, group=self._group)
            dims, *sizes = shape.tolist()
            self._shape = tuple(sizes[:dims])
        arrived = torch.empty(self._shape, dtype=reference.dtype, device=reference.device)
        dist.recv(arrived, src=self._before, group=self._group)
        return arrived.requires_grad_(torch.is_grad_enabled())

    def _send(self, tensor: torch.Tensor, to: int, group: dist.ProcessGroup | None) -> None:
        tensor = tensor.contiguous()
        self._sending.append((dist.isend(tensor, dst=to, group=group), tensor))

    def _timed(self, kind: str, index: int) -> _Timer:
        return _Timer(self.timeline, kind, index, self._inputs[0].device)


class _Timer:
    """Adds the time of its block to a timeline."""

    def __init__(self, timeline: list[Work], kind: str, micro_batch: int, device: torch.device) -> None:
        self._timeline, self._kind, self._micro_batch, self._device = timeline, kind, micro_batch, device

    def __enter__(self) -> None:
        self._start = self._now()

    def __exit__(self, *_: object) -> None:
        self._timeline.append(Work(self._kind, self._micro_batch, self._start, self._now()))

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # GPU work is asynchronous
        return time.monotonic()


def bubble(timelines: Sequence[Sequence[Work]]) -> float:
    """The share of the ranks' time in which they waited, from the first start to the last end.

    Parameters
    ----------
    timelines : sequence of sequence of Work
        One per rank. With equal stages and free messages the share is (p − 1)/(m + p − 1).
    """
    every = [work for timeline in timelines for work in timeline]
    span = max(work.end for work in every) - min(work.start for work in every)
    return 1 - sum(work.end - work.start for work in every) / (span * len(timelines))

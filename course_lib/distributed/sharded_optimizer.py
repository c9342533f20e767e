"""An optimiser whose state is divided among the ranks: ZeRO's first stage (Rajbhandari et al. 2020, section 5.1).

Every rank has all parameters and all averaged gradients. Adam's two moments are needed for a parameter's step, and only
there; so each parameter has one owner, which alone keeps its state, steps it, and sends the result to the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist

from course_lib.distributed.data_parallel.replicas import broadcast_tensors

__all__ = ["ShardedOptimizer"]


class ShardedOptimizer(torch.optim.Optimizer):
    """`optimizer_class` on all parameters, each rank with the state of its own ones.

    Use it like any optimiser, on every rank, after the gradients have been averaged (by DistributedDataParallel or one of
    this library's wrappers). A learning-rate schedule changes ``param_groups`` as always. After `step` all ranks have
    the parameters that one process would have: the owner of each has computed them.

    Parameters
    ----------
    params : iterable of nn.Parameter, or of dict
        As for `optimizer_class`; the same on every rank, in the same order.
    optimizer_class : type
        A `torch.optim.Optimizer` that steps each parameter by itself. Whole parameters are assigned, so layer-wise and
        matrix optimisers (LAMB, Muon) work as well.
    **kwargs
        Its options.

    Raises
    ------
    RuntimeError
        No process group is up.
    ValueError
        The ranks gave different parameters.

    Notes
    -----
    The largest parameter goes first, each to the rank with the fewest numbers so far. For P parameters of b bytes, a step
    sends P·b·(N−1)/N bytes per rank on average, the same as the second half of a ring all-reduce.
    `torch.distributed.optim.ZeroRedundancyOptimizer` does the same.
    """

    def __init__(self, params: Iterable, optimizer_class: type[torch.optim.Optimizer], **kwargs: Any) -> None:
        if not dist.is_initialized():
            raise RuntimeError(
                "ShardedOptimizer needs a process group: build it in a worker that launch() runs, "
                "or after torch.distributed.init_process_group()"
            )
        self._make = lambda group: optimizer_class([group], **kwargs)
        self._own: torch.optim.Optimizer | None = None
        self._load = [0] * dist.get_world_size()
        self.owner: dict[torch.nn.Parameter, int] = {}
        super().__init__(params, dict(kwargs))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Assign the group's parameters to owners. Every rank must call it."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        _check_same_shapes(group["params"])
        for parameter in sorted(group["params"], key=torch.Tensor.numel, reverse=True):
            owner = min(range(len(self._load)), key=self._load.__getitem__)
            self.owner[parameter] = owner
            self._load[owner] += parameter.numel()
        rank = dist.get_rank()
        mine = {name: value for name, value in group.items() if name != "param_names"}
        mine["params"] = [parameter for parameter in group["params"] if self.owner[parameter] == rank]
        if self._own is None:
            self._own = self._make(mine)
            self.state, self.defaults = self._own.state, self._own.defaults
        else:
            self._own.add_param_group(mine)
        options = {name: value for name, value in self._own.param_groups[-1].items() if name != "params"}
        group.update(options)  # those that the caller left to optimizer_class

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Step this rank's own parameters, then receive the others'. Every rank must call it."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for own, group in zip(self._own.param_groups, self.param_groups, strict=True):
            own.update({name: value for name, value in group.items() if name != "params"})
        self._own.step()
        for rank in range(dist.get_world_size()):
            broadcast_tensors([p for p, owner in self.owner.items() if owner == rank and p.requires_grad], src=rank)
        return loss

    def state_dict(self) -> dict[str, Any]:
        """The state of this rank's own parameters, under the numbers that a whole optimiser gives them.

        ``shard`` says which rank of how many wrote it.
        """
        numbers = self._numbers()
        mine = {numbers[parameter]: state for parameter, state in self.state.items()}
        shard = (dist.get_rank(), dist.get_world_size())
        return {"state": mine, "param_groups": self._groups_by_number(numbers), "shard": shard}

    def full_state_dict(self, to: int = 0) -> dict[str, Any] | None:
        """On rank `to` the state dict that `optimizer_class` would have on one process; None on the others.

        Every rank must call it. What it returns can be loaded by one process, or by any number of ranks.
        """
        mine = self.state_dict()
        parts = [None] * dist.get_world_size() if dist.get_rank() == to else None
        dist.gather_object(mine["state"], parts, dst=to)
        if parts is None:
            return None
        state = {number: entry for part in parts for number, entry in part.items()}
        return {"state": dict(sorted(state.items())), "param_groups": mine["param_groups"]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take this rank's part of a whole state, as `full_state_dict` or a plain optimiser wrote it.

        What `state_dict` wrote on this rank, of as many ranks, will do as well.

        Raises
        ------
        ValueError
            The state is another rank's part.
        """
        here = (dist.get_rank(), dist.get_world_size())
        if (shard := tuple(state_dict.get("shard", here))) != here:
            raise ValueError(
                f"this is the state of rank {shard[0]} of {shard[1]} alone, and this is rank {here[0]} of {here[1]}; "
                "save what full_state_dict() returns, not one rank's state_dict()"
            )
        numbers, state = self._numbers(), state_dict["state"]
        mine = [parameter for parameter, owner in self.owner.items() if owner == here[0]]
        for own, saved, group in zip(
            self._own.param_groups, state_dict["param_groups"], self.param_groups, strict=True
        ):
            options = {name: value for name, value in saved.items() if name != "params"}
            group.update(options)
            own.update(options)
        number_here = {
            parameter: index for index, parameter in enumerate(p for g in self._own.param_groups for p in g["params"])
        }
        self._own.load_state_dict(
            {
                "state": {number_here[p]: state[numbers[p]] for p in mine if numbers[p] in state},
                "param_groups": self._own.state_dict()["param_groups"],
            }
        )
        self.state = self._own.state

    def _numbers(self) -> dict[torch.nn.Parameter, int]:
        return {parameter: index for index, parameter in enumerate(p for g in self.param_groups for p in g["params"])}

    def _groups_by_number(self, numbers: dict[torch.nn.Parameter, int]) -> list[dict[str, Any]]:
        return [{**group, "params": [numbers[p] for p in group["params"]]} for group in self.param_groups]


def _check_same_shapes(parameters: list[torch.nn.Parameter]) -> None:
    mine = [f"{str(p.dtype).removeprefix('torch.')} {tuple(p.shape)}" for p in parameters]
    everyones: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyones, mine)
    for rank, theirs in enumerate(everyones):
        if theirs != everyones[0]:
            raise ValueError(
                f"rank {rank} gave other parameters than rank 0 ({len(theirs)} against {len(everyones[0])}, "
                "or another order); give every rank the parameters of the same model"
            )

"""Data parallelism with parameters, gradients and optimiser state divided among the ranks: ZeRO's third stage.

Rajbhandari et al. 2020, "ZeRO", section 5.3; PyTorch's name for it is fully sharded data parallel (Zhao et al. 2023).

The parameters of a block are one vector, cut into equal shards, one for each rank. Before a block computes, an all-gather
collects its vector; afterwards the vector is freed. Backward collects it again, and a reduce-scatter leaves each rank the
mean gradient of its shard. The optimiser sees only the shard, so its state is divided as well.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from course_lib.distributed.collectives.reduce_scatter import start_all_gather, start_reduce_scatter
from course_lib.distributed.data_parallel.replicas import broadcast_tensors, check_same_model

__all__ = ["ShardedDataParallel"]


class ShardedDataParallel(nn.Module):
    """A model of which each rank keeps one shard; `forward` is the model's.

    ``parameters()`` gives the shards: build the optimiser from them. It must step each number by itself (SGD, Adam),
    because a shard knows no layers. Call `finish_gradient_synchronization` between ``backward`` and the step.

    Parameters
    ----------
    module : nn.Module
        On its device, with its frozen parameters frozen. Its *blocks* are its children; of a ModuleList, ModuleDict or
        Sequential, its entries. Parameters that belong to no block, or to several (tied weights), are collected for the
        whole step.
    compute_dtype : torch.dtype, optional
        What parameters are collected in, and blocks compute in: `torch.bfloat16` halves the messages. Shards, gradients
        after `finish_gradient_synchronization`, the optimiser's state and buffers keep their own dtype. Floating-point
        inputs of blocks are cast; outputs are not. As in `torch.distributed.fsdp.MixedPrecisionPolicy(param_dtype=…)`.
    reshard_after_forward : bool
        Free a block's parameters after its forward, and collect them again in backward: stage 3, with 3·(N−1)/N·P numbers
        sent per rank and step. Otherwise they stay until backward: stage 2, with 2·(N−1)/N·P.
    prefetch : bool
        Start to collect the next block's parameters before a block computes, in the order of the last forward. Two
        blocks are then in memory at a time.

    Raises
    ------
    RuntimeError
        No process group is up.
    ModelMismatchError
        The ranks' models differ.
    ValueError
        The model has fewer numbers than there are ranks.

    Notes
    -----
    All ranks must run the same blocks in the same order, because each block's forward is a collective. A parameter that
    is used outside its block's forward is not there: RuntimeError.

    `torch.distributed.fsdp.fully_shard` cuts each parameter along its first dimension. Here, as in its predecessor
    (FSDP1), a block is one flat vector: fewer and simpler messages, but layer-wise optimisers do not work.
    """

    def __init__(
        self,
        module: nn.Module,
        compute_dtype: torch.dtype | None = None,
        *,
        reshard_after_forward: bool = True,
        prefetch: bool = True,
    ) -> None:
        if not dist.is_initialized():
            raise RuntimeError(
                "ShardedDataParallel needs a process group: build it in a worker that launch() runs, "
                "or after torch.distributed.init_process_group()"
            )
        super().__init__()
        check_same_model(module, f"ShardedDataParallel(reshard_after_forward={reshard_after_forward})")
        numbers, ranks = sum(parameter.numel() for parameter in module.parameters()), dist.get_world_size()
        if numbers < ranks:
            raise ValueError(f"the model has {numbers} number(s), fewer than the mesh's {ranks} ranks; use fewer ranks")
        broadcast_tensors([*module.parameters(), *module.buffers()])
        self.module = module
        self.compute_dtype = compute_dtype
        self.shards = nn.ParameterList()
        self._names = list(module.state_dict())
        self._prefetches = prefetch
        self._order: list[_Block] = []  # of the last forward
        self._now: list[_Use] = []  # of this one
        self._reductions: list[_Reduction] = []
        self._blocks = [
            _Block(self, owner, places, reshard_after_forward and owner is not module)
            for owner, places in _parameters_of_blocks(module)
        ]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self._now = []
        args, kwargs = tree_map(partial(_cast, dtype=self.compute_dtype), (args, kwargs))
        output = self.module(*args, **kwargs)
        self._order = [use.block for use in self._now]
        self._now = []
        for block in self._blocks:
            block.prefetched = None  # of a block that did not run this time
        return output

    def finish_gradient_synchronization(self) -> None:
        """Return once each shard's ``grad`` is the mean over the ranks. Every rank must call it.

        Gradients of several backwards since the last ``zero_grad`` add up; each backward sends its own.
        """
        for reduction in self._reductions:
            reduction.finish()
        self._reductions.clear()
        broadcast_tensors(self.module.buffers())

    @contextlib.contextmanager
    def whole_parameters(self) -> Iterator[None]:
        """In this block the model has all its parameters, as plain tensors. Every rank must enter it."""
        with torch.no_grad():
            uses = [_Use(block, None) for block in self._blocks]
            for use in uses:
                use.install()
            try:
                yield
            finally:
                for use in uses:
                    use.block.remove()

    def gather_full_parameters(self) -> dict[str, torch.Tensor]:
        """The whole model's parameters by their names, on their device, on every rank. Every rank must call it.

        Tied parameters are there under each of their names. The tensors are copies, in the shards' own dtype.
        """
        with self.whole_parameters():
            places = [place for block in self._blocks for place in block.places()]
            return {name: getattr(owner, attribute).detach().clone() for owner, attribute, name in places}

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """The whole model's state dict, on the CPU, on every rank. Every rank must call it."""
        found = dict(self.module.named_buffers(remove_duplicate=False)) | self.gather_full_parameters()
        return {name: found[name].detach().to("cpu", copy=True) for name in self._names}

    def load_state_dict(self, state_dict: dict[str, Any], *args: Any, **options: Any) -> Any:
        """Take what `state_dict` wrote on this rank, of as many ranks.

        Raises
        ------
        ValueError
            Its shards are of another number of ranks or another model.
        """
        for name, shard in self.shards.named_parameters(prefix="shards"):
            if name not in state_dict or state_dict[name].shape != shard.shape:
                raise ValueError(
                    f"{name} is not the shard of one of {dist.get_world_size()} rank(s) of this model; save what "
                    "full_state_dict() returns, and load it by load_full_state_dict(), for any number of ranks"
                )
        return super().load_state_dict(state_dict, *args, **options)

    @torch.no_grad()
    def load_full_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Take this rank's shards from a whole model's state dict, which any number of ranks may have written.

        Raises
        ------
        ValueError
            A parameter or a buffer is missing, or is a part of one. Then nothing is changed.
        """
        vectors = [vector for block in self._blocks for vector in block.vectors]
        buffers = {name: buffer for name, buffer in self.module.named_buffers() if name in self._names}
        shapes = {name: buffer.shape for name, buffer in buffers.items()}
        for vector in vectors:
            shapes |= {places[0][2]: shape for places, shape in zip(vector.places, vector.shapes, strict=True)}
        for name, shape in shapes.items():
            if name not in state or state[name].shape != shape:
                has = f"the shape {tuple(state[name].shape)}" if name in state else "no such tensor"
                raise ValueError(
                    f"{name}: the checkpoint has {has}, the whole model {tuple(shape)}; "
                    "load what full_state_dict() of the same model returned"
                )
        for vector in vectors:
            vector.take_shard([state[places[0][2]] for places in vector.places])
        for name, buffer in buffers.items():
            buffer.copy_(state[name])


def _cast(value: Any, dtype: torch.dtype | None) -> Any:
    """A floating-point tensor in another dtype; everything else as it is."""
    return (
        value.to(dtype)
        if dtype is not None and isinstance(value, torch.Tensor) and value.is_floating_point()
        else value
    )


_Place = tuple[nn.Module, str, str]  # a module, its attribute, and the parameter's name in the whole model


def _parameters_of_blocks(module: nn.Module) -> list[tuple[nn.Module, dict[nn.Parameter, list[_Place]]]]:
    """The blocks with their parameters; the module itself comes last, with what no block has alone."""
    found: dict[nn.Module, dict[nn.Parameter, list[_Place]]] = {}
    containers = [module]
    while containers:
        for child in containers.pop(0).children():
            if isinstance(child, nn.ModuleList | nn.ModuleDict | nn.Sequential):
                containers.append(child)
            else:
                found[child] = {}
    users: dict[nn.Parameter, list[nn.Module]] = {}
    for block in found:
        for parameter in block.parameters():
            users.setdefault(parameter, []).append(block)
    found[module] = {}
    for prefix, owner in module.named_modules():
        for attribute, parameter in owner._parameters.items():
            if parameter is not None:
                of = users.get(parameter, [])
                name = f"{prefix}.{attribute}" if prefix else attribute
                found[of[0] if len(of) == 1 else module].setdefault(parameter, []).append((owner, attribute, name))
    return [(block, places) for block, places in found.items() if places]


class _Block:
    """A module whose parameters are collected together."""

    def __init__(
        self,
        wrapper: ShardedDataParallel,
        owner: nn.Module,
        places: dict[nn.Parameter, list[_Place]],
        reshards: bool,
    ) -> None:
        self._wrapper, self._reshards = weakref.ref(wrapper), reshards
        self.prefetched: _Use | None = None
        alike: dict[tuple, list[nn.Parameter]] = {}
        for parameter in places:
            alike.setdefault((parameter.dtype, parameter.device, parameter.requires_grad), []).append(parameter)
        self.vectors = [_Vector(group, [places[parameter] for parameter in group]) for group in alike.values()]
        wrapper.shards.extend(vector.shard for vector in self.vectors)
        for owner_, attribute, _ in self.places():
            del owner_._parameters[attribute]
        self.remove()
        owner.register_forward_pre_hook(self._before_forward, prepend=True)
        owner.register_forward_hook(self._after_forward)

    def places(self) -> list[_Place]:
        return [place for vector in self.vectors for places in vector.places for place in places]

    def remove(self) -> None:
        """Take the whole parameters out of the modules."""
        for owner, attribute, name in self.places():
            setattr(owner, attribute, _Freed(name))

    def _before_forward(self, module: nn.Module, args: Any) -> Any:
        wrapper = self._wrapper()
        use, self.prefetched = self.prefetched or _Use(self, wrapper), None
        wrapper._now.append(use)
        place = len(wrapper._now)
        if wrapper._prefetches and place < len(wrapper._order) and wrapper._order[place].prefetched is None:
            wrapper._order[place].prefetched = _Use(wrapper._order[place], wrapper)
        use.install()
        return tree_map(partial(_cast, dtype=wrapper.compute_dtype), args)

    def _after_forward(self, module: nn.Module, args: Any, output: Any) -> None:
        uses = self._wrapper()._now
        place = max(index for index, use in enumerate(uses) if use.block is self)
        self.remove()
        results = [t for t in tree_leaves(output) if isinstance(t, torch.Tensor) and t.requires_grad]
        if results and self._reshards:
            uses[place].free_until_backward(args, results, uses[place - 1] if place else None)
        elif not results:
            uses[place].free()


class _Vector:
    """Parameters of one dtype and device as one vector, of which this rank keeps a shard."""

    def __init__(self, parameters: list[nn.Parameter], places: list[list[_Place]]) -> None:
        self.places = places
        self.shapes = [parameter.shape for parameter in parameters]
        self.sizes = [shape.numel() for shape in self.shapes]
        self.length = math.ceil(sum(self.sizes) / dist.get_world_size())
        self._orders = [sorted(range(p.dim()), key=p.stride, reverse=True) for p in parameters]  # outermost first
        self._shapes = [[p.shape[d] for d in order] for p, order in zip(parameters, self._orders, strict=True)]
        first = parameters[0]
        self.shard = nn.Parameter(
            torch.zeros(self.length, dtype=first.dtype, device=first.device), requires_grad=first.requires_grad
        )
        self.take_shard(parameters)

    @torch.no_grad()
    def take_shard(self, tensors: list[torch.Tensor]) -> None:
        """Copy this rank's shard out of the whole parameters."""
        permuted = (t.permute(order).reshape(-1) for t, order in zip(tensors, self._orders, strict=True))
        whole = torch.cat([t.to(self.shard) for t in permuted])
        mine = whole[dist.get_rank() * self.length :][: self.length]
        self.shard[: mine.numel()] = mine

    def parameters(self, whole: torch.Tensor) -> list[torch.Tensor]:
        """Views of the whole vector with the parameters' shapes and memory layouts."""
        pieces = whole.split([*self.sizes, whole.numel() - sum(self.sizes)])
        return [
            piece.view(shape).permute([order.index(d) for d in range(len(order))])
            for piece, shape, order in zip(pieces, self._shapes, self._orders, strict=False)
        ]


class _Use:
    """One use of a block: its whole vectors, from their collection before forward to the end of the block's backward."""

    def __init__(self, block: _Block, wrapper: ShardedDataParallel | None) -> None:
        self.block, self.wrapper = block, wrapper
        self._dtype = wrapper and wrapper.compute_dtype
        self.wholes = [
            torch.empty(
                vector.length * dist.get_world_size(),
                dtype=_cast(vector.shard[:0], self._dtype).dtype,
                device=vector.shard.device,
            )
            for vector in block.vectors
        ]
        # Tensors of their own on the same memory: autograd counts a change of `wholes`, and these are changed again.
        self._memory = [torch.empty(0, dtype=w.dtype, device=w.device).set_(w) for w in self.wholes]
        self._bytes = [whole.untyped_storage().nbytes() for whole in self.wholes]
        self._works: list[tuple[dist.Work, torch.Tensor]] = []  # with what is sent, which must live as long
        self._missing = True
        self._trainable = sum(vector.shard.requires_grad for vector in block.vectors)
        self.start()

    def start(self) -> None:
        """Start to collect the vectors, unless they are here or on their way."""
        if not self._missing:
            return
        self._missing = False
        for vector, memory, nbytes in zip(self.block.vectors, self._memory, self._bytes, strict=True):
            memory.untyped_storage().resize_(nbytes)
            sent = _cast(vector.shard.detach(), self._dtype)
            self._works.append((start_all_gather(memory, sent), sent))

    def wait(self) -> None:
        for work, _ in self._works:
            work.wait()
        self._works.clear()

    def free(self) -> None:
        self.wait()
        self._missing = True
        for memory in self._memory:
            memory.untyped_storage().resize_(0)

    def install(self) -> None:
        """Put the whole parameters into the modules, as views that autograd follows back to the shards."""
        self.wait()
        for vector, whole in zip(self.block.vectors, self.wholes, strict=True):
            whole = _Collected.apply(vector.shard, whole, vector, self)
            for parameter, places in zip(vector.parameters(whole), vector.places, strict=True):
                for owner, attribute, _ in places:
                    setattr(owner, attribute, parameter)

    def free_until_backward(self, args: Any, results: list[torch.Tensor], before: _Use | None) -> None:
        """Free the vectors now; collect them again when the gradient of a result arrives."""
        self.free()

        def collect(_: torch.Tensor) -> None:
            self.start()
            self.wait()
            if before is not None and self.wrapper._prefetches and before.block._reshards:
                before.start()

        torch.autograd.graph.register_multi_grad_hook(results, collect, mode="any")
        inputs = [t for t in tree_leaves(args) if isinstance(t, torch.Tensor) and t.requires_grad]
        if not self._trainable and inputs:
            torch.autograd.graph.register_multi_grad_hook(inputs, lambda _: self.free(), mode="any")

    def gradient_arrived(self, vector: _Vector, gradient: torch.Tensor) -> None:
        """Backward has used the vector for the last time: its node is the block's first, so it comes last."""
        self.wrapper._reductions.append(_Reduction(vector.shard, gradient))
        self._trainable -= 1
        if not self._trainable:
            self.free()


class _Collected(torch.autograd.Function):
    """The whole vector as a function of this rank's shard. The gradient of the shard is summed over the ranks, later."""

    @staticmethod
    def forward(ctx: Any, shard: torch.Tensor, whole: torch.Tensor, vector: _Vector, use: _Use) -> torch.Tensor:
        ctx.vector, ctx.use = vector, use
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, ...]:
        ctx.use.gradient_arrived(ctx.vector, gradient)
        return None, None, None, None


class _Reduction:
    """The gradient of a whole vector on its way to the ranks that own its shards."""

    def __init__(self, shard: nn.Parameter, gradient: torch.Tensor) -> None:
        self._shard, self._gradient = shard, gradient.contiguous()
        self._finish = start_reduce_scatter(self._gradient)

    def finish(self) -> None:
        mean = self._finish().to(self._shard.dtype) / dist.get_world_size()
        self._shard.grad = mean if self._shard.grad is None else self._shard.grad + mean


class _Freed:
    """What a module has in the place of a parameter that is not collected."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _refuse(self, *_: Any) -> NoReturn:
        raise RuntimeError(
            f"{object.__getattribute__(self, '_name')} is used outside the forward of its block, where each rank has only "
            "its shard; use it inside, or enter whole_parameters()"
        )

    __getattr__ = _refuse

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> NoReturn:
        next(argument for argument in tree_leaves((args, kwargs)) if isinstance(argument, cls))._refuse()

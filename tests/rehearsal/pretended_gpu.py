"""A GPU that a machine without one pretends to have, so that code meets on a CPU what CUDA refuses.

A `DeviceTensor` says ``cuda:i``, keeps its values in host memory and computes there, so code runs with real values,
``.item()`` included. It refuses what CUDA refuses: operands on two devices, ``.numpy()``, a generator of the host.

Each operator comes by ``__torch_dispatch__``, in any thread and from C++ too (autograd, DDP's reducer). Factories
(``torch.zeros(3, device="cuda")``) have no such operand: they come by kernels that are registered for the CUDA key. To
C++ the device's type is Lazy, for which PyTorch's CPU build has a device guard, as it has none for CUDA: autograd then
works, in the calling thread. Python sees `DeviceTensor.device`.

What it does not show: autocast (computations stay float32), streams and their races, what fits into memory, speed.
"""

from __future__ import annotations

import functools
import types

import torch
from sync_batchnorm_kernels import KERNELS
from torch.utils._pytree import tree_map

__all__ = ["DeviceTensor", "install"]

FACTORIES = (
    "empty", "empty_strided", "zeros", "ones", "full", "rand", "randn", "randint", "randperm", "arange", "linspace",
    "logspace", "eye", "scalar_tensor", "tril_indices", "triu_indices",
)  # fmt: skip
COPIES = {torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default, torch.ops.aten.copy.default}
# Operands that CUDA takes from the host, by their position: indices, next to a tensor on the device.
INDEXING = {
    torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default, torch.ops.aten.index_put.default,
    torch.ops.aten._unsafe_index.Tensor,
}  # fmt: skip
MEMORY = 2**34  # bytes of each GPU; a larger tensor does not fit
SIZED = {"empty", "empty_strided", "zeros", "ones", "full"}  # factories that are asked for more than fits
state = types.SimpleNamespace(gpus=0, current=0, collective=None, map_location=None, unused=False)


class DeviceTensor(torch.Tensor):
    """A tensor on a pretended GPU: ``values`` is the tensor in host memory that it stands for."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, values: torch.Tensor, index: int | None = None) -> DeviceTensor:
        index = state.current if index is None else index
        if state.unused:
            raise RuntimeError(f"a tensor on cuda:{index}, in a program that computes on the CPU by design")
        if index >= state.gpus:
            raise RuntimeError(f"CUDA error: invalid device ordinal ({index} of {state.gpus})")
        tensor = torch.Tensor._make_wrapper_subclass(
            cls, values.size(), strides=values.stride(), storage_offset=values.storage_offset(), dtype=values.dtype,
            layout=values.layout, device=torch.device("lazy", index),
        )  # fmt: skip
        tensor.values_, tensor.index_ = values, index
        return tensor

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", self.index_)

    is_cuda, is_cpu = True, False

    @property
    def data(self) -> torch.Tensor:
        return self.detach()

    @data.setter
    def data(self, other: torch.Tensor) -> None:
        if not isinstance(other, DeviceTensor) or other.index_ != self.index_ or other.dtype != self.dtype:
            raise RuntimeError("incompatible tensor type: `data` takes the same device and dtype here")
        self._become(other)

    def _become(self, other: DeviceTensor) -> None:
        """Take another's values; shape and strides are C++'s, and change with them."""
        torch.Tensor.data.__set__(self, other)
        self.values_ = other.values_

    def numpy(self, *, force: bool = False):
        if force:
            return self.detach().cpu().numpy()
        raise TypeError(
            f"can't convert {self.device} device type tensor to numpy. "
            "Use Tensor.cpu() to copy the tensor to host memory first."
        )

    def __array__(self, dtype=None):
        return self.numpy()

    def tolist(self):
        return self.detach().values_.tolist()

    def to(self, *args, **kwargs):
        copy = kwargs.pop("copy", False)
        device, dtype, _, memory_format = torch._C._nn._parse_to(*args, **kwargs)
        target = _for_cpp(self.device if device is None else device)
        same = target == _for_cpp(self.device) and dtype in (None, self.dtype) and memory_format is None
        if same and not copy:
            return self
        return torch.ops.aten._to_copy(self, dtype=dtype or self.dtype, device=target, memory_format=memory_format)

    def cpu(self, **options):
        return self.to("cpu")

    def cuda(self, device=None, **options):
        return self.to(torch.device("cuda", state.current) if device is None else torch.device(device))

    def pin_memory(self, device=None):
        raise RuntimeError("cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned")

    def record_stream(self, stream) -> None:
        pass

    def data_ptr(self) -> int:
        return self.values_.data_ptr()

    def untyped_storage(self):
        return self.values_.untyped_storage()

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else repr(self)

    def __repr__(self, **options) -> str:
        return repr(self.values_)[:-1] + f", device='{self.device}')"

    def __deepcopy__(self, memo):
        copy = self.detach().clone()
        copy.__dict__.update({k: v for k, v in self.__dict__.items() if k not in ("values_", "index_", "grad")})
        copy.requires_grad_(self.requires_grad)
        memo[id(self)] = copy
        return copy

    def __reduce_ex__(self, protocol):
        return _rebuilt, (self.detach().values_.clone(), self.index_, self.requires_grad, hasattr(self, "_is_param"))

    @classmethod
    def __torch_dispatch__(cls, func, classes, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func.namespace == "c10d":
            return state.collective(func, args, kwargs)
        flat = _flat((*args, *kwargs.values()))
        index = _common_device(func, args, flat)
        device = kwargs.get("device")
        if device is not None:
            kwargs = {**kwargs, "device": torch.device("cpu"), "pin_memory": None}
            if "pin_memory" not in {argument.name for argument in func._schema.arguments}:
                del kwargs["pin_memory"]
            index = _index(device)
        result = KERNELS.get(func, func)(
            *(_mapped(values_of, value) for value in args),
            **{name: _mapped(values_of, value) for name, value in kwargs.items()},
        )
        mine = {id(tensor.values_): tensor for tensor in flat if isinstance(tensor, DeviceTensor)}
        theirs = {id(tensor) for tensor in flat if isinstance(tensor, torch.Tensor)}  # copy_ into a tensor of the host

        def wrapped(value):
            if not isinstance(value, torch.Tensor) or index is None or id(value) in theirs:
                return value
            tensor = mine.get(id(value))
            if tensor is None:
                return DeviceTensor(value, index)
            if tensor.shape != value.shape or tensor.stride() != value.stride():  # set_, resize_, t_…
                tensor._become(DeviceTensor(value, index))
            return tensor

        return _mapped(wrapped, result)


def _rebuilt(values, index, requires_grad, is_parameter):
    if not state.gpus:
        raise RuntimeError("Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False")
    tensor = DeviceTensor(values, index) if state.map_location is None else values.to(state.map_location)
    return torch.nn.Parameter(tensor, requires_grad) if is_parameter else tensor.requires_grad_(requires_grad)


def _flat(values):
    """The values, also those in lists and tuples; an operator's arguments are nested no deeper. Faster than pytree."""
    flat = []
    for value in values:
        flat.extend(value) if isinstance(value, list | tuple) else flat.append(value)
    return flat


def _mapped(function, value):
    return type(value)(map(function, value)) if isinstance(value, list | tuple) else function(value)


def values_of(value):
    return value.values_ if isinstance(value, DeviceTensor) else value


def _for_cpp(device: torch.device) -> torch.device:
    """The device by the name that C++ knows."""
    return torch.device("lazy", _index(device)) if device.type == "cuda" else device


def _index(device: torch.device) -> int | None:
    if device.type not in ("cuda", "lazy"):
        return None
    return state.current if device.index is None else device.index


def _common_device(func, args, flat) -> int | None:
    """The index of the device on which `func` runs; raises as CUDA does where operands are on several."""
    tensors = [value for value in flat if isinstance(value, torch.Tensor)]
    devices = {tensor.index_ for tensor in tensors if isinstance(tensor, DeviceTensor)}
    if func not in COPIES:
        if func in INDEXING and isinstance(args[0], DeviceTensor):
            tensors = [args[0], *args[2:3]]
        host = [tensor for tensor in tensors if not isinstance(tensor, DeviceTensor) and tensor.dim() > 0]
        if host or len(devices) > 1:
            names = sorted({f"cuda:{index}" for index in devices}) + ["cpu"] * bool(host)
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, "
                f"{names[0]} and {names[1]}! ({func})"
            )
    for value in flat:
        _check_generator(value)
    first = args[0] if args and isinstance(args[0], torch.Tensor) else None
    if func in COPIES and first is not None:
        return getattr(first, "index_", None)
    return devices.pop()


HostGenerator = torch.Generator
_generators: dict[int, torch.Generator] = {}  # those of the host that stand for one of a device, by their address


class DeviceGenerator(HostGenerator):
    """A generator of a pretended GPU."""

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", state.current)


class _Generator(type):
    def __call__(cls, device: torch.device | str = "cpu") -> HostGenerator:
        if torch.device(device).type != "cuda":
            return HostGenerator(device)
        generator = DeviceGenerator()
        _generators[generator._cdata] = generator
        return generator

    def __instancecheck__(cls, value) -> bool:
        return isinstance(value, HostGenerator)


class Generator(metaclass=_Generator):
    """What `torch.Generator` is while the GPUs are pretended."""


def _check_generator(value) -> None:
    if isinstance(value, HostGenerator) and value._cdata not in _generators:
        raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")


def install(gpus: int, unused: bool = False) -> None:
    """Pretend, from now on and in this whole process, that the machine has `gpus` GPUs; `unused`: refuse any tensor on them."""
    if state.gpus:
        raise RuntimeError("the pretended GPUs are installed already")
    state.gpus, state.unused = gpus, unused
    torch.set_num_threads(1)  # of tiny tensors, next to other tests
    torch.set_num_threads = lambda number: None
    _register_factories()
    _patch_cuda()
    import pretended_nccl

    pretended_nccl.install()


def _register_factories() -> None:
    library = torch.library.Library("aten", "IMPL")
    state.library = library  # the kernels live as long as the library does

    def factory(name, function):
        def create(*args, device=None, pin_memory=None, **kwargs):
            for value in (*args, *kwargs.values()):
                _check_generator(value)
            if name in SIZED and (asked := function(*args, device="meta", **kwargs).nbytes) > MEMORY:
                raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {asked / 2**30:.2f} GiB.")
            return DeviceTensor(function(*args, **kwargs), _index(device))

        return create

    def copy(target, source, non_blocking=False):  # torch.tensor comes here: it shuts __torch_dispatch__ out
        values_of(target).copy_(values_of(source))
        return target

    for key in ("CUDA", "Lazy"):
        for name in FACTORIES:
            packet = getattr(torch.ops.aten, name)
            for overload in packet.overloads():
                if "out" not in overload and "names" not in overload:
                    function = getattr(packet, overload)
                    library.impl(f"{name}.{overload}".removesuffix(".default"), factory(name, function), key)
        library.impl("copy_", copy, key)


class Stream:
    """A stream or an event: all work has ended when a call returns, so nothing waits for anything."""

    def __init__(self, *args, **options):
        pass

    def __getattr__(self, name):
        return lambda *args, **options: Stream() if name == "record_event" else True

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        pass


def _patch_cuda() -> None:
    cuda = torch.cuda

    def set_device(device):
        index = device if isinstance(device, int) else torch.device(device).index
        if not 0 <= index < state.gpus:
            raise RuntimeError(f"CUDA error: invalid device ordinal ({index} of {state.gpus})")
        state.current, state.chosen = index, True

    facts = {"total_memory": MEMORY, "major": 9, "minor": 0, "multi_processor_count": 1}
    properties = types.SimpleNamespace(name="Pretended GPU", **facts)
    replacements = dict(
        _lazy_init=lambda: None, is_available=lambda: True, device_count=lambda: state.gpus, is_initialized=lambda: True,
        current_device=lambda: state.current, set_device=set_device, synchronize=lambda device=None: None,
        get_device_capability=lambda device=None: (9, 0), get_device_name=lambda device=None: properties.name,
        get_device_properties=lambda device=None: properties, mem_get_info=lambda device=None: (MEMORY // 2, MEMORY),
        empty_cache=lambda: None, max_memory_allocated=lambda device=None: 0, memory_allocated=lambda device=None: 0,
        reset_peak_memory_stats=lambda device=None: None, manual_seed=lambda seed: None, manual_seed_all=lambda seed: None,
        get_rng_state=lambda device="cuda": torch.get_rng_state(), set_rng_state=lambda state, device="cuda": None,
        Stream=Stream, Event=Stream, current_stream=Stream, default_stream=Stream, stream=Stream,
        is_bf16_supported=lambda *options: True, is_current_stream_capturing=lambda: False, _is_in_bad_fork=lambda: False,
    )  # fmt: skip
    for name, replacement in replacements.items():
        setattr(cuda, name, replacement)
    torch.Tensor.pin_memory = lambda self, device=None: self.clone(memory_format=torch.preserve_format)
    host_to = torch.Tensor.to

    def to(self, *args, **kwargs):
        args = [_for_cpp(torch.device(value)) if isinstance(value, str | torch.device) else value for value in args]
        if kwargs.get("device") is not None:
            kwargs["device"] = _for_cpp(torch.device(kwargs["device"]))
        return host_to(self, *args, **kwargs)

    def with_device(function):
        @functools.wraps(function)
        def call(*args, device=None, **kwargs):
            return function(*args, device=device if device is None else _for_cpp(torch.device(device)), **kwargs)

        return call

    torch.Tensor.to = to
    torch.Tensor.cuda = lambda self, device=None, **options: self.to(torch.device("cuda", device))
    torch.tensor, torch.as_tensor = with_device(torch.tensor), with_device(torch.as_tensor)
    torch.Generator = Generator
    torch.serialization.add_safe_globals([_rebuilt])
    host_load = torch.load

    def load(*args, map_location=None, **options):
        to_gpu = isinstance(map_location, str | torch.device) and torch.device(map_location).type == "cuda"
        state.map_location = "cpu" if to_gpu else map_location  # for `_rebuilt`
        try:
            loaded = host_load(*args, map_location=state.map_location, **options)
        finally:
            state.map_location = None
        if to_gpu:
            return tree_map(lambda value: value.to(map_location) if isinstance(value, torch.Tensor) else value, loaded)
        return loaded

    torch.load = load

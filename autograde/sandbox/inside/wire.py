"""Plain data over a socket: JSON for structure, ``.npy`` for arrays, no pickles.

A message is two lengths (8 bytes each, big-endian), a JSON text and the arrays' bytes. JSON's own types represent
themselves. Any other type is an object with one key that begins with ``$``:

``{"$array": [offset, length]}``
    a numpy array, in the ``.npy`` format (version 1.0, numbers and booleans only)
``{"$tensor": [offset, length], "dtype": "bfloat16", "requires_grad": false}``
    a torch tensor, on the CPU
``{"$tuple": [...]}``, ``{"$dict": [[key, value], ...]}``, ``{"$float": "nan"}``, ``{"$bytes": [offset, length]}``
``{"$object": "name of its type"}``
    anything else: the other side learns only its type

The encoder runs in the process of hostile code, so the decoder believes nothing. It checks sizes before it allocates
memory, and types against a list. It uses no byte of the arrays twice. Any other message raises `WireError`.
"""

from __future__ import annotations

import io
import json
import math
import struct
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy

__all__ = ["CONFINED", "HEADER", "Opaque", "TooLargeError", "WireError", "decode", "encode", "lengths"]

HEADER = struct.Struct(">QQ")
CONFINED = b"\x01"  # what a process sends before any message: it has given up its privileges
MAX_DEPTH = 40
MAX_ITEMS = 200_000
# Of the JSON text: a byte of it becomes up to thirty as objects, before their number can be counted.
MAX_TEXT = 8 << 20
_DTYPES = {f"{kind}{size}" for kind, sizes in (("i", "1248"), ("u", "1248"), ("f", "248")) for size in sizes} | {"b1"}
_TENSOR_DTYPES = {
    name: getattr(torch, name)
    for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
}


class WireError(ValueError):
    """A message that is not in the format, or too large; one line."""


class TooLargeError(WireError):
    """A message beyond its limit."""


class Opaque:
    """An object that is not plain data; only its type's name is known."""

    def __init__(self, type_name: str) -> None:
        self.type_name = type_name

    def __repr__(self) -> str:
        return f"<{self.type_name}>"


def encode(value: Any) -> bytes:
    """A message, with its header. Never raises for the type of a value: anything but plain data becomes `Opaque`."""
    blobs: list[bytes] = []
    text = json.dumps(_plain(value, blobs, 0), allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")
    blob = b"".join(blobs)
    return HEADER.pack(len(text), len(blob)) + text + blob


def lengths(header: bytes, limit: int, text_limit: int = MAX_TEXT) -> tuple[int, int]:
    """The two lengths of a message from its first 16 bytes. Raises `TooLargeError` beyond the limits, in bytes."""
    text, blob = HEADER.unpack(header)
    if text + blob > limit:
        raise TooLargeError(f"the answer has {text + blob:,} bytes, at most {limit:,} are read")
    if text > text_limit:
        raise TooLargeError(f"the answer has {text:,} bytes beside its arrays, at most {text_limit:,} are read")
    return text, blob


def decode(text: bytes, blob: bytes) -> Any:
    """The value of a message. Raises only `WireError`, for a message that is not in the format."""
    try:
        return _value(json.loads(text.decode("utf-8")), memoryview(blob), [MAX_ITEMS, len(blob)], 0)
    except WireError:
        raise
    except Exception as error:  # fails closed: numpy's reader of headers alone raises six kinds
        raise WireError(f"the answer is not in the format ({type(error).__name__})") from None


def _plain(value: Any, blobs: list[bytes], depth: int) -> Any:
    if depth >= MAX_DEPTH:  # the decoder refuses anything deeper
        return {"$object": "too deeply nested"}
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, int):
        value = int(value)
        return value if -(2**63) <= value < 2**63 else {"$object": "int out of range"}
    if isinstance(value, float):
        value = float(value)
        return value if math.isfinite(value) else {"$float": repr(value)}
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes | bytearray):
        return {"$bytes": _put(bytes(value), blobs)}
    if isinstance(value, torch.Tensor):
        return _plain_tensor(value, blobs)
    if isinstance(value, np.ndarray):
        if value.dtype.str[1:] not in _DTYPES:
            return {"$object": f"array of {value.dtype}"}
        return {"$array": _put(_npy(value), blobs)}
    if isinstance(value, tuple):
        return {"$tuple": [_plain(item, blobs, depth + 1) for item in value]}
    if isinstance(value, list):
        return [_plain(item, blobs, depth + 1) for item in value]
    if isinstance(value, dict):
        pairs = [[_plain(k, blobs, depth + 1), _plain(v, blobs, depth + 1)] for k, v in value.items()]
        return {"$dict": pairs}
    if isinstance(value, Opaque):
        return {"$object": value.type_name}
    return {"$object": type(value).__name__}


def _plain_tensor(tensor: torch.Tensor, blobs: list[bytes]) -> dict[str, Any]:
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _TENSOR_DTYPES or tensor.layout is not torch.strided:
        return {"$object": f"tensor of {name}"}
    data = tensor.detach().cpu().resolve_conj().resolve_neg()
    if name == "bfloat16":
        data = data.float()
    place = _put(_npy(data.numpy()), blobs)
    return {"$tensor": place, "dtype": name, "requires_grad": bool(tensor.requires_grad)}


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    npy.write_array(file, np.ascontiguousarray(array).reshape(array.shape), version=(1, 0), allow_pickle=False)
    return file.getvalue()


def _put(data: bytes, blobs: list[bytes]) -> list[int]:
    offset = sum(map(len, blobs))
    blobs.append(data)
    return [offset, len(data)]


def _value(plain: Any, blob: memoryview, budget: list[int], depth: int) -> Any:
    budget[0] -= 1
    if budget[0] < 0 or depth > MAX_DEPTH:
        raise WireError("the answer has too many parts")
    if plain is None or isinstance(plain, bool | float | str):
        return plain
    if isinstance(plain, int):
        if not -(2**63) <= plain < 2**63:
            raise WireError("the answer holds an integer beyond 64 bits")
        return plain
    if isinstance(plain, list):
        return [_value(item, blob, budget, depth + 1) for item in plain]
    return _special(plain, blob, budget, depth)


def _special(plain: dict[str, Any], blob: memoryview, budget: list[int], depth: int) -> Any:
    kind = next(iter(plain))
    content = plain[kind]
    if kind == "$tuple":
        return tuple(_value(item, blob, budget, depth + 1) for item in content)
    if kind == "$dict":
        pairs = [(_value(k, blob, budget, depth + 1), _value(v, blob, budget, depth + 1)) for k, v in content]
        return dict(pairs)
    if kind == "$float":
        return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[content]
    if kind == "$object":
        return Opaque(str(content)[:80])
    if kind == "$bytes":
        return bytes(_slice(content, blob, budget))
    if kind == "$array":
        return _array(_slice(content, blob, budget))
    if kind == "$tensor":
        dtype = _TENSOR_DTYPES[plain["dtype"]]
        tensor = torch.from_numpy(_array(_slice(content, blob, budget)))
        if tensor.dtype is not (torch.float32 if dtype is torch.bfloat16 else dtype):
            raise WireError("a tensor of the answer is not of the type that it says")
        tensor = tensor.to(dtype)
        return tensor.requires_grad_() if plain["requires_grad"] is True and dtype.is_floating_point else tensor
    raise WireError("the answer is not in the format")


def _slice(place: list[int], blob: memoryview, budget: list[int]) -> memoryview:
    offset, length = place
    if not (type(offset) is type(length) is int and offset >= 0 and length >= 0 and offset + length <= len(blob)):
        raise WireError("the answer's arrays are not where it says")
    budget[1] -= length
    if budget[1] < 0:  # a blob that is referred to often would be copied as often
        raise WireError("the answer's arrays are more than it holds bytes")
    return blob[offset : offset + length]


def _array(data: memoryview) -> np.ndarray:
    file = io.BytesIO(data)
    if npy.read_magic(file) != (1, 0):
        raise WireError("an array of the answer is not .npy version 1.0")
    shape, fortran, dtype = npy.read_array_header_1_0(file, max_header_size=2_000)
    if dtype.hasobject or dtype.str[1:] not in _DTYPES or dtype.byteorder == ">":
        raise WireError("an array of the answer holds something other than numbers")
    count = math.prod(shape)
    if any(size < 0 for size in shape) or count * dtype.itemsize != len(data) - file.tell():
        raise WireError("an array of the answer is not as large as it says")
    flat = np.frombuffer(data, dtype, count, offset=file.tell()).copy()
    return flat.reshape(shape, order="F" if fortran else "C")

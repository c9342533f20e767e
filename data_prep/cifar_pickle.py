"""Reading CIFAR's pickles without trusting them.

A pickle names the functions that rebuild its objects, so a pickle from a stranger can run any function. The official
files name three of NumPy's functions, and Python 3 adds one for bytes. Here each of these names means a small class of
our own that only stores the values. Every other name is refused. No function of NumPy gets a value from the file before
it has been checked.
"""

import math
import pickle
from typing import BinaryIO

import numpy as np

from data_prep.errors import DataError


class _Inert:
    """The meaning of a name in the file. The file can neither change it nor call it."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("an object is given a state that it has not")


class _NdarrayName(_Inert):
    """``numpy.ndarray``, which only ever is an argument."""

    def __new__(cls, *args: object):
        raise pickle.UnpicklingError("numpy.ndarray is called")


class _Dtype(_Inert):
    """``numpy.dtype(code, align, copy)`` and its state, which for bytes says nothing."""

    __slots__ = ("code",)

    def __new__(cls, code: object, *args: object):
        made = super().__new__(cls)
        made.code = code.decode("latin1") if isinstance(code, bytes) else code
        return made

    def __setstate__(self, state: object) -> None:
        pass


class _Pixels(_Inert):
    """``numpy.core.multiarray._reconstruct(ndarray, (0,), b"b")``: an array that its state will fill."""

    __slots__ = ("array",)

    def __new__(cls, *args: object):
        return super().__new__(cls)

    def __setstate__(self, state: object) -> None:
        _, shape, dtype, fortran, content = state
        if not isinstance(dtype, _Dtype) or dtype.code not in ("u1", "|u1"):
            raise pickle.UnpicklingError("an array is not of unsigned bytes")
        if not isinstance(content, bytes) or not all(type(n) is int and n >= 0 for n in shape):
            raise pickle.UnpicklingError("an array's content is not bytes")
        if math.prod(shape) != len(content):
            raise pickle.UnpicklingError(f"an array of shape {shape} has {len(content)} bytes")
        self.array = np.frombuffer(content, np.uint8).reshape(shape, order="F" if fortran else "C")


class _Bytes(_Inert):
    """``_codecs.encode(text, "latin1")``: how Python 3 writes bytes in the old protocol."""

    def __new__(cls, text: object, encoding: object):
        if type(text) is not str or encoding not in ("latin1", b"latin1"):
            raise pickle.UnpicklingError("bytes are not written as latin1 text")
        return text.encode("latin1")


_NAMES = {
    ("numpy.core.multiarray", "_reconstruct"): _Pixels,
    ("numpy._core.multiarray", "_reconstruct"): _Pixels,
    ("numpy", "ndarray"): _NdarrayName,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _Bytes,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type:
        try:
            return _NAMES[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which a CIFAR file has no use for") from None


def load(stream: BinaryIO, where: str) -> dict[str, object]:
    """The dictionary in one of CIFAR's files.

    Parameters
    ----------
    stream : binary file
        The pickle. Nothing that it holds is run.
    where : str
        The file's name, for the error.

    Returns
    -------
    dict
        Keys are text, whichever Python wrote the file; values are lists, text, bytes, integers, or arrays of uint8.

    Raises
    ------
    DataError
        Not a pickle, one that names anything but NumPy arrays of unsigned bytes, or not a dictionary.
    """
    try:
        content = _Unpickler(stream, encoding="bytes").load()
    except Exception as error:  # broken pickles raise almost anything
        reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise DataError(f"{where}: not a CIFAR file: {reason}") from error
    if type(content) is not dict:
        raise DataError(f"{where}: not a CIFAR file: it holds no dictionary")
    return {
        text(key): getattr(value, "array", None) if isinstance(value, _Pixels) else value
        for key, value in content.items()
        if isinstance(key, str | bytes)
    }


def text(value: str | bytes) -> str:
    """`value` as text: Python 2 wrote what Python 3 reads as bytes."""
    return value.decode("latin1") if isinstance(value, bytes) else value

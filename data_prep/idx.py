"""The IDX format of MNIST and its relatives: a magic number, the shape, then the bytes.

The format is described on the MNIST page of LeCun, Cortes and Burges: two zero bytes, the element type
(8 for unsigned bytes), the number of dimensions, each dimension as a big-endian 32-bit integer, the data.
"""

import math
import struct
from collections.abc import Callable
from typing import BinaryIO

import numpy as np

from data_prep.errors import DataError

_UINT8 = 8
FILES = {
    f"{split}_{kind}": f"{prefix}-{kind}-{form}-ubyte"
    for split, prefix in (("train", "train"), ("test", "t10k"))
    for kind, form in (("images", "idx3"), ("labels", "idx1"))
}
"""The file of each array, in MNIST and its relatives."""


def decode(content: bytes, where: str) -> np.ndarray:
    """The array in an uncompressed IDX file of unsigned bytes.

    Parameters
    ----------
    content : bytes
        The whole file.
    where : str
        The file's name, for the error.

    Returns
    -------
    ndarray of uint8, read-only
        Of the shape that the header gives.

    Raises
    ------
    DataError
        When the magic number is another, or the length is not what the header promises.
    """
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _UINT8 or content[3] == 0:
        raise DataError(f"{where}: not an IDX file of unsigned bytes (it starts with {content[:4].hex() or 'nothing'})")
    header = 4 + 4 * content[3]
    if len(content) < header:
        raise DataError(f"{where}: cut short inside the IDX header ({len(content)} of {header} bytes)")
    shape = struct.unpack(f">{content[3]}I", content[4:header])
    length = header + math.prod(shape)
    if len(content) != length:
        raise DataError(f"{where}: an IDX array of shape {shape} takes {length} bytes, the file has {len(content)}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def encode(array: np.ndarray) -> bytes:
    """The IDX file that holds `array` (uint8, at least one dimension)."""
    if array.dtype != np.uint8 or array.ndim == 0:
        raise ValueError(f"IDX files here hold uint8 arrays, not {array.dtype} of shape {array.shape}")
    return bytes([0, 0, _UINT8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def mnist_arrays(open_file: Callable[[str], BinaryIO]) -> dict[str, np.ndarray]:
    """The four arrays of a data set published in MNIST's four IDX files.

    Parameters
    ----------
    open_file : callable
        Opens the uncompressed file of that name.

    Returns
    -------
    dict
        ``train_images`` and ``test_images``, uint8 (N, H, W, 1); ``train_labels`` and ``test_labels``, uint8 (N,).
    """
    arrays = {}
    for key, name in FILES.items():
        with open_file(name) as stream:
            array = decode(stream.read(), name)
        images = key.endswith("images")
        if array.ndim != (3 if images else 1):
            raise DataError(f"{name}: {array.ndim} dimensions are not those of {key.partition('_')[2]}")
        arrays[key] = array[..., np.newaxis] if images else array
    return arrays

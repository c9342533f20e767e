"""CIFAR files for the tests, written opcode by opcode as Python 2 wrote the official ones."""

import struct
from pathlib import Path

import numpy as np

from data_prep import cifar


def pickled(content: dict) -> bytes:
    """What `cPickle.dumps(content, 2)` gives in Python 2, memo entries left out."""
    return b"\x80\x02" + _value(content) + b"."


def _value(value: object) -> bytes:
    if isinstance(value, dict):
        return b"}(" + b"".join(_value(key) + _value(item) for key, item in value.items()) + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(map(_value, value)) + b"e"
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, np.ndarray):
        rows, columns = value.shape
        state = b"(K\x01" + _value(rows) + _value(columns) + b"\x86"
        state += b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNN" + 2 * b"J\xff\xff\xff\xff" + b"K\x00tb"
        state += b"\x89" + _value(value.tobytes()) + b"t"
        return b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R" + state + b"b"
    text = value.encode() if isinstance(value, str) else value
    return b"T" + struct.pack("<i", len(text)) + text


def cifar10(images: int = 30) -> dict[str, bytes]:
    """CIFAR-10's seven files, `images` in each batch, under the official class names."""
    files = {f"data_batch_{k}": _batch(k, images, {"labels": 10}) for k in range(1, 6)}
    files["test_batch"] = _batch(6, images, {"labels": 10})
    names = {"num_cases_per_batch": images, "label_names": list(cifar.CIFAR10_CLASSES), "num_vis": 3072}
    return {**files, "batches.meta": pickled(names)}


def cifar100(images: int = 30) -> dict[str, bytes]:
    """CIFAR-100's three files, under the official class names."""
    kinds = {"fine_labels": 100, "coarse_labels": 20}
    names = {"fine_label_names": list(cifar.CIFAR100_CLASSES), "coarse_label_names": list(cifar.CIFAR100_SUPERCLASSES)}
    return {"train": _batch(7, 2 * images, kinds), "test": _batch(8, images, kinds), "meta": pickled(names)}


def _batch(seed: int, images: int, kinds: dict[str, int]) -> bytes:
    random = np.random.default_rng(seed)
    labels = {kind: random.integers(0, classes, images).tolist() for kind, classes in kinds.items()}
    data = random.integers(0, 256, (images, 3072), np.uint8)
    return pickled({"batch_label": f"batch {seed}", **labels, "data": data, "filenames": ["a.png"] * images})


def write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder

"""A small data set for the tests: its files, its catalogue entry, and a site mirror with it."""

import gzip
import hashlib
import struct
from pathlib import Path

import numpy as np

from data_prep import catalogue, idx
from data_prep.rawfile import RawFile


def quiet(line: object) -> None:
    """Where a test asks for no report and no progress."""


def contents(images: int, size: int = 28) -> dict[str, bytes]:
    """The four IDX files, made by `struct`, not by the code under test."""
    random = np.random.default_rng(images)
    files = {}
    for prefix, count in (("train", images), ("t10k", images // 4)):
        pixels = random.integers(0, 256, count * size * size, np.uint8).tobytes()
        labels = random.integers(0, 10, count, np.uint8).tobytes()
        files[f"{prefix}-images-idx3-ubyte"] = struct.pack(">HBBIII", 0, 8, 3, count, size, size) + pixels
        files[f"{prefix}-labels-idx1-ubyte"] = struct.pack(">HBBI", 0, 8, 1, count) + labels
    return files


def entry(files: dict[str, bytes], sources=(), layouts=("toy", "Toy/raw", ".")) -> catalogue.Entry:
    raw = tuple(RawFile(name, hashlib.sha256(data).hexdigest(), len(data)) for name, data in files.items())
    classes = tuple("abcdefghij")
    return catalogue.Entry("toy", "Toy", "none", classes, (28, 28, 1), raw, idx.mnist_arrays, sources, layouts)


def content(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def write_mirror(folder: Path, files: dict[str, bytes], gzipped: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / f"{name}{'.gz' * gzipped}").write_bytes(gzip.compress(data, 1) if gzipped else data)
    return folder

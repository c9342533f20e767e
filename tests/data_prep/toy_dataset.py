"""A made-up data set for the tests: its files, its catalogue entry, and a process that fetches it.

``python toy_dataset.py MIRROR ROOT [--slow S] [--die POINT]`` prints ``ready``, waits for a line, then runs
``data fetch toy``; with ``--die`` it ends itself by SIGKILL at that point.
"""

import argparse
import gzip
import hashlib
import os
import signal
import struct
import sys
import time
from pathlib import Path

import numpy as np

from data_prep import catalogue, idx, staged, staging
from data_prep.rawfile import RawFile

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


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
    return catalogue.Entry(
        name="toy",
        title="Toy",
        licence="none",
        classes=tuple("abcdefghij"),
        image_shape=(28, 28, 1),
        files=tuple(RawFile(name, hashlib.sha256(data).hexdigest(), len(data)) for name, data in files.items()),
        unpack=idx.mnist_arrays,
        sources=sources,
        mirror_layouts=layouts,
    )


def write_mirror(folder: Path, files: dict[str, bytes], gzipped: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        if gzipped:
            (folder / f"{name}.gz").write_bytes(gzip.compress(data, 1))
        else:
            (folder / name).write_bytes(data)
    return folder


def _die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)


def _after(function):
    def run(*args, **kwargs):
        function(*args, **kwargs)
        _die()

    return run


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("mirror", type=Path)
    parser.add_argument("root", type=Path)
    parser.add_argument("--images", type=int, required=True)
    parser.add_argument("--slow", type=float, default=0)
    parser.add_argument("--die", choices=("collected", "half-written", "before-rename", "after-rename"))
    options = parser.parse_args()
    catalogue.CATALOGUE["toy"] = entry(contents(options.images))
    if options.slow:
        write = staged.write
        staged.write = lambda *args: (time.sleep(options.slow), write(*args))
    if options.die == "collected":
        staging._collect = _after(staging._collect)
    elif options.die == "half-written":
        staged.flush = _after(staged.flush)
    elif options.die == "before-rename":
        os.rename = _die
    elif options.die == "after-rename":
        os.rename = _after(os.rename)
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    staging.fetch("toy", options.root, mirror=options.mirror, say=lambda line: print(line, flush=True))
    print(f"took {time.monotonic() - began}")


if __name__ == "__main__":
    main()

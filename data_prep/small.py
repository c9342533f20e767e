"""The real subset that ships in this package: how it was made, and how to make it again.

``python -m data_prep.small`` rebuilds ``fashion_mnist_small/`` from the staged ``fashion-mnist`` and prints the sums
for the catalogue's entry. The subset is the head of the official set: its first 5,000 training and 1,000 test
images, unaltered, in the official files' form.
"""

import gzip
import hashlib
import os
from pathlib import Path

import numpy as np

from data_prep import catalogue, idx, staged

SIZES = {"train": 5000, "test": 1000}


def build(into: Path, root: str | os.PathLike | None = None) -> dict[str, str]:
    """Write the subset's files and ``dataset.json`` into the folder `into`.

    Returns
    -------
    dict
        The SHA-256 of each uncompressed file.

    Raises
    ------
    NotStaged
        ``fashion-mnist`` is not under the data root.
    """
    full = staged.read("fashion-mnist", root)
    arrays = {key: array[: SIZES[key.split("_")[0]]] for key, array in full.arrays.items()}
    sums, files = {}, {}
    for key, name in idx.FILES.items():
        content = idx.encode(np.asarray(arrays[key][..., 0] if key.endswith("images") else arrays[key]))
        sums[name] = hashlib.sha256(content).hexdigest()
        packed = gzip.compress(content, 9, mtime=0)
        (into / f"{name}.gz").write_bytes(packed)
        files[f"{name}.gz"] = {"sha256": hashlib.sha256(packed).hexdigest(), "bytes": len(packed)}
    entry = catalogue.entry("fashion-mnist-small")
    (into / staged.DESCRIPTION).write_text(staged.describe(entry, arrays, files, entry.shipped.label))
    return sums


if __name__ == "__main__":
    folder = catalogue.entry("fashion-mnist-small").shipped.path
    for file, sha256 in build(folder).items():
        print(f"{sha256}  {file}")

"""The form of a staged data set on disk, and its reader.

``<root>/<name>/`` holds four arrays, ``train_images.npy`` and ``test_images.npy`` (uint8, (N, H, W, C)) and
``train_labels.npy`` and ``test_labels.npy`` (uint8, (N,)), and ``dataset.json``, which says what they are:

=============== ==========================================================================================
format          version of this form, 1
name, title     of the data set
splits          number of examples of ``train`` and ``test``
classes         class names in the order of the labels
image_shape     height, width, channels
mean, std       per channel, over the training images, in 0…1
files           per file, its ``sha256`` and its size in ``bytes``
provenance      ``official``, ``copy`` or ``synthetic``
source          where the content came from
licence         of the data
staged          when, in UTC
more_labels     only where images have further labels: per kind, its class names
=============== ==========================================================================================

CIFAR-100 has ``more_labels`` of the kind ``coarse_labels``, in the files ``train_coarse_labels.npy``
and ``test_coarse_labels.npy``. The arrays are memory-mapped: one open per array, no small files,
and the ranks of one machine share the pages.
"""

import hashlib
import io
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from data_prep import catalogue, made_up
from data_prep.catalogue import Entry
from data_prep.errors import Corrupt, Damaged, DataError, NotStaged
from data_prep.mmap_pages import drop_pages
from data_prep.root import data_root

FORMAT = 1
DESCRIPTION = "dataset.json"
ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
_KEYS = {"name", "title", "splits", "classes", "image_shape", "mean", "std", "files", "provenance", "source", "licence"}


@dataclass(frozen=True)
class StagedDataset:
    """A data set that can be read now.

    Attributes
    ----------
    name, title, licence, provenance, source : str
    path : Path
        The folder; for a shipped set that was never staged, the one inside the package; for a set that is made on
        demand, the module that makes it.
    classes : tuple of str
    image_shape : tuple of int
        Height, width, channels.
    mean, std : tuple of float
        Per channel, over the training images, in 0…1.
    arrays : dict of str to numpy.memmap
        ``train_images`` and ``test_images``, uint8 (N, H, W, C); ``train_labels`` and ``test_labels``, uint8 (N,).
        And such labels for every kind in `more_labels`, as ``train_coarse_labels``. Read-only. Those of a shipped set
        that was never staged, or of one that is made on demand, are in memory.
    more_labels : dict of str to tuple of str
        Class names of the further kinds of label, in their order; empty for most sets.
    """

    name: str
    title: str
    path: Path
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    provenance: str
    source: str
    licence: str
    arrays: dict[str, np.ndarray]
    more_labels: dict[str, tuple[str, ...]] = field(default_factory=dict)


def read(name: str, root: str | os.PathLike | None = None) -> StagedDataset:
    """Open the data set `name` under the data root.

    A set that ships inside this package is read from there when it was not staged: nothing is written then, so the
    root may be read-only or missing. So it is with the made-up sets of `data_prep.made_up`, which have no files at all.

    Raises
    ------
    NotStaged
        The set is in the catalogue but not under the root.
    UnknownDataset
        Neither under the root nor in the catalogue.
    Damaged
        A file is missing or its size or shape is not what ``dataset.json`` says. Contents are not hashed here:
        see `verify`.
    """
    if name in made_up.MADE_UP:
        return _make(name)
    folder = _located(name, root)
    entry = catalogue.CATALOGUE.get(name)
    if entry is not None and entry.shipped is not None and folder == entry.shipped.path:
        return _open_shipped(entry)
    return open_folder(folder)


def open_folder(folder: Path) -> StagedDataset:
    """Open a folder that holds a staged set. Raises `Damaged` as `read` does."""
    description = _description(folder)
    try:
        keys = _arrays_with(description.get("more_labels", {}))
        arrays = {key: _open_array(folder, key, description) for key in keys}
        return _dataset(description, folder, arrays)
    except (KeyError, TypeError, AttributeError) as error:
        path = folder / DESCRIPTION
        raise Damaged(f"{path} does not describe a data set ({error}): {_remedy(folder.name)}") from error


def verify(name: str, root: str | os.PathLike | None = None) -> list[str]:
    """Hash every file of a staged set again.

    Returns
    -------
    list of str
        The files that were checked.

    Raises
    ------
    Corrupt
        The first file whose SHA-256 is not the one in ``dataset.json``, with both.
    NotStaged, UnknownDataset, Damaged
        As `read` does.
    """
    folder = _located(name, root)
    description = _description(folder)
    for file, facts in description["files"].items():
        try:
            found = _sha256(folder / file)
        except OSError as error:
            raise _damaged(folder / file, f"cannot be read ({error.strerror})", description) from error
        if found != facts["sha256"]:
            remedy = f"delete {folder}, then {_remedy(description['name'])}"
            raise Corrupt(str(folder), file, facts["sha256"], found, remedy=remedy)
    return list(description["files"])


def write(folder: Path, entry: Entry, arrays: Mapping[str, np.ndarray], source: str) -> None:
    """Write a data set into the new folder `folder` in the staged form, flushed to the disk.

    Raises
    ------
    DataError
        The arrays do not fit the entry: another image shape, images and labels of different numbers, a label
        without a class.
    """
    check(entry, arrays)
    folder.mkdir()
    files = {}
    for key in _arrays_with(entry.more_labels):
        path = folder / f"{key}.npy"
        _save(path, arrays[key])
        files[path.name] = {"sha256": _sha256(path), "bytes": path.stat().st_size}
    with (folder / DESCRIPTION).open("w") as sink:
        sink.write(describe(entry, arrays, files, source))
        flush(sink)


def describe(entry: Entry, arrays: Mapping[str, np.ndarray], files: dict, source: str) -> str:
    """The text of ``dataset.json``."""
    mean, std = channel_statistics(arrays["train_images"])
    description = {
        "format": FORMAT, "name": entry.name, "title": entry.title,
        "splits": {split: len(arrays[f"{split}_labels"]) for split in ("train", "test")},
        "classes": entry.classes, "image_shape": entry.image_shape, "mean": mean, "std": std, "files": files,
        "provenance": entry.provenance, "source": source, "licence": entry.licence,
        "staged": datetime.now(UTC).isoformat(timespec="seconds"),
    }  # fmt: skip
    if entry.more_labels:
        description["more_labels"] = dict(entry.more_labels)
    return json.dumps(description, indent=1) + "\n"


def check(entry: Entry, arrays: Mapping[str, np.ndarray]) -> None:
    """Raise `DataError` when `arrays` are not what `entry` promises."""
    for split in ("train", "test"):
        images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
        if images.dtype != np.uint8 or images.shape[1:] != entry.image_shape:
            raise DataError(
                f"{entry.name}: {split} images are {images.dtype} {images.shape}, not uint8 (N, *{entry.image_shape})"
            )
        if labels.dtype != np.uint8 or labels.shape != images.shape[:1] or len(labels) == 0:
            raise DataError(f"{entry.name}: {len(images)} {split} images, labels {labels.dtype} {labels.shape}")
        if labels.max() >= len(entry.classes):
            raise DataError(f"{entry.name}: {split} label {labels.max()} has no class, there are {len(entry.classes)}")
        for kind, classes in entry.more_labels.items():
            more = arrays[f"{split}_{kind}"]
            if more.dtype != np.uint8 or more.shape != labels.shape or more.max() >= len(classes):
                raise DataError(f"{entry.name}: {split} {kind} are not {len(labels)} of {len(classes)} classes")


def channel_statistics(images: np.ndarray) -> tuple[list[float], list[float]]:
    """Mean and standard deviation per channel of uint8 images (N, H, W, C), scaled to 0…1.

    Exact, from each channel's histogram: a float copy of the images would take eight times their memory.
    """
    values = np.arange(256) / 255
    mean, std = [], []
    for channel in range(images.shape[-1]):
        counts = np.zeros(256, np.int64)
        for start in range(0, len(images), 2_000):
            counts += np.bincount(images[start : start + 2_000, ..., channel].ravel(), minlength=256)
            drop_pages(images)
        average = float(counts @ values / counts.sum())
        mean.append(average)
        std.append(float(np.sqrt(counts @ (values - average) ** 2 / counts.sum())))
    return mean, std


def _arrays_with(more_labels: Iterable[str]) -> tuple[str, ...]:
    return ARRAYS + tuple(f"{split}_{kind}" for kind in more_labels for split in ("train", "test"))


def _save(path: Path, array: np.ndarray) -> None:
    """Write an array; one that was packed on the disk, because it is large, is moved there and not copied."""
    if isinstance(array, np.memmap) and array.mode == "r+":  # what `open_memmap` makes of w+
        array.flush()
        os.rename(array.filename, path)
        return
    with path.open("wb") as sink:
        np.save(sink, array, allow_pickle=False)
        flush(sink)


def flush(sink) -> None:
    """Put what was written to an open file on the disk."""
    sink.flush()
    os.fsync(sink.fileno())


def flush_folder(folder: Path) -> None:
    """Put a folder's entries on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _located(name: str, root: str | os.PathLike | None) -> Path:
    """The folder that holds the set: under the root, or inside this package."""
    folder = data_root(root) / name
    # A name is never a path out of the root.
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name) and (folder / DESCRIPTION).is_file():
        return folder
    entry = catalogue.entry(name)
    if entry.shipped is not None:
        return entry.shipped.path
    raise NotStaged(f"{name} is not staged in {folder.parent}: run `lab data fetch {name}`")


def _open_shipped(entry: Entry) -> StagedDataset:
    def open_file(file: str) -> io.BytesIO:
        sink = io.BytesIO()
        entry.shipped.load(next(raw for raw in entry.files if raw.name == file), sink)
        sink.seek(0)
        return sink

    return _dataset(_description(entry.shipped.path), entry.shipped.path, entry.unpack(open_file))


def _make(name: str) -> StagedDataset:
    made, arrays = made_up.MADE_UP[name], made_up.arrays(name)
    mean, std = channel_statistics(arrays["train_images"])
    return StagedDataset(
        name, made.title, Path(made_up.__file__), made.classes, arrays["train_images"].shape[1:], tuple(mean), tuple(std),
        "synthetic", made_up.SOURCE, made_up.LICENCE, dict(arrays), made.more_labels,
    )  # fmt: skip


def _description(folder: Path) -> dict:
    path = folder / DESCRIPTION
    remedy = _remedy(folder.name)
    try:
        description = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise Damaged(f"{path} cannot be read ({error}): {remedy}") from error
    found = description.get("format") if isinstance(description, dict) else None
    if found != FORMAT:
        raise Damaged(f"{path} has format {found}, this version reads {FORMAT}: {remedy}")
    if missing := _KEYS - description.keys():
        raise Damaged(f"{path} lacks {min(missing)}: {remedy}")
    return description


def _dataset(description: dict, folder: Path, arrays: dict[str, np.ndarray]) -> StagedDataset:
    text = {key: description[key] for key in ("name", "title", "provenance", "source", "licence")}
    lists = {key: tuple(description[key]) for key in ("classes", "image_shape", "mean", "std")}
    more = {kind: tuple(names) for kind, names in description.get("more_labels", {}).items()}
    return StagedDataset(**text, **lists, path=folder, arrays=arrays, more_labels=more)


def _open_array(folder: Path, key: str, description: dict) -> np.memmap:
    path = folder / f"{key}.npy"
    expected = description["files"][path.name]["bytes"]
    try:
        found = path.stat().st_size
        if found != expected:
            raise _damaged(path, f"has {found} bytes, not {expected}", description)
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise _damaged(path, "is missing", description) from error
    except (ValueError, OSError, EOFError) as error:
        raise _damaged(path, f"cannot be read as an array ({error})", description) from error
    count = description["splits"][key.split("_")[0]]
    shape = (count, *description["image_shape"]) if key.endswith("images") else (count,)
    if array.dtype != np.uint8 or array.shape != shape:
        raise _damaged(path, f"holds {array.dtype} {array.shape}, not uint8 {shape}", description)
    return array


def _damaged(path: Path, what: str, description: dict) -> Damaged:
    return Damaged(f"{path} {what}: {_remedy(description['name'])}")


def _remedy(name: str) -> str:
    return f"run `lab data fetch {name}`"


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()

"""TinyImageNet-200 in the form in which it is published.

The archive of Stanford's course CS231n holds the folder ``tiny-imagenet-200``: ``wnids.txt`` names the 200 classes by
their WordNet identifiers and ``words.txt`` gives those their words; ``train/<wnid>/images/*.JPEG`` are 500 images a
class; ``val/images/*.JPEG`` are 10,000 images whose classes are in ``val/val_annotations.txt``, one line each;
``test/`` has no labels and is not used. Some images are grayscale.

110,000 small files slow a parallel file system down. `pack` puts all images into two arrays, in the order and with the
labels of ``ImageFolder``.
"""

import io
import os
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from data_prep.errors import DataError
from data_prep.mmap_pages import drop_pages
from data_prep.progress import counted

FOLDER = "tiny-imagenet-200"
ARCHIVE = f"{FOLDER}.zip"
SIDE = 64
CLASSES = 200
_MOST_BYTES = 10_000_000  # of any one file; the longest, words.txt, has 2.7 million


class _Folder:
    """The unpacked tree."""

    def __init__(self, path: Path):
        self.path = path

    def files(self) -> Iterator[str]:
        for folder, folders, files in os.walk(self.path):
            folders.sort()
            for file in files:
                yield Path(folder, file).relative_to(self.path).as_posix()

    def read(self, name: str) -> bytes:
        with (self.path / name).open("rb") as stream:
            return stream.read(_MOST_BYTES)


class _Zip:
    """The archive; read, never extracted."""

    def __init__(self, path: Path):
        try:
            self.archive = zipfile.ZipFile(path)
        except (zipfile.BadZipFile, OSError) as error:
            raise DataError(f"{path.name}: not a zip archive that can be read ({error})") from error

    def files(self) -> Iterator[str]:
        for name in self.archive.namelist():
            if name.startswith(f"{FOLDER}/") and not name.endswith("/"):
                yield name.removeprefix(f"{FOLDER}/")

    def read(self, name: str) -> bytes:
        with self.archive.open(f"{FOLDER}/{name}") as stream:
            return stream.read(_MOST_BYTES)


def pack(raw: Path, report: Callable[[str], object]) -> tuple[dict[str, np.ndarray], dict[str, tuple[str, ...]]]:
    """Pack the data set; the validation images are the ``test`` split.

    Parameters
    ----------
    raw : Path
        A folder that holds the archive `ARCHIVE`, or the unpacked tree under the name `FOLDER`. The arrays are
        written there too.
    report : callable
        Is given lines about the progress where there is no terminal for a bar.

    Returns
    -------
    arrays : dict
        ``train_images`` and ``test_images``, uint8 (N, 64, 64, 3), mapped; ``train_labels`` and ``test_labels``,
        uint8 (N,): positions among the sorted WordNet identifiers.
    names : dict
        Under ``labels``, the first of each class's words.

    Raises
    ------
    DataError
        Names the image that cannot be decoded or has another size, the validation image without an annotation, the
        annotated image that is missing, the class without images.
    """
    tree = _Folder(raw / FOLDER) if (raw / FOLDER).is_dir() else _Zip(raw / ARCHIVE)
    wnids = _wnids(tree)
    files = sorted(name for name in tree.files() if name.endswith(".JPEG"))
    classes: dict[str, list[str]] = {wnid: [] for wnid in wnids}
    for name in files:
        parts = name.split("/")
        if parts[0] == "train" and len(parts) == 4 and parts[2] == "images":
            if parts[1] not in classes:
                raise DataError(f"{name}: its class {parts[1]} is not in wnids.txt")
            classes[parts[1]].append(name)
    for wnid, images in classes.items():
        if not images:
            raise DataError(f"train/{wnid}: the class has no images")
    labels = _validation_labels(tree, [name for name in files if name.startswith("val/images/")], wnids)
    splits = {
        "train": [(name, wnid) for wnid, images in classes.items() for name in images],
        "test": sorted(labels.items(), key=lambda item: (item[1], item[0])),
    }
    arrays = {}
    for split, items in splits.items():
        path = raw / f"{split}_images.npy"
        images = np.lib.format.open_memmap(path, "w+", np.uint8, (len(items), SIDE, SIDE, 3))
        for position, (name, _) in enumerate(counted(items, f"packing the {split} images", report)):
            images[position] = _decoded(tree, name)
            if position % 2_000 == 0:
                drop_pages(images)
        arrays[f"{split}_images"] = images
        arrays[f"{split}_labels"] = np.array([wnids.index(wnid) for _, wnid in items], np.uint8)
    return arrays, {"labels": _words(tree, wnids)}


def _wnids(tree: _Folder | _Zip) -> list[str]:
    wnids = sorted(_lines(tree, "wnids.txt"))
    # They become names of folders, so nothing else may pass.
    if odd := [wnid for wnid in wnids if not re.fullmatch(r"n\d{8}", wnid)]:
        raise DataError(f"wnids.txt: {odd[0]!r} is no WordNet identifier")
    if len(wnids) != CLASSES or len(set(wnids)) != CLASSES:
        raise DataError(f"wnids.txt: {len(set(wnids))} classes, not {CLASSES}")
    return wnids


def _words(tree: _Folder | _Zip, wnids: list[str]) -> tuple[str, ...]:
    words = dict(line.split("\t", 1) for line in _lines(tree, "words.txt") if "\t" in line)
    return tuple(words.get(wnid, wnid).split(",")[0] for wnid in wnids)


def _validation_labels(tree: _Folder | _Zip, images: list[str], wnids: list[str]) -> dict[str, str]:
    """The WordNet identifier of each validation image."""
    file, known, labels = "val/val_annotations.txt", set(wnids), {}
    for number, line in enumerate(_lines(tree, file), 1):
        image, _, rest = line.partition("\t")
        wnid = rest.split("\t")[0]
        if wnid not in known:
            raise DataError(f"{file}, line {number}: {wnid or line!r} is no class of wnids.txt")
        labels[f"val/images/{image}"] = wnid
    for name in images:
        if name not in labels:
            raise DataError(f"{name}: {file} has no line for it")
    if missing := labels.keys() - set(images):
        raise DataError(f"{min(missing)}: missing, though {file} has a line for it")
    if missing := known - set(labels.values()):
        raise DataError(f"{file}: no image of class {min(missing)}")
    return labels


def _lines(tree: _Folder | _Zip, name: str) -> list[str]:
    try:
        return [line for line in tree.read(name).decode().splitlines() if line.strip()]
    except (OSError, KeyError, UnicodeDecodeError, zipfile.BadZipFile) as error:
        raise DataError(f"{name}: missing or cannot be read ({error})") from error


def _decoded(tree: _Folder | _Zip, name: str) -> np.ndarray:
    """An image as uint8 (64, 64, 3); a grayscale one has three equal channels, as in ``ImageFolder``."""
    from PIL import Image

    try:
        content = tree.read(name)
        with Image.open(io.BytesIO(content), formats=["JPEG"]) as image:
            if image.size != (SIDE, SIDE):
                raise DataError(f"{name}: {image.width}×{image.height} pixels, not {SIDE}×{SIDE}")
            return np.asarray(image.convert("RGB"))
    except DataError:
        raise
    except Exception as error:  # broken images raise almost anything
        reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise DataError(f"{name}: corrupt image: {reason}") from error

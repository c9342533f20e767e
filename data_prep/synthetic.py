"""Small made-up sets in the layouts of the real ones, for tests and for machines that have no data.

They can be learned: a class is a pattern of coloured squares, and an image is its class's pattern, shifted and under
noise. Where classes have superclasses, half of a pattern is the superclass's. All arithmetic is on integers from one
seed, so that every machine makes the same files.

Nobody must mistake them for the real sets. Every class name in the files begins with `PREFIX`, and staging always gives
such files the provenance ``synthetic``.
"""

import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np

PREFIX = "synthetic "
_SEED = 20090408  # the date of CIFAR's technical report
_SQUARES = 8  # a side


def is_synthetic(names: Sequence[str]) -> bool:
    """Whether class names are those of a made-up set."""
    return len(names) > 0 and all(name.startswith(PREFIX) for name in names)


def cifar10_arrays() -> dict[str, np.ndarray]:
    """The images and labels of `write_cifar10`, in the staged form: see `data_prep.staged`."""
    return _joined(_cifar10_parts())


def cifar100_arrays() -> dict[str, np.ndarray]:
    """The images and labels, coarse ones too, of `write_cifar100`, in the staged form."""
    arrays = _joined(_cifar100_parts())
    return {**arrays, **{f"{split}_coarse_labels": arrays[f"{split}_labels"] // 5 for split in ("train", "test")}}


def tiny_imagenet_arrays() -> dict[str, np.ndarray]:
    """2,000 images of 200 classes and 400 for the test, 64×64, in the staged form; never compressed, all coloured."""
    random = np.random.default_rng(_SEED)
    patterns = _patterns(random, 200)
    labels = {split: random.permutation(count) % 200 for split, count in (("train", 2000), ("test", 400))}
    return _joined({(split, ""): (pictures(of, patterns, 64, random), of) for split, of in labels.items()})


def write_cifar10(into: Path) -> None:
    """Write ``cifar-10-batches-py`` into the folder `into`: five batches of 400 images and 500 for the test."""
    folder = into / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for (_, file), (images, labels) in _cifar10_parts().items():
        content = {"batch_label": f"synthetic {file}", "labels": labels.tolist(), **_rows(images, file)}
        _dump(folder / file, content)
    _dump(folder / "batches.meta", {"num_cases_per_batch": 400, "label_names": names(10), "num_vis": 3072})


def write_cifar100(into: Path) -> None:
    """Write ``cifar-100-python`` into the folder `into`: 4,000 images and 1,000 for the test.

    Five successive classes are a superclass.
    """
    folder = into / "cifar-100-python"
    folder.mkdir(parents=True)
    for (_, file), (images, labels) in _cifar100_parts().items():
        kinds = {"fine_labels": labels.tolist(), "coarse_labels": (labels // 5).tolist()}
        _dump(folder / file, {"batch_label": f"synthetic {file}", **kinds, **_rows(images, file)})
    _dump(folder / "meta", {"fine_label_names": names(100), "coarse_label_names": names(20, "superclass")})


def pictures(labels: np.ndarray, patterns: np.ndarray, side: int, random: np.random.Generator) -> np.ndarray:
    """One image for each label: uint8 (N, side, side, 3).

    Parameters
    ----------
    labels : ndarray of int, (N,)
    patterns : ndarray of int, (classes, 8, 8, 3)
        In 0…255.
    side : int
        A multiple of 8.
    """
    scale = side // _SQUARES
    shifts = random.integers(-scale // 2, scale // 2 + 1, (len(labels), 2))
    images = np.empty((len(labels), side, side, 3), np.uint8)
    for image, label, shift in zip(images, labels, shifts, strict=True):
        square = patterns[label].astype(np.int16).repeat(scale, axis=0).repeat(scale, axis=1)
        noise = random.integers(-80, 81, image.shape)
        image[:] = np.clip(np.roll(square, tuple(shift), (0, 1)) + noise, 0, 255)
    return images


def _patterns(random: np.random.Generator, classes: int) -> np.ndarray:
    return random.integers(0, 256, (classes, _SQUARES, _SQUARES, 3))


def names(classes: int, kind: str = "class") -> list[str]:
    """The class names of a made-up set."""
    return [f"{PREFIX}{kind} {k}" for k in range(classes)]


_Parts = dict[tuple[str, str], tuple[np.ndarray, np.ndarray]]
"""Images and labels by split and file."""


def _cifar10_parts() -> _Parts:
    random = np.random.default_rng(_SEED)
    patterns = _patterns(random, 10)
    counts = {**{("train", f"data_batch_{k}"): 400 for k in range(1, 6)}, ("test", "test_batch"): 500}
    return _parts(counts, patterns, random)


def _cifar100_parts() -> _Parts:
    random = np.random.default_rng(_SEED)
    patterns = (_patterns(random, 20).repeat(5, axis=0) + _patterns(random, 100)) // 2
    return _parts({("train", "train"): 4000, ("test", "test"): 1000}, patterns, random)


def _parts(counts: dict[tuple[str, str], int], patterns: np.ndarray, random: np.random.Generator) -> _Parts:
    parts = {}
    for part, count in counts.items():
        labels = random.permutation(count) % len(patterns)
        parts[part] = pictures(labels, patterns, 32, random), labels
    return parts


def _joined(parts: _Parts) -> dict[str, np.ndarray]:
    arrays = {}
    for split in ("train", "test"):
        images, labels = zip(*(content for (of, _), content in parts.items() if of == split), strict=True)
        arrays[f"{split}_images"] = np.concatenate(images)
        arrays[f"{split}_labels"] = np.concatenate(labels).astype(np.uint8)
    return arrays


def _rows(images: np.ndarray, file: str) -> dict[str, object]:
    rows = np.ascontiguousarray(images.transpose(0, 3, 1, 2)).reshape(len(images), 3072)
    return {"data": rows, "filenames": [f"{file}_{k:05d}.png" for k in range(len(rows))]}


def _dump(path: Path, content: dict[str, object]) -> None:
    # Text keys: what the official files' keys are to a reader that decodes Python 2's strings, as torchvision does.
    with path.open("wb") as sink:
        pickle.dump(content, sink, protocol=2)


def write_tiny_imagenet(into: Path) -> None:
    """Write ``tiny-imagenet-200`` into the folder `into`: 200 classes of 8 images, 2 each for validation.

    Every eighth image is grayscale, as some of the real ones are.
    """
    from PIL import Image

    folder = into / "tiny-imagenet-200"
    folder.mkdir(parents=True)
    random = np.random.default_rng(_SEED)
    patterns = _patterns(random, 200)
    wnids = [f"n9{k:07d}" for k in range(200)]
    folder.joinpath("wnids.txt").write_text("".join(f"{wnid}\n" for wnid in reversed(wnids)))
    words = zip(wnids, names(200), strict=True)
    folder.joinpath("words.txt").write_text("".join(f"{wnid}\t{name}, made up\n" for wnid, name in words))

    def write(paths: list[Path], labels: np.ndarray) -> None:
        for position, (path, image) in enumerate(zip(paths, pictures(labels, patterns, 64, random), strict=True)):
            path.parent.mkdir(parents=True, exist_ok=True)
            picture = Image.fromarray(image)
            (picture.convert("L") if position % 8 == 7 else picture).save(path, "JPEG", quality=90)

    for k, wnid in enumerate(wnids):
        write([folder / "train" / wnid / "images" / f"{wnid}_{i}.JPEG" for i in range(8)], np.full(8, k))
    labels = random.permutation(400) % 200
    write([folder / "val" / "images" / f"val_{i}.JPEG" for i in range(400)], labels)
    lines = (f"val_{i}.JPEG\t{wnids[label]}\t0\t0\t63\t63\n" for i, label in enumerate(labels))
    folder.joinpath("val", "val_annotations.txt").write_text("".join(lines))
    write([folder / "test" / "images" / f"test_{i}.JPEG" for i in range(20)], np.arange(20))

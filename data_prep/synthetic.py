"""Small made-up sets in the layouts of the real ones, for tests and for machines that have no data.

They can be learned: a class is a pattern of coloured squares, and an image is its class's pattern, shifted and under
noise. Where classes have superclasses, half of a pattern is the superclass's. All arithmetic is on integers from one
seed, so that every machine makes the same files.

Nobody shall take them for the real sets. The files say so themselves: every class name begins with `PREFIX`, and
staging gives such files the provenance ``synthetic`` wherever it finds them.
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


def write_cifar10(into: Path) -> None:
    """Write ``cifar-10-batches-py`` into the folder `into`: five batches of 400 images and 500 for the test."""
    folder = into / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    random = np.random.default_rng(_SEED)
    patterns = _patterns(random, 10)
    for file, count in {**{f"data_batch_{k}": 400 for k in range(1, 6)}, "test_batch": 500}.items():
        labels = random.permutation(count) % 10
        _dump(
            folder / file,
            {"batch_label": f"synthetic {file}", "labels": labels.tolist(), **_rows(labels, patterns, random, file)},
        )
    _dump(folder / "batches.meta", {"num_cases_per_batch": 400, "label_names": _names(10), "num_vis": 3072})


def write_cifar100(into: Path) -> None:
    """Write ``cifar-100-python`` into the folder `into`: 4,000 images and 1,000 for the test.

    Five successive classes are a superclass.
    """
    folder = into / "cifar-100-python"
    folder.mkdir(parents=True)
    random = np.random.default_rng(_SEED)
    patterns = (_patterns(random, 20).repeat(5, axis=0) + _patterns(random, 100)) // 2
    for file, count in {"train": 4000, "test": 1000}.items():
        labels = random.permutation(count) % 100
        kinds = {"fine_labels": labels.tolist(), "coarse_labels": (labels // 5).tolist()}
        _dump(folder / file, {"batch_label": f"synthetic {file}", **kinds, **_rows(labels, patterns, random, file)})
    _dump(folder / "meta", {"fine_label_names": _names(100), "coarse_label_names": _names(20, "superclass")})


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
    images = patterns[labels].repeat(scale, axis=1).repeat(scale, axis=2)
    shifts = random.integers(-scale // 2, scale // 2 + 1, (len(labels), 2))
    images = np.stack([np.roll(image, tuple(shift), (0, 1)) for image, shift in zip(images, shifts, strict=True)])
    noise = random.integers(-80, 81, images.shape)
    return np.clip(images + noise, 0, 255).astype(np.uint8)


def _patterns(random: np.random.Generator, classes: int) -> np.ndarray:
    return random.integers(0, 256, (classes, _SQUARES, _SQUARES, 3))


def _names(classes: int, kind: str = "class") -> list[str]:
    return [f"{PREFIX}{kind} {k}" for k in range(classes)]


def _rows(labels: np.ndarray, patterns: np.ndarray, random: np.random.Generator, file: str) -> dict[str, object]:
    images = pictures(labels, patterns, 32, random)
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
    words = zip(wnids, _names(200), strict=True)
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

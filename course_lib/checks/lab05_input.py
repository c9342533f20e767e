"""Checks of lab 05's input: random crops and flips by the batch, and the labels of TinyImageNet's validation images."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from course_lib.checks.registry import CheckFailed

__all__ = ["crop_flip", "origins", "validation_set", "write_tree"]


def origins(images: torch.Tensor, out: torch.Tensor, padding: int, border: str = "constant") -> torch.Tensor:
    """Which crops of its padded image each output is.

    Parameters
    ----------
    images, out : Tensor (B, C, H, W)
    padding : int
    border : str
        `torch.nn.functional.pad`'s mode.

    Returns
    -------
    Tensor (B, 2·padding + 1, 2·padding + 1, 2), bool
        By the offset from above and from the left, and whether mirrored.
    """
    side, (height, width) = 2 * padding + 1, images.shape[2:]
    padded = F.pad(images, (padding,) * 4, mode=border)
    found = torch.zeros(len(images), side, side, 2, dtype=torch.bool)
    for top in range(side):
        for left in range(side):
            crop = padded[:, :, top : top + height, left : left + width]
            found[:, top, left, 0] = (crop == out).flatten(1).all(1)
            found[:, top, left, 1] = (crop.flip(3) == out).flatten(1).all(1)
    return found


def crop_flip(answer: Callable[..., Any]) -> None:
    draw = torch.Generator().manual_seed(3)
    padding, images = 2, torch.rand(2000, 2, 5, 6, generator=draw) + 0.1
    given = images.clone()
    out = answer(given, padding, torch.Generator().manual_seed(1))
    if not isinstance(out, torch.Tensor):
        raise CheckFailed(
            f"return the batch, a tensor; yours returned {'nothing' if out is None else type(out).__name__}"
        )
    if out.shape != images.shape:
        raise CheckFailed(f"a batch of {tuple(images.shape)} gave {tuple(out.shape)}: the shape stays")
    if not torch.equal(given, images):
        raise CheckFailed(
            "the batch given was changed; it is the data set itself in the worst case. Return a new tensor"
        )
    found = origins(images, out, padding)
    unknown = ~found.flatten(1).any(1)
    if unknown.any():
        raise CheckFailed(
            f"image {int(unknown.nonzero()[0])} of 2000 is no crop of its own padded image. {_why(images, out, padding)}"
        )
    top, left, flip = (found.float().flatten(1).argmax(1) // n % m for n, m in ((10, 5), (2, 5), (1, 2)))
    if len(top.unique()) == len(left.unique()) == 1:
        raise CheckFailed(
            f"all 2,000 images are shifted alike, by {int(top[0]) - padding} and {int(left[0]) - padding}: one draw for "
            "the whole batch, which is what torchvision's batched transforms do. Draw an offset for every image"
        )
    if len(flip.unique()) == 1:
        raise CheckFailed(
            f"all 2,000 images are {'mirrored' if flip[0] else 'unmirrored'}; draw for every image, half of the time"
        )
    for name, values in (("from above", top), ("from the left", left)):
        counts = torch.bincount(values, minlength=5)
        if (counts == 0).any():
            raise CheckFailed(
                f"offsets {name} should be 0…{2 * padding}; in 2,000 images {sorted(set(range(5)) - set(values.tolist()))} "
                f"never occur. torch.randint(high) stops before high, and there are 2·padding + 1 offsets"
            )
        if counts.min() < 300:  # 400 ± 18
            raise CheckFailed(
                f"offsets {name} should be equally frequent; in 2,000 images they occur {counts.tolist()} times"
            )
    if torch.equal(top, left):
        raise CheckFailed("every image has the same offset from above and from the left; draw the two separately")
    if abs(flip.double().mean() - 0.5) > 0.06:
        raise CheckFailed(f"half of the images should be mirrored, {flip.double().mean():.0%} of yours are")
    _check_generator(answer, images, padding)
    print("crop_and_flip: every image has its own crop and flip, uniform, and the generator alone decides")


def _why(images: torch.Tensor, out: torch.Tensor, padding: int) -> str:
    for mode in ("reflect", "replicate", "circular"):
        if origins(images, out, padding, mode).flatten(1).any(1).all():
            return f"The border should be black (0); yours is padded by {mode}"
    if origins(images, out.flip(2), padding).flatten(1).any(1).any():
        return "A flip is from left to right (the last dimension); yours turns upside down"
    whole = origins(images, out, padding + 1).flatten(1).any(1)
    if whole.all():
        return f"Offsets go beyond the padding: with padding {padding} the crop moves by at most {padding} pixels"
    return "Pad with zeros on all sides, cut H × W at the offset, then mirror. Is each output made from its own image?"


def _check_generator(answer: Callable[..., Any], images: torch.Tensor, padding: int) -> None:
    results = []
    for seed in (7, 8):
        torch.manual_seed(seed)
        results.append(answer(images.clone(), padding, torch.Generator().manual_seed(1)))
    if not torch.equal(*results):
        raise CheckFailed(
            "the same generator gave two different batches: pass generator=generator to every torch.rand… call, or the "
            "run cannot be repeated"
        )
    generator = torch.Generator().manual_seed(1)
    if torch.equal(*(answer(images.clone(), padding, generator) for _ in range(2))):
        raise CheckFailed(
            "two calls in a row gave the same crops: do not seed anything yourself, draw from the generator"
        )


def write_tree(root: Path, wnids: list[str], images: dict[str, str]) -> Path:
    """A small ``tiny-imagenet-200`` in the official layout, its validation images being files that only hold their name.

    Parameters
    ----------
    wnids : list of str
        In the order of ``wnids.txt``.
    images : dict of str to str
        File name to WordNet identifier, in the order of ``val_annotations.txt``.
    """
    folder = root / "tiny-imagenet-200"
    (folder / "val" / "images").mkdir(parents=True)
    (folder / "wnids.txt").write_text("".join(f"{wnid}\n" for wnid in wnids))
    (folder / "val" / "val_annotations.txt").write_text(
        "".join(f"{name}\t{wnid}\t0\t0\t63\t63\n" for name, wnid in images.items())
    )
    for wnid in wnids:
        (folder / "train" / wnid / "images").mkdir(parents=True)
        (folder / "train" / wnid / "images" / f"{wnid}_0.JPEG").write_text(f"{wnid}_0.JPEG")
    for name in images:
        (folder / "val" / "images" / name).write_text(name)
    return folder


def validation_set(answer: Callable[..., Any]) -> None:
    wnids = ["n03000000", "n01000000", "n02000000"]
    images = {"val_2.JPEG": wnids[1], "val_10.JPEG": wnids[0], "val_0.JPEG": wnids[2], "val_1.JPEG": wnids[1]}
    truth = {name: sorted(wnids).index(wnid) for name, wnid in images.items()}
    with tempfile.TemporaryDirectory() as folder:
        tree = write_tree(Path(folder), wnids, images)
        before = _files(tree)
        for call in ("", "the second call: "):
            pairs = answer(tree)
            _check_pairs(pairs, truth, wnids, images, call)
            gone = [name for name, text in before.items() if _files(tree).get(name) != text]
            if gone:
                raise CheckFailed(
                    f"{gone[0]} is no longer there: others read the same files. Leave the originals alone"
                )
            if not all(Path(path).is_file() for path, _ in pairs):
                raise CheckFailed("a path that you return is no file; return tree / 'val' / 'images' / name")
        (tree / "val" / "images" / "val_9.JPEG").write_text("no line")
        _must_raise(answer, tree, "val_9.JPEG", "an image without a line in val_annotations.txt")
        (tree / "val" / "images" / "val_9.JPEG").unlink()
        (tree / "val" / "images" / "val_10.JPEG").unlink()
        _must_raise(answer, tree, "val_10.JPEG", "a line whose image is missing")
    print("validation_set: every image has its class, nothing is moved, what is missing is named")


def _files(tree: Path) -> dict[str, str]:
    return {path.relative_to(tree).as_posix(): path.read_text() for path in tree.rglob("*") if path.is_file()}


def _check_pairs(pairs: Any, truth: dict[str, int], wnids: list[str], images: dict[str, str], call: str) -> None:
    if not isinstance(pairs, list) or not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise CheckFailed(
            f"{call}return a list of pairs (path, class); yours returned {'nothing' if pairs is None else pairs!r}"
        )
    found = {Path(path).name: label for path, label in pairs}
    if len(pairs) != len(truth) or found.keys() != truth.keys():
        raise CheckFailed(f"{call}4 images have a line each, yours gives {len(pairs)} pairs, of {sorted(found)}")
    if found == truth:
        return
    if found == {name: wnids.index(wnid) for name, wnid in images.items()}:
        raise CheckFailed(
            f"{call}the classes are numbered in the order of wnids.txt; ImageFolder numbers the *sorted* identifiers, and "
            "the training set has its numbers. All would be valid, and nearly all wrong"
        )
    order = list(dict.fromkeys(images.values()))
    if found == {name: order.index(wnid) for name, wnid in images.items()}:
        raise CheckFailed(f"{call}the classes are numbered as they occur; ImageFolder numbers the sorted identifiers")
    if all(isinstance(label, str) for label in found.values()):
        raise CheckFailed(
            f"{call}the class is a number, the place of the identifier among the sorted ones; yours are {found}"
        )
    raise CheckFailed(f"{call}the classes should be {truth}, yours are {found}")


def _must_raise(answer: Callable[..., Any], tree: Path, name: str, what: str) -> None:
    try:
        answer(tree)
    except ValueError as error:
        if name not in str(error):
            raise CheckFailed(f"{what}: your error does not name the image, {name}: {error}") from None
    except (OSError, LookupError) as error:
        raise CheckFailed(
            f"{what}: raise a ValueError that names {name}; yours was {type(error).__name__}: {error}"
        ) from None
    else:
        raise CheckFailed(f"{what} ({name}) passes unnoticed; raise a ValueError that names it")

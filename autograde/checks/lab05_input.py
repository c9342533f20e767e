"""Hidden checks of lab 05's input."""

from __future__ import annotations

from typing import Any

import torch

from autograde.checks.compare import is_int
from autograde.checks.registry import Ask, Findings, shape_of
from autograde.rubric.criteria import Finding
from course_lib.checks.lab05_input import origins

__all__ = ["crop_flip", "validation_set"]

MANY = 1200


def crop_flip(ask: Ask) -> Findings:
    """Two batches of other sizes and paddings; each output is traced back to the crop that it is."""
    random = ask.random
    paddings = [int(n) for n in random.choice([1, 2, 3], 2, replace=False)]
    sides = [tuple(int(n) for n in random.integers(4, 8, 2)) for _ in paddings]
    given = []
    for padding, (height, width) in zip(paddings, sides, strict=True):
        images = torch.from_numpy(random.uniform(0.1, 1, (MANY, 2, height, width))).float()
        seed = int(random.integers(1, 10**6))
        given += [(images, padding, seed, int(random.integers(1, 10**6))) for _ in range(2)]
    found = ask.call("crop_flip", given)
    answers = found if isinstance(found, list) and len(found) == len(given) else [None] * len(given)
    answers = [answer if isinstance(answer, dict) else {} for answer in answers]
    crops, offsets, flips, generator = [], [], [], []
    for (images, padding, *_), answer in zip(given, answers, strict=True):
        one = _traced(answer.get("out"), images, padding)
        two = _traced(answer.get("again"), images, padding)
        kept = answer.get("kept") is True
        crops.append(kept and one is not None and two is not None)
        offsets.append(crops[-1] and _uniform(one[:, 0], padding) and _uniform(one[:, 1], padding) and _apart(one))
        flips.append(crops[-1] and 0.42 < one[:, 2].double().mean() < 0.58)
        third = answer.get("third")  # an answer that seeds the generator anew gives the second batch once more
        moves_on = isinstance(third, torch.Tensor) and not torch.equal(answer["again"], third) if crops[-1] else False
        generator.append(moves_on and not torch.equal(one, two) and one[:, 0].unique().numel() > 1)
    for first, second in ((0, 1), (2, 3)):  # the same generator, another global seed
        a, b = answers[first].get("out"), answers[second].get("out")
        same = isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.shape == b.shape
        generator.append(same and bool((a == b).all()))
    right = {
        name: all(values)
        for name, values in (("crops", crops), ("offsets", offsets), ("flips", flips), ("generator", generator))
    }
    none = "" if isinstance(answers[0].get("out"), torch.Tensor) else f": it returned {shape_of(answers[0].get('out'))}"
    traced = "the outputs are no crops, so nothing can be said of"
    return {
        "crops": Finding(right["crops"], "every output is a crop of its own image" if right["crops"] else
                         f"an output is no crop of its own image with a black border, or the batch given was changed{none}",
                         "pad one small image by hand and look for the output in it"),
        "offsets": Finding(right["offsets"], "each image has its own offset, all equally often" if right["offsets"] else
                           f"{traced} offsets" if not right["crops"] else
                           "the offsets are not drawn for each image, or not uniform over 0 to 2·padding both ways",
                           "give it 1,000 images and count the offsets"),
        "flips": Finding(right["flips"], "half of the images are mirrored" if right["flips"] else
                         f"{traced} flips" if not right["crops"] else "not each image is mirrored with probability one half",
                         "give it 1,000 images and count the mirrored ones"),
        "generator": Finding(right["generator"], "the generator decides, and moves on" if right["generator"] else
                             f"{traced} the generator" if not right["crops"] else
                             "equal generators give different batches, or two calls in a row the same one",
                             "call it with a generator of a fixed seed twice, with another torch.manual_seed before each"),
    }  # fmt: skip


def _traced(out: Any, images: torch.Tensor, padding: int) -> torch.Tensor | None:
    """Offset from above, from the left, and mirrored, for each image (N, 3); None where some output is no crop."""
    if not isinstance(out, torch.Tensor) or out.shape != images.shape or out.dtype != images.dtype:
        return None
    found = origins(images, out.detach(), padding)
    if not bool(found.flatten(1).any(1).all()):
        return None
    place, side = found.float().flatten(1).argmax(1), 2 * padding + 1
    return torch.stack([place // (2 * side), place // 2 % side, place % 2], 1)


def _uniform(values: torch.Tensor, padding: int) -> bool:
    """All offsets occur, none far less often than the others."""
    counts = torch.bincount(values, minlength=2 * padding + 1)
    return bool(counts.min() > 0.6 * MANY / (2 * padding + 1))


def _apart(one: torch.Tensor) -> bool:
    """The two offsets and the flip are drawn separately."""
    a = one.double() - one.double().mean(0)
    scale = a.square().sum(0).sqrt()
    products = (a.T @ a) / (scale[:, None] * scale[None, :] + 1e-9)
    return bool((products - torch.diag(products.diag())).abs().max() < 0.2)


def validation_set(ask: Ask) -> Findings:
    """Trees with identifiers and images drawn anew; a second call; a missing line; a missing image."""
    random = ask.random

    def draw() -> dict[str, Any]:
        wnids = [f"n{n:08d}" for n in random.choice(10**8, int(random.integers(4, 9)), replace=False)]
        names = [f"val_{n}.JPEG" for n in random.choice(10**4, int(random.integers(8, 20)), replace=False)]
        lines = [(name, wnids[int(random.integers(len(wnids)))]) for name in names]
        return {"wnids": wnids, "lines": lines, "images": names, "calls": 2}

    whole = [draw(), draw()]
    no_line, no_image = {**draw(), "calls": 1}, {**draw(), "calls": 1}
    unlined, absent = no_line["images"][2], no_image["images"][3]
    no_line["lines"] = [line for line in no_line["lines"] if line[0] != unlined]
    no_image["images"] = [name for name in no_image["images"] if name != absent]
    found = ask.call("validation_set", [*whole, no_line, no_image])
    answers = found if isinstance(found, list) and len(found) == 4 else [None] * 4
    answers = [answer if isinstance(answer, dict) else {} for answer in answers]
    right = all(_right_classes(answer.get("answers"), tree) for answer, tree in zip(answers, whole, strict=False))
    untouched = right and all(answer.get("untouched") is True for answer in answers)
    named = right and all(
        type(answer.get("error")) is str and name in answer["error"]
        for answer, name in zip(answers[2:], (unlined, absent), strict=True)
    )
    look = "make a folder of three images by hand, with wnids.txt out of order, and print the pairs"
    return {
        "classes": Finding(right, "every image has its class, and the second call says the same" if right else
                           "an image is missing, or has another class, or its path is none", look),
        "untouched": Finding(untouched, "no file was moved" if untouched else
                             "files were moved or changed" if right else "the pairs are wrong", look),
        "errors": Finding(named, "what is missing is named" if named else
                          "an image without a line, or a line without an image, raises no ValueError that names it"
                          if right else "the pairs are wrong", look),
    }  # fmt: skip


def _right_classes(answers: Any, tree: dict[str, Any]) -> bool:
    number = {wnid: place for place, wnid in enumerate(sorted(tree["wnids"]))}
    wanted = {f"val/images/{name}": number[wnid] for name, wnid in tree["lines"]}
    if not isinstance(answers, list) or len(answers) != tree["calls"]:
        return False
    return all(
        isinstance(one, list)
        and len(one) == len(wanted)
        and all(
            isinstance(item, tuple | list) and len(item) == 3 and type(item[0]) is str and item[2] is True
            and item[0] in wanted and is_int(item[1], wanted[item[0]])
            for item in one
        )
        and len({item[0] for item in one}) == len(wanted)
        for one in answers
    )  # fmt: skip

"""The characters of a text as whole numbers: what a small language model reads."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from data_prep.novel import NAME, SOURCE, read_novel

__all__ = ["Characters", "load_characters"]

HELD_OUT = 10  # the last one of so many equal parts


@dataclass(frozen=True)
class Characters:
    """A text in two parts, each ``int64 (characters,)`` with places in `alphabet`."""

    train: torch.Tensor
    held_out: torch.Tensor
    alphabet: str

    def describe(self) -> dict[str, Any]:
        """What ``run.json`` says of the data."""
        return {
            "name": NAME, "provenance": "copy", "source": SOURCE, "train_samples": len(self.train),
            "test_samples": len(self.held_out),
        }  # fmt: skip

    def text(self, codes: torch.Tensor) -> str:
        """The characters of these numbers."""
        return "".join(self.alphabet[code] for code in codes.tolist())

    def __str__(self) -> str:
        return (
            f"{NAME}: {len(self.train):,} characters to train on, {len(self.held_out):,} held out, {len(self.alphabet)} "
            f"different ones; from {SOURCE}"
        )


def load_characters(train_samples: int = 0) -> Characters:
    """The novel that ships with the course; its last tenth is held out.

    Parameters
    ----------
    train_samples : int
        The first so many characters of the other nine tenths; 0 means all.

    Raises
    ------
    ValueError
        The text is shorter, or the file is damaged.
    """
    novel = read_novel()
    letters, codes = np.unique(np.frombuffer(novel.encode("ascii"), np.uint8), return_inverse=True)
    alphabet, codes = letters.tobytes().decode("ascii"), torch.from_numpy(codes)
    cut = len(codes) * (HELD_OUT - 1) // HELD_OUT
    if not 0 <= train_samples <= cut:
        raise ValueError(f"train_samples = {train_samples}: the text has {cut} characters to train on")
    return Characters(codes[: train_samples or cut], codes[cut:], alphabet)

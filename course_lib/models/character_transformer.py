"""Lab 14's transformer, as the grader rebuilds it for submitted weights."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

__all__ = ["CharacterTransformer"]


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        thirds = (third.unflatten(-1, (self.heads, -1)).transpose(1, 2) for third in self.qkv(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(*thirds, is_causal=True).transpose(1, 2).flatten(2))


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = _Attention(width, heads)
        self.mlp = nn.ModuleDict({"up": nn.Linear(width, 4 * width), "down": nn.Linear(4 * width, width)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp["down"](F.gelu(self.mlp["up"](self.norm2(x))))


class CharacterTransformer(nn.Module):
    """A causal transformer that predicts the next character; its weights have the names of lab 14's.

    Parameters
    ----------
    letters : int
        Different characters of the text.
    width, heads, layers : int
        `heads` divides `width`.
    context : int
        The most characters that it reads at once.

    Notes
    -----
    Input ``int64 (batch, characters)``; output logits ``(batch, characters, letters)``, of the next character at
    each place.
    """

    def __init__(self, letters: int, width: int, heads: int, layers: int, context: int) -> None:
        super().__init__()
        self.embedding = nn.ModuleDict(
            {"letters": nn.Embedding(letters, width), "places": nn.Embedding(context, width)}
        )
        self.blocks = nn.Sequential(*(_Block(width, heads) for _ in range(layers)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, letters))

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        x = self.embedding["letters"](codes) + self.embedding["places"].weight[: codes.shape[1]]
        return self.head(self.blocks(x))

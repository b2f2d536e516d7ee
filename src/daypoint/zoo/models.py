"""Four small models. Each takes every data set of the zoo: images [batch, channels, height, width], sequences
[batch, channels, length] and flat rows [batch, features].

All answer [batch, outputs] in float32: scores of classes, or the targets of a regression. Sizes are checked
when a model is made. `forward` never looks at values, so torch.export takes them with a batch of any size.
They do not know the task and the loss.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from daypoint.base.errors import ConfigError


class Linear(nn.Module):
    """One linear layer over the flattened input: logistic or linear regression."""

    def __init__(self, input_shape: list[int], outputs: int) -> None:
        super().__init__()
        shape = _checked(input_shape, outputs)
        self.head = nn.Linear(math.prod(shape), outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1))


class MLP(nn.Module):
    """`depth` hidden layers of `width` over the flattened input, each followed by ReLU and dropout."""

    def __init__(
        self,
        input_shape: list[int],
        outputs: int,
        width: int = 128,
        depth: int = 2,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        shape = _checked(input_shape, outputs, dropout, width=width)
        _at_least(0, depth=depth)
        sizes = [math.prod(shape), *[width] * depth]
        self.body = nn.Sequential()
        for inputs, size in pairwise(sizes):
            self.body.extend([nn.Linear(inputs, size), nn.ReLU(), nn.Dropout(dropout)])
        self.head = nn.Linear(sizes[-1], outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x.flatten(1)))


class CNN(nn.Module):
    """`depth` blocks of convolution, group norm, ReLU and a halving of every side; each doubles the channels.

    Flat rows are a sequence with one channel: neighbouring features are taken to belong together. A side of 1
    is not halved. Group norm and not batch norm, so that a sample's answer does not depend on the others of
    its batch.
    """

    def __init__(
        self,
        input_shape: list[int],
        outputs: int,
        channels: int = 16,
        depth: int = 2,
        kernel_size: int = 3,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        shape = _checked(
            input_shape, outputs, dropout, channels=channels, depth=depth, kernel_size=kernel_size
        )
        if kernel_size % 2 == 0:
            raise ConfigError(f"model.kernel_size: expected an odd number, found {kernel_size}")
        self.is_flat = len(shape) == 1
        inputs, *sides = (1, *shape) if self.is_flat else shape
        conv, pool = (nn.Conv1d, nn.MaxPool1d) if len(sides) == 1 else (nn.Conv2d, nn.MaxPool2d)
        self.body = nn.Sequential()
        for i in range(depth):
            width = channels * 2**i
            # The norm has a bias of its own.
            convolution = conv(inputs, width, kernel_size, padding=kernel_size // 2, bias=False)
            self.body.extend([convolution, nn.GroupNorm(1, width), nn.ReLU()])
            halves = tuple(2 if side > 1 else 1 for side in sides)
            if max(halves) > 1:
                self.body.append(pool(halves))
            inputs, sides = width, [side // half for side, half in zip(sides, halves, strict=True)]
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(inputs * math.prod(sides), outputs)

    def forward(self, x: Tensor) -> Tensor:
        if self.is_flat:
            x = x.unsqueeze(1)
        return self.head(self.dropout(self.body(x).flatten(1)))


class Transformer(nn.Module):
    """A small pre-norm transformer encoder over tokens of size `dim`; the head reads all tokens side by side.

    An image becomes one token per `patch` x `patch` square (Dosovitskiy et al., "An Image is Worth 16x16
    Words", 2021), a sequence one per position, a flat row one per feature: value · weight + bias, with a
    weight and a bias of its own (Gorishniy et al., "Revisiting Deep Learning Models for Tabular Data", 2021).
    """

    def __init__(
        self,
        input_shape: list[int],
        outputs: int,
        dim: int = 32,
        heads: int = 4,
        depth: int = 2,
        patch: int = 2,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        shape = _checked(input_shape, outputs, dropout, dim=dim, heads=heads, depth=depth, patch=patch)
        if dim % heads:
            raise ConfigError(f"model.dim: expected a multiple of model.heads={heads}, found {dim}")
        self.kind = {1: "row", 2: "sequence", 3: "image"}[len(shape)]
        if self.kind == "image":
            inputs, *sides = shape
            if any(side % patch for side in sides):
                fitting = [str(p) for p in range(1, min(sides) + 1) if not any(side % p for side in sides)]
                raise ConfigError(
                    f"model.patch: expected a divisor of height and width ({sides[0]} x {sides[1]}), "
                    f"found {patch}; {', '.join(fitting)} would do"
                )
            self.embed: nn.Module = nn.Conv2d(inputs, dim, patch, stride=patch)
            tokens = math.prod(sides) // patch**2
        elif self.kind == "sequence":
            self.embed = nn.Conv1d(shape[0], dim, 1)
            tokens = shape[1]
        else:
            self.embed = EachFeature(shape[0], dim)
            tokens = shape[0]
        self.position = nn.Parameter(0.02 * torch.randn(tokens, dim))
        self.blocks = nn.Sequential(*[Block(dim, heads, dropout) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(tokens * dim, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)  # [batch, dim, ...tokens], of a row [batch, tokens, dim]
        if self.kind != "row":
            x = x.flatten(2).transpose(1, 2)
        x = self.blocks(x + self.position)
        return self.head(self.norm(x).flatten(1))


class EachFeature(nn.Module):
    """[batch, features] -> [batch, features, dim]: each feature's value times a vector of its own, plus
    another one.
    """

    def __init__(self, features: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(features, dim) / math.sqrt(dim))
        self.bias = nn.Parameter(torch.zeros(features, dim))

    def forward(self, x: Tensor) -> Tensor:
        return x.unsqueeze(-1) * self.weight + self.bias


class Block(nn.Module):
    """[batch, tokens, dim] to the same: self-attention, then two layers token by token; each on what is
    normalised, and added to what came in.
    """

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attend(self.norm1(x)))
        return x + self.dropout(self.mlp(self.norm2(x)))

    def attend(self, x: Tensor) -> Tensor:
        # [batch, tokens, 3 dim] -> three of [batch, heads, tokens, dim / heads]
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).flatten(2))


# ---------------------------------------------------------------- sizes


def _checked(input_shape: list[int], outputs: int, dropout: float = 0.0, **sizes: int) -> tuple[int, ...]:
    """The input's shape as plain ints (the config's may be an OmegaConf list), after all settings were checked."""
    if input_shape is None or outputs is None:
        raise ConfigError(
            f"model.input_shape, model.outputs: expected sizes, found {input_shape} and {outputs}; "
            "with data=table they are known only when the file has been read"
        )
    shape = tuple(input_shape)
    if not 1 <= len(shape) <= 3 or min(shape) < 1:
        raise ConfigError(
            "model.input_shape: expected [features], [channels, length] or [channels, height, width], "
            f"without the batch, found {list(shape)}"
        )
    _at_least(1, outputs=outputs, **sizes)
    if not 0 <= dropout < 1:
        raise ConfigError(f"model.dropout: expected at least 0 and below 1, found {dropout}")
    return shape


def _at_least(least: int, **sizes: int) -> None:
    for name, size in sizes.items():
        if size < least:
            raise ConfigError(f"model.{name}: expected a whole number >= {least}, found {size}")

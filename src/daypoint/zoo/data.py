"""Data sets that fit in memory, as batches whose order is a pure function of (seed, epoch).

`Digits` and `Linear` are here; the user's own file is in `zoo.table`. A data set does not know who
trains on it: it never touches the global random state, so a resumed run that skips `start_batch` batches
meets the very same ones, and dropout draws the same numbers. A batch is taken by one indexing call, which is 10 times cheaper
than collating samples.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from daypoint.base.errors import ConfigError


class InMemory:
    """What train.py asks of a data set; the base of all of ours.

    Args:
        x, y: inputs and targets of all rows.
        split: row numbers of the train and of the validation part.
        seed: of the order of the batches.
        task, input_shape, outputs: what the config says about the data; None says nothing.

    Attributes:
        name: what the data is called.
        source: where it came from, for people.
        task: "classification" (targets int64 [batch]) or "regression" (targets float32 [batch, outputs]).
        input_shape: shape of one input, without the batch.
        outputs: number of classes, or of regression targets.
        classes: the classes' names in the order of their numbers; None for regression.
        rows: rows in both parts together.

    Raises:
        ConfigError: a setting is out of range, or the config says something else about the data than the data does.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        split: tuple[np.ndarray, np.ndarray],
        *,
        name: str,
        source: str,
        classes: list[str] | None,
        fingerprint: str,
        batch_size: int = 64,
        seed: int = 0,
        num_workers: int = 0,
        task: str | None = None,
        input_shape: Sequence[int] | None = None,
        outputs: int | None = None,
    ) -> None:
        for key, value, least in (("batch_size", batch_size, 1), ("num_workers", num_workers, 0)):
            if value < least:
                raise ConfigError(f"data.{key}: expected a whole number >= {least}, found {value}")
        self.name = name
        self.source = source
        self.task = "regression" if classes is None else "classification"
        self.input_shape = tuple(x.shape[1:])
        self.outputs = y.shape[1] if classes is None else len(classes)
        self.classes = classes
        self.rows = len(y)
        self._train, self._val = (TensorDataset(x[rows], y[rows]) for rows in split)
        self._fingerprint = fingerprint
        self._batch_size = batch_size
        self._seed = seed
        self._num_workers = num_workers
        shape = None if input_shape is None else list(input_shape)
        for key, said, found in (
            ("task", task, self.task),
            ("input_shape", shape, list(self.input_shape)),
            ("outputs", outputs, self.outputs),
        ):
            if said not in (None, found):
                raise ConfigError(
                    f"data.{key}: expected {found}, as {name} has it, found {said} in the config; "
                    f"leave data.{key} as conf/data has it"
                )

    def fingerprint(self) -> str:
        """32 hex digits of the SHA-256 of all of the content, before it is split and scaled."""
        return self._fingerprint

    def train_loader(self, epoch: int, start_batch: int = 0) -> DataLoader:
        """The batches (x, y) of an epoch from `start_batch` on, in the order that (seed, epoch) decides.

        The last batch holds what is left, so every row is seen once an epoch.

        Raises:
            ConfigError: the epoch has fewer than `start_batch` batches.
        """
        order = np.random.default_rng([self._seed % 2**64, epoch]).permutation(len(self._train))
        batches = self._cut(order)
        if not 0 <= start_batch <= len(batches):
            raise ConfigError(
                f"start_batch: expected 0 to {len(batches)} (batches an epoch), found {start_batch}; "
                "was data.batch_size changed since the checkpoint?"
            )
        return self._loader(self._train, batches[start_batch:], epoch)

    def val_loader(self) -> DataLoader:
        """The batches (x, y) of the validation part, always in the same order."""
        return self._loader(self._val, self._cut(np.arange(len(self._val))), 0)

    def _cut(self, order: np.ndarray) -> list[np.ndarray]:
        return [order[i : i + self._batch_size] for i in range(0, len(order), self._batch_size)]

    def _loader(self, rows: TensorDataset, batches: list[np.ndarray], epoch: int) -> DataLoader:
        return DataLoader(
            rows,
            batch_size=None,  # the sampler's items are whole batches
            sampler=batches,
            num_workers=self._num_workers,
            # Without one of its own, every new iterator draws from the global random state.
            generator=torch.Generator().manual_seed(epoch),
        )


class Digits(InMemory):
    """The 1,797 handwritten digits of 8x8 pixels that ship with scikit-learn.

    Inputs float32 [batch, 1, 8, 8] from -1 (paper) to 3 (ink); targets int64 [batch], 0 to 9. Every digit has
    the same share of the validation part. Other settings are those of `InMemory`.
    """

    def __init__(
        self, val_fraction: float = 0.2, split_seed: int = 0, name: str = "digits", **settings: Any
    ) -> None:
        from sklearn.datasets import load_digits  # a second to import

        pixels, digits = load_digits(return_X_y=True)  # float64 0 to 16 [1797, 64], int64 [1797]
        super().__init__(
            torch.from_numpy(pixels / 4 - 1).float().reshape(-1, 1, 8, 8),
            torch.from_numpy(digits.astype(np.int64)),
            split_rows(len(digits), val_fraction, split_seed, labels=digits),
            name=name,
            source="sklearn.datasets.load_digits",
            classes=[str(digit) for digit in range(10)],
            fingerprint=content_fingerprint([("pixels", pixels), ("digit", digits)]),
            **settings,
        )


class Linear(InMemory):
    """A synthetic regression, y = x · w + b + noise, made anew from `data_seed`.

    Inputs float32 [batch, features], standard normal; targets float32 [batch, 1], of variance about 1. That
    is the shape a model answers in: a target of shape [8] against an answer of shape [8, 1] would broadcast
    to [8, 8]. No model gets below an MSE of noise². Other settings are those of `InMemory`.
    """

    def __init__(
        self,
        rows: int = 1024,
        features: int = 16,
        noise: float = 0.1,
        data_seed: int = 0,
        val_fraction: float = 0.2,
        batch_size: int = 8,
        name: str = "linear",
        **settings: Any,
    ) -> None:
        if rows < 2 or features < 1 or not noise >= 0:
            found = f"{rows}, {features} and {noise}"
            raise ConfigError(f"data: expected rows >= 2, features >= 1 and noise >= 0, found {found}")
        rng = np.random.default_rng(data_seed)
        weight, bias = rng.standard_normal(features) / math.sqrt(features), rng.standard_normal()
        x = rng.standard_normal((rows, features))
        y = (x * weight).sum(axis=1, keepdims=True) + bias + noise * rng.standard_normal((rows, 1))
        x, y = x.astype(np.float32), y.astype(np.float32)
        super().__init__(
            torch.from_numpy(x),
            torch.from_numpy(y),
            split_rows(rows, val_fraction, data_seed),
            name=name,
            source=f"{__name__}.{type(self).__name__}",
            classes=None,
            fingerprint=content_fingerprint([("x", x), ("y", y)]),
            batch_size=batch_size,
            **settings,
        )


def split_rows(
    rows: int, val_fraction: float, seed: int, labels: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers (int64, ascending) of the train and of the validation part.

    The rows are shuffled, then sorted by label, and every (1 / val_fraction)-th is taken: systematic
    sampling, so each class's share is right to within one row. A class with a single row stays in the train
    part.

    Raises:
        ConfigError: `val_fraction` is not above 0 and at most 0.5, or there are too few rows to have both
        parts.
    """
    if not 0 < val_fraction <= 0.5:
        raise ConfigError(f"data.val_fraction: expected above 0 and at most 0.5, found {val_fraction}")
    order = np.random.default_rng(seed % 2**64).permutation(rows)
    if labels is not None:
        _, number, count = np.unique(labels, return_inverse=True, return_counts=True)
        order = order[np.argsort(number[order], kind="stable")]
        order = order[count[number[order]] > 1]
    if len(order) < 2:
        raise ConfigError(
            f"data: expected at least two rows{'' if labels is None else ' of a class'}, so that one can be "
            f"held out for validation, found {len(order)} among {rows}"
        )
    taken = max(1, round(len(order) * val_fraction))
    val = np.sort(order[((np.arange(taken) + 0.5) * len(order) / taken).astype(np.int64)])
    return np.setdiff1d(np.arange(rows), val), val


def content_fingerprint(columns: Iterable[tuple[str, np.ndarray | Sequence[str | None]]]) -> str:
    """32 hex digits of the SHA-256 over the names, shapes and every value of `columns`.

    Numbers count by value, not by storage: int32 and int64 columns of the same numbers are the same content.
    Text columns are sequences of str, or None where a value is missing.
    """
    digest = hashlib.sha256()
    for name, values in columns:
        if isinstance(values, np.ndarray):
            kind = "float64" if values.dtype.kind == "f" else "int64"
            content = np.ascontiguousarray(values, dtype=f"<{kind[0]}8")
            if kind == "float64":
                content = np.where(np.isnan(content), np.nan, content)  # one NaN, whatever its payload
            head, body = [name, kind, list(values.shape)], content.tobytes()
        else:
            head, body = [name, "text", [len(values)]], json.dumps(list(values)).encode()
        for part in (json.dumps(head).encode(), body):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
    return digest.hexdigest()[:32]

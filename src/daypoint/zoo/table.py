"""The user's own CSV or Parquet file as training data; no column is dropped silently.

The target column decides the task. Text, true/false and whole numbers with few distinct values (at most 20,
each twice on average) are classes; other numbers are a regression. `task=` overrules that.

What becomes of the other columns:
    numbers, times  (value - mean) / standard deviation; a missing value becomes the mean
    text            one 0/1 column for each value; all zeros for one that is missing, or not in the train part
    true/false      text of two values
Means, standard deviations and values are those of the train part: the validation part stays unseen. A
regression's target is standardised too, so that an MSE of 0.1 means that a tenth of the variance is left.
`preparation` holds what is needed to treat new rows the same way.

It refuses to guess: an identifier, a date in text or a number with stray text would become one column for
each row, so they are errors that say what to do about each.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from daypoint.base.errors import ConfigError
from daypoint.zoo.columns import Column, read_columns, typed
from daypoint.zoo.data import InMemory, content_fingerprint, split_rows

MOST_INTEGER_CLASSES = 20


class Table(InMemory):
    """Rows of a file. Inputs float32 [batch, features]; targets int64 [batch] or float32 [batch, 1].

    Args:
        path: the file; a relative path starts at the working directory.
        target: name of the column to predict.
        task: "classification" or "regression"; None or "auto": the target column decides.
        exclude: names of columns not to use.
        separator: what stands between the values of a CSV file; None: a comma, in a .tsv file a tab.
        missing: texts that stand for a missing value in a CSV file, besides the empty one, NA, NaN, null and
            None.
        max_categories: most distinct values that a text column may have.
        settings: those of `InMemory`.

    Attributes:
        preparation: plain data: {"features": {column: {"mean", "std"} or {"values"}},
            "target": {"mean", "std"} or {"classes"}}.

    Raises:
        ConfigError: the file, the target or another column cannot be used; says which, and what to do.
    """

    def __init__(
        self,
        path: str,
        target: str | int,
        task: str | None = None,
        exclude: list[str] | None = None,
        separator: str | None = None,
        missing: list[str] | None = None,
        max_categories: int = 64,
        val_fraction: float = 0.2,
        split_seed: int = 0,
        name: str | None = None,
        **settings: Any,
    ) -> None:
        if task not in (None, "auto", "classification", "regression"):
            raise ConfigError(f"data.task: expected auto, classification or regression, found {task!r}")
        file = Path(os.getcwd(), os.path.expanduser(path))
        target, unused = str(target), [str(column) for column in exclude or ()]
        everything = read_columns(file, target, unused, separator, [str(text) for text in missing or ()])
        columns = {column: values for column, values in everything.items() if column not in unused}
        if target not in columns or len(columns) < 2:
            raise ConfigError(
                f"data.exclude: expected to leave {target!r} and a column to predict it from, "
                f"found {', '.join(columns) or 'nothing'} left of {file}"
            )
        aim = columns.pop(target)
        if len(aim) < 3:
            raise ConfigError(
                f"data.path: expected at least 3 rows below the names, found {len(aim)} in {file}"
            )

        labels, classes = _target(target, aim, task)
        split = split_rows(len(aim), val_fraction, split_seed, None if classes is None else labels)
        features, recipes = _features(columns, split[0], max_categories)
        if classes is None:
            mean, std = _mean_and_std(labels[split[0]])
            y = torch.from_numpy((labels - mean) / std).float().reshape(-1, 1)
            self.preparation = {"features": recipes, "target": {"mean": mean, "std": std}}
        else:
            y = torch.from_numpy(labels)
            self.preparation = {"features": recipes, "target": {"classes": classes}}
        super().__init__(
            torch.from_numpy(features).float(),
            y,
            split,
            name=name or file.name.split(".")[0],
            source=str(file),
            classes=classes,
            fingerprint=content_fingerprint(everything.items()),
            **settings,
        )


def _target(name: str, values: Column, task: str | None) -> tuple[np.ndarray, list[str] | None]:
    """Class numbers (int64 [rows]) with the classes' names, or target values (float64 [rows]) with None."""
    rows, where = len(values), f"data.target: column {name!r}"
    is_text = isinstance(values, list)
    gone = np.array([value is None for value in values]) if is_text else np.isnan(values)
    if gone.any():
        first = int(np.flatnonzero(gone)[0]) + 1
        raise ConfigError(
            f"{where}: expected a value in every row, found none in {gone.sum()} of {rows} rows "
            f"(the first is row {first} below the names); fill them in or remove those rows"
        )
    distinct, codes = np.unique(np.array(values), return_inverse=True)
    if len(distinct) == 1:
        raise ConfigError(f"{where}: expected at least two different values, found only {distinct[0]}")
    if task in (None, "auto"):
        is_few = len(distinct) <= min(MOST_INTEGER_CLASSES, rows // 2)
        task = "classification" if is_text or (values.dtype.kind == "i" and is_few) else "regression"
    if task == "classification":
        if len(distinct) > rows // 2:
            remedy = "is it an identifier?" if is_text else "give data.task=regression"
            raise ConfigError(
                f"{where}: expected classes with two rows or more on average, "
                f"found {len(distinct)} different values in {rows} rows; {remedy}"
            )
        return codes.astype(np.int64), [str(value) for value in distinct.tolist()]
    if is_text:
        raise ConfigError(
            f"{where}: expected numbers for data.task=regression, found text such as {values[0]!r}; "
            "give data.task=classification"
        )
    _refuse_infinite(where, values)
    return values.astype(np.float64), None


def _features(
    columns: dict[str, Column], train: np.ndarray, max_categories: int
) -> tuple[np.ndarray, dict[str, dict[str, Any]]]:
    """All columns as float64 [rows, features], and the recipe of each."""
    parts: list[np.ndarray] = []
    recipes: dict[str, dict[str, Any]] = {}
    problems: dict[str, str] = {}
    for name, values in columns.items():
        is_text = isinstance(values, list)
        present = [values[i] for i in train if values[i] is not None] if is_text else values[train]
        if name.startswith("Unnamed: "):  # pandas' name for a column without one
            problems[name] = "no name in the file (row numbers?)"
        elif len(present) == 0 or (not is_text and np.isnan(present).all()):
            problems[name] = "no values"
        elif not is_text:
            _refuse_infinite(f"data: column {name!r}", values)
            mean, std = _mean_and_std(present)
            recipes[name] = {"mean": mean, "std": std}
            parts.append(np.nan_to_num((values - mean) / std, nan=0.0)[:, None])
        elif (stray := _stray_text([value for value in values if value is not None])) is not None:
            problems[name] = f"numbers beside text such as {stray!r} ({typed('data.missing', [stray])}?)"
        elif len(seen := sorted(set(present))) > max_categories:
            problems[name] = f"{len(seen)} different texts (data.max_categories is {max_categories})"
        else:
            recipes[name] = {"values": seen}
            place = {value: i for i, value in enumerate(seen)}
            codes = np.array([place.get(value, -1) for value in values])
            parts.append((codes[:, None] == np.arange(len(seen))).astype(np.float64))
    if problems:
        found = "; ".join(f"{name!r} has {problem}" for name, problem in problems.items())
        raise ConfigError(
            f"data: expected columns of numbers, or of text with few different values, found: {found}. "
            f"Leave out what is an identifier or a date: {typed('data.exclude', list(problems))}"
        )
    return np.concatenate(parts, axis=1), recipes


def _stray_text(values: list[str]) -> str | None:
    """The first text that is no number, among texts of which more than half are numbers."""
    stray = []
    for value in values:
        try:
            float(value)
        except ValueError:
            stray.append(value)
    return stray[0] if 0 < len(stray) < len(values) / 2 else None


def _mean_and_std(values: np.ndarray) -> tuple[float, float]:
    """Of the values that are there; 1 for the standard deviation of a constant."""
    mean, std = float(np.nanmean(values)), float(np.nanstd(values))
    return mean, std if std > 1e-12 * abs(mean) else 1.0


def _refuse_infinite(where: str, values: np.ndarray) -> None:
    if count := int(np.isinf(values).sum()):
        raise ConfigError(
            f"{where}: expected finite numbers, found {count} infinite; replace them in the file"
        )

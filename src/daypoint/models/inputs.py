"""Describes what a packaged model takes as input, and makes rows of it to test the package with.

There are three kinds; which one is read from what the identity card says of the data:

    table    the raw columns of the file, numbers or text; the model prepares them as the training did
    columns  rows of numbers, under the names x0, x1, …
    array    anything with more dimensions, such as images; JSON `{"inputs": …}` only

To MLflow, named columns are doubles and text. They may be sent as CSV, as JSON `dataframe_split` or as `dataframe_records`, in
any order; further columns are ignored, and a missing number is an empty field or null. MLflow has limits of its own: it does
not convert int64 to double or a truth value to text, so a DataFrame needs the right types; `mlflow models predict -t csv`,
which guesses types, needs `30.0` for 30 and cannot take True and False, while `mlflow models serve` and JSON with either
command can; and JSON `{"inputs": …}` has to name the columns.

This module knows no model and no file of a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from daypoint.base import files
from daypoint.base.errors import PackageError

BATCHES = (1, 2, 3, 7)
"""Sizes of the batches that a packaged model is tested with."""
ROWS = 7


@dataclass(frozen=True)
class ModelInput:
    """What a model takes, and the units of its answers.

    Attributes:
        rows: 7 rows to test with: a DataFrame of named columns, or an array [7, …].
        recipes: how each raw column of a table is prepared; None when the input is used as it is.
        target: mean and standard deviation of a regression's target; None for the model's own answers.
    """

    rows: pd.DataFrame | np.ndarray
    recipes: dict[str, dict[str, Any]] | None = None
    target: dict[str, float] | None = None

    @property
    def why_code(self) -> str | None:
        """Why pandas has to prepare the rows, so that a pt2 program is not enough; None if it is.

        MLflow passes rows to a pt2 model in float32, which shifts the standardised value of a column whose mean is more than
        100 standard deviations from 0 (a time, say) by 0.000006 or more.
        """
        for name, recipe in (self.recipes or {}).items():
            if "values" in recipe:
                return "the table has columns of text"
            if _is_far(recipe):
                return f"column {name!r} varies too little around its mean for float32, which MLflow passes to a pt2 model"
        return None

    def without_names(self) -> ModelInput:
        """The same rows as an array."""
        rows = self.rows
        return ModelInput(rows.to_numpy(np.float32)) if isinstance(rows, pd.DataFrame) else self

    @property
    def types(self) -> dict[str, str] | None:
        """The MLflow type of each named column; None for an array."""
        if not isinstance(self.rows, pd.DataFrame):
            return None
        recipes = self.recipes or {}
        return {name: "string" if "values" in recipes.get(name, {}) else "double" for name in self.rows}


def of_card(card: Mapping[str, Any], dtype: np.dtype[Any], where: str) -> ModelInput:
    """What the model of a card takes.

    Args:
        card: an identity card; its `data` and `config.data` describe the data.
        dtype: of the model's floating-point inputs.
        where: the checkpoint, for errors.

    Raises:
        PackageError: the card does not say.
    """
    preparation = (card.get("data") or {}).get("preparation")
    recipes = preparation.get("features") if isinstance(preparation, dict) else None
    if isinstance(recipes, dict) and recipes and all(map(_is_recipe, recipes.values())):
        target = preparation.get("target") or {}
        return ModelInput(_raw_rows(recipes), recipes, target if "mean" in target else None)
    section = card["config"].get("data")
    shape = section.get("input_shape") if isinstance(section, dict) else None
    if not isinstance(shape, list) or not all(type(size) is int and size > 0 for size in shape):
        raise PackageError(
            f"{where}: expected data.input_shape in its config, the shape of one input without the batch, found {shape!r}; "
            "give an example instead: daypoint package ADDRESS --example FILE.npy, an array [batch, …]"
        )
    return of_example(np.random.default_rng(0).standard_normal((ROWS, *shape)).round(3).astype(dtype))


def of_example(example: np.ndarray) -> ModelInput:
    """What a model takes, from an example.

    Args:
        example: [batch, …], at least one row.
    """
    rows = example[np.arange(ROWS) % len(example)]
    if rows.ndim == 2 and rows.dtype == np.float32:
        names = [f"x{i}" for i in range(rows.shape[1])]
        return ModelInput(pd.DataFrame(rows.astype(np.float64), columns=names))
    return ModelInput(rows)


def read_example(path: Path, dtype: np.dtype[Any]) -> np.ndarray:
    """An example in a .npy file; floating-point numbers become `dtype`, whole numbers stay.

    Raises:
        PackageError: it is not an array of at least one row of numbers.
    """
    try:
        files.open_regular(path).close()
        # Mapped, an array that claims to be larger than its file is refused before there is memory for it.
        example = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise PackageError(f"{path}: expected an array as numpy.save writes it, found: {error}") from error
    shape = list(getattr(example, "shape", ()))  # np.load also opens archives of several arrays
    if shape == [] or shape[0] == 0 or example.dtype.kind not in "biuf":
        found = f"{getattr(example, 'dtype', type(example).__name__)} {shape}"
        raise PackageError(
            f"{path}: expected an array [batch, …] of numbers, at least one row, found {found}"
        )
    return example.astype(dtype) if example.dtype.kind == "f" else np.array(example)


def _raw_rows(recipes: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Rows as in the file: the first two, which are shown as an example, are ordinary; a later one lacks every value."""
    columns: dict[str, list[Any]] = {}
    for i, (name, recipe) in enumerate(recipes.items()):
        if "values" in recipe:
            known = recipe["values"]
            columns[name] = [*(known[(row + i) % len(known)] for row in range(ROWS - 2)), None, "unheard of"]
        else:
            away = np.random.default_rng(i).standard_normal(ROWS)
            numbers = [recipe["mean"] + recipe["std"] * float(x) for x in away]
            if not _is_far(recipe):
                numbers = [float(f"{number:.6g}") for number in numbers]
            columns[name] = [*numbers[: ROWS - 2], float("nan"), numbers[-1]]
    return pd.DataFrame(columns)


def _is_recipe(recipe: Any) -> bool:
    """Whether it is one of `zoo.table`; other data may be prepared in another way."""
    return isinstance(recipe, dict) and recipe.keys() in ({"mean", "std"}, {"values"})


def _is_far(recipe: Mapping[str, Any]) -> bool:
    return abs(recipe["mean"]) > 100 * recipe["std"]

"""A served model that is more than an exported program. MLflow copies this file into the package and runs it there.

`plan.json` beside it says what to do:

    columns   the raw columns of a table and the recipe of each; without it the input is used as it is
    target    mean and standard deviation of a regression's target, to answer in its units
    program   a torch.export program, or
    model     the config section that builds the model; `weights` has its weights, `code` its modules
    sha256    of the program or the weights, checked before either is opened

Nothing is unpickled. This file imports nothing of daypoint or of the project in which the model was trained.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel


def encode(frame: pd.DataFrame, columns: Mapping[str, Mapping[str, Any]]) -> np.ndarray:
    """Raw rows as the numbers that the model was trained on: float32 [rows, features].

    Numbers become (value - mean) / standard deviation, a missing one 0. Text becomes one 0/1 column for each value
    that the training knew, all 0 for a missing or an unknown one. In a column of True and False, `true` is True.
    """
    parts = []
    for name, recipe in columns.items():
        values = frame[name]
        if "values" in recipe:
            known = recipe["values"]
            texts = [None if gone else str(value) for value, gone in zip(values, values.isna(), strict=True)]
            if set(known) <= {"True", "False"}:
                spelt = {"true": "True", "false": "False"}
                texts = [spelt.get(text.lower(), text) if text is not None else None for text in texts]
            parts.append(np.array([[text == value for value in known] for text in texts], dtype=np.float64))
        else:
            numbers = pd.to_numeric(values).to_numpy(np.float64, na_value=np.nan)
            scaled = (numbers - recipe["mean"]) / recipe["std"]
            parts.append(np.nan_to_num(scaled, nan=0.0)[:, None])
    return np.concatenate(parts, axis=1).astype(np.float32)


class Served(PythonModel):
    """The model that MLflow loads and calls."""

    def load_context(self, context: Any) -> None:
        paths = {name: Path(path) for name, path in context.artifacts.items()}
        plan = json.loads(paths["plan"].read_text(encoding="utf-8"))
        self.columns, self.target = plan["columns"], plan["target"]
        data = paths["program" if "program" in paths else "weights"]
        with open(data, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != plan["sha256"]:
                raise RuntimeError(
                    f"{data}: the content has changed since the model was packaged; not loaded"
                )
        if "program" in paths:
            self.model = torch.export.load(data).module()
        else:
            self.model = rebuilt(plan["model"], data, paths.get("code"))

    def predict(self, context: Any, model_input: pd.DataFrame, params: Any = None) -> Any:
        # Arrays come too, but MLflow reads the type hint and warns of those that it does not know.
        is_frame = isinstance(model_input, pd.DataFrame)
        if self.columns is not None:
            rows = encode(model_input, self.columns)
        else:
            rows = model_input.to_numpy(np.float32) if is_frame else model_input
        with torch.no_grad():
            answers = self.model(torch.tensor(rows))
        if self.target is not None:
            answers = answers.double() * self.target["std"] + self.target["mean"]
        array = answers.numpy()
        return pd.DataFrame(array, index=model_input.index) if is_frame else array


def rebuilt(node: dict[str, Any], weights: Path, code: Path | None) -> torch.nn.Module:
    """The model built from its hyperparameters, with its weights, in eval mode."""
    from hydra.utils import instantiate
    from safetensors.torch import load_file

    with _imports_from(code):
        model = instantiate(node)
    model.load_state_dict(load_file(weights))
    return model.eval()


@contextlib.contextmanager
def _imports_from(code: Path | None) -> Iterator[None]:
    """Import what lies in `code`, and forget it afterwards: another model may have a module of the same name."""
    if code is None:
        yield
        return
    names = {path.stem for path in code.iterdir()}

    def take_out() -> dict[str, Any]:
        return {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in names}

    aside, before = take_out(), sys.dont_write_bytecode
    sys.path.insert(0, str(code))
    sys.dont_write_bytecode = True  # the package stays as it was made
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(code))
        sys.dont_write_bytecode = before
        take_out()
        sys.modules.update(aside)


set_model(Served())

"""Runs with a saved model of every kind that can be packaged, for the tests: trained by nobody, but saved as trained ones are."""

from __future__ import annotations

import textwrap

import numpy as np
import pandas as pd
import torch

import daypoint
from daypoint.zoo.data import Digits, Linear
from daypoint.zoo.table import Table

NET = """
    import torch
    from layers import Gate


    class Net(torch.nn.Module):
        def __init__(self, width):
            super().__init__()
            self.linear = torch.nn.Linear(3, width)
            self.gate = Gate()

        def forward(self, x):
            return self.gate(self.linear(x))
"""
LAYERS = """
    import torch


    class Gate(torch.nn.Module):
        def forward(self, x):
            if x.sum() > {threshold}:  # which torch.export cannot know
                return x * 2
            return x
"""


def save(root, model, *, data=None, config=None, value=0.9, experiment=None, name="net", tracking=None):
    """A finished run with one checkpoint of a new model.

    Args:
        root: the project.
        model: the node of the config, `_target_` and arguments.
        data: what the model was trained on.
        config: more of the config.
        value: of the monitored metric.
    """
    full = {"model": model, **(config or {})}
    if data is not None:
        full["data"] = {"input_shape": list(data.input_shape)}
    settings = {
        "enabled": False,
        "outputs": str(root / "outputs"),
        "experiment": experiment or (data.name if data is not None else name),
        **(tracking or {}),
    }
    net = daypoint.instantiate(full["model"])
    with daypoint.open_run(
        {**full, "tracking": settings}, data=data, monitor="val/accuracy", quiet=True
    ) as run:
        with run.epoch(0):
            run.log(loss=1.0)
            run.log_epoch({"val/accuracy": value})
        run.save(model=net)
    return run


def zoo(kind, data, **more):
    return {
        "_target_": f"daypoint.zoo.models.{kind}",
        "input_shape": list(data.input_shape),
        "outputs": data.outputs,
        **more,
    }


def digits():
    return Digits()


def linear():
    return Linear(rows=64)


def write_table(path, *, text=False, far=False, regression=False, rows=60):
    """A CSV file with a column that lacks values, and perhaps others; its rows as a DataFrame of what the model gets."""
    rng = np.random.default_rng(3)
    frame = pd.DataFrame({"age": rng.integers(18, 90, rows).astype(float), "fare": rng.lognormal(3, 1, rows)})
    frame.loc[::7, "age"] = np.nan
    if far:
        frame["when"] = 1.7e9 + rng.integers(0, 86400, rows)
    if text:
        frame["port"] = rng.choice(["Cork", "Kiel", "Oslo"], rows)
        frame.loc[::9, "port"] = None
        frame["member"] = rng.choice([True, False], rows)
    amounts, answers = 250_000 + 1000 * rng.standard_normal(rows), rng.choice(["no", "yes"], rows)
    target = amounts if regression else answers
    frame.assign(target=target).to_csv(path, index=False)
    return frame


def table(path, **options):
    frame = write_table(path, **options)
    return frame, Table(path=str(path), target="target")


def prepared(data, frame):
    """The rows of a frame as the training had them, from the recipes, one value after the other."""
    rows = []
    for _, row in frame.iterrows():
        numbers = []
        for name, recipe in data.preparation["features"].items():
            value = row[name]
            if "values" in recipe:
                numbers += [float(not pd.isna(value) and str(value) == known) for known in recipe["values"]]
            else:
                numbers.append(0.0 if pd.isna(value) else (value - recipe["mean"]) / recipe["std"])
        rows.append(numbers)
    return torch.tensor(rows, dtype=torch.float32)


def write_user_model(root, threshold=0.0):
    """A class of the user's own that torch.export cannot take, in two files of the project."""
    (root / "net.py").write_text(textwrap.dedent(NET))
    (root / "layers.py").write_text(textwrap.dedent(LAYERS).format(threshold=threshold))
    (root / "conf").mkdir(exist_ok=True)
    (root / "conf" / "model.yaml").write_text("_target_: net.Net\n")


USER_MODEL = {"_target_": "net.Net", "width": 4}

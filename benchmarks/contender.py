"""A way to log three scalars a step: how it is opened, told of a step, closed, and read back. And the two baselines.

A contender imports its library inside its methods, so these modules can be imported in every environment. It knows nothing of timing.
Each step has three scalars, two of them 0-dim tensors, one a Python float.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

METRICS = ("loss", "lr", "grad_norm")
Points = dict[str, list[list[Any]]]
"""What was found: for each metric a list of [step, value]."""


class Contender:
    """The base, and the contender that logs nothing."""

    title = "no logging"
    packages: tuple[str, ...] = ()
    """What to install in an environment of its own; nothing: it runs in the one that runs the benchmark."""
    imports = "torch"
    """The distribution whose version is told."""
    burst_seconds = 1.0
    """How long a stretch of logging is measured. Short where a backlog of minutes would have to be waited for."""
    keeps = True
    """Whether it claims to keep anything."""

    def open(self, project: Path, name: str) -> str:
        """Start a run. Returns what `read` needs to find it again."""
        return name

    def log(self, step: int, loss: Any, lr: float, norm: Any) -> None:
        """Record one step. loss and norm are 0-dim tensors."""

    def close(self) -> None:
        """End the run, with everything recorded."""

    def read(self, project: Path, handle: str) -> Points:
        """What is on disk now."""
        return {}


class Nothing(Contender):
    keeps = False


class List(Contender):
    title = "`list.append(loss.item())`"

    def open(self, project: Path, name: str) -> str:
        self.losses, self.lrs, self.norms = [], [], []
        self.path = project / f"{name}.json"
        return str(self.path)

    def log(self, step, loss, lr, norm):
        self.losses.append(loss.item())
        self.lrs.append(lr)
        self.norms.append(norm.item())

    def close(self) -> None:
        self.path.write_text(json.dumps([self.losses, self.lrs, self.norms]))

    def read(self, project: Path, handle: str) -> Points:
        if not Path(handle).exists():
            return {}
        columns = json.loads(Path(handle).read_text())
        return {
            name: [list(pair) for pair in enumerate(of)] for name, of in zip(METRICS, columns, strict=True)
        }


def rows(path: Path, statement: str, *values: str) -> list[Any]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(statement, values).fetchall()
    finally:
        connection.close()


def mlflow_points(path: Path, tag: str, value: str) -> Points:
    """The points of the run with that tag, straight from MLflow's table."""
    statement = (
        "SELECT m.key, m.step, m.value FROM metrics m JOIN tags t ON t.run_uuid = m.run_uuid "
        "WHERE t.key = ? AND t.value = ? ORDER BY m.step"
    )
    points: Points = {name: [] for name in METRICS}
    for key, step, found in rows(path, statement, tag, value):
        if key in points:
            points[key].append([step, found])
    return points

"""Runs, and the batches of one run, as pandas tables with real types.

    daypoint.runs(since="last 7 days", where="optimizer.lr>=0.01")     one row a run
    daypoint.points("20260328/1415")                                   one row a batch

Column names are the names of queries (`daypoint.reading.facts`): `status`, `git.commit`, `config.optimizer.lr`, `val/accuracy` (its last
value), `best(val/accuracy)`. A value that a run does not have is missing; numbers stay numbers, whole ones too, and booleans
booleans. This module imports neither torch nor mlflow, and pandas only when a table is made.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daypoint.base import day
from daypoint.base.errors import AddressError, RunError
from daypoint.plots import points as journal_points
from daypoint.plots.points import Points
from daypoint.reading.facts import FACTS, RunFacts
from daypoint.reading.query import Name
from daypoint.reading.selection import Selection
from daypoint.record import catalog

if TYPE_CHECKING:
    import pandas as pd


def runs(
    since: str | date | None = None,
    until: str | date | None = None,
    where: str | None = None,
    outputs: str | os.PathLike[str] | None = None,
) -> pd.DataFrame:
    """One row a run, oldest first.

    Args:
        since: the first day (`20260301`, `yesterday`, a date), or an address or range (`20260328/sweep-1502`, `last 7 days`).
        until: the last day, included.
        where: a query, such as `optimizer.lr >= 0.01 and status = finished`; see `daypoint.reading.query`.
        outputs: the outputs directory; by default $DAYPOINT_OUTPUTS, else that of the project around the working directory.

    Returns:
        Facts by their names, `started` in UTC; then `tags.…`, `config.…` for every hyperparameter, and for every metric its
        last value under its own name and `best(…)`. A list of hyperparameters is a list. Runs that cannot be read are left out,
        and named by a warning.

    Raises:
        AddressError: since or until is no day, or names nothing.
        ConfigError: the query is none, or no run has a name in it.
    """
    import pandas as pd

    there = day.outputs_directory(outputs)
    selection = Selection(there, where)
    rows = list(selection.each(_directories(since, until, there), _row))
    selection.check()
    for complaint in selection.complaints:
        warnings.warn(complaint, stacklevel=2)
    others = {name for row in rows for name in row} - FACTS.keys()
    columns = {name: [row.get(name) for row in rows] for name in (*FACTS, *sorted(others, key=_order))}
    frame = pd.DataFrame({name: _column(values) for name, values in columns.items()}, index=range(len(rows)))
    frame["started"] = pd.to_datetime(frame["started"], utc=True, format="ISO8601")
    return frame


def _directories(since: str | date | None, until: str | date | None, outputs: Path) -> list[Path]:
    try:
        first, last = _day(since, "since"), _day(until, "until")
    except AddressError:
        if until is not None:
            raise
        return catalog.directories(str(since), outputs)
    return catalog.directories(f"{first}..{last}", outputs) if first or last else day.run_directories(outputs)


def _day(text: str | date | None, name: str) -> str:
    if text is None:
        return ""
    if isinstance(text, date):
        return day.tag(text)
    try:
        return day.parse_day(text)
    except AddressError as error:
        raise AddressError(f"{name}: {error}") from None


def _row(of: RunFacts) -> dict[str, Any]:
    row = {name: fact(of) for name, fact in FACTS.items()}
    row |= {f"tags.{name}": value for name, value in (of.record.get("tags") or {}).items()}
    row |= {f"config.{name}": value for name, value in of.config.items()}
    for name in of.metrics:
        summary = of.summary(name)
        row[str(Name(name)) if name in FACTS else name] = summary.last
        row[str(Name(name, "best"))] = summary.best
    return row


def _order(name: str) -> tuple[int, str]:
    """Tags, the config, then each metric beside its best value."""
    place = 0 if name.startswith("tags.") else 1 if name.startswith("config.") else 2
    return place, name.removeprefix("best(").removesuffix(")") + (" best" if name.startswith("best(") else "")


def points(
    address: str, metrics: Iterable[str] | None = None, outputs: str | os.PathLike[str] | None = None
) -> pd.DataFrame:
    """Every value of one run, as the journal has it: one row a batch, and one for each time that an epoch was measured.

    Steps that a resumed run did again count once, as it did them last.

    Args:
        address: a run, such as `20260328/1415` or `last`.
        metrics: only these, and the rows that have one of them.
        outputs: as for `runs`.

    Returns:
        step; epoch (0-based; missing outside of epochs); time (UTC); kind, `batch` or `epoch`; and a column a metric: int64 or
        boolean where all its values are, else float64, NaN where a row has none (or has NaN).

    Raises:
        AddressError: it names no run, or several.
        RunError: the run has no journal, or no such metric.
    """
    import numpy as np
    import pandas as pd

    run = catalog.find_one(address, day.outputs_directory(outputs))
    wanted = None if metrics is None else dict.fromkeys([metrics] if isinstance(metrics, str) else metrics)
    try:
        found = Points(journal_points.events(run.files.journal), wanted)
    except FileNotFoundError:
        raise RunError(f"{run.address}: expected {run.files.journal.name} in it, found none") from None
    if wanted and (missing := wanted.keys() - found.values.keys()):
        there = ", ".join(found.names) or "none"
        raise RunError(f"{run.address}: metrics: expected {', '.join(sorted(missing))}, found {there}")
    epochs = pd.Series(np.array(found.epochs, np.int64), dtype="Int64")
    kinds = np.array(list(found.is_epoch), np.int8)
    columns = {
        "step": np.array(found.steps, np.int64),
        "epoch": epochs.mask(epochs < 0),
        "time": pd.to_datetime(np.array(found.times, np.int64), unit="ms", utc=True),
        "kind": pd.Categorical.from_codes(kinds, ["batch", "epoch"]),
    }
    for name, (places, values) in found.values.items():
        columns[name] = _spread(places, values, len(found.steps))
    return pd.DataFrame(columns)[found.counts()].reset_index(drop=True)


def _spread(places: Sequence[int], values: Sequence[Any], length: int) -> Any:
    """A column with the values at their rows; missing, or NaN, in the others."""
    import numpy as np

    if isinstance(values, list) and len(set(map(type, values))) == 1:
        rows: list[Any] = [None] * length
        for place, value in zip(places, values, strict=True):
            rows[place] = value
        return _column(rows)
    column = np.full(length, np.nan)
    column[places] = np.array(values, float)
    return column


def _column(values: list[Any]) -> Any:
    """A column of the narrowest type that holds every value exactly; None is missing."""
    import pandas as pd

    kinds = {type(value) for value in values if value is not None}
    gaps = any(value is None for value in values)
    if kinds == {bool}:
        return pd.array(values, dtype="boolean" if gaps else "bool")
    if kinds == {int} and all(value is None or -(2**63) <= value < 2**63 for value in values):
        return pd.array(values, dtype="Int64" if gaps else "int64")
    if kinds and kinds <= {int, float} and float in kinds:
        return pd.array(values, dtype="float64")
    if kinds == {str}:
        return pd.array(values, dtype="str")
    return pd.Series(values, dtype=object)

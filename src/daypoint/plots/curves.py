"""Learning curves as arrays: what a journal has of a few metrics, and how to tell several runs apart.

This module draws nothing.
"""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from daypoint.base import day, files, keys
from daypoint.base.day import RunFiles
from daypoint.base.errors import ConfigError
from daypoint.plots import points
from daypoint.plots.points import Points
from daypoint.record import identity

_LARGEST = 1e300
"""What is larger is shown as infinite: axes cannot span it."""
_STATISTICS = ("mean", "min", "max")


@dataclass
class Curve:
    """One metric of one run.

    Attributes:
        name: the metric.
        steps: (n,) int64, ascending.
        values: (n,) float64, NaN and infinities included.
        by_batch: whether it was logged by batch; otherwise once an epoch or so.
        epochs: arrays of equal length (epochs,) float64: `first` and `last` step, `mean`, `min`, `max`.
    """

    name: str
    steps: np.ndarray
    values: np.ndarray
    by_batch: bool
    epochs: dict[str, np.ndarray]

    @property
    def nonfinite(self) -> dict[str, int]:
        """How many values are NaN, infinite and minus infinite; only those that occur."""
        kinds = {
            "NaN": np.isnan(self.values),
            "inf": self.values == math.inf,
            "-inf": self.values == -math.inf,
        }
        return {kind: int(found.sum()) for kind, found in kinds.items() if found.any()}

    def at(self, step: int) -> float | None:
        """The last finite value before a step; the mean of the epoch for what was logged by batch."""
        ends, values = (
            (self.epochs["last"], self.epochs["mean"]) if self.by_batch else (self.steps, self.values)
        )
        found = values[: int(np.searchsorted(ends, step))]
        found = found[np.isfinite(found)]
        return float(found[-1]) if len(found) else None


@dataclass
class RunCurves:
    """Some metrics of one run, and what else a picture says of it.

    Attributes:
        address, record: the run.
        status: RUNNING, FINISHED, FAILED or KILLED.
        curves: the metrics that were asked for, those that there are.
        names: every metric of the run, in order of appearance.
        resumed_at: the first step of each later attempt.
        best_step: steps done when the best checkpoint was taken.
    """

    address: str
    record: Mapping[str, Any]
    status: str
    curves: dict[str, Curve]
    names: list[str]
    resumed_at: list[int]
    best_step: int | None


def load(
    run_files: RunFiles,
    record: Mapping[str, Any],
    *,
    address: str,
    status: str,
    metrics: Sequence[str] | None = None,
) -> RunCurves:
    """Read the curves of one run; of a live one as far as it is.

    Args:
        metrics: which; by default loss and the monitored metric, or else whatever was logged first.

    Metrics that the run does not have are left out.
    """
    wanted = list(metrics) if metrics else default_metrics(record)
    try:
        found = Points(points.events(run_files.journal), wanted)
        if not metrics and not found.values and found.names:
            wanted = list(found.names)[:1]
            found = Points(points.events(run_files.journal), wanted)
    except FileNotFoundError:
        found = Points(())
    return RunCurves(
        address=address,
        record=record,
        status=status,
        curves={name: _curve(found, name) for name in wanted if name in found.values},
        names=list(found.names),
        resumed_at=found.resumed_at,
        best_step=_best_step(run_files),
    )


def _curve(found: Points, name: str) -> Curve:
    places = np.array(found.values[name][0], np.int64)
    values = np.array([v if type(v) is float else _as_float(v) for v in found.values[name][1]], float)
    places, values = places[found.counts()[places]], values[found.counts()[places]]
    rows = []
    for epoch in found.finished:
        if (of := epoch["stats"].get(name)) and of["mean"] is not None:
            first = epoch["first_step"]
            rows.append((first, first + epoch["steps"] - 1, *(_as_float(of[key]) for key in _STATISTICS)))
    table = _within_range(np.array(rows, dtype=float).reshape(len(rows), 5))
    return Curve(
        name=name,
        steps=np.array(found.steps, np.int64)[places],
        values=_within_range(values),
        by_batch=not all(found.is_epoch[place] for place in places),
        epochs=dict(zip(("first", "last", *_STATISTICS), table.T, strict=True)),
    )


def default_metrics(record: Mapping[str, Any]) -> list[str]:
    """Loss, and the metric that says which checkpoint is best."""
    monitored = (record.get("monitor") or {}).get("metric")
    return list(dict.fromkeys(name for name in ("loss", monitored) if name))


def check_metrics(asked: Sequence[str], runs: Sequence[RunCurves]) -> None:
    """Refuse a metric that no run has.

    Raises:
        ConfigError: names the nearest ones that there are.
    """
    names = list(dict.fromkeys(name for run in runs for name in run.names))
    for name in asked:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=3, cutoff=0.4) or names[:8]
            there = f"did you mean {' or '.join(near)}?" if near else "nothing was logged yet"
            raise ConfigError(f"metric {name}: expected one that was logged, found no value of it; {there}")


def _best_step(run_files: RunFiles) -> int | None:
    try:
        return int(files.loads(files.read_bytes(run_files.pointer("best")))["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # there is none; a damaged one is for `daypoint verify`


def _as_float(value: Any) -> float:
    value = files.decode_number(value)
    try:
        return math.nan if value is None else float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _within_range(values: np.ndarray) -> np.ndarray:
    return np.where(np.abs(values) > _LARGEST, np.copysign(math.inf, values), values)


# ---------------------------------------------------------------- in words


def title(runs: Sequence[RunCurves]) -> str:
    """The day and what was run on it."""
    if len(runs) == 1:
        run = runs[0]
        state = {"FINISHED": "", "RUNNING": " (running)"}.get(run.status, f" ({run.status.lower()})")
        return f"{run.address}  {name_of(run)}{state}"
    days = sorted({run.record["day"] for run in runs})
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    counts = Counter(run.status for run in runs)
    others = ", ".join(f"{n} {status.lower()}" for status, n in counts.items() if status != "FINISHED")
    return f"{when}  {len(runs)} runs" + (f" ({others})" if others else "")


def labels(runs: Sequence[RunCurves]) -> list[str]:
    """A name for each of several runs: its address, by which `daypoint show` finds it, and what is different about it: the
    overrides that not all have. A single run goes by its name.
    """
    if len(runs) == 1:
        return [name_of(runs[0])]
    given = [keys.given(run.record["attempts"][0]["overrides"]) for run in runs]
    chosen = [run.record.get("choices") or {} for run in runs]
    values = [
        {**overrides, **groups, **keys.flatten(run.record["config"])}
        for run, groups, overrides in zip(runs, chosen, given, strict=True)
    ]
    differing = []
    for key in dict.fromkeys(key for overrides in given for key in overrides):
        seen = {of.get(key) for of in values}
        if any(key in groups for groups in chosen):  # which member it is, is not known of every run
            seen.discard(None)
        if len(seen) > 1 and key.partition(".")[0] not in identity.IGNORED:
            differing.append(key)
    last = [key.rpartition(".")[2] for key in differing]
    found = []
    for address, run, of in zip(day.shortened([run.address for run in runs]), runs, values, strict=True):
        parts = [
            f"{short if last.count(short) == 1 else key}={of[key]}"
            for key, short in zip(differing, last, strict=True)
            if key in of
        ]
        name = name_of(run)
        is_named = not name.startswith(run.record["day"])  # else it says what the address does
        found.append(f"{address}  {' '.join(parts) or name * is_named}".rstrip())
    return found


def name_of(run: RunCurves) -> str:
    """The name of a run without the day and time."""
    name = run.record["name"]
    return name.partition(" ")[2] or name if name.startswith(run.record["day"]) else name

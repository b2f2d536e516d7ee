"""The trend of a metric over days: for each day, how many runs measured it, their spread, and the best one.

A run counts with its best epoch, in the monitored direction; a run that measured nothing finite is not counted. Runs of any
status count, since a killed run has measured too; `where` narrows. A run that `daypoint reproduce` made is left out, as it is for
the day's model: it measures again what was measured. This module draws nothing (`daypoint.plots.trend` does).
"""

from __future__ import annotations

import math
import statistics
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

from daypoint.base.tables import Table
from daypoint.plots.trend import Day
from daypoint.reading.facts import RunFacts
from daypoint.reading.query import MISSING, Name, parse_name
from daypoint.reading.selection import Selection


@dataclass(frozen=True)
class Trend:
    """A metric over days.

    Attributes:
        metric: its full name.
        mode: whether `min` or `max` is better.
        complaints: runs that could not be read, in words.
    """

    metric: str
    mode: str
    days: list[Day]
    complaints: list[str]

    def table(self) -> Table:
        """One row a day."""
        return Table([field.name for field in fields(Day)], [list(astuple(one)) for one in self.days])


def trend(outputs: Path, metric: str, address: str | None = None, *, where: str | None = None) -> Trend:
    """The trend of a metric.

    Args:
        metric: a metric (its best epoch counts), or `last(…)`, `first(…)`, `min(…)`, `max(…)` of one.
        address: a range of days, a day or a sweep; by default every day.
        where: which runs, see `daypoint.reading.query`.

    Raises:
        AddressError: the address names nothing.
        ConfigError: the metric or the query is none, or no run has it.
    """
    name = parse_name(metric)
    name = name if name.function else Name(name.name, "best")
    selection = Selection(outputs, where, [name])

    def take(of: RunFacts) -> tuple[RunFacts, Any]:
        return of, MISSING if of.record.get("reproduces") else selection.value(name, of)

    days: dict[str, list[tuple[Any, str]]] = {}
    mode = "max"
    for of, value in selection.each(selection.directories(address), take):
        if isinstance(value, int | float) and math.isfinite(value):
            days.setdefault(of.record["day"], []).append((value, of.run.address))
            mode = of.mode(selection.full(name).name)  # the newest run decides, should they disagree
    selection.check()
    if name.function in ("min", "max"):
        mode = name.function
    found = [_day(tag, measured, mode) for tag, measured in sorted(days.items())]
    return Trend(str(selection.full(name)), mode, found, selection.complaints)


def _day(tag: str, measured: list[tuple[Any, str]], mode: str) -> Day:
    values = [value for value, _ in measured]
    best = min(values) if mode == "min" else max(values)
    run = next(address for value, address in reversed(measured) if value == best)
    return Day(tag, len(values), min(values), statistics.median(values), max(values), best, run)

"""The trend of a metric over days: of each day how many runs measured it, their spread, and the best one.

A run counts with its best epoch, in the monitored direction; a run that measured nothing finite is not counted. Runs of any
status count, since a run that was killed has measured all the same; `where` narrows. What `daypoint reproduce` made is left
out, as it is for the day's model: it measures again what was measured. This module draws nothing
(`daypoint.plots.trend` does). One number: 0.3 s for a thousand runs.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from daypoint.base import day
from daypoint.base.tables import Table
from daypoint.plots.trend import Day
from daypoint.reading.facts import RunFacts
from daypoint.reading.grammar import parse, parse_name
from daypoint.reading.query import MISSING, Name, names
from daypoint.reading.selection import Names, bind, select
from daypoint.record import catalog


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
        columns = list(Day.__dataclass_fields__)
        return Table(columns, [list(asdict(one).values()) for one in self.days])


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
    condition = bind(parse(where)) if where else None
    known = Names([*(names(condition) if condition else ()), name])
    directories = catalog.directories(address, outputs) if address else day.run_directories(outputs)
    complaints: list[str] = []

    def take(of: RunFacts) -> tuple[str, str, Any, str]:
        value = MISSING if of.record.get("reproduces") else known.value(name, of)
        full = "" if value is MISSING else getattr(of.meaning(name), "name", "")
        return of.record["day"], of.run.address, value, of.mode(full) if full else ""

    days: dict[str, list[tuple[Any, str]]] = {}
    modes: dict[str, None] = {}
    for tag, address_of_run, value, mode in select(
        directories, outputs, complaints, take, where=condition, known=known
    ):
        if isinstance(value, int | float) and math.isfinite(value):
            days.setdefault(tag, []).append((value, address_of_run))
            modes[mode] = None
    known.check()
    # The newest run decides, should somebody have changed their mind about the direction.
    mode = {"min": "min", "max": "max"}.get(name.function or "") or next(reversed(modes), "max")
    found = [_day(tag, measured, mode) for tag, measured in sorted(days.items())]
    return Trend(str(known.full(name)), mode, found, complaints)


def _day(tag: str, measured: list[tuple[Any, str]], mode: str) -> Day:
    values = [value for value, _ in measured]
    best = min(values) if mode == "min" else max(values)
    run = next(address for value, address in reversed(measured) if value == best)
    return Day(tag, len(values), min(values), statistics.median(values), max(values), best, run)

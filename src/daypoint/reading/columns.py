"""The columns of `daypoint ls`: of each run a few values are kept, of its config what differs from the first one; then those
hyperparameters are shown that tell most, in a terminal as many as it has room for.

What somebody gave on a command line tells more than what all runs have, and that more than what only one kind of model has. This
module finds no runs and prints nothing. One number: 8 hyperparameters at most where no width is given.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from daypoint.base import day, keys, tables
from daypoint.base.tables import Table
from daypoint.reading.facts import RunFacts
from daypoint.reading.query import MISSING, Name
from daypoint.reading.selection import Names
from daypoint.record import identity

PARAMS = 8
METRICS = 4
"""Columns of varying hyperparameters and of metrics, unless others are asked for, where no terminal's width decides."""


@dataclass
class Row:
    fixed: dict[str, Any]
    differing: dict[str, Any]
    metrics: dict[str, Any]
    monitor: str | None
    asked: list[Any]
    is_named: bool = False
    """Whether somebody gave the run its name."""


@dataclass
class Reader:
    """Makes rows; remembers the config of the first run, from which the others differ in little."""

    asked: list[Name]
    first: dict[str, Any] | None = None
    explicit: set[str] = field(default_factory=set)
    given: set[str] = field(default_factory=set)
    """What stood on a command line."""

    def row(self, of: RunFacts, known: Names) -> Row:
        if self.asked:
            return Row({}, {}, {}, None, [known.value(name, of) for name in self.asked])
        config = of.config
        if self.first is None:
            self.first = config
        first = self.first
        differing = {k: v for k, v in config.items() if k not in first or not _equal(first[k], v)}
        differing |= {k: MISSING for k in first if k not in config}
        # What followed another value, or was put in by the program, explains nothing by itself.
        followed = {**(of.record.get("references") or {}), **(of.record.get("filled") or {})}
        self.explicit.update(
            k for k in (first if config is first else differing) if k in config and k not in followed
        )
        self.given.update(*(keys.given(one.get("overrides") or ()) for one in of.record["attempts"]))
        name = of.record["name"]
        is_named = not name.startswith(of.record["day"])
        fixed = {
            "run": of.run.address,
            "status": of.run.status,
            "model": of.member("model"),
            "name": name if is_named else None,
            "steps": of.run.steps,
            "best": of.monitored("best"),
        }
        metrics = {
            name: of.values(name)[-1]
            for name in of.metrics
            if name in (of.monitor, "loss") or name.startswith("val")
        }
        return Row(fixed, differing, metrics, of.monitor, [], is_named and not of.record.get("reproduces"))


def _equal(a: Any, b: Any) -> bool:
    return a == b and isinstance(a, bool) == isinstance(b, bool)


@dataclass(eq=False)
class _Column:
    header: str
    cells: list[Any]
    weight: tuple[int, ...]
    """Smallest first, where there is not room for all."""
    param: str | None = None


def table_of(rows: list[Row], reader: Reader, width: int | None) -> tuple[Table, list[str]]:
    first = reader.first or {}
    differing = [row.differing for row in rows]
    monitors = list(dict.fromkeys(row.monitor for row in rows if row.monitor))
    seen = dict.fromkeys(name for row in rows for name in row.metrics)
    metrics = list(dict.fromkeys((*(name for name in monitors if name in seen), *seen)))[:METRICS]

    def fixed(name: str, *weight: int, header: str | None = None) -> _Column:
        return _Column(header or name, [row.fixed[name] for row in rows], weight)

    def values(key: str) -> list[Any]:
        return [one.get(key, first.get(key, MISSING)) for one in differing]

    def param(key: str) -> _Column:
        weight = _weight(key, values(key), reader.given, members)
        return _Column(short_header(key), [_param(key, value) for value in values(key)], weight, key)

    different = varying(differing, first)
    members = {
        key.removesuffix("_target_")
        for key in different
        if key.endswith("._target_") and _is_tried(values(key))
    }
    params = [param(key) for key in different if key in reader.explicit and not _is_ignored(key)]
    columns = [
        fixed("run", 0),
        fixed("status", 0),
        fixed("model", 0),
        fixed("name", 1 if any(row.is_named for row in rows) else 5),
        *params,
        fixed("best", 0, header=f"best {monitors[0]}" if len(monitors) == 1 else None),
        *(_Column(name, [row.metrics.get(name) for row in rows], (4,)) for name in metrics),
        fixed("steps", 4),
    ]
    columns = [column for column in columns if any(cell is not None for cell in column.cells)]
    telling = sorted(columns, key=lambda column: column.weight)
    if width is None:
        left_out = [column for column in telling if column.param][PARAMS:]
        shown = [column for column in columns if column not in left_out]
    else:
        shown = _fitting(columns, telling, width)
    cells = zip(*(column.cells for column in shown), strict=True)
    hidden = [column.param for column in telling if column.param and column not in shown]
    return Table([column.header for column in shown], [list(row) for row in cells]), hidden


def _weight(key: str, values: list[Any], given: set[str], members: set[str]) -> tuple[int, ...]:
    """What somebody gave on a command line tells most, then what all runs have; what only one kind of model, optimizer, …
    has tells least.
    """
    of_a_kind = any(key.startswith(member) and key != f"{member}_target_" for member in members)
    rank = 3 if not _is_tried(values) else 2 if of_a_kind else int(MISSING in values)
    if key in given or short_header(key) in given:
        return 2, rank
    return 3 if rank < 2 else 6, rank


def _is_tried(values: list[Any]) -> bool:
    """Whether those that have it have several values."""
    there = [value for value in values if value is not MISSING]
    return any(not _equal(there[0], value) for value in there)


def _fitting(columns: list[_Column], telling: list[_Column], width: int) -> list[_Column]:
    """As many columns as a terminal has room for, without those in which a value is there or not and nothing else. Where it
    has not for all, names are short: the time of a run without microseconds, the last word of a hyperparameter.
    """

    def room(column: _Column, header: str) -> int:  # with the two spaces before it
        return 2 + tables.widths(Table(["", header], [["", cell] for cell in column.cells]))[1]

    if sum(room(column, column.header) for column in columns) - 2 <= width:
        return columns
    telling = [column for column in telling if column.weight != (6, 3)]
    columns[0].cells = day.shortened(columns[0].cells)
    chosen: dict[str, _Column] = {}
    for column in telling:
        word = column.header.rpartition(".")[2] if column.param else column.header
        header = word if word not in chosen else column.header
        if header not in chosen and (room(column, header) <= width + 2 or not chosen):
            chosen[header] = column
            width -= room(column, header)
    for header, column in chosen.items():
        column.header = header
    return [column for column in columns if column in chosen.values()]


def varying(differing: list[dict[str, Any]], first: dict[str, Any]) -> list[str]:
    """The hyperparameters that are not the same in all."""
    found: dict[str, list[Any]] = {}
    for one in differing:
        for key in one:
            found.setdefault(key, [])
    order = {key: place for place, key in enumerate(first)}
    kept = []
    for key in sorted(found, key=lambda key: order.get(key, len(order))):
        values = [one.get(key, first.get(key, MISSING)) for one in differing]
        if any(not _equal(values[0], value) for value in values[1:]):
            kept.append(key)
    return kept


def _is_ignored(key: str) -> bool:
    return key == "model._target_" or any(
        key == part or key.startswith(f"{part}.") for part in identity.IGNORED
    )


def short_header(key: str) -> str:
    """`optimizer` for `optimizer._target_`, whose values are shown as the last part of theirs."""
    return key.removesuffix("._target_")


def _param(key: str, value: Any) -> Any:
    if value is MISSING:
        return None
    if key.endswith("._target_") and isinstance(value, str):
        return value.rpartition(".")[2]
    return "null" if value is None else value

"""The columns of `daypoint ls`: who each run is, the hyperparameters that vary, and what was measured.

Where a terminal has no room for all columns, those are shown that tell most: what somebody gave on a command line tells more than
what all runs have, and that more than what only one kind of model has. Of each run only what differs from the first one is kept.
This module finds no runs and prints nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from daypoint.base import day, keys, tables
from daypoint.base.tables import Table
from daypoint.reading.facts import RunFacts
from daypoint.reading.query import MISSING, same
from daypoint.record import identity

PARAMS = 8
METRICS = 4
"""Columns of varying hyperparameters and of metrics, where no terminal's width decides."""


@dataclass
class Row:
    """What is kept of one run.

    Attributes:
        differing: hyperparameters that are not as in the first run.
        is_named: whether somebody gave the run its name.
    """

    fixed: dict[str, Any]
    differing: dict[str, Any]
    metrics: dict[str, Any]
    monitor: str | None
    is_named: bool


@dataclass
class Reader:
    """Makes rows, and remembers what is needed of all runs to choose columns.

    Attributes:
        first: the hyperparameters of the first run.
        explicit: those that were neither filled in by the program nor a reference to another one.
        given: those that stood on a command line.
    """

    first: dict[str, Any] = field(default_factory=dict)
    explicit: set[str] = field(default_factory=set)
    given: set[str] = field(default_factory=set)

    def row(self, of: RunFacts) -> Row:
        config = of.config
        self.first = self.first or config
        first = self.first
        differing = {k: v for k, v in config.items() if not same(first.get(k, MISSING), v)}
        differing |= {k: MISSING for k in first if k not in config}
        followed = {**(of.record.get("references") or {}), **(of.record.get("filled") or {})}
        new = config if config is first else differing
        self.explicit.update(k for k in new if k in config and k not in followed)
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
        shown = [n for n in of.metrics if n in (of.monitor, "loss") or n.startswith("val")]
        metrics = {name: of.values(name)[-1] for name in shown}
        return Row(fixed, differing, metrics, of.monitor, is_named and not of.record.get("reproduces"))


@dataclass(eq=False)
class _Column:
    header: str
    cells: list[Any]
    weight: tuple[int, ...]
    """Smallest first, where there is not room for all."""
    param: str | None = None


def table_of(rows: list[Row], reader: Reader, width: int | None) -> tuple[Table, list[str]]:
    """The table, and the varying hyperparameters that have no column in it.

    Args:
        width: of the terminal; None for a file, which takes any width.
    """
    monitors = list(dict.fromkeys(row.monitor for row in rows if row.monitor))
    seen = dict.fromkeys(name for row in rows for name in row.metrics)
    metrics = list(dict.fromkeys((*(name for name in monitors if name in seen), *seen)))[:METRICS]

    def fixed(name: str, weight: int, header: str | None = None) -> _Column:
        return _Column(header or name, [row.fixed[name] for row in rows], (weight,))

    columns = [
        fixed("run", 0),
        fixed("status", 0),
        fixed("model", 0),
        fixed("name", 1 if any(row.is_named for row in rows) else 5),
        *_params(rows, reader),
        fixed("best", 0, f"best {monitors[0]}" if len(monitors) == 1 else None),
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


def _params(rows: list[Row], reader: Reader) -> list[_Column]:
    """The hyperparameters that are not the same in all runs, in the order of the config."""
    differing = {key for row in rows for key in row.differing}
    ordered = dict.fromkeys((*reader.first, *(key for row in rows for key in row.differing)))
    values = {
        key: [row.differing.get(key, reader.first.get(key, MISSING)) for row in rows]
        for key in ordered
        if key in differing
    }
    values = {key: of for key, of in values.items() if not all(same(of[0], value) for value in of)}
    members = {
        key.removesuffix("_target_")
        for key, of in values.items()
        if key.endswith("._target_") and _is_tried(of)
    }
    return [
        _Column(_header(key), [_cell(key, value) for value in of], _weight(key, of, reader, members), key)
        for key, of in values.items()
        if key in reader.explicit and key != "model._target_" and not _is_ignored(key)
    ]


def _weight(key: str, values: list[Any], reader: Reader, members: set[str]) -> tuple[int, ...]:
    """What somebody gave on a command line tells most, then what all runs have; what only one kind of model, optimizer, …
    has tells least.
    """
    of_a_kind = any(key.startswith(member) and key != f"{member}_target_" for member in members)
    rank = 3 if not _is_tried(values) else 2 if of_a_kind else int(MISSING in values)
    if key in reader.given or _header(key) in reader.given:
        return 2, rank
    return 3 if rank < 2 else 6, rank


def _is_tried(values: list[Any]) -> bool:
    """Whether those that have it have several values."""
    there = [value for value in values if value is not MISSING]
    return not all(same(there[0], value) for value in there)


def _is_ignored(key: str) -> bool:
    return any(key == part or key.startswith(f"{part}.") for part in identity.IGNORED)


def _fitting(columns: list[_Column], telling: list[_Column], width: int) -> list[_Column]:
    """As many columns as a terminal has room for. Where not all fit, those in which a value is there or not and nothing else
    are left out, and names are short: the time of a run without microseconds, the last word of a hyperparameter.
    """

    def room(column: _Column, header: str) -> int:  # with the two spaces before it
        return 2 + tables.widths(Table(["", header], [["", cell] for cell in column.cells]))[1]

    if sum(room(column, column.header) for column in columns) - 2 <= width:
        return columns
    columns[0].cells = day.shortened(columns[0].cells)
    chosen: dict[str, _Column] = {}
    for column in telling:
        word = column.header.rpartition(".")[2] if column.param else column.header
        header = word if word not in chosen else column.header
        fits = room(column, header) <= width + 2 or not chosen
        if fits and header not in chosen and column.weight != (6, 3):
            chosen[header] = column
            width -= room(column, header)
    for header, column in chosen.items():
        column.header = header
    return [column for column in columns if column in chosen.values()]


def _header(key: str) -> str:
    """`optimizer` for `optimizer._target_`, whose values are shown as the last part of theirs."""
    return key.removesuffix("._target_")


def _cell(key: str, value: Any) -> Any:
    if value is MISSING:
        return None
    if key.endswith("._target_") and isinstance(value, str):
        return value.rpartition(".")[2]
    return "null" if value is None else value

"""The runs of `daypoint ls`: which ones, and in which order; `columns` decides what is shown of them.

Only what the shown rows need is read: the newest so many, or with a query as many as it takes to find so many. So memory does
not grow with the number of runs that are not shown. This module prints nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daypoint.base import day
from daypoint.base.tables import Table
from daypoint.reading.columns import Reader, table_of
from daypoint.reading.facts import FACTS, RunFacts
from daypoint.reading.query import MISSING, Name, parse_name
from daypoint.reading.selection import Selection
from daypoint.record import catalog, sweep


@dataclass
class Listing:
    """What `daypoint ls` shows.

    Attributes:
        table: in the order of the rows, oldest first or as sorted.
        complaints: runs that could not be read, in words.
        left_out: runs that were found, or not looked at, and are not shown.
        more_params: varying hyperparameters for which there was no room.
    """

    table: Table
    complaints: list[str]
    left_out: int
    more_params: list[str]


def listing(
    outputs: Path,
    address: str | None = None,
    *,
    where: str | None = None,
    sort: str | None = None,
    limit: int = 50,
    columns: list[str] | None = None,
    width: int | None = None,
) -> Listing:
    """The runs of an address or a range, or all of them.

    Args:
        where: a query, see `daypoint.reading.query` and `daypoint.reading.facts`.
        sort: a name, smallest first; with a minus before it, largest first. By default by time, newest last.
        limit: so many: the newest, or the first as sorted; 0 for all.
        columns: names, instead of the usual columns.
        width: of the terminal: the usual columns are then as many as fit, the most telling ones.

    Raises:
        AddressError: the address names nothing.
        ConfigError: the query is none, or no run has a name in it.
    """
    asked = [parse_name(text) for text in columns or ()]
    selection = Selection(outputs, where, [*asked, *_sort_name(sort)])
    directories = selection.directories(address)
    reader = Reader()

    def cells(of: RunFacts) -> list[Any]:
        values = [selection.value(name, of) for name in asked]
        return [None if value is MISSING else value for value in values]

    take: Callable[[RunFacts], Any] = cells if asked else reader.row
    if sort:
        directories, left_out = _sorted(selection, directories, sort, limit)
        rows = list(selection.each(directories, take))
    else:
        rows, left_out = _newest(selection, directories, take, limit)
    if asked:
        table, more = Table([str(name) for name in asked], rows), []
    else:
        table, more = table_of(rows, reader, width)
    return Listing(table, selection.complaints, left_out, more)


def _sort_name(sort: str | None) -> list[Name]:
    return [parse_name(sort.removeprefix("-"))] if sort else []


def _newest(
    selection: Selection, directories: list[Path], take: Callable[[RunFacts], Any], limit: int
) -> tuple[list[Any], int]:
    """What `take` makes of the newest runs, oldest first, and how many runs were left out."""
    looked_at = iter(reversed(directories))
    rows = []
    for row in selection.each(looked_at, take):
        rows.append(row)
        if len(rows) == limit and not selection.unknown:
            break
    left_out = sum(1 for _ in looked_at)  # whether they match a query is not known
    if left_out == 0:
        selection.check()
    shown = rows[:limit] if limit else rows
    return shown[::-1], left_out + len(rows) - len(shown)


def _sorted(selection: Selection, directories: list[Path], sort: str, limit: int) -> tuple[list[Path], int]:
    """The first runs in that order, and how many runs were left out. Of each run only the value is kept."""
    (name,) = _sort_name(sort)
    found = list(selection.each(directories, lambda of: (selection.value(name, of), of.run.directory)))
    selection.check()
    ordered = sorted_by(found, lambda pair: pair[0], descending=sort.startswith("-"))
    shown = ordered[:limit] if limit else ordered
    return [directory for _, directory in shown], len(ordered) - len(shown)


def without_run(outputs: Path, address: str) -> list[str]:
    """Jobs of a sweep that have no run to list, since they failed or were stopped before they opened one, in words.

    Args:
        address: a sweep; of anything else there are none.
    """
    lines = []
    for directory in dict.fromkeys(path.parent for path in catalog.directories(address, outputs)):
        if not day.sweep_file(directory).is_file():
            continue
        manifest = sweep.read(directory)
        for number, job in sweep.jobs_of(manifest):
            if job["status"] != "RUNNING" and not day.is_run(directory / str(job.get("directory") or number)):
                overrides = " ".join(sweep.varying(job.get("overrides") or (), manifest))
                why = f": {job['error']}" if job.get("error") else ""
                lines.append(f"job {number} {job['status']}  {overrides}{why}")
    return lines


def sorted_by(items: list[Any], value_of: Callable[[Any], Any], *, descending: bool) -> list[Any]:
    """Numbers before text, each in order; what has no value, or NaN, comes last either way."""

    def is_there(value: Any) -> bool:
        return value is not MISSING and value is not None and value == value

    def rank(item: Any) -> tuple[int, Any]:
        value = value_of(item)
        return (0, value) if isinstance(value, int | float) else (1, str(value))

    there = sorted((item for item in items if is_there(value_of(item))), key=rank, reverse=descending)
    return there + [item for item in items if not is_there(value_of(item))]


def objects(
    outputs: Path,
    address: str | None,
    complaints: list[str],
    *,
    where: str | None = None,
    sort: str | None = None,
    limit: int = 0,
) -> Iterator[dict[str, Any]]:
    """Everything known of each run, one at a time, for `--json`; arguments and errors as for `listing`.

    Args:
        complaints: what could not be read is added here, in words.
    """
    selection = Selection(outputs, where, _sort_name(sort))
    directories = selection.directories(address)
    if sort:
        directories, _ = _sorted(selection, directories, sort, limit)
    elif where or limit:
        directories, _ = _newest(selection, directories, lambda of: of.run.directory, limit)
    yield from selection.each(directories, to_object)
    complaints += selection.complaints


def to_object(of: RunFacts) -> dict[str, Any]:
    """A run as plain data: facts, `config` by dotted path, `metrics` with first, last, best, min and max of each."""
    metrics = {name: vars(of.summary(name)) for name in of.metrics}
    facts = {name: fact(of) for name, fact in FACTS.items()}
    return {**facts, "tags": of.record.get("tags") or {}, "config": of.config, "metrics": metrics}

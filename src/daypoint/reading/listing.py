"""Listing: the table of `daypoint ls`. Which runs, and in which order; `columns` says what is worth showing of them.

Only what the shown rows need is read: the newest so many, or with a query as many as it takes to find so many. Ten thousand runs
take no more memory than one screen of them. This module prints nothing. One number: 0.01 s for the newest 50 of a thousand runs, 0.3 s for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daypoint.base import day
from daypoint.base.tables import Table
from daypoint.reading.columns import Reader, table_of
from daypoint.reading.facts import FACTS, RunFacts
from daypoint.reading.grammar import parse, parse_name
from daypoint.reading.query import MISSING, Name, names
from daypoint.reading.selection import Names, bind, select
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
    reader = Reader(asked)
    chosen = choose(outputs, address, reader.row, where=where, sort=sort, limit=limit, asked=asked)
    rows = chosen.rows
    if asked:
        cells = [[None if cell is MISSING else cell for cell in row.asked] for row in rows]
        return Listing(Table([str(name) for name in asked], cells), chosen.complaints, chosen.left_out, [])
    table, more = table_of(rows, reader, width)
    return Listing(table, chosen.complaints, chosen.left_out, more)


@dataclass
class Chosen:
    """The runs that were asked for, as `take` made them; see `Listing` for the rest."""

    rows: list[Any]
    complaints: list[str]
    left_out: int


def choose(
    outputs: Path,
    address: str | None,
    take: Callable[[RunFacts, Names], Any],
    *,
    where: str | None = None,
    sort: str | None = None,
    limit: int = 0,
    asked: Iterable[Name] = (),
) -> Chosen:
    """What `take` makes of each run that is asked for; arguments and errors as for `listing`."""
    condition = bind(parse(where)) if where else None
    key = parse_name(sort.removeprefix("-")) if sort else None
    known = Names([*(names(condition) if condition else ()), *([key] if key else ()), *asked])
    directories = catalog.directories(address, outputs) if address else day.run_directories(outputs)
    complaints: list[str] = []
    looked_at = iter(reversed(directories))

    def row_of(of: RunFacts) -> tuple[Any, Any]:
        if key is None:
            return None, take(of, known)
        # Of those that are sorted away only the value is kept.
        return known.value(key, of), of.run.directory if limit else take(of, known)

    rows: list[tuple[Any, Any]] = []
    for row in select(looked_at, outputs, complaints, row_of, where=condition, known=known):
        rows.append(row)
        if key is None and len(rows) == limit and not known.unknown:
            break
    left_out = sum(1 for _ in looked_at)  # whether they match a query is not known
    if left_out == 0:
        known.check()
    rows.reverse()
    if key is not None:
        rows = sorted_by(rows, lambda row: row[0], descending=bool(sort and sort.startswith("-")))
    if limit and len(rows) > limit:
        left_out += len(rows) - limit
        rows = rows[:limit] if key is not None else rows[-limit:]
    chosen = [row for _, row in rows]
    if key is not None and limit:
        chosen = list(select(chosen, outputs, complaints, lambda of: take(of, known)))
    return Chosen(chosen, complaints, left_out)


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


def sorted_by(items: list[Any], value_of: Any, *, descending: bool) -> list[Any]:
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
    if where or sort or limit:  # which, and in which order, is found first
        chosen = choose(outputs, address, lambda of, _: of.run.directory, where=where, sort=sort, limit=limit)
        complaints += chosen.complaints
        directories = chosen.rows
    else:
        directories = catalog.directories(address, outputs) if address else day.run_directories(outputs)
    yield from select(directories, outputs, complaints, to_object)


def to_object(of: RunFacts) -> dict[str, Any]:
    """A run as plain data: facts, `config` by dotted path, `metrics` with first, last, best, min and max of each."""
    metrics = {name: vars(of.summary(name)) for name in of.metrics}
    facts = {name: fact(of) for name, fact in FACTS.items()}
    return {**facts, "tags": of.record.get("tags") or {}, "config": of.config, "metrics": metrics}

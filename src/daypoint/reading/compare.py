"""Several runs side by side: what differs in their config, code, versions and data, and what they measured.

What is the same in all is left out, so that a table shows what may explain the numbers below it. Values are compared by
type: 1e-5 is 0.00001, `null` is not 'None', true is not 1. A key that a run does not have is an empty cell, `null` is written out.
This module does not compare measured values batch by batch (`daypoint.again.equality` does).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daypoint.base.errors import AddressError
from daypoint.base.tables import Table
from daypoint.reading.facts import RunFacts
from daypoint.reading.query import MISSING, Name, same
from daypoint.reading.selection import newest

MOST = 12
"""Runs side by side."""

Rows = dict[str, list[Any]]
"""For a key the value of each run; MISSING where a run has no such key."""


@dataclass(frozen=True)
class Comparison:
    """Runs side by side.

    Attributes:
        runs: their addresses, the columns.
        sections: config, code, versions, data, run, metrics; those in which something is shown.
        complaints: runs that could not be read, in words.
        remark: that there were more runs, in words; None if there were not.
    """

    runs: list[str]
    sections: dict[str, Rows]
    complaints: list[str]
    remark: str | None

    def tables(self) -> list[tuple[str, Table]]:
        """One table a section; `best(x)` only where it is not `x` in every run."""
        found = []
        for name, rows in self.sections.items():
            shown = [[key, *map(_cell, values)] for key, values in rows.items() if not _repeats(key, rows)]
            found.append((name, Table([name, *self.runs], shown)))
        return found

    def table(self) -> Table:
        """All of it as one table."""
        rows = [
            [section, key, *map(_cell, values)]
            for section, rows in self.sections.items()
            for key, values in rows.items()
        ]
        return Table(["section", "key", *self.runs], rows)

    def to_dict(self) -> dict[str, Any]:
        """As plain data: for each section and key, the values by run; a run without the key is not there."""

        def by_run(values: list[Any]) -> dict[str, Any]:
            pairs = zip(self.runs, values, strict=True)
            return {run: value for run, value in pairs if value is not MISSING}

        sections = {
            name: {key: by_run(values) for key, values in rows.items()}
            for name, rows in self.sections.items()
        }
        return {"runs": self.runs, **sections}


def compare(outputs: Path, addresses: Iterable[str], *, where: str | None = None) -> Comparison:
    """Compare runs, days and sweeps; of a day or a sweep every run is a column, of more than 12 runs the newest.

    Args:
        where: which of the runs, see `daypoint.reading.query`.

    Raises:
        AddressError: an address names nothing; fewer than two runs, or more than 12 that are named one by one.
        ConfigError: the query is none, or no run has a name in it.
    """
    chosen = newest(addresses, outputs, MOST, where=where)
    runs = chosen.runs
    if len(runs) < 2:
        raise AddressError(f"compare: expected at least two runs, found {len(runs)}")
    sections = {
        "config": _differing([of.config for of in runs]),
        "code": _differing([_code(of) for of in runs]),
        "versions": _differing([of.record.get("versions") or {} for of in runs]),
        "data": _differing([of.record.get("data") or {} for of in runs]),
        "run": _differing([_who(of) for of in runs]),
        "metrics": _rows([_measured(of) for of in runs]),
    }
    kept = {name: rows for name, rows in sections.items() if rows}
    return Comparison([of.run.address for of in runs], kept, chosen.complaints, chosen.remark)


def _differing(of_each: list[dict[str, Any]]) -> Rows:
    rows = _rows(of_each)
    return {key: values for key, values in rows.items() if not all(same(values[0], v) for v in values)}


def _rows(of_each: list[dict[str, Any]]) -> Rows:
    keys = dict.fromkeys(key for one in of_each for key in one)
    return {key: [one.get(key, MISSING) for one in of_each] for key in keys}


_CODE = {
    "commit": "commit",
    "branch": "branch",
    "dirty": "uncommitted changes",
    "diff_sha256": "their SHA-256",
}


def _code(of: RunFacts) -> dict[str, Any]:
    git = of.record.get("git") or {}
    return {label: git[key] for key, label in _CODE.items() if git.get(key) is not None}


def _who(of: RunFacts) -> dict[str, Any]:
    facts = ("name", "status", "experiment", "host", "user", "device", "error")
    found = {key: of.value(Name(key)) for key in facts}
    if found["name"].startswith(of.record["day"]):
        del found["name"]  # made of the day and the time: the address says it
    return {key: value for key, value in found.items() if value is not None}


def _measured(of: RunFacts) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in sorted(of.metrics, key=lambda name: name != of.monitor):
        summary = of.summary(name)
        found |= {f"best({name})": summary.best, name: summary.last}
    return {**found, "epochs": len(of.run.epochs), "steps": of.run.steps, "seconds": of.seconds}


def _repeats(key: str, rows: Rows) -> bool:
    """Whether a row `best(x)` is the same as that of `x`."""
    last = rows.get(key.removeprefix("best(").removesuffix(")")) if key.startswith("best(") else None
    return last is not None and same(rows[key], last)


def _cell(value: Any) -> Any:
    return None if value is MISSING else "null" if value is None else value

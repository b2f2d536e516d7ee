"""Comparing runs: what differs between them in config, code, versions and data, and what they measured.

What is the same in all is left out, so that a table shows what may explain the numbers below it. Values are compared by
type: 1e-5 is 0.00001, `null` is not 'None', true is not 1. A key that a run does not have is an empty cell, `null` is written out. Whether two
runs measured the same value by value is asked elsewhere. One number: 1.5 ms a run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daypoint.base.errors import AddressError
from daypoint.base.tables import Table
from daypoint.reading.facts import RunFacts
from daypoint.reading.query import MISSING, Name
from daypoint.reading.selection import newest

MOST = 12
"""Runs side by side."""


@dataclass(frozen=True)
class Section:
    """Rows of one kind: config, code, versions, data, run, metrics.

    Attributes:
        rows: for a key the value of each run; MISSING where a run has no such key.
    """

    name: str
    rows: dict[str, list[Any]]


@dataclass(frozen=True)
class Comparison:
    """Runs side by side.

    Attributes:
        runs: their addresses, the columns.
        sections: those in which something is shown.
        complaints: runs that could not be read, in words.
        remark: that there were more runs, in words; None if there were not.
    """

    runs: list[str]
    sections: list[Section]
    complaints: list[str]
    remark: str | None = None

    def tables(self) -> list[tuple[str, Table]]:
        """A table a section; `best(x)` where it is not `x` in every run."""
        return [
            (
                section.name,
                Table(
                    [section.name, *self.runs],
                    [
                        [key, *map(_cell, values)]
                        for key, values in section.rows.items()
                        if not _repeats(key, values, section.rows)
                    ],
                ),
            )
            for section in self.sections
        ]

    def table(self) -> Table:
        """All of it as one table."""
        rows = [
            [section.name, key, *map(_cell, values)]
            for section in self.sections
            for key, values in section.rows.items()
        ]
        return Table(["section", "key", *self.runs], rows)

    def to_dict(self) -> dict[str, Any]:
        """As plain data: for each section and key, the values by run; a run without the key is not there."""
        return {
            "runs": self.runs,
            **{
                section.name: {
                    key: {
                        run: value
                        for run, value in zip(self.runs, values, strict=True)
                        if value is not MISSING
                    }
                    for key, values in section.rows.items()
                }
                for section in self.sections
            },
        }


def compare(outputs: Path, addresses: Iterable[str], *, where: str | None = None) -> Comparison:
    """Compare runs, days and sweeps; of a day or a sweep every run is a column, of more than 12 runs the newest.

    Args:
        where: which of the runs, see `daypoint.reading.query`.

    Raises:
        AddressError: an address names nothing; fewer than two runs, or more than 12 that are named one by one.
        ConfigError: the query is none, or no run has a name in it.
    """
    chosen = newest(addresses, outputs, MOST, where=where)
    if len(chosen.runs) < 2:
        raise AddressError(f"compare: expected at least two runs, found {len(chosen.runs)}")
    return side_by_side(chosen.runs, chosen.complaints, chosen.remark)


def side_by_side(runs: list[RunFacts], complaints: list[str], remark: str | None = None) -> Comparison:
    """Runs that were read already."""
    sections = [
        _differing("config", [of.config for of in runs]),
        _differing("code", [_code(of) for of in runs]),
        _differing("versions", [of.record.get("versions") or {} for of in runs]),
        _differing("data", [of.record.get("data") or {} for of in runs]),
        _differing("run", [_who(of) for of in runs]),
        Section("metrics", _rows([_measured(of) for of in runs])),
    ]
    kept = [section for section in sections if section.rows]
    return Comparison([of.run.address for of in runs], kept, complaints, remark)


def same(a: Any, b: Any) -> bool:
    """Equality that tells true from 1 and takes NaN for NaN."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, bool) != isinstance(b, bool):
        return False
    return a == b or (a != a and b != b)


def _differing(name: str, of_each: list[dict[str, Any]]) -> Section:
    rows = _rows(of_each)
    return Section(
        name, {key: values for key, values in rows.items() if not all(same(values[0], v) for v in values)}
    )


def _rows(of_each: list[dict[str, Any]]) -> dict[str, list[Any]]:
    keys = dict.fromkeys(key for one in of_each for key in one)
    return {key: [one.get(key, MISSING) for one in of_each] for key in keys}


def _code(of: RunFacts) -> dict[str, Any]:
    git = of.record.get("git") or {}
    facts = {
        "commit": "commit",
        "branch": "branch",
        "uncommitted changes": "dirty",
        "their SHA-256": "diff_sha256",
    }
    return {label: git[key] for label, key in facts.items() if git.get(key) is not None}


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


def _repeats(key: str, values: list[Any], rows: dict[str, list[Any]]) -> bool:
    last = rows.get(key.removeprefix("best(").removesuffix(")")) if key.startswith("best(") else None
    return last is not None and all(map(same, values, last))


def _cell(value: Any) -> Any:
    return None if value is MISSING else "null" if value is None else value

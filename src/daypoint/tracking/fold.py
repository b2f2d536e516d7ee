"""Turns the events of a journal into what MLflow shows of them: points (key, value, time, step).

The same journal always gives the same points, whether it is read while it grows, after a crash from where the last
reader stopped, or all at once. A value that an MLflow float cannot hold is reported, never silently changed. A later attempt
that repeats steps adds no second point at them, because MLflow cannot delete the first. This module knows no MLflow.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from daypoint.base import keys
from daypoint.base.errors import ConfigError
from daypoint.base.files import decode_number
from daypoint.record import journal
from daypoint.record.journal import Reading

CHUNK_BYTES = 2**18
"""How much of a journal is read at once."""

Point = tuple[str, float, int, int]
"""Key, value, milliseconds since the epoch, step."""

_STATISTICS = ("mean", "variance", "min", "max", "nonfinite")


class Fold:
    """Turns the events of one journal into points, in order.

    Args:
        path: the journal.
        remark: called with (tag, subject, text) for what the points cannot hold, perhaps more than once for the same.
        offset_bytes: where the events given to `points` begin.
    """

    def __init__(self, path: Path, remark: Callable[[str, str, str], None], offset_bytes: int = 0) -> None:
        self._path = path
        self._remark = remark
        self._key = functools.cache(keys.mlflow_key)
        self._done: set[tuple[str, int]] = set()
        """Points of earlier attempts, from the step on at which the present one began."""
        if offset_bytes:
            starts = [event for event in events(path, offset_bytes) if _is_resumption(event)]
            if starts:
                self._resume(starts[-1])

    def points(self, event: Mapping[str, Any]) -> Iterator[Point]:
        """The points of the next event."""
        if _is_resumption(event):
            self._resume(event)
        time_ms = event["time"]
        for key, value, step in self._values(event):
            if self._done and (key, step) in self._done:
                continue
            if type(value) is not float or not -math.inf < value < math.inf:
                value = self._as_float(key, value, step)
            yield key, value, time_ms, step

    def _values(self, event: Mapping[str, Any]) -> Iterator[tuple[str, bool | int | float, int]]:
        """What an event says, as (key, exact value, step)."""
        kind = event["event"]
        if kind in ("batch", "epoch_metrics"):
            for name, value in event["metrics"].items():
                yield self._key(name), value, event["step"]
        elif kind == "epoch":
            for name, statistics in event["stats"].items():
                for statistic in _STATISTICS:
                    value = decode_number(statistics[statistic])
                    if value is None or (statistic == "nonfinite" and value == 0):
                        continue
                    try:
                        yield keys.epoch_key(name, statistic), value, event["step"]
                    except ConfigError:
                        self._remark(
                            "daypoint.truncated", self._key(name), "name too long for its epoch statistics"
                        )

    def _as_float(self, key: str, value: bool | int | float, step: int) -> float:
        try:
            number = float(value)
        except OverflowError:
            number = math.inf if value > 0 else -math.inf
        if not math.isfinite(number):
            self._remark("daypoint.nonfinite", key, f"{number} first at step {step}")
            return math.nan  # MLflow would show infinity as 1.8e308, a number that nobody measured
        if number != value:
            self._remark("daypoint.rounded", key, f"first at step {step}")
        return number

    def _resume(self, start: Mapping[str, Any]) -> None:
        attempt, step = start["attempt"], start["step"]
        self._remark("daypoint.resumed", f"attempt {attempt}", f"from step {step}")
        self._done = set()
        for event in journal.events(self._path):
            if _is_resumption(event) and event["attempt"] == attempt:
                return
            self._done.update((key, at) for key, _, at in self._values(event) if at >= step)


def _is_resumption(event: Mapping[str, Any]) -> bool:
    return event["event"] == "start" and event["attempt"] > 1


def events(path: Path, until_bytes: int | None = None) -> Iterator[dict[str, Any]]:
    """Every whole record from the beginning up to an offset at which an earlier reading ended."""
    offset = 0
    while until_bytes is None or offset < until_bytes:
        reading = read_chunk(path, offset)
        if reading.end_bytes == offset:
            return
        yield from reading.events
        offset = reading.end_bytes


def read_chunk(path: Path, offset_bytes: int) -> Reading:
    """`journal.read` of about `CHUNK_BYTES`; an empty reading if there is no journal."""
    if not path.exists():
        return Reading([], [], offset_bytes, 0)
    return journal.read(path, offset_bytes, CHUNK_BYTES)

"""What can be asked about a run by name, for queries, columns and tables.

    status day time name experiment model steps seconds …    see FACTS
    git.commit, data.fingerprint, tags.team, versions.torch, choices.loss
    optimizer.lr, config.optimizer.lr    a hyperparameter; `lr` alone, if only one is called so
    val/accuracy                         a metric's last value: that of the last epoch which has one
    best(val/accuracy)                   and first, min, max; best goes by `monitor`, else down for losses and errors

The value of a metric in an epoch is what was logged for the epoch, else the mean of its batches; `min` and `max` are over
every batch. Values keep their types. This module does not compare runs. It reads run.json and, only when a metric or a count is
asked for, the train log.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from daypoint.base import keys
from daypoint.base.errors import ConfigError
from daypoint.reading.query import MISSING, Name
from daypoint.record.catalog import StoredRun

PREFIXED = ("tags", "versions", "choices", "git")


@dataclass
class Summary:
    """One metric over a run; every number as it was recorded.

    Attributes:
        first, last, best: values of epochs.
        min, max: over every batch and every epoch's value; NaN only if there was nothing else.
    """

    first: Any
    last: Any
    best: Any
    min: Any
    max: Any


class RunFacts:
    """What is known of one run; each file is read when something of it is asked for."""

    def __init__(self, run: StoredRun) -> None:
        self.run = run
        self.record = run.record

    @cached_property
    def config(self) -> dict[str, Any]:
        """Hyperparameters by dotted path."""
        return keys.leaves(self.record["config"])

    @cached_property
    def metrics(self) -> dict[str, None]:
        """The names of the metrics, in the order in which they came."""
        found = dict.fromkeys(
            name for epoch in self.run.epochs for name in (*epoch["stats"], *epoch["metrics"])
        )
        return found or dict.fromkeys(self.run.metrics)  # of a run that was killed in its first epoch

    def values(self, metric: str) -> list[Any]:
        """A metric's value in each epoch that has one."""
        values = []
        for epoch in self.run.epochs:
            if metric in epoch["metrics"]:
                values.append(epoch["metrics"][metric])
            elif of := epoch["stats"].get(metric):
                values.append(math.nan if of["mean"] is None else of["mean"])
        return values or [self.run.metrics[metric]]

    def summary(self, metric: str) -> Summary:
        """A metric over the whole run."""
        values = self.values(metric)
        of = [epoch["stats"][metric] for epoch in self.run.epochs if metric in epoch["stats"]]
        inner = [one[end] for one in of for end in ("min", "max") if one[end] is not None]
        ranked = [value for value in values if value == value]
        best = (min if self.mode(metric) == "min" else max)(ranked) if ranked else math.nan
        low, high = min((*ranked, *inner), default=math.nan), max((*ranked, *inner), default=math.nan)
        return Summary(values[0], values[-1], best, low, high)

    @property
    def monitor(self) -> str | None:
        """The monitored metric."""
        return (self.record.get("monitor") or {}).get("metric")

    def mode(self, metric: str) -> str:
        """Whether a metric is better `min` or `max`."""
        monitor = self.record.get("monitor") or {}
        return monitor["mode"] if monitor.get("metric") == metric else keys.mode_of(metric)

    def member(self, group: str) -> str | None:
        """Which model, optimizer, … it is: as Hydra was told, else what its `_target_` is called."""
        if chosen := (self.record.get("choices") or {}).get(group):
            return chosen
        section = self.record["config"].get(group)
        if isinstance(section, dict):
            section = str(section.get("_target_", "")).rpartition(".")[2].lower()
        return section if isinstance(section, str) and section else None

    def monitored(self, kind: str) -> Any:
        """The best or last value of the monitored metric; None if there is none."""
        return getattr(self.summary(self.monitor), kind) if self.monitor in self.metrics else None

    @property
    def seconds(self) -> float:
        """How long all attempts took; a last one that was killed counts until its last event."""
        total = sum(attempt.get("seconds") or 0.0 for attempt in self.record["attempts"])
        last = self.record["attempts"][-1]
        if last.get("seconds") is None and (event := self.run.last_event):
            started = datetime.fromisoformat(last.get("started") or self.record["started"])
            total += max(event["time"] / 1000 - started.timestamp(), 0.0)
        return round(total, 3)

    @property
    def sweep(self) -> str | None:
        """The address of the sweep that it is a job of."""
        sweep = self.record.get("sweep")
        return "/".join(Path(sweep["directory"]).parts[-2:]) if sweep else None

    # ------------------------------------------------------------ by name

    def meaning(self, name: Name) -> Name | None:
        """The full name that is meant, such as `config.optimizer.lr` for `lr`; None if this run has nothing of it.

        Raises:
            ConfigError: it could be several.
        """
        text = name.name
        if name.function:
            return None if (metric := self._metric(text)) is None else replace(name, name=metric)
        if text in FACTS:
            return name
        head, _, rest = text.partition(".")
        if head == "config":
            return name if rest in self.config else None
        if head in PREFIXED and rest in (self.record.get(head) or {}):
            return name
        if text in self.config:
            return Name(f"config.{text}")
        short = [Name(f"config.{key}") for key in self.config if key.endswith(f".{text}")]
        if text in self.metrics:
            short.insert(0, Name(text, "last"))
        elif not short and (metric := self._metric(text)) is not None:
            return Name(metric, "last")
        if len(short) > 1:
            raise ConfigError(ambiguous(text, short))
        return short[0] if short else None

    def _metric(self, text: str) -> str | None:
        if text in self.metrics:
            return text
        short = [name for name in self.metrics if name.endswith(f"/{text}")]
        if len(short) > 1:
            raise ConfigError(ambiguous(text, [Name(name, "last") for name in short]))
        return short[0] if short else None

    def value(self, meaning: Name) -> Any:
        """The value of a full name; MISSING if the run has none."""
        if meaning.function:
            if meaning.name not in self.metrics:
                return MISSING
            return getattr(self.summary(meaning.name), meaning.function)
        if meaning.name in FACTS:
            return FACTS[meaning.name](self)
        head, _, rest = meaning.name.partition(".")
        where = self.config if head == "config" else self.record.get(head) or {}
        return where.get(rest, MISSING)


def ambiguous(text: str, meant: Iterable[Name]) -> str:
    return f"{text}: expected a name that only one thing has, found {' and '.join(map(str, meant))}; write it in full"


def _of(section: str, key: str) -> Callable[[RunFacts], Any]:
    return lambda of: (of.record.get(section) or {}).get(key)


FACTS: dict[str, Callable[[RunFacts], Any]] = {
    "address": lambda of: of.run.address,
    "uid": lambda of: of.record["uid"],
    "day": lambda of: of.record["day"],
    "time": lambda of: of.record["started"][11:19],
    "started": lambda of: of.record["started"],
    "status": lambda of: of.run.status,
    "name": lambda of: of.record["name"],
    "experiment": lambda of: of.record.get("experiment"),
    "model": lambda of: of.member("model"),
    "optimizer": lambda of: of.member("optimizer"),
    "scheduler": lambda of: of.member("scheduler"),
    "data": lambda of: of.member("data"),
    "data.fingerprint": _of("data", "fingerprint"),
    "data.rows": _of("data", "rows"),
    "git.commit": _of("git", "commit"),
    "git.dirty": _of("git", "dirty"),
    "host": lambda of: of.record.get("host"),
    "user": lambda of: of.record.get("user"),
    "device": lambda of: of.record.get("device"),
    "sweep": lambda of: of.sweep,
    "job": _of("sweep", "job"),
    "attempts": lambda of: len(of.record["attempts"]),
    "error": lambda of: (of.record["attempts"][-1].get("error") or {}).get("type"),
    "epochs": lambda of: len(of.run.epochs),
    "steps": lambda of: of.run.steps,
    "seconds": lambda of: of.seconds,
    "monitor": lambda of: of.monitor,
    "best": lambda of: of.monitored("best"),
    "last": lambda of: of.monitored("last"),
}
"""Facts by name; `best` and `last` alone are of the monitored metric. None stands for what there is not."""
NUMBERS = ("data.rows", "git.dirty", "job", "attempts", "epochs", "steps", "seconds", "best", "last")

"""Rebuilds from the journal what a run had recorded after so many steps.

A training that goes on from a checkpoint needs the epochs before it, and the statistics of the epoch that was
half done. Both follow from the journal: an event counts if no later attempt began at or before its step. So the train log of a
resumed run is that of a run that was never interrupted. This module writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from daypoint.base.stats import RunningStats


@dataclass
class Replay:
    """What was recorded in the first `step` steps.

    Attributes:
        step: steps done.
        epochs: the epochs that ended by then, as the train log has them.
        latest: the last value of every metric.
        stats: statistics of the batches since the last of those epochs.
        metrics: epoch metrics since then.
        epoch: the epoch they belong to; None if there are none.
    """

    step: int = 0
    epochs: list[dict[str, Any]] = field(default_factory=list)
    latest: dict[str, bool | int | float] = field(default_factory=dict)
    stats: dict[str, RunningStats] = field(default_factory=dict)
    metrics: dict[str, bool | int | float] = field(default_factory=dict)
    epoch: int | None = None

    @property
    def steps_in_epoch(self) -> int:
        """Steps of the epoch that has not ended."""
        return self.step - (self.epochs[-1]["first_step"] + self.epochs[-1]["steps"] if self.epochs else 0)


def valid_events(events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The events that count: those of the last attempt, and those of earlier ones before the step it began
    at.
    """
    counted: list[Mapping[str, Any]] = []
    for event in events:
        if event["event"] == "start" and event["attempt"] > 1:
            counted = [earlier for earlier in counted if _is_before(earlier, event["step"])]
        counted.append(event)
    return counted


def replay(events: Iterable[Mapping[str, Any]], step: int) -> Replay:
    """What was recorded in the first `step` steps.

    Args:
        events: all events of a journal, in order.
        step: steps done, as a checkpoint says.
    """
    state = Replay(step=step)
    # An epoch that was left early, right where the training goes on, has not ended: it goes on too.
    for event in valid_events(events):
        if not _is_before(event, step):
            continue
        kind = event["event"]
        if kind == "batch":
            state.epoch = event["epoch"]
            state.latest.update(event["metrics"])
            for name, value in event["metrics"].items():
                state.stats.setdefault(name, RunningStats()).update(value)
        elif kind == "epoch_metrics":
            state.latest.update(event["metrics"])
            if event["epoch"] is not None:
                state.metrics.update(event["metrics"])
            elif state.epochs:
                state.epochs[-1]["metrics"].update(event["metrics"])
        elif kind == "epoch" and (event["complete"] or event["first_step"] + event["steps"] < step):
            entry = {
                key: event[key]
                for key in ("epoch", "complete", "first_step", "steps", "seconds", "stats", "time")
            }
            entry["metrics"] = state.metrics
            state.epochs.append(entry)
            state.stats, state.metrics, state.epoch = {}, {}, None
    return state


def _is_before(event: Mapping[str, Any], step: int) -> bool:
    """Whether an event is part of what happened in the first `step` steps."""
    kind = event["event"]
    if kind in ("batch", "epoch_metrics"):
        return event["step"] < step
    if kind == "epoch":
        return event["first_step"] + event["steps"] <= step
    return kind == "start"

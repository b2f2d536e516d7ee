"""The values of a journal as columns of numbers: one row a batch, and one for each time that an epoch was measured.

A journal is read once, line by line; only the metrics that are asked for are kept, eight bytes a number. Damaged lines are left
out (`daypoint verify` names them). Steps that a resumed run did again count once, as it did them last, which is the rule of
`daypoint.record.replay`. This module knows neither pandas nor pictures.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from daypoint.base import files
from daypoint.record import journal


class Points:
    """The rows of a journal.

    Args:
        events: those of a journal, in order.
        wanted: keep only these metrics, and the rows that have one of them.

    Attributes:
        steps, epochs, times: of each row; the epoch is -1 outside of epochs, the time is in milliseconds.
        is_epoch: 1 for a row that was measured for an epoch, 0 for a batch.
        values: for each metric the rows that have it, and its values there; a list if not all of them are floats.
        names: every metric of the journal, in order of appearance.
        finished: the epoch events that count.
        resumed_at: the first step of each later attempt.
    """

    def __init__(self, events: Iterable[Mapping[str, Any]], wanted: Collection[str] | None = None) -> None:
        self.steps, self.epochs, self.times = array("q"), array("q"), array("q")
        self.is_epoch = bytearray()
        self.values: dict[str, tuple[array[int], array[float] | list[Any]]] = {}
        self.names: dict[str, None] = {}
        self.finished: list[Mapping[str, Any]] = []
        self.resumed_at: list[int] = []
        self._restarts: list[tuple[int, int]] = []
        for event in events:
            kind = event["event"]
            if kind in ("batch", "epoch_metrics"):
                self._add(event, wanted)
            elif kind == "epoch":
                self.finished.append(event)
            elif kind == "start" and event["attempt"] > 1:
                self._restart(event["step"])

    def _add(self, event: Mapping[str, Any], wanted: Collection[str] | None) -> None:
        metrics = event["metrics"]
        if not self.names.keys() >= metrics.keys():
            self.names |= dict.fromkeys(metrics)
        names = metrics if wanted is None else [name for name in wanted if name in metrics]
        if wanted is not None and not names:
            return
        for name in names:
            value = metrics[name]
            if name not in self.values:
                self.values[name] = (array("q"), array("d"))
            places, values = self.values[name]
            if type(value) is not float:
                value = files.decode_number(value)
                if type(value) is not float and type(values) is array:
                    values = list(values)  # a whole number may be longer than a float is exact
                    self.values[name] = (places, values)
            places.append(len(self.steps))
            values.append(value)
        self.steps.append(event["step"])
        self.epochs.append(-1 if event["epoch"] is None else event["epoch"])
        self.times.append(event["time"])
        self.is_epoch.append(event["event"] == "epoch_metrics")

    def _restart(self, step: int) -> None:
        self._restarts.append((len(self.steps), step))
        self.resumed_at = [*(at for at in self.resumed_at if at < step), step]

        def counts(epoch: Mapping[str, Any]) -> bool:
            # An epoch that was left early, right where the training goes on, goes on too.
            end = epoch["first_step"] + epoch["steps"]
            return end < step or (end == step and epoch.get("complete", True))

        self.finished = [epoch for epoch in self.finished if counts(epoch)]

    def counts(self) -> np.ndarray:
        """(rows,) bool: which rows no later attempt did again."""
        steps = np.array(self.steps, np.int64)
        counts = np.ones(len(steps), bool)
        for place, step in self._restarts:
            counts[:place] &= steps[:place] < step
        return counts


def events(path: Path) -> Iterator[dict[str, Any]]:
    """The whole, right events of a journal, with metric values as they are in the file: decoding all takes as long again.

    Raises:
        FileNotFoundError: there is no journal.
    """
    for line in files.lines(path):
        try:
            yield journal.parse_encoded(line[:-1])  # of an unfinished last line the checksum is cut off, too
        except ValueError:
            continue

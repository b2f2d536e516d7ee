"""The recorder: batches and epochs become events of the journal.

Each `log` passes every value through the strict door, appends one "batch" event, and feeds the statistics of the epoch.
`end_epoch` appends those as one "epoch" event and rewrites the train log. The recorder knows nothing of directories being
claimed, of MLflow or of the screen. One number: three CPU scalars a step cost about 8 microseconds, most of it the write.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from daypoint import files as strict
from daypoint.day import RunFiles
from daypoint.errors import RunError, ScalarError
from daypoint.files import decode_metrics, encode_metrics
from daypoint.journal import Journal
from daypoint.keys import mlflow_key
from daypoint.scalar import to_py, to_step
from daypoint.stats import RunningStats

TRAIN_LOG_FORMAT = "daypoint/train-log/1"


def now_ms() -> int:
    """Milliseconds since the epoch, the unit of time in the journal and in MLflow."""
    return time.time_ns() // 1_000_000


class Recorder:
    """Records the metrics of one attempt of a run.

    Args:
        journal: open for appending.
        files: where the train log goes.
        step: the step of the first batch (steps done before).
        on_nonfinite: called with (metric, value, step) for every NaN or infinity, after it was recorded; may raise.

    Attributes:
        step: the step that the next batch will have; equally the number of steps done.
        epoch: the epoch that is being recorded, or None.
        latest: the last value of every metric, by name.
        epochs: the epochs recorded so far, as they stand in the train log.
    """

    def __init__(
        self,
        journal: Journal,
        files: RunFiles,
        *,
        step: int = 0,
        epochs: list[dict[str, Any]] | None = None,
        on_nonfinite: Callable[[str, float, int], None] | None = None,
    ) -> None:
        self.step = step
        self.epoch: int | None = None
        self.latest: dict[str, bool | int | float] = {}
        self.epochs = epochs or []
        self._journal = journal
        self._files = files
        self._stats: dict[str, RunningStats] = {}
        self._epoch_metrics: dict[str, bool | int | float] = {}
        self._epoch_first_step = step
        self._epoch_started_seconds = time.monotonic()
        self.on_nonfinite = on_nonfinite
        self._all_finite = True
        self._known: set[str] = set()
        self._nonfinite: set[str] = set()

    # ------------------------------------------------------------ batches

    def log(
        self, metrics: Mapping[str, Any], step: int | None = None, batch_size: int | None = None
    ) -> dict[str, bool | int | float]:
        """Record the scalars of one batch; returns them as plain numbers.

        All of them or none: every value passes the door before anything is written.

        Args:
            metrics: scalars by name.
            step: the step; None takes the next one.
            batch_size: only makes the message about an unreduced loss more exact.

        Raises:
            ScalarError: a value is not one real number, or a name cannot be used.
            JournalError: the event could not be written.
        """
        if step is None:
            step = self.step
        elif type(step) is not int or step < 0:
            step = to_step(step)
        values = self._through_the_door(metrics, step, batch_size)
        self._append("batch", step, values)
        self.step = step + 1
        stats = self._stats
        for name, value in values.items():
            if name not in stats:
                stats[name] = RunningStats()
            stats[name].update(value)
        if not self._all_finite:
            self._tell_nonfinite(values, step)
        return values

    def _through_the_door(
        self, metrics: Mapping[str, Any], step: int, batch_size: int | None
    ) -> dict[str, bool | int | float]:
        if not metrics:
            raise ScalarError(f"step {step}: expected at least one metric, found none")
        known = self._known
        values: dict[str, bool | int | float] = {}
        for name, value in metrics.items():
            if name not in known:
                self._check_name(name)
            try:
                values[name] = to_py(value, name, batch_size=batch_size)
            except ScalarError as error:
                raise ScalarError(f"step {step}: {error}") from None
        return values

    def _check_name(self, name: object) -> None:
        if type(name) is not str:
            raise ScalarError(f"metric name: expected text, found {name!r} ({type(name).__name__})")
        try:
            mlflow_key(name)
        except ValueError as error:
            raise ScalarError(str(error)) from None
        self._known.add(name)

    def _append(self, event: str, step: int, values: dict[str, bool | int | float]) -> None:
        encoded: Mapping[str, Any] = values
        self._all_finite = True
        for value in values.values():
            if type(value) is not float or not math.isfinite(value):
                encoded = encode_metrics(values)
                self._all_finite = all(map(_is_finite, values.values()))
                break
        self._journal.append_encoded(
            {"event": event, "time": now_ms(), "step": step, "epoch": self.epoch, "metrics": encoded}
        )
        self.latest.update(values)

    def _tell_nonfinite(self, values: Mapping[str, bool | int | float], step: int) -> None:
        for name, value in values.items():
            if not _is_finite(value):
                if name not in self._nonfinite:
                    self._nonfinite.add(name)
                    text = f"{name} is {value} at step {step}"
                    self._journal.append({"event": "notice", "time": now_ms(), "step": step, "text": text})
                if self.on_nonfinite is not None:
                    self.on_nonfinite(name, value, step)

    # ------------------------------------------------------------ epochs

    @property
    def steps_in_epoch(self) -> int:
        """Steps done since the epoch began."""
        return self.step - self._epoch_first_step

    def begin_epoch(self, epoch: int) -> None:
        """Start the statistics of an epoch."""
        if self.epoch is not None:
            raise RunError(f"epoch {epoch}: epoch {self.epoch} is still open; epochs cannot overlap")
        self.epoch = epoch
        self._stats = {}
        self._epoch_metrics = {}
        self._epoch_first_step = self.step
        self._epoch_started_seconds = time.monotonic()

    def log_epoch(self, metrics: Mapping[str, Any]) -> dict[str, bool | int | float]:
        """Record scalars of the whole epoch (validation); their step is that of the last batch.

        Raises:
            ScalarError: a value is not one real number.
            JournalError: the event could not be written.
        """
        step = max(self.step - 1, 0)
        values = self._through_the_door(metrics, step, None)
        self._append("epoch_metrics", step, values)
        self._epoch_metrics.update(values)
        if not self._all_finite:
            self._tell_nonfinite(values, step)
        return values

    def end_epoch(self, complete: bool = True) -> dict[str, Any]:
        """Record the statistics of the epoch and rewrite the train log; returns the epoch's entry in it.

        Args:
            complete: False when the epoch was left early.
        """
        assert self.epoch is not None
        entry = {
            "epoch": self.epoch,
            "complete": complete,
            "first_step": self._epoch_first_step,
            "steps": self.steps_in_epoch,
            "seconds": round(time.monotonic() - self._epoch_started_seconds, 6),
            "stats": {name: stats.to_dict() for name, stats in self._stats.items()},
        }
        time_ms = now_ms()
        self._journal.append({"event": "epoch", "time": time_ms, "step": max(self.step - 1, 0), **entry})
        entry["time"] = time_ms
        entry["metrics"] = self._epoch_metrics
        self.epoch = None
        self.epochs.append(entry)
        self.write_train_log()
        return entry

    def write_train_log(self) -> None:
        """The train log: per epoch count, mean, variance, min and max of every metric, and where the batches are."""
        strict.write_atomic(
            self._files.train_log, strict.dumps(train_log(self._files, self.epochs, self.step))
        )

    def checkpoint(self, path: str, epoch: int | None, metrics: Mapping[str, Any]) -> None:
        """Record that a checkpoint was committed."""
        self._journal.append(
            {
                "event": "checkpoint",
                "time": now_ms(),
                "step": self.step,
                "epoch": epoch,
                "path": path,
                "metrics": metrics,
            }
        )


def _is_finite(value: bool | int | float) -> bool:
    return type(value) is not float or math.isfinite(value)


def train_log(files: RunFiles, epochs: Iterable[Mapping[str, Any]], steps: int) -> dict[str, Any]:
    """The content of `train_log_DAY.json`. Statistics that have no finite value to speak of are null."""
    return {
        "format": TRAIN_LOG_FORMAT,
        "day": files.day,
        "steps": steps,
        "batches": files.journal.name,
        "variance": "population (divided by count)",
        "epochs": [
            {
                **entry,
                "stats": {name: encode_metrics(of) for name, of in entry["stats"].items()},
                "metrics": encode_metrics(entry["metrics"]),
            }
            for entry in epochs
        ],
    }


def read_epochs(log: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The epochs of a train log that was read from disk, values restored."""
    return [
        {
            **entry,
            "stats": {name: decode_metrics(of) for name, of in entry["stats"].items()},
            "metrics": decode_metrics(entry["metrics"]),
        }
        for entry in log["epochs"]
    ]

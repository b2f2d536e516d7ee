"""Record batches and epochs as events of the journal, and keep the statistics of the epoch.

Each `log` checks every value (`daypoint.scalars.convert`), appends one "batch" event, and feeds the statistics of
the epoch. `end_epoch` appends those as one "epoch" event and rewrites the train log. The recorder knows
nothing of claiming a directory, of MLflow or of the screen. Batches of plain floats wait in
`daypoint.record.spool` for a moment, where they outlive the process, and are written many at a time, so that
three CPU scalars a step cost about 10 microseconds.

A tensor on an accelerator is not waited for. It is checked by shape and dtype, copied on its device
(`daypoint.scalars.ring`), and the event is written when the copy has arrived, in order and with its own step and
time: at the latest 64 steps later, and always when an epoch begins or ends, at `log_epoch`, at a checkpoint
and at the end of the run, however it ends. What is logged and not yet written is lost by SIGKILL: at most
those 64 steps or, as long as the device keeps up, half a second and a step.

The environment variable DAYPOINT_DEFER changes that. 0: every value is waited for and written at once.
1: CPU tensors are deferred too, which is for tests.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from daypoint.base import files as strict
from daypoint.base.day import RunFiles
from daypoint.base.errors import ConfigError, JournalError, RunError, ScalarError
from daypoint.base.files import encode_metrics
from daypoint.base.keys import mlflow_key
from daypoint.base.stats import RunningStats
from daypoint.record.journal import Journal
from daypoint.record.replay import Replay
from daypoint.record.spool import Spool
from daypoint.record.train_log import train_log
from daypoint.scalars.convert import LARGEST_STEP, check_scalar, to_py, to_step

if TYPE_CHECKING:
    from daypoint.scalars.ring import Ring

_DEFERRED = {"": (False,), "0": (), "1": (False, True)}
"""By DAYPOINT_DEFER: tensors with which `is_cpu` are read later."""

MOST_BITS = 13_000
"""The largest integer that is recorded; Python writes, and reads, no more than 4,300 digits."""


def now_ms() -> int:
    """Milliseconds since the epoch, the unit of time in the journal and in MLflow."""
    return time.time_ns() // 1_000_000


class Recorder:
    """Records the metrics of one attempt of a run.

    Args:
        journal: open for appending.
        files: say where the train log is.
        carried: what earlier attempts recorded before the step at which this one begins.
        on_nonfinite: called with (metric, value, step) for every NaN or infinity, after it was recorded; may
            raise.
        on_split: called once with the names of two calls of `log` that alternate, and so may be meant to be one batch.

    Raises:
        ConfigError: DAYPOINT_DEFER is neither 0 nor 1.

    Attributes:
        step: the step that the next batch will have; equally the number of steps done.
        epoch: the epoch that is being recorded, or None.
        epochs: the epochs recorded so far, as the train log has them.
        carried: as given, until the first epoch begins.
    """

    def __init__(
        self,
        journal: Journal,
        files: RunFiles,
        carried: Replay | None = None,
        *,
        on_nonfinite: Callable[[str, float, int], None] | None = None,
        on_split: Callable[[tuple[str, ...], tuple[str, ...]], None] | None = None,
    ) -> None:
        self.carried = carried if carried is not None and carried.step else None
        self.step = carried.step if carried is not None else 0
        self.epoch: int | None = None
        self._latest: dict[str, bool | int | float] = dict(carried.latest) if carried is not None else {}
        self.epochs = list(carried.epochs) if carried is not None else []
        self._journal = journal
        self._files = files
        self._stats: dict[str, RunningStats] = {}
        self._epoch_metrics: dict[str, bool | int | float] = {}
        self._epoch_first_step = self.step
        self._epoch_started_seconds = time.monotonic()
        self.on_nonfinite = on_nonfinite
        self.on_split = on_split
        self._turns: list[tuple[str, ...]] = []
        """Names of the latest batches, back to the last one that shares a name with its predecessor."""
        self._known: set[str] = set()
        self._nonfinite: set[str] = set()
        self._untold: list[tuple[str, float, int]] = []
        self._deferred = _deferred()
        self._ring: Ring | None = None
        self._spool = Spool(files.spool, journal)
        self._lock = threading.RLock()  # threads may log at once; a row is one thread's
        self._expected: tuple[str, ...] | None = None

    @property
    def latest(self) -> dict[str, bool | int | float]:
        """The last value of every metric, by name; `flush` first to have those that wait for a device."""
        self._latest.update(self._spool.latest())
        return self._latest

    # ------------------------------------------------------------ batches

    def log(self, metrics: Mapping[str, Any], step: int | None = None, batch_size: int | None = None) -> None:
        """Record the scalars of one batch.

        All of them or none: every value is checked before anything is written.

        Args:
            metrics: scalars by name.
            step: the step; None takes the next one.
            batch_size: only makes the message about an unreduced loss more exact.

        Raises:
            ScalarError: a value is not one real number, or a name cannot be used.
            JournalError: the event, or an earlier one that was deferred, could not be written. Nothing of
                this call is recorded; the earlier one is tried again.
            RunError: the device failed; says which values are lost.
        """
        with self._lock:
            if step is None:
                step = self.step
            elif type(step) is not int or not 0 <= step <= LARGEST_STEP:
                step = to_step(step)
            if step < self._epoch_first_step:  # a script that counts from 0 in each epoch
                self._epoch_first_step = step
            spool = self._spool
            if tuple(metrics) == spool.names and spool.put(metrics, step):
                self.step = step + 1
            else:
                self._log_slowly(metrics, step, batch_size)

    def _log_slowly(self, metrics: Mapping[str, Any], step: int, batch_size: int | None) -> None:
        """A batch that is written at once, or waits for its device."""
        if step > LARGEST_STEP:  # the one after the largest
            to_step(step)
        if self.on_split is not None:
            self._look_for_turns(tuple(metrics))
        self._drain()
        if self._ring is not None and self._ring.pending:
            self._fetch()
            self._tell()
        values = self._through_the_door(metrics, step, batch_size, self._deferred)
        if self._ring is not None and self._ring.pending:
            self.step = step + 1
            try:
                self._ring.add(now_ms(), step, values)
            except RunError as error:
                self._write_what_is_left(error)
                raise
            return
        self._write_batch(now_ms(), step, values)
        self.step = step + 1
        if self._untold:
            self._tell()
        elif self._can_spool(values):
            self._spool.begin(tuple(values), self.epoch)

    def _look_for_turns(self, names: tuple[str, ...]) -> None:
        """Notice `log(a=…); log(b=…)` in each iteration, which makes two steps of every batch, seldom on purpose."""
        turns = self._turns
        if turns == [names]:  # as nearly always
            return
        if not turns or not set(turns[-1]).isdisjoint(names) or len(turns) >= 32:
            self._turns = [names]
            return
        turns.append(names)
        if len(turns) >= 4 and 2 * len(set(turns)) <= len(turns) and self.on_split is not None:
            tell, self.on_split = self.on_split, None
            tell(turns[-2], turns[-1])

    def _can_spool(self, values: Mapping[str, bool | int | float]) -> bool:
        """Whether the next batch, if it is like this one, may wait in the spool: seen twice, of floats only."""
        names, self._expected = self._expected, tuple(values)
        if True in self._deferred:
            return False
        return names == self._expected and all(type(value) is float for value in values.values())

    def _drain(self) -> None:
        """Write what is in the spool, and feed the statistics with it."""
        with self._lock:
            self._latest.update(self._spool.latest())
            for name, values in self._spool.drain().items():
                stats = self._stats.get(name)
                if stats is None:
                    stats = self._stats[name] = RunningStats()
                stats.extend(values)

    def flush(self) -> None:
        """Write all that was deferred, waiting for the device.

        Raises:
            JournalError: it could not be written; it will be tried again.
            RunError: the device failed; says which values are lost.
        """
        self._settle()
        self._tell()

    def _settle(self) -> None:
        self._drain()
        if self._ring is not None and self._ring.pending:
            self._fetch(everything=True)

    def _through_the_door(
        self, metrics: Mapping[str, Any], step: int, batch_size: int | None, deferred: tuple[bool, ...]
    ) -> dict[str, Any]:
        """The values as plain numbers; those that are deferred as the tensors that will hold them."""
        if not metrics:
            raise ScalarError(f"step {step}: expected at least one metric, found none")
        known = self._known
        values: dict[str, Any] = {}
        for name, value in metrics.items():
            if type(name) is not str or name not in known:
                name = self._checked_name(name)
            if type(value) is not float:
                try:
                    if getattr(value, "is_cpu", None) in deferred:
                        value = self._deferred_value(value, name, batch_size)
                    else:
                        value = to_py(value, name, batch_size=batch_size)
                        if type(value) is int and value.bit_length() > MOST_BITS:
                            raise ScalarError(
                                f"{name}: expected an integer that can be written in 4,000 digits, "
                                f"got one of {value.bit_length()} bits; record its logarithm: math.log(x)"
                            )
                except ScalarError as error:
                    raise ScalarError(f"step {step}: {error}") from None
            values[name] = value
        return values

    def _checked_name(self, name: object) -> str:
        if not isinstance(name, str):
            raise ScalarError(f"metric name: expected text, found {name!r} ({type(name).__name__})")
        name = str.__str__(name)  # a member of a StrEnum, say, which JSON does not take for text
        try:
            mlflow_key(name)
        except ValueError as error:
            raise ScalarError(str(error)) from None
        self._known.add(name)
        return name

    def _deferred_value(self, value: Any, name: str, batch_size: int | None) -> Any:
        check_scalar(value, name, batch_size)
        if self._ring is None:
            from daypoint.scalars.ring import Ring  # imports torch, as whoever has a tensor did

            self._ring = Ring()
        if not self._ring.can_hold(value):
            return to_py(value, name, batch_size=batch_size)
        return self._ring.put(value, name)

    def _fetch(self, everything: bool = False) -> None:
        """Write the events whose values have arrived."""
        assert self._ring is not None
        try:
            for time_ms, step, values in self._ring.take(everything):
                self._write_batch(time_ms, step, values)
        except RunError as error:
            self._write_what_is_left(error)
            raise

    def _write_what_is_left(self, error: RunError) -> None:
        """The device failed. Numbers that were not on it are written, and what is lost is said."""
        assert self._ring is not None
        self._append_notice(now_ms(), max(self.step - 1, 0), str(error))
        for time_ms, step, values in self._ring.take(everything=True):
            self._write_batch(time_ms, step, values)

    def _write_batch(self, time_ms: int, step: int, values: dict[str, bool | int | float]) -> None:
        self._append("batch", time_ms, step, values)
        stats = self._stats
        for name, value in values.items():
            if name not in stats:
                stats[name] = RunningStats()
            stats[name].update(value)

    def _append(self, event: str, time_ms: int, step: int, values: dict[str, bool | int | float]) -> None:
        encoded: Mapping[str, Any] = values
        for value in values.values():
            if type(value) is not float or not math.isfinite(value):
                encoded = encode_metrics(values)
                break
        self._journal.append_encoded(
            {"event": event, "time": time_ms, "step": step, "epoch": self.epoch, "metrics": encoded}
        )
        self._latest.update(values)
        if encoded is not values:
            self._note_nonfinite(values, time_ms, step)

    def _note_nonfinite(self, values: Mapping[str, bool | int | float], time_ms: int, step: int) -> None:
        for name, value in values.items():
            if type(value) is float and not math.isfinite(value):
                if name not in self._nonfinite:
                    self._nonfinite.add(name)
                    self._append_notice(time_ms, step, f"{name} is {value} at step {step}")
                self._untold.append((name, value, step))

    def _append_notice(self, time_ms: int, step: int, text: str) -> None:
        self._append_placed({"event": "notice", "time": time_ms, "step": step, "text": text})

    def _append_placed(self, event: Mapping[str, Any]) -> None:
        """Record one event that says where in the journal it is (`journal.misplaced`)."""
        with self._lock:  # no other line may come in between
            self._journal.append({**event, "at": self._journal.size_bytes})

    def _tell(self) -> None:
        """Pass on what is not finite, now that it is recorded; this may raise."""
        untold, self._untold = self._untold, []
        if self.on_nonfinite is not None:
            for name, value, step in untold:
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
        self.flush()
        self.epoch = epoch
        self._turns = []
        self._stats = {}
        self._epoch_metrics = {}
        self._epoch_first_step = self.step
        carried, self.carried = self.carried, None
        if carried is not None and carried.epoch == epoch:  # it goes on in the middle
            self._stats = carried.stats
            self._epoch_metrics = carried.metrics
            self._epoch_first_step = self.step - carried.steps_in_epoch
        self._epoch_started_seconds = time.monotonic()

    def log_epoch(self, metrics: Mapping[str, Any]) -> None:
        """Record scalars of the whole epoch (validation); their step is that of the last batch.

        Between two epochs they belong to the one that has just ended.

        Values on a device are waited for, and all that was deferred is written first.

        Raises:
            ScalarError: a value is not one real number.
            JournalError: the event could not be written.
            RunError: the device failed; says which values are lost.
        """
        self.flush()
        step = max(self.step - 1, 0)
        values = self._through_the_door(metrics, step, None, deferred=())
        with self._lock:
            self._append("epoch_metrics", now_ms(), step, values)
        if self.epoch is not None:
            self._epoch_metrics.update(values)
        elif self.epochs:
            self.epochs[-1]["metrics"].update(values)
        self._tell()

    def end_epoch(self, complete: bool = True) -> dict[str, Any]:
        """Record the statistics of the epoch and rewrite the train log; returns the epoch's entry in it.

        Args:
            complete: False when the epoch was left early.
        """
        assert self.epoch is not None
        self._settle()
        entry = {
            "epoch": self.epoch,
            "complete": complete,
            "first_step": self._epoch_first_step,
            "steps": self.steps_in_epoch,
            "seconds": round(time.monotonic() - self._epoch_started_seconds, 6),
            "stats": {name: stats.to_dict() for name, stats in self._stats.items()},
        }
        time_ms = now_ms()
        self._append_placed({"event": "epoch", "time": time_ms, "step": max(self.step - 1, 0), **entry})
        entry["time"] = time_ms
        entry["metrics"] = self._epoch_metrics
        self.epoch = None
        self._turns = []
        self.epochs.append(entry)
        self.write_train_log()
        self._tell()  # last: an epoch is over also when its values stop the run
        return entry

    def write_train_log(self) -> None:
        """Write the train log: per epoch count, mean, variance, min and max of every metric, and where the batches are."""
        content = strict.dumps(train_log(self._files, self.epochs, self.step))
        strict.write_atomic(self._files.train_log, content)

    def checkpoint_metrics(self, monitor: str | None) -> dict[str, bool | int | float]:
        """The metrics for the card of a checkpoint that is taken now.

        The monitored one is there only if it was measured in the epoch that is open: as it was logged for the
        epoch, or as the mean of its batches. So a checkpoint in the middle of an epoch does not win by an
        older validation.
        """
        metrics = dict(self.latest)
        if monitor is None or self.epoch is None:
            return metrics
        metrics.pop(monitor, None)
        if monitor in self._epoch_metrics:
            metrics[monitor] = self._epoch_metrics[monitor]
        elif monitor in self._stats and (mean := self._stats[monitor].mean) is not None:
            metrics[monitor] = mean
        return metrics

    def checkpoint(self, path: str, card: Mapping[str, Any]) -> None:
        """Record that a checkpoint was committed; batches may have been logged since it was taken.

        Unlike other events it waits for no device.

        Args:
            path: of the checkpoint, in the run directory.
            card: its identity card.
        """
        event = {"event": "checkpoint", "time": now_ms(), "step": card["step"], "epoch": card["epoch"]}
        with self._lock:  # no row may begin between the two
            self._drain()
            self._append_placed({**event, "path": path, "metrics": card["metrics"]})

    def finish(self) -> None:
        """`flush` for the last time; on a full disk with the space of the spool itself.

        Raises:
            JournalError: even that was not enough. What is not written stays in the spool.
        """
        try:
            self._drain()
        except JournalError:
            self._spool.shrink()
        self.flush()

    def end(self, event: Mapping[str, Any]) -> None:
        """Record the end of the attempt, after all that was logged."""
        self._drain()
        self._append_placed(event)

    def close(self) -> None:
        """Remove the spool, unless it could not be drained; then it is left for others to recover."""
        self._latest.update(self._spool.latest())
        self._spool.remove()


def _deferred() -> tuple[bool, ...]:
    setting = os.environ.get("DAYPOINT_DEFER", "")
    if setting not in _DEFERRED:
        raise ConfigError(f"DAYPOINT_DEFER: expected 0 or 1, found {setting!r}")
    return _DEFERRED[setting]

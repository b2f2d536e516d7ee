"""The `Run` that a training loop calls: it passes on to the recorder, the checkpoints, the courier and the screen.

However a run ends, the end goes into the journal first, then into run.json, then to MLflow through the courier.
After SIGKILL the courier, a process of its own, records the end. This module does not know how a run is opened, nor which end
has which status (`daypoint.run.opening`).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from daypoint.base import day
from daypoint.base.day import RunFiles
from daypoint.base.errors import CheckpointError, DaypointError, RunError, ScalarError
from daypoint.base.redaction import redact_text
from daypoint.checkpoints import checkpoint
from daypoint.checkpoints.optimization import keep_schedule, set_option
from daypoint.ranks.signals import Terminated, ended_by
from daypoint.record import config, identity, sweep
from daypoint.record.config import Tracking
from daypoint.record.journal import Journal
from daypoint.run.closing import Closing
from daypoint.run.console import RunConsole
from daypoint.run.description import close_attempt, json_text, message_of
from daypoint.run.recorder import Recorder, now_ms
from daypoint.run.remarks import Remarks
from daypoint.run.saver import Saver
from daypoint.scalars.convert import check_scalar, to_step
from daypoint.tracking.courier import Courier

_process = os.getpid()
"""The id of this process. `log` is called too often to ask the kernel for it."""


def _learn_process() -> None:
    global _process
    _process = os.getpid()


os.register_at_fork(after_in_child=_learn_process)


def _mapping(metrics: Any) -> Mapping[str, Any]:
    if isinstance(metrics, Mapping):
        return metrics
    raise ScalarError(
        f"log: expected scalars by name, found {type(metrics).__name__}; name it: run.log(loss=loss), or run.log({{'loss': loss}})"
    )


def _by_name(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let a method that takes its objects by name refuse others with a message that shows the right call."""

    @functools.wraps(method)
    def checked(self: Run, *objects: Any, **named: Any) -> Any:
        if objects:
            raise TypeError(
                f"{method.__name__}: expected each object by its name, found {type(objects[0]).__name__} without one; "
                f"write run.{method.__name__}(model=model, optimizer=optimizer)"
            )
        self._check_usable()
        return method(self, **named)

    return checked


class Run:
    """One training run. `open_run` makes it.

    Attributes:
        directory: the run directory, absolute.
        day: the day tag, such as `20260328`.
        address: the name of the run on the command line, `20260328/141502-123456`.
        uid: an identifier that never changes, 16 hexadecimal digits.
        config: the resolved config, as plain data.
        is_main: whether this process records (rank 0). On other ranks every method checks its values and writes
            nothing.
    """

    def __init__(
        self,
        record: dict[str, Any],
        files: RunFiles,
        settings: Tracking,
        plain: dict[str, Any],
        recorder: Recorder | None,
        journal: Journal | None,
        courier: Courier | None,
        console: RunConsole,
        source: Path | None = None,
    ) -> None:
        self.directory = files.directory
        self.day = files.day
        self.uid: str = record["uid"]
        self.address = day.address_of(
            files.directory, config.outputs_directory(settings, Path(record["place"]["root"]))
        )
        self.config = plain
        self.is_main = recorder is not None
        self._record = record
        self._files = files
        self._settings = settings
        self._recorder = recorder
        self._journal = journal
        self._courier = courier
        self._console = console
        self._remarks = Remarks(console, settings.on_nonfinite)
        if recorder is not None:
            recorder.on_nonfinite, recorder.on_split = self._remarks.nonfinite, self._remarks.split
        self._process = _process
        self._ended = False
        self._started_seconds = time.monotonic()
        self._silent_step = 0
        self._left_error: DaypointError | None = None
        self._batches: int | None = None
        self._source = source
        self._parent: dict[str, Any] | None = None
        self._objects: dict[str, Any] = {}
        self._restores = False
        self._stopping: BaseException | None = None
        self._saver = Saver(record, files, recorder, console) if recorder is not None else None
        self._written = self._saver.written if self._saver is not None else ()

    # ------------------------------------------------------------ recording

    @property
    def step(self) -> int:
        """Steps done so far; equally the step that the next `log` will have. The first one is 0."""
        return self._recorder.step if self._recorder else self._silent_step

    @property
    def latest(self) -> dict[str, bool | int | float]:
        """The last value of every metric. Waits for values that are still on a device."""
        if self._recorder is None:
            return {}
        if not self._ended and _process == self._process:
            self._recorder.flush()
        return dict(self._recorder.latest)

    def log(
        self,
        metrics: Mapping[str, Any] | None = None,
        /,
        *,
        step: Any = None,
        batch_size: int | None = None,
        **named: Any,
    ) -> None:
        """Record the scalars of one batch: `run.log(loss=loss, lr=0.1)` or `run.log({"train/loss": loss})`.

        When it returns, the values survive the death of the process; others can read them within 256 calls or half a second
        (`daypoint.record.spool`). A tensor on an accelerator is the exception: it is not waited for but copied on its device,
        and recorded within 64 steps, and always before a checkpoint and before an epoch or the run ends
        (`daypoint.run.recorder`). Until then SIGKILL would lose it.

        Args:
            metrics: scalars by name: Python or numpy numbers, or 0-dim tensors on any device.
            step: a whole number >= 0; by default the next one.
            batch_size: makes the message about an unreduced loss more exact.
            named: more scalars.

        Raises:
            ScalarError: a value is not one real number; nothing of this call is recorded.
            JournalError: this, or what was logged in the last half second, could not be written (full disk); nothing of this call
                is recorded, all that was logged before is kept.
            RunError: the run has ended, or this is another process than the one that opened it, or the device
                failed.
        """
        if self._ended or _process != self._process:
            self._refuse()
        if metrics is None:
            metrics = named
        elif type(metrics) is not dict or named:
            metrics = {**_mapping(metrics), **named}
        if self._recorder is None:
            for name, value in metrics.items():
                check_scalar(value, name, batch_size)
            self._silent_step = (self._silent_step if step is None else to_step(step)) + 1
            return
        if step is not None:
            self._remarks.step(step, self._recorder.step)
        if self._written:
            self._settle()
        self._recorder.log(metrics, step, batch_size)
        if self._console.has_bar:
            self._console.step(self._recorder)
        if self._stopping is not None:  # asked here too: `log` is called too often for one more call
            self._stop_if_asked()

    def _end_after(self, batches: int) -> None:
        """End the run as FINISHED after so many batches, for `daypoint reproduce`; other runs keep the plain `log`.

        It ends when the next batch would be recorded, so that what follows the last one (an epoch's end, a checkpoint) is there.
        """
        log, count = self.log, itertools.count(1)

        def log_or_end(*metrics: Any, **options: Any) -> None:
            if next(count) > batches:
                raise SystemExit(0)
            log(*metrics, **options)

        self.log = log_or_end  # type: ignore[method-assign]

    def log_epoch(self, metrics: Mapping[str, Any] | None = None, /, **named: Any) -> None:
        """Record scalars of the whole epoch, such as validation metrics. Arguments and errors as in `log`."""
        self._check_usable()
        metrics = {**_mapping({} if metrics is None else metrics), **named}
        if self._recorder is None:
            for name, value in metrics.items():
                check_scalar(value, name)
            return
        self._settle()
        self._recorder.log_epoch(metrics)
        self._stop_if_asked()

    def epochs(self, count: int, *, batches: int | None = None) -> Iterator[int]:
        """Iterate over the epochs 0 to `count - 1`; each one's statistics are recorded when it ends.

        A resumed run continues from its checkpoint: with the next epoch, or, when `batches` is given and
        the checkpoint was taken in the middle of an epoch, in that epoch; `run.batch` says how many of its batches
        are done.

        Args:
            count: the number of epochs of the whole run.
            batches: batches in an epoch; also the length of the progress bar.
        """
        self._batches = batches
        first = self._first_epoch(batches)
        if 0 < count <= first:
            self._console.warn(f"nothing left to train: {first} epochs are done, {count} were asked for")
        for epoch in range(first, count):
            with self._epoch(epoch, count):
                yield epoch

    @property
    def batch(self) -> int:
        """Batches done in the epoch that is open: 0 at its start, unless a resumed run continues in the middle of it."""
        recorder = self._recorder
        return recorder.steps_in_epoch if recorder is not None and recorder.epoch is not None else 0

    def _first_epoch(self, batches: int | None) -> int:
        recorder = self._recorder
        if recorder is None:
            return 0
        if self._source is not None and self._parent is None:
            raise RunError(
                f"run {self.address}: it is resumed; call run.restore(model=..., optimizer=...) before the loop"
            )
        carried = recorder.carried
        if carried is None:
            return 0
        if carried.epoch is None:
            return carried.epochs[-1]["epoch"] + 1 if carried.epochs else 0
        if batches is not None and carried.steps_in_epoch < batches:
            return carried.epoch
        with self._epoch(carried.epoch, None) as epoch:
            pass  # all its batches were done when the checkpoint was taken; only its end was not recorded
        return epoch + 1

    def epoch(self, number: int) -> contextlib.AbstractContextManager[int]:
        """One epoch: `with run.epoch(3): ...`."""
        return self._epoch(number, None)

    @contextlib.contextmanager
    def _epoch(self, number: int, count: int | None) -> Iterator[int]:
        self._check_usable()
        if self._recorder is not None:
            self._recorder.begin_epoch(number)
            self._console.begin_epoch(number, count, self._batches)
        try:
            yield number
        except BaseException:  # GeneratorExit: a loop over `epochs` was left by break or an exception
            self._leave_epoch()
            raise
        self._end_epoch(complete=True)

    def _end_epoch(self, complete: bool) -> None:
        if self._recorder is not None and self._recorder.epoch is not None and not self._ended:
            self._console.end_epoch(self._recorder.end_epoch(complete))
            if self._courier is not None:
                self._remarks.errors(self._courier.poll())

    def _leave_epoch(self) -> None:
        """Close an epoch that is left early. An error here would be swallowed by the interpreter, so it is kept
        for the end.
        """
        if _process == self._process:
            try:
                self._end_epoch(complete=False)
            except DaypointError as error:
                self._left_error = error

    @_by_name
    def restore(
        self, *, model: Any, optimizer: Any = None, scheduler: Any = None, scaler: Any = None
    ) -> dict[str, Any]:
        """In a resumed run, restore everything from the checkpoint, random numbers included.

        Call it right before the loop, in a new run too: there it changes nothing, but a signal can then end
        the training with a checkpoint. A setting of the optimizer or the scheduler that has changed in the config since
        (a new learning rate, more steps) keeps its new value.

        Args:
            model, optimizer, scheduler, scaler: built from the config, as for a new training.

        Returns:
            What was given to `save` as extra; empty in a new run.

        Raises:
            CheckpointError: the checkpoint does not fit these objects.
        """
        self._objects = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
        self._restores = True
        if self._source is None:
            return {}
        built = scheduler.state_dict() if scheduler is not None else {}
        state, card = checkpoint.restore(self._source, **self._objects)
        self._parent = identity.reference(card, str(self._source.relative_to(self.directory)))
        for note in state.notes:
            self._console.warn(note)
        changed = self._record["attempts"][-1]["changes"]
        if any(key.startswith("scheduler.") for key in changed):
            keep_schedule(scheduler, built)
        for name, (now, before) in state.overridden.items():
            set_option(optimizer, scheduler, name, now, before)
            self._console.say(f"optimizer {name}: {now}, it was {before}")
        return state.extra or {}

    @_by_name
    def save(
        self,
        *,
        model: Any,
        optimizer: Any = None,
        scheduler: Any = None,
        scaler: Any = None,
        wait: bool = False,
        **extra: Any,
    ) -> Path | None:
        """Make a checkpoint with its identity card, and move the pointers `last` and, if it is, `best`.

        Everything is copied into the memory of the CPU; then this returns, and a thread writes the copy while
        training goes on. One write is under way at most: a save that finds an earlier one unfinished waits for
        it first. The end of the run waits for the last one. Until it is whole, a crash leaves the checkpoint
        before it.

        Args:
            model: a torch module; `torch.compile` and DDP wrappings are taken off.
            optimizer, scheduler, scaler: whatever has a `state_dict`.
            wait: return when the checkpoint is on the disk. Nothing is copied then.
            extra: more plain data or tensors to come back at a resume.

        Returns:
            The checkpoint directory, which is there when the write is done; None on other ranks than 0.

        Raises:
            CheckpointError: something cannot be stored; or this checkpoint (with `wait`) or the one before it
                could not be written. In the latter case this one is still being written. Other
                checkpoints are untouched. An error in the last one is raised at the end of the run.
        """
        given = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
        self._objects = {**given, **extra}
        path = self._save(wait)
        if self._stopping is not None:  # this is the checkpoint to stop with
            ending, self._stopping = self._stopping, None
            raise ending
        return path

    def _save(self, wait: bool = False, gradients: bool = False) -> Path | None:
        if self._saver is None:
            return None
        return self._saver.save(self._objects, self._parent, wait=wait, gradients=gradients)

    def _settle(self) -> None:
        """Enter checkpoints that the saver's thread has written into the journal."""
        if self._saver is not None:
            self._saver.settle()

    def _stop(self, ending: BaseException) -> None:
        """End the run on a signal: after the step if a checkpoint can be made there, else now."""
        if self._recorder is None or not self._objects or self._ended:
            raise ending
        self._stopping = ending
        self._console.warn("stopping after this step, with a checkpoint; a second signal stops at once")

    def _announce(self) -> None:
        self._console.opening(self.address, self._record["name"], str(self.directory))

    def _stop_if_asked(self) -> None:
        """Between two steps: if a signal has asked for it, make a checkpoint and end."""
        if self._stopping is None:
            return
        ending, self._stopping = self._stopping, None
        try:
            self._save(gradients=True)  # the end waits for it
        except CheckpointError as error:
            self._console.warn(str(error))
        raise ending

    def _check_usable(self) -> None:
        if self._ended or _process != self._process:
            self._refuse()

    def _refuse(self) -> NoReturn:
        if _process != self._process:
            raise RunError(
                f"run {self.address}: opened by process {self._process}, used in process {_process} (a DataLoader worker?); "
                "return the values to the process that opened the run and log them there"
            )
        raise RunError(
            f"run {self.address}: it has ended; log inside the `with daypoint.open_run(...)` block"
        )

    # ------------------------------------------------------------ the end

    def _tell_sweep(self, status: str) -> None:
        """Correct the entry of a job in its sweep: a job that was resumed alone has another end and another value."""
        assert self._recorder is not None
        place, monitor = self._record["sweep"], self._record["monitor"]
        value = self._recorder.latest.get(monitor["metric"]) if monitor else None
        facts = {"status": status, "value": value, "ended": day.now().isoformat(), "error": None}
        if day.sweep_file(self.directory.parent).is_file():
            sweep.change_job(self.directory.parent, place["job"], directory=self.directory.name, **facts)

    def _end(self, status: str, error: BaseException | None) -> None:
        """Record how the run ended. Each step is tried even when an earlier one fails; the first failure is raised."""
        if self._ended or _process != self._process:
            return
        failures: list[BaseException] = [self._left_error] if self._left_error else []
        self._console.stop()
        recorder, journal, saver = self._recorder, self._journal, self._saver
        if recorder is None or journal is None or saver is None:
            self._ended = True
            return

        def attempt(action: Callable[[], object]) -> None:
            try:
                action()
            except (DaypointError, OSError, KeyboardInterrupt, Terminated) as failure:
                failures.append(failure)

        self._objects = {}  # no signal asks for one more checkpoint
        attempt(recorder.finish)
        attempt(lambda: self._end_epoch(complete=False))
        attempt(saver.finish)
        attempt(saver.settle)
        self._ended = True
        attempt(recorder.write_train_log)
        if failures and status == "FINISHED":
            error = failures[0]
            status = "FAILED" if isinstance(error, Exception) else "KILLED"
        summary = None
        if error is not None:
            message = ": ".join(filter(None, (type(error).__name__, message_of(error))))
            summary = json_text(redact_text(message))
        attempts = len(self._record["attempts"])
        ended = {"event": "end", "time": now_ms(), "attempt": attempts, "status": status}
        attempt(lambda: recorder.end({**ended, "step": recorder.step, "error": summary}))
        attempt(journal.sync)
        seconds = time.monotonic() - self._started_seconds
        close_attempt(self._record, status, day.now(self._settings.timezone), seconds, error)
        attempt(lambda: identity.write_run(self.directory, self._record))
        if self._record["sweep"] is not None and attempts > 1:
            attempt(lambda: self._tell_sweep(status))
        attempt(recorder.close)
        journal.close()
        closing = Closing(self._files, self._record, self._settings, self._courier, self._console)
        by = ended_by(error)
        told = summary if by is None else None
        closing.say(status, told, recorder.step, recorder.latest, by=by, restores=self._restores)
        is_raised = bool(failures) and (error is None or error is failures[0])
        for failure in failures[is_raised:]:
            if isinstance(failure, Exception):
                self._console.warn(str(failure))
        if is_raised:
            raise failures[0]

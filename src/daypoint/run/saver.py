"""Save checkpoints of a live run: copied while training waits, written by a thread while training goes on.

One write is under way at most: a save that finds one waits for it before it copies, so there is one copy in memory at most.
The memory of a copy is kept for the next one until the run ends. The thread touches the files of the checkpoints and
nothing else: it leaves what it has committed in `written`, and the training thread enters that into the journal at its next
call (`settle`). So a checkpoint's event comes after its rename, and only the training thread writes the journal. A failure is
kept until the next save, or the end, raises it.

It is a daemon thread, so a process that is told twice to stop does not wait for it; what it leaves
unfinished is no checkpoint. This module knows no file format and does not decide how a run ends.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daypoint.base.day import RunFiles
from daypoint.base.errors import CheckpointError
from daypoint.checkpoints import checkpoint
from daypoint.record import shelf
from daypoint.run.console import RunConsole
from daypoint.run.recorder import Recorder

if TYPE_CHECKING:
    from daypoint.checkpoints.packing import Spare
    from daypoint.checkpoints.snapshot import Snapshot

SILENT_SECONDS = 2.0
"""How long the end of a run waits for a write before it says so."""
ROLES = ("model", "optimizer", "scheduler", "scaler")


class Saver:
    """Makes the checkpoints of one attempt. Only the process that made it may use it.

    Attributes:
        written: committed checkpoints that are not in the journal yet, with their cards.
    """

    def __init__(
        self, record: Mapping[str, Any], files: RunFiles, recorder: Recorder, console: RunConsole
    ) -> None:
        self.written: deque[tuple[Path, dict[str, Any]]] = deque()
        self._record = record
        self._files = files
        self._recorder = recorder
        self._console = console
        self._failures: list[CheckpointError] = []
        self._target: Path | None = None
        self._spare: Spare | None = None
        self._idle = threading.Event()
        self._idle.set()

    def save(
        self,
        objects: Mapping[str, Any],
        parent: Mapping[str, Any] | None,
        *,
        wait: bool = False,
        gradients: bool = False,
    ) -> Path:
        """Make a checkpoint of this moment. When this returns, the live objects may change.

        Args:
            objects: what to save, by role; a name that is not in `ROLES` is extra.
            parent: `identity.reference` of the checkpoint that this training went on from.
            wait: write it here and now, without a copy.
            gradients: keep the gradients too.

        Returns:
            Where it is, or will be.

        Raises:
            CheckpointError: something cannot be stored, or a write failed: the one before, or this one (with
                `wait`). When the one before failed, this one is under way, or done, nevertheless.
            JournalError, RunError: what was logged could not be written, or stops the run.
        """
        recorder = self._recorder
        recorder.flush()
        self._idle.wait()
        self.settle()
        taken, card = checkpoint.take(
            step=recorder.step,
            epoch=recorder.epoch,
            record=self._record,
            attempt=len(self._record["attempts"]),
            **{role: objects.get(role) for role in ROLES},
            extra={name: value for name, value in objects.items() if name not in ROLES} or None,
            metrics=self._metrics(is_stopping=gradients),
            parent=parent,
            gradients=gradients,
            copy=not wait,
            spare=self._spare,
        )
        self._target = self._files.checkpoint(card["step"])
        failed = len(self._failures)
        if wait:
            try:
                self._write(taken, card)
            except CheckpointError as error:
                self._failures.append(error)
            self.settle()
            failed = len(self._failures)
        else:
            self._idle.clear()
            try:
                threading.Thread(
                    target=self._write_aside, args=(taken, card), name="daypoint-save", daemon=True
                ).start()
            except RuntimeError:  # the system gives no more threads
                self._write_aside(taken, card)
        self._raise(failed)
        return self._target

    def settle(self) -> None:
        """Enter what has been committed into the journal.

        Raises:
            JournalError: it could not be written; it will be tried again.
        """
        while self.written:
            path, card = written = self.written.popleft()
            try:
                self._recorder.checkpoint(str(path.relative_to(self._files.directory)), card)
            except BaseException:
                self.written.appendleft(written)
                raise

    def finish(self) -> None:
        """Wait until nothing is under way; `settle` comes next.

        Raises:
            CheckpointError: a write has failed since the last `save`.
            KeyboardInterrupt, SystemExit: a signal said not to wait.
        """
        if sys.is_finalizing():  # the thread is no more
            return
        try:
            if not self._idle.wait(SILENT_SECONDS):
                self._console.say("waiting for the checkpoint to be on the disk; Ctrl-C ends without it …")
                self._idle.wait()
        except BaseException:
            self._console.warn(f"{self._target}: not waited for; the checkpoint before it is whole")
            raise
        self._spare = None
        self._raise(len(self._failures))

    def _metrics(self, is_stopping: bool) -> dict[str, bool | int | float]:
        recorder, monitor = self._recorder, self._record["monitor"]
        metric = monitor["metric"] if monitor else None
        metrics = recorder.checkpoint_metrics(metric)
        if metric is not None and metric not in recorder.latest and not is_stopping:
            what = f"monitor {metric!r}: no metric of that name was logged; there are "
            self._console.warn(what + (", ".join(recorder.latest) or "none"), once="monitor")
        return metrics

    def _write(self, taken: Snapshot, card: dict[str, Any]) -> None:
        self.written.append((checkpoint.write(self._files, taken, card), card))
        if self._record["keep"] is not None:
            shelf.prune(self._files, keep_last=self._record["keep"], keep_best=1)

    def _write_aside(self, taken: Snapshot, card: dict[str, Any]) -> None:
        """`_write`, in the thread. An error is kept for the training thread to raise."""
        try:
            self._write(taken, card)
        except BaseException as error:
            if not isinstance(error, CheckpointError):
                what = f"{self._target}: cannot write the checkpoint: {type(error).__name__}: {error}"
                failure = CheckpointError(f"{what}; earlier checkpoints are whole")
                failure.__cause__ = error
                error = failure
            self._failures.append(error)
        finally:
            self._spare = taken.spare()
            self._idle.set()

    def _raise(self, count: int) -> None:
        """Raise the first so many failures."""
        failures = self._failures[:count]
        del self._failures[:count]
        if len(failures) == 1:
            raise failures[0]
        if failures:
            raise CheckpointError("; ".join(map(str, failures))) from failures[0]

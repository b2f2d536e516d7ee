"""The courier's process: follows the journals of runs, sends them to MLflow, and ends when everything is there.

It reads JSON lines on stdin, `{"run": DIR}` and `{"close": DIR}`, and answers on stdout: `url` when MLflow knows the run,
`bytes` (how much of the journal is there) while the run is being closed, `done` when everything is there, `error` once for
each thing that goes wrong. After an error it tries again, more and more slowly; it lags behind rather than slow the
training. When the trainer is gone it sends the rest, and gives up after five minutes without progress: `daypoint sync` sends
what is left then. It never imports torch.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daypoint.base import day, files
from daypoint.base.day import RunFiles
from daypoint.base.errors import DaypointError, RunError
from daypoint.record import identity
from daypoint.record.ending import ending_of, is_abandoned
from daypoint.tracking import store
from daypoint.tracking.packager import Packager
from daypoint.tracking.shipment import Shipment
from daypoint.tracking.sync import is_down, one_line
from daypoint.tracking.trainer_pipe import TrainerPipe

if TYPE_CHECKING:
    from mlflow import MlflowClient

ROUND_SECONDS = 0.5
"""Between two looks at the journals."""
LONGEST_PAUSE_SECONDS = 30.0
"""Between two tries at a store that fails; 2 seconds when somebody waits."""
LINGER_SECONDS = 300.0
"""How long to go on without progress when the trainer is gone."""
HURRY_SECONDS = 20.0
"""How long to go on after SIGTERM: a cluster kills half a minute after it."""
SWEEP_SECONDS = 10.0
"""How long to wait for the end of the process of a sweep, when its jobs are over."""
STALE_RUNS = 1000
"""The latest runs among which to look for what dead couriers left."""
STALE_SECONDS = 60.0
"""How long to go on with those when the trainer is gone."""


@dataclass
class Task:
    """One run that this courier sends.

    Attributes:
        closing: whether its end is to be sent: the trainer waits for that, or another courier left the run.
        asked: how often the trainer has asked for its end.
        url: what the trainer was told.
        complaints: what the trainer was told that goes wrong.
        lasting: the last error is one that waiting does not cure.
    """

    directory: Path
    closing: bool = False
    asked: int = 0
    shipment: Shipment | None = None
    failures: int = 0
    next_try: float = 0.0
    url: str | None = None
    complaints: set[str] = field(default_factory=set)
    lasting: bool = False

    def close_shipment(self) -> None:
        """Let other processes send the run."""
        if self.shipment is not None:
            self.shipment.close()
            self.shipment = None


class Delivery:
    """Sends the runs that the trainer names, until everything is in MLflow.

    Args:
        trainer: the process that started this one.
    """

    def __init__(self, trainer: TrainerPipe) -> None:
        self._trainer = trainer
        self._is_alone = False
        self._tasks: dict[str, Task] = {}
        self._clients: dict[str, MlflowClient] = {}
        self._deadline: float | None = None
        self._progress_at = time.monotonic()
        self._stale: Iterator[Path] | None = None
        self._stale_task: Task | None = None
        self._packager = Packager(_log)
        self._sweeps: dict[tuple[str, Path], Shipment] = {}
        """A job of each sweep, by store and directory."""
        self._undrawn: list[Shipment] = []
        """Runs of which MLflow lacks only the picture."""
        self._idle_rounds = 0

    def run(self) -> None:
        """Send runs until everything is there and the trainer is gone, or nothing more can be done."""
        while True:
            busy = self._round() or self._draw_when_idle()
            self._listen(0.0 if busy else ROUND_SECONDS)
            if (why := self._why_stop(busy)) is not None:
                self._give_up(why)
                self._close_sweeps()
                while self._undrawn and self._deadline is None:  # after SIGTERM `daypoint sync` draws them
                    self._draw_one()
                return

    def hurry(self, *_: object) -> None:
        """SIGTERM: end soon. The trainer probably got one too, and is ending its run now."""
        self._deadline = time.monotonic() + HURRY_SECONDS

    def crash(self, error: Exception) -> None:
        """Report an error of this module wherever somebody may look."""
        for task in self._tasks.values():
            self._complain(task, f"the courier stopped: {one_line(error)}")
            _log(task.directory, traceback.format_exc())

    # ------------------------------------------------------------ the trainer

    def _listen(self, seconds: float) -> None:
        for message in self._trainer.requests(seconds):
            if directory := message.get("run"):
                self._tasks.setdefault(directory, Task(Path(directory)))
            if task := self._tasks.get(message.get("close", "")):
                task.closing = True
                task.asked = message.get("asked", 0)
                task.next_try = 0.0
                task.complaints.clear()  # somebody waits: what still fails is worth saying again
        if self._trainer.hung_up and not self._is_alone:
            self._is_alone = True
            self._progress_at = time.monotonic()
            for task in self._tasks.values():  # one more try before giving up
                task.next_try = 0.0
                task.lasting = False

    def _tell(self, task: Task, **message: Any) -> None:
        if self._tasks.get(str(task.directory)) is task:  # not of a run that another courier left
            self._trainer.tell({"run": str(task.directory), **message})

    def _complain(self, task: Task, text: str) -> None:
        if text not in task.complaints:
            task.complaints.add(text)
            _log(task.directory, text)
            self._tell(task, error=text, lasting=task.lasting, asked=task.asked)

    # ------------------------------------------------------------ the runs

    def _round(self) -> bool:
        """Send a part of every run that is due, beginning with those that a trainer waits for. True: there may be more."""
        busy = False
        for task in sorted(self._tasks.values(), key=lambda task: not task.closing):
            if time.monotonic() < task.next_try:
                continue
            try:
                busy |= self._serve(task)
            except Exception as error:  # whatever MLflow, a database or a network may raise
                self._fail(task, error)
                if is_down(error):
                    return False  # a hanging server costs a timeout; listen before the next one
        return busy or self._serve_stale()

    def _serve(self, task: Task) -> bool:
        """Send a part of a run. True: there may be more."""
        if task.shipment is None:
            task.shipment = self._begin(task)
            if task.shipment is None:
                task.next_try = time.monotonic() + 1.0
                return False
        shipment, trainer = task.shipment, self._trainer
        if shipment.advance():
            self._progress_at = time.monotonic()
            task.failures = 0
            task.lasting = False
            if task.closing:
                self._tell(task, bytes=shipment.offset_bytes)
            return True
        if task.closing or trainer.hung_up:
            if shipment.finish(trainer.pid if trainer.is_dead else None):
                self._conclude(task, shipment)
            elif trainer.hung_up and identity.read_run(task.directory)["attempts"][-1]["pid"] != trainer.pid:
                task.close_shipment()  # resumed by a new trainer, whose courier waits for the lock
                self._tasks.pop(str(task.directory), None)
        return False

    def _begin(self, task: Task) -> Shipment | None:
        record = identity.read_run(task.directory)
        uri, artifacts = store.of_run(task.directory, record)
        if uri is None:
            raise RunError(f"{task.directory}: made with tracking.enabled=false; nothing to send")
        if uri not in self._clients or task.failures:
            self._clients[uri] = store.prepare(uri)
        shipment = Shipment.begin(task.directory, self._clients[uri], uri, artifacts)
        if shipment is not None and shipment.url != task.url:
            self._progress_at = time.monotonic()
            task.url = shipment.url
            self._tell(task, url=shipment.url, bytes=shipment.offset_bytes)
            if self._stale is None:
                self._stale = self._left_behind(task.directory, record["day"])
        return shipment

    def _conclude(self, task: Task, shipment: Shipment) -> None:
        self._progress_at = time.monotonic()
        task.close_shipment()
        if shipment.sweep is not None:
            self._sweeps[shipment.uri, shipment.sweep] = shipment
        RunFiles(task.directory, "").courier_log.unlink(missing_ok=True)  # it says that something is missing
        self._tell(task, done=True)
        store.analyze(shipment.uri)
        if self._tasks.get(str(task.directory)) is task:
            del self._tasks[str(task.directory)]
            record = identity.read_run(task.directory)
            asked = (record["config"].get("tracking") or {}).get("package")
            if asked is True and shipment.status == "FINISHED":
                self._packager.take(task.directory, record, shipment.uri)
        self._undrawn.append(shipment)

    def _fail(self, task: Task, error: Exception) -> None:
        task.close_shipment()  # `daypoint sync` may try meanwhile
        task.failures += 1
        task.lasting = isinstance(error, DaypointError)
        longest = 2.0 if task.closing or self._trainer.hung_up else LONGEST_PAUSE_SECONDS
        task.next_try = time.monotonic() + min(0.5 * 2**task.failures, longest)
        self._complain(task, re.sub(r"0x[0-9a-f]+", "0x…", one_line(error)))

    # ------------------------------------------------------------ pictures

    def _draw_when_idle(self) -> bool:
        """Draw one run that has ended, if no run goes on or has begun lately. True: there may be more.

        So the jobs of a sweep follow one another without waiting for a picture.
        """
        self._idle_rounds = 0 if self._tasks else self._idle_rounds + 1
        if self._idle_rounds < 3 or self._trainer.hung_up or not self._undrawn:
            return False
        self._draw_one()
        return True

    def _draw_one(self) -> None:
        shipment = self._undrawn.pop(0)
        _log_failure(shipment.directory, shipment.draw)

    # ------------------------------------------------------------ what others left

    def _left_behind(self, directory: Path, day_tag: str) -> Iterator[Path]:
        """Runs beside this one that say RUNNING without a trainer, or that a courier could not send. Newest first."""
        outputs = day.outputs_of(directory, day_tag)
        for path in day.run_directories(outputs)[: -STALE_RUNS - 1 : -1] if outputs else ():
            with contextlib.suppress(DaypointError, OSError):  # `daypoint ls` names what cannot be read
                complained = RunFiles(path, day_tag).courier_log.exists()
                if str(path) not in self._tasks and (is_abandoned(path) or complained):
                    yield path

    def _serve_stale(self) -> bool:
        """Send a part of a run that another courier left, unless a trainer waits. True: there may be more."""
        if any(task.closing for task in self._tasks.values()):
            return False
        if time.monotonic() - self._trainer.hung_up_at > STALE_SECONDS:
            return False
        if self._stale_task is None:
            directory = next(self._stale or iter(()), None)
            if directory is None:
                return False
            self._stale_task = Task(directory, closing=True)
        task = self._stale_task
        try:
            if self._serve(task):
                return True
        except Exception as error:  # stands in its courier.log, and is tried again by the next courier
            self._fail(task, error)
            with contextlib.suppress(DaypointError, OSError):
                ending_of(RunFiles(task.directory, identity.read_run(task.directory)["day"]))
        task.close_shipment()
        self._stale_task = None
        return True

    # ------------------------------------------------------------ the end

    def _why_stop(self, busy: bool) -> str | None:
        """Why this process should end now; None while it should go on."""
        now = time.monotonic()
        if self._deadline is not None and now > self._deadline:
            return "was told to stop"
        if not self._trainer.hung_up or busy or self._packager.is_busy:
            return None
        if all(task.lasting for task in self._tasks.values()):
            return "cannot go on"
        return f"no progress for {LINGER_SECONDS:.0f} s" if now - self._progress_at > LINGER_SECONDS else None

    def _give_up(self, why: str) -> None:
        self._packager.leave(why)
        for task in self._tasks.values():
            _log(
                task.directory,
                f"gave up ({why}); send the rest with: daypoint sync {shlex.quote(str(task.directory))}",
            )
            task.close_shipment()

    def _close_sweeps(self) -> None:
        """Give parent runs their status. The process of a sweep records the end of the sweep as its last act: wait for it."""
        deadline = time.monotonic() + SWEEP_SECONDS
        while self._sweeps and not self._trainer.is_dead and time.monotonic() < deadline:
            time.sleep(0.1)
        for (_, directory), shipment in self._sweeps.items():
            _log_failure(directory, shipment.update_parent)
            if self._deadline is None:
                _log_failure(directory, shipment.draw_parent)


def _log_failure(directory: Path, work: Callable[[], str | None]) -> None:
    """Do something that `daypoint sync` does again if it fails now; the reason is written to courier.log."""
    try:
        complaint = work()
    except Exception as error:  # whatever MLflow may raise
        complaint = one_line(error)
    if complaint is not None:
        _log(directory, complaint)


def _log(directory: Path, text: str) -> None:
    path = RunFiles(directory, "").courier_log
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    with (
        contextlib.suppress(OSError),
        open(files.open_descriptor(path, flags), "a", encoding="utf-8") as file,
    ):
        file.write(f"{datetime.now().astimezone().isoformat(timespec='seconds')} {text}\n")


def main(trainer_pid: int) -> None:
    """Run the courier in this process. Ctrl-C in the terminal is meant for the trainer, not for it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.nice(10)
    answers = os.dup(sys.stdout.fileno())
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())  # what MLflow prints must not mix with the answers
    delivery = Delivery(TrainerPipe(trainer_pid, sys.stdin.fileno(), answers))
    signal.signal(signal.SIGTERM, delivery.hurry)
    try:
        delivery.run()
    except Exception as error:
        delivery.crash(error)
        raise

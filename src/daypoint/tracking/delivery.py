"""The courier's own process: follows journals, sends them to MLflow, and outlives the trainer by as much as that takes.

It reads JSON lines on stdin, `{"run": DIR}` and `{"close": DIR}`, and answers on stdout: `run_id`, `experiment_id` and
`url` when MLflow knows the run, `bytes` (how much of the journal is there) while it is being closed, `done` when all is
there, `error` once for each thing that goes wrong. It goes on trying after any error, more and more slowly, and lags
behind rather than slow the training. When the trainer is gone it finishes, and gives up after five minutes without
progress; the rest is for `daypoint sync`. One number: importing mlflow is nearly all of the time from its start until a run is in MLflow.
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
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daypoint.base import day
from daypoint.base.day import RunFiles
from daypoint.base.errors import DaypointError, RunError
from daypoint.record import identity
from daypoint.record.ending import ending_of, is_abandoned
from daypoint.tracking import parent, pictures, store
from daypoint.tracking.packager import Packager
from daypoint.tracking.shipment import Shipment
from daypoint.tracking.sync import is_down, one_line, open_store, store_of
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
class Parcel:
    """One run that this courier takes care of."""

    directory: Path
    uri: str = ""
    ours: bool = True
    """False: left behind by another courier, and tried once."""
    closing: bool = False
    asked: int = 0
    shipment: Shipment | None = None
    failures: int = 0
    next_try: float = 0.0
    told_run_id: str | None = None
    told_bytes_at: float = 0.0
    complaints: set[str] = field(default_factory=set)
    hopeless: bool = False
    """The last error is one that waiting does not cure."""
    sent_points: int = 0

    @property
    def log(self) -> Path:
        return RunFiles(self.directory, "").courier_log


class Delivery:
    """The loop.

    Args:
        trainer: the process that started this one.
    """

    def __init__(self, trainer: TrainerPipe) -> None:
        self._trainer = trainer
        self._is_alone = False
        self._parcels: dict[str, Parcel] = {}
        self._clients: dict[str, MlflowClient] = {}
        self._deadline: float | None = None
        self._progress_at = time.monotonic()
        self._stale: Iterator[Path] = iter(())
        self._looked_around = False
        self._stale_parcel: Parcel | None = None
        self._packager = Packager(lambda directory, text: _append(RunFiles(directory, "").courier_log, text))
        self._sweeps: dict[tuple[str, Path], str] = {}
        """Sweeps whose jobs went to a store, and to which experiment."""
        self._undrawn: list[tuple[str, str, Path]] = []
        """Runs that are there but for their picture, as (store, run id, directory)."""
        self._idle_rounds = 0

    def run(self) -> None:
        """Until everything is delivered and the trainer is gone, or there is no point in going on."""
        while True:
            busy = self._round() or self._draw_when_idle()
            self._listen(0.0 if busy else ROUND_SECONDS)
            if self._is_over(busy):
                self._close_sweeps()
                while self._undrawn and self._deadline is None:  # after SIGTERM `daypoint sync` draws them
                    self._draw_one()
                return

    def hurry(self, *_: object) -> None:
        """SIGTERM: finish soon. The trainer probably got one too, and is ending its run just now."""
        self._deadline = time.monotonic() + HURRY_SECONDS

    def crash(self) -> None:
        """An error in this very module: say it wherever it may be seen."""
        for parcel in self._parcels.values():
            self._complain(parcel, f"the courier stopped: {one_line(sys.exception() or Exception())}")
            _append(parcel.log, traceback.format_exc())

    # ------------------------------------------------------------ the trainer

    def _listen(self, seconds: float) -> None:
        for message in self._trainer.requests(seconds):
            if directory := message.get("run"):
                self._parcels.setdefault(directory, Parcel(Path(directory)))
            if (directory := message.get("close")) in self._parcels:
                parcel = self._parcels[directory]
                parcel.closing = True
                parcel.asked = message.get("asked", 0)
                parcel.next_try = 0.0
                parcel.complaints.clear()  # somebody waits: what still fails is worth saying again
        if self._trainer.hung_up and not self._is_alone:
            self._is_alone = True
            self._progress_at = time.monotonic()
            for parcel in self._parcels.values():  # once more, before there is an end to it
                parcel.next_try = 0.0
                parcel.hopeless = False

    def _tell(self, parcel: Parcel, **message: Any) -> None:
        if parcel.ours:
            self._trainer.tell({"run": str(parcel.directory), **message})

    def _complain(self, parcel: Parcel, text: str, lasting: bool = False) -> None:
        if text not in parcel.complaints:
            parcel.complaints.add(text)
            _append(parcel.log, text)
            self._tell(parcel, error=text, lasting=lasting, asked=parcel.asked)

    # ------------------------------------------------------------ the runs

    def _round(self) -> bool:
        """Give every run that is due one go, those first that somebody waits for. True: there is more to do at once."""
        busy = False
        self._packager.look()
        for parcel in sorted(self._parcels.values(), key=lambda parcel: not parcel.closing):
            if time.monotonic() < parcel.next_try:
                continue
            try:
                busy |= self._serve(parcel)
            except (
                Exception
            ) as error:  # whatever MLflow, a database or a network may raise: said, and tried again
                self._fail(parcel, error)
                if is_down(error):
                    return False  # a hanging server costs a timeout; listen before the next one
        return busy or self._serve_stale()

    def _serve(self, parcel: Parcel) -> bool:
        """Send one stretch of a run. True: there may be more."""
        if parcel.shipment is None:
            parcel.shipment = self._begin(parcel)
            if parcel.shipment is None:
                parcel.next_try = time.monotonic() + 1.0
                return False
        shipment = parcel.shipment
        before = shipment.points
        moved = shipment.advance()
        if moved:
            self._progress_at = time.monotonic()
            parcel.failures = 0
            parcel.hopeless = False
            parcel.sent_points += shipment.points - before
            if parcel.closing and time.monotonic() - parcel.told_bytes_at > 0.5:
                parcel.told_bytes_at = time.monotonic()
                self._tell(parcel, bytes=shipment.offset_bytes)
            return True
        if parcel.closing or self._trainer.hung_up or not parcel.ours:
            if shipment.finish(self._dead_pid()):
                self._conclude(parcel)
            elif self._trainer.hung_up and self._is_anothers(parcel):
                shipment.close()  # resumed by a new trainer, whose courier waits for the lock
                self._parcels.pop(str(parcel.directory), None)
        return False

    def _is_anothers(self, parcel: Parcel) -> bool:
        return identity.read_run(parcel.directory)["attempts"][-1]["pid"] != self._trainer.pid

    def _begin(self, parcel: Parcel) -> Shipment | None:
        record = identity.read_run(parcel.directory)
        uri, artifacts = store_of(parcel.directory, record)
        if uri is None:
            raise RunError(f"{parcel.directory}: made with tracking.enabled=false; nothing to send")
        parcel.uri = uri
        if uri not in self._clients or parcel.failures:
            self._clients[uri] = open_store(uri)
        shipment = Shipment.begin(parcel.directory, self._clients[uri], uri, artifacts)
        if shipment is not None and shipment.run_id != parcel.told_run_id:
            self._progress_at = time.monotonic()
            parcel.told_run_id = shipment.run_id
            self._tell(
                parcel,
                run_id=shipment.run_id,
                experiment_id=shipment.experiment_id,
                url=shipment.url,
                bytes=shipment.offset_bytes,
            )
            if parcel.ours and not self._looked_around:
                self._looked_around = True
                self._stale = self._left_behind(parcel.directory, record["day"])
        return shipment

    def _dead_pid(self) -> int | None:
        return self._trainer.pid if self._trainer.is_dead else None

    def _conclude(self, parcel: Parcel) -> None:
        self._progress_at = time.monotonic()
        shipment = parcel.shipment
        assert shipment is not None
        shipment.close()
        if day.sweep_file(parcel.directory.parent).is_file():
            self._sweeps[parcel.uri, parcel.directory.parent] = shipment.experiment_id
        self._parcels.pop(str(parcel.directory), None)
        parcel.log.unlink(missing_ok=True)  # it stands for something that MLflow does not have yet
        self._tell(parcel, done=True, points=parcel.sent_points, bytes=shipment.offset_bytes)
        store.analyze(parcel.uri)
        record = identity.read_run(parcel.directory)
        asked = (record["config"].get("tracking") or {}).get("package")
        if parcel.ours and asked is True and shipment.status == "FINISHED":
            self._packager.take(parcel.directory, record, parcel.uri)
        self._undrawn.append((parcel.uri, shipment.run_id, parcel.directory))

    def _draw_when_idle(self) -> bool:
        """Draw one run that is over, if none goes on and none has begun lately. True: there may be more.

        So the jobs of a sweep follow one another without waiting for a picture.
        """
        self._idle_rounds = 0 if self._parcels else self._idle_rounds + 1
        if self._idle_rounds < 3 or self._trainer.hung_up or not self._undrawn:
            return False
        self._draw_one()
        return True

    def _draw_one(self) -> None:
        uri, run_id, directory = self._undrawn.pop(0)
        try:
            complaint = pictures.draw_run(self._clients[uri], run_id, directory)
        except Exception as error:  # MLflow did not take it; `daypoint sync` draws it again
            complaint = f"curves.png: {one_line(error)}"
        if complaint is not None:
            _append(RunFiles(directory, "").courier_log, complaint)

    def _fail(self, parcel: Parcel, error: Exception) -> None:
        if parcel.shipment is not None:
            parcel.shipment.close()  # `daypoint sync` may have a go meanwhile
            parcel.shipment = None
        parcel.failures += 1
        parcel.hopeless = isinstance(error, DaypointError)
        longest = 2.0 if parcel.closing or self._trainer.hung_up else LONGEST_PAUSE_SECONDS
        parcel.next_try = time.monotonic() + min(0.5 * 2**parcel.failures, longest)
        text = re.sub(r"0x[0-9a-f]+", "0x…", one_line(error))
        self._complain(parcel, text, parcel.hopeless)

    # ------------------------------------------------------------ what others left

    def _left_behind(self, directory: Path, day_tag: str) -> Iterator[Path]:
        """Runs beside this one that say RUNNING with nobody there, or have an unanswered complaint. Newest first."""
        outputs = next((path.parent for path in directory.parents if path.name == day_tag), None)
        if outputs is None:
            return
        for path in day.run_directories(outputs)[: -STALE_RUNS - 1 : -1]:
            with contextlib.suppress(DaypointError, OSError):  # `daypoint ls` names what cannot be read
                complained = RunFiles(path, day_tag).courier_log.exists()
                if str(path) not in self._parcels and (is_abandoned(path) or complained):
                    yield path

    def _serve_stale(self) -> bool:
        """One stretch of a run that another courier left, if nobody waits for us. True: there may be more."""
        if any(parcel.closing for parcel in self._parcels.values()):
            return False
        if time.monotonic() - self._trainer.hung_up_at > STALE_SECONDS:
            return False
        if self._stale_parcel is None:
            directory = next(self._stale, None)
            if directory is None:
                return False
            self._stale_parcel = Parcel(directory, ours=False)
        parcel = self._stale_parcel
        try:
            if self._serve(parcel):
                return True
        except Exception as error:  # stands in its courier.log, and is tried again by the next courier
            self._fail(parcel, error)
            with contextlib.suppress(DaypointError, OSError):
                ending_of(RunFiles(parcel.directory, identity.read_run(parcel.directory)["day"]))
        if parcel.shipment is not None:
            parcel.shipment.close()
        self._stale_parcel = None
        return True

    # ------------------------------------------------------------ the end

    def _is_over(self, busy: bool) -> bool:
        now = time.monotonic()
        if self._deadline is not None and now > self._deadline:
            self._give_up("was told to stop")
            return True
        if not self._trainer.hung_up or busy or self._packager.is_busy:
            return False
        waiting = [parcel for parcel in self._parcels.values() if not parcel.hopeless]
        if not waiting:
            self._give_up("cannot go on")
            return True
        if now - self._progress_at > LINGER_SECONDS:
            self._give_up(f"no progress for {LINGER_SECONDS:.0f} s")
            return True
        return False

    def _close_sweeps(self) -> None:
        """The process of a sweep says how it ended as the last thing it does; then its parent run gets its status."""
        deadline = time.monotonic() + SWEEP_SECONDS
        while self._sweeps and not self._trainer.is_dead and time.monotonic() < deadline:
            time.sleep(0.1)
        for (uri, directory), experiment_id in self._sweeps.items():
            try:
                parent.update(self._clients[uri], experiment_id, directory)
                if self._deadline is None and (
                    complaint := parent.draw(self._clients[uri], experiment_id, directory)
                ):
                    _append(directory / "courier.log", complaint)
            except Exception as error:  # `daypoint sync` does it again
                _append(directory / "courier.log", one_line(error))

    def _give_up(self, why: str) -> None:
        self._packager.leave(why)
        for parcel in self._parcels.values():
            _append(
                parcel.log,
                f"gave up ({why}); send the rest with: daypoint sync {shlex.quote(str(parcel.directory))}",
            )
            if parcel.shipment is not None:
                parcel.shipment.close()


def _append(path: Path, text: str) -> None:
    with contextlib.suppress(OSError), open(path, "a", encoding="utf-8") as file:
        file.write(f"{datetime.now().astimezone().isoformat(timespec='seconds')} {text}\n")


def main(trainer_pid: int) -> None:
    """The process. Ctrl-C in the terminal is for the trainer, not for us."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.nice(10)
    answers = os.dup(sys.stdout.fileno())
    os.set_blocking(answers, False)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())  # MLflow prints, and must not answer for us
    delivery = Delivery(TrainerPipe(trainer_pid, sys.stdin.fileno(), answers))
    signal.signal(signal.SIGTERM, delivery.hurry)
    try:
        delivery.run()
    except Exception:
        delivery.crash()
        raise

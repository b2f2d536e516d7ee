"""The courier, as the training process has it: started once, told of runs, never waited for but at a run's end.

`python -m daypoint.tracking.courier` is the other side (`daypoint.tracking.delivery`). This side imports nothing heavy, writes to a pipe that
does not block, and reads answers when asked to. A courier that dies is started again: what it had not sent is still in the
journals. A forked child (a DataLoader worker) has no courier: its copies of the pipe are closed at the fork, or the
courier could not hear that the trainer is gone. One number: 5 milliseconds to start it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from daypoint.tracking.fold import CHUNK_BYTES

__all__ = ["Courier", "Outcome"]

RESTARTS = 3
"""How often a courier that died is replaced."""
COUNTDOWN_SECONDS = 5.0
"""Between two calls of `on_wait`."""


@dataclass(frozen=True)
class Outcome:
    """How far a run has come in MLflow when its end was waited for.

    Attributes:
        done: MLflow has everything.
        run_id, experiment_id: what MLflow calls the run; None when it does not know it yet.
        url: the run's page; without a server the part that comes after the address of `daypoint ui`.
        error: the last thing that went wrong, in one line.
        pending_rows: events of the journal that MLflow does not have yet.
    """

    done: bool
    run_id: str | None = None
    experiment_id: str | None = None
    url: str | None = None
    error: str | None = None
    pending_rows: int = 0


@dataclass
class _Known:
    """What the courier said of a run."""

    asked: int = 0
    """How often the courier was asked to finish it."""
    done: bool = False
    lasting: bool = False
    """The answer to the latest asking: an error that waiting does not cure."""
    run_id: str | None = None
    experiment_id: str | None = None
    url: str | None = None
    error: str | None = None
    bytes: int = 0


class Courier:
    """A courier process and the pipe to it. One a training process: `Courier.shared()`. Not for several threads."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._runs: dict[str, _Known] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self._inbox = b""
        self._outbox = b""
        self._news: list[str] = []
        _couriers.append(self)

    @classmethod
    def start(cls) -> Courier:
        """Start a courier; returns at once. A failure to do so is news, never an exception."""
        courier = cls()
        courier._spawn()
        return courier

    @classmethod
    def shared(cls) -> Courier:
        """The courier of this process, started at the first call."""
        global _shared
        if _shared is None:
            _shared = cls.start()
        return _shared

    @property
    def pid(self) -> int | None:
        """The process id of the courier; None when it is not there."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def add(self, directory: Path) -> None:
        """Tell it of a run, whose run.json and journal are there."""
        if os.getpid() == self._owner:
            if self._process is None:
                self._starts = 0
                self._spawn()
            self._keep_alive()
            self._runs[str(directory)] = _Known()
            self._send({"run": str(directory)})

    def poll(self) -> list[str]:
        """What went wrong since the last call, each thing once. Never waits."""
        if os.getpid() != self._owner:
            return []
        self._receive(0.0)
        self._keep_alive()
        news, self._news = self._news, []
        return news

    def close_run(
        self, directory: Path, wait_seconds: float = 30.0, on_wait: Callable[[float], object] | None = None
    ) -> Outcome:
        """Ask it to finish a run that has ended, and wait until MLflow has everything, but not longer than that.

        It goes on after the waiting, and after the end of this process.

        Args:
            on_wait: called with the seconds left, after one second and then every five.
        """
        if os.getpid() != self._owner:
            return Outcome(False, error="a forked process has no courier")
        run = self._runs.setdefault(str(directory), _Known())
        self._receive(0.0)
        self._keep_alive()
        run.asked, run.lasting = run.asked + 1, False
        self._send({"close": str(directory), "asked": run.asked})
        now = time.monotonic()
        deadline, call_at = now + wait_seconds, now + 1.0
        while not run.done and not run.lasting and self._process is not None and now < deadline:
            self._receive(min(0.2, deadline - now))
            self._keep_alive()
            now = time.monotonic()
            if on_wait is not None and call_at <= now < deadline and not run.done:
                on_wait(deadline - now)
                call_at += COUNTDOWN_SECONDS
        pending = 0 if run.done else _count_rows(directory / "journal.jsonl", run.bytes)
        error = None if run.done else run.error
        return Outcome(run.done, run.run_id, run.experiment_id, run.url, error, pending)

    def shutdown(self, wait_seconds: float = 0.0) -> None:
        """Hang up: it finishes what it has, on its own, and goes. Idempotent."""
        global _shared
        if _shared is self:
            _shared = None
        if self in _couriers:
            _couriers.remove(self)
        process = self._process
        if process is None or os.getpid() != self._owner:
            return
        self._send({})  # what could not be written before
        self._process = None
        process.stdin.close()
        process.stdout.close()
        try:
            process.wait(wait_seconds)
        except subprocess.TimeoutExpired:
            _leaving.append(process)  # to be reaped, not waited for

    # ------------------------------------------------------------ the pipe

    def _spawn(self) -> None:
        for process in list(_leaving):
            if process.poll() is not None:
                _leaving.remove(process)
        self._starts += 1
        self._inbox = self._outbox = b""
        try:
            self._process = subprocess.Popen(
                # -P: a file of the user's in the working directory must not stand in for a module of ours.
                [sys.executable, "-P", "-W", "ignore", "-m", "daypoint.tracking.courier", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in the terminal is not for it
                bufsize=0,
                env=_environment(),
            )
        except OSError as error:
            self._news.append(f"the courier cannot be started: {error}")
            return
        os.set_blocking(self._process.stdin.fileno(), False)
        os.set_blocking(self._process.stdout.fileno(), False)

    def _keep_alive(self) -> None:
        """Replace a courier that died, and tell the new one what it has to know."""
        process = self._process
        if process is None or process.poll() is None:
            return
        self._receive(0.0)
        process.stdin.close()
        process.stdout.close()
        self._process = None
        if self._starts > RESTARTS:
            self._news.append(f"the courier died again (exit code {process.returncode}), and is not replaced")
            return
        self._news.append(f"the courier died (exit code {process.returncode}) and is replaced")
        self._spawn()
        for directory, run in self._runs.items():
            if not run.done:
                self._send({"run": directory})
            if not run.done and run.asked:
                self._send({"close": directory, "asked": run.asked})

    def _send(self, message: dict[str, str | int]) -> None:
        """Write a line, or as much as the pipe takes now."""
        if self._process is None:
            return
        if message:
            self._outbox += json.dumps(message).encode() + b"\n"
        with contextlib.suppress(BlockingIOError, BrokenPipeError):  # full: later; broken: see _keep_alive
            while self._outbox:
                self._outbox = self._outbox[os.write(self._process.stdin.fileno(), self._outbox) :]

    def _receive(self, seconds: float) -> None:
        """Take in what it said; wait for it at most so long."""
        if self._process is None:
            return
        self._send({})
        ready, _, _ = select.select([self._process.stdout], [], [], seconds)
        if not ready:
            return
        received = os.read(self._process.stdout.fileno(), 2**16)
        if not received:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.2)  # it closed the pipe, so it is about to be gone
            return
        *lines, self._inbox = (self._inbox + received).split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError):  # a stray print of some library is not ours to die of
                self._hear(json.loads(line))

    def _hear(self, message: object) -> None:
        run = self._runs.get(message.get("run")) if isinstance(message, dict) else None
        if run is None:
            return
        if text := message.get("error"):
            self._news.append(text)
            run.lasting = bool(message.get("lasting")) and message.get("asked") == run.asked
        else:
            run.lasting = False  # it got further
        for name, value in message.items():
            if name not in ("asked", "lasting") and hasattr(run, name):
                setattr(run, name, value)


_shared: Courier | None = None
_couriers: list[Courier] = []
_leaving: list[subprocess.Popen[bytes]] = []


def _environment() -> dict[str, str]:
    """Ours, and a way to this very package, which need not be installed."""
    here = Path(__file__).absolute().parents[1]
    if here.name in ("site-packages", "dist-packages"):
        return dict(os.environ)
    paths = [str(here), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _count_rows(path: Path, offset_bytes: int) -> int:
    count = 0
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        file.seek(offset_bytes)
        while chunk := file.read(CHUNK_BYTES):
            count += chunk.count(b"\n")
    return count


def _forget_in_child() -> None:
    """In a forked child: let go of the pipes, and leave the process alone."""
    global _shared
    _shared = None
    for courier in _couriers:
        process, courier._process = courier._process, None
        if process is not None:
            process.stdin.close()
            process.stdout.close()
            process.returncode = 0  # not ours to wait for
    for process in _leaving:
        process.returncode = 0
    _couriers.clear()
    _leaving.clear()


@atexit.register
def _at_exit() -> None:
    for courier in list(_couriers):
        if courier._owner == os.getpid():
            courier.shutdown()
    for process in _leaving:
        process.returncode = 0  # it outlives us, as it should


os.register_at_fork(after_in_child=_forget_in_child)

if __name__ == "__main__":
    from daypoint.tracking.delivery import main

    main(int(sys.argv[1]))

"""Starts the background process (the courier) that sends runs to MLflow, and talks to it from the training process.

The process itself is `daypoint.tracking.delivery`, run as `python -m daypoint.tracking.courier`. This side imports neither
mlflow nor torch, writes to a pipe without blocking, and waits only at the end of a run. A courier that dies is started
again: what it had not sent is still in the journals. A forked child (a DataLoader worker) has no courier: its copies of the
pipe are closed at the fork, because otherwise the courier could not tell that the trainer is gone.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daypoint.base import files
from daypoint.tracking.trainer_pipe import LinePipe

RESTARTS = 3
"""How often a courier that died is replaced."""
COUNTDOWN_SECONDS = 5.0
"""Between two calls of `on_wait`."""


@dataclass
class Outcome:
    """How far a run has come in MLflow, according to the courier.

    Attributes:
        done: MLflow has everything.
        url: the run's page; without a server the part that comes after the address of `daypoint ui`.
        error: the last thing that went wrong, in one line.
        pending_rows: events of the journal that MLflow does not have yet.
    """

    done: bool = False
    url: str | None = None
    error: str | None = None
    pending_rows: int = 0


@dataclass
class _Known(Outcome):
    """What the courier said of a run.

    Attributes:
        asked: how often the courier was asked to finish it.
        lasting: whether its answer to the latest request was an error that waiting does not cure.
        bytes: how much of the journal MLflow has.
    """

    asked: int = 0
    lasting: bool = False
    bytes: int = 0


class Courier:
    """A courier process and the pipe to it; `Courier.shared()` is that of this training process. Not thread-safe."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._runs: dict[str, _Known] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: LinePipe | None = None
        self._starts = 0
        self._news: list[str] = []
        _couriers.append(self)

    @classmethod
    def start(cls) -> Courier:
        """Start a courier; returns at once. A failure is reported by `poll`, never raised."""
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
        """Have a run sent; its run.json and its journal exist."""
        if os.getpid() == self._owner:
            if self._process is None:
                self._starts = 0
                self._spawn()
            self._keep_alive()
            self._runs[str(directory)] = _Known()
            self._send({"run": str(directory)})

    def poll(self) -> list[str]:
        """What went wrong since the last call, each thing once. Never waits."""
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
        if run.done:
            return Outcome(True, run.url)
        return Outcome(False, run.url, run.error, _count_rows(directory / "journal.jsonl", run.bytes))

    def shutdown(self, wait_seconds: float = 0.0) -> None:
        """Close the pipe: the courier finishes what it has on its own, and ends. Idempotent."""
        global _shared
        if _shared is self:
            _shared = None
        if self in _couriers:
            _couriers.remove(self)
        process = self._process
        if process is None:
            return
        self._pipe.flush()
        self._process = None
        process.stdin.close()
        process.stdout.close()
        try:
            process.wait(wait_seconds)
        except subprocess.TimeoutExpired:
            process.returncode = 0  # it may outlive this process; do not wait for it

    # ------------------------------------------------------------ the pipe

    def _spawn(self) -> None:
        self._starts += 1
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
        self._pipe = LinePipe(self._process.stdout.fileno(), self._process.stdin.fileno())

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
        if self._process is not None:
            self._pipe.tell(message)

    def _receive(self, seconds: float) -> None:
        """Take in what it said; wait for it at most so long."""
        if self._process is None:
            return
        for message in self._pipe.hear(seconds):
            if (run := self._runs.get(message.get("run"))) is not None:
                self._hear(run, message)
        if self._pipe.is_closed:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(0.2)  # it is about to end

    def _hear(self, run: _Known, message: dict[str, Any]) -> None:
        if text := message.get("error"):
            self._news.append(text)
        run.lasting = message.get("lasting", False) and message["asked"] == run.asked
        for name in ("done", "url", "error", "bytes"):
            setattr(run, name, message.get(name, getattr(run, name)))


_shared: Courier | None = None
_couriers: list[Courier] = []


def _environment() -> dict[str, str]:
    """The environment of this process, with the directory of this package in PYTHONPATH unless it is installed."""
    here = Path(__file__).absolute().parents[2]
    if here.name in ("site-packages", "dist-packages"):
        return dict(os.environ)
    paths = [str(here), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _count_rows(path: Path, offset_bytes: int) -> int:
    with contextlib.suppress(FileNotFoundError):
        return sum(1 for _ in files.lines(path, offset_bytes))
    return 0


def _forget_in_child() -> None:
    """In a forked child: close the pipes, and leave the process alone."""
    global _shared
    _shared = None
    for courier in _couriers:
        courier._news.clear()
        process, courier._process = courier._process, None
        if process is not None:
            process.stdin.close()
            process.stdout.close()
            process.returncode = 0  # not ours to wait for
    _couriers.clear()


@atexit.register
def _at_exit() -> None:
    for courier in list(_couriers):
        courier.shutdown()


os.register_at_fork(after_in_child=_forget_in_child)

if __name__ == "__main__":
    from daypoint.tracking.delivery import main

    main(int(sys.argv[1]))

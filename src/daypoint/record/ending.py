"""How a run ended, also when its process was killed and could not record it.

A trainer that ends in any orderly way writes an "end" event and closes run.json. After SIGKILL or a power cut neither
is there; then the run is KILLED, at the time of its last event, and run.json is corrected so that every reader agrees.
The trainer is alive as long as it holds its lock on the journal. This module knows nothing of MLflow.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from daypoint.base import day, files
from daypoint.base.day import RunFiles
from daypoint.record import identity, journal, spool

SILENCE_SECONDS = 600.0
"""On some shared file systems a lock is not seen by other machines. There, a journal must be silent for so long."""

_UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Ending:
    """How the last attempt of a run ended.

    Attributes:
        status: FINISHED, FAILED or KILLED.
        time_ms: when, in milliseconds since the epoch.
        error: type and message of the exception that ended it, if one did.
    """

    status: str
    time_ms: int
    error: str | None = None


def ending_of(files: RunFiles, dead_pid: int | None = None) -> Ending | None:
    """How a run ended; None while it goes on. Corrects the run.json of a run that could not do so itself.

    Args:
        files: the run.
        dead_pid: a process of this machine that is known to be dead. Children of it may still hold its lock.
    """
    record = identity.read_run(files.directory)
    # Asked before the last event is read, or it might be written in between.
    lives = _is_alive(files, record, dead_pid)
    if not lives:
        _recover(files, record, dead_pid)
    last = last_event(files.journal)
    attempt = record["attempts"][-1]
    is_open = attempt["status"] == "RUNNING"
    if is_open and lives:
        return None
    if last is not None and last["event"] == "end":
        ending = Ending(last["status"], last["time"], last.get("error"))
    elif is_open:
        ending = Ending("KILLED", last["time"] if last else record["started_ms"])
    else:  # its "end" event could not be written
        error = attempt["error"]
        ended_ms = round(datetime.fromisoformat(attempt["ended"]).timestamp() * 1000)
        ending = Ending(
            attempt["status"], ended_ms, f"{error['type']}: {error['message']}" if error else None
        )
    return ending if not is_open or _close_record(files, ending, dead_pid) else None


def is_abandoned(directory: Path) -> bool:
    """Whether a run says RUNNING although its trainer is gone."""
    record = identity.read_run(directory)
    return record["status"] == "RUNNING" and not _is_alive(RunFiles(directory, record["day"]), record, None)


def recover(files: RunFiles, record: dict[str, Any]) -> None:
    """Bring what a dead trainer left in its spool into the journal; whoever reads the journal of a run that has ended asks for it."""
    if files.spool.exists() and not _is_alive(files, record, None):
        _recover(files, record, None)


def _recover(files: RunFiles, record: dict[str, Any], dead_pid: int | None) -> None:
    if not files.spool.exists() or not files.journal.exists():
        return
    pid = dead_pid if _is_known_dead(record, dead_pid) else None
    with _where_writable(), _without_trainer(files, record, dead_pid) as is_dead:
        if is_dead:  # if it cannot be written, the rest can be read and sent all the same; the spool stays
            spool.recover(files.spool, files.journal, pid)


def _is_alive(files: RunFiles, record: dict[str, Any], dead_pid: int | None) -> bool:
    with _without_trainer(files, record, dead_pid) as is_dead:
        if not is_dead:
            return True
    if record["attempts"][-1]["host"] == socket.gethostname() or not files.journal.exists():
        return False
    return time.time() - files.journal.stat().st_mtime < SILENCE_SECONDS


def _is_known_dead(record: dict[str, Any], dead_pid: int | None) -> bool:
    attempt = record["attempts"][-1]
    return attempt["pid"] == dead_pid and attempt["host"] == socket.gethostname()


@contextlib.contextmanager
def _without_trainer(files: RunFiles, record: dict[str, Any], dead_pid: int | None) -> Iterator[bool]:
    """Whether the trainer is gone. If so, no new attempt can begin within the block, unless it was known to be dead."""
    if _is_known_dead(record, dead_pid):
        yield True
        return
    with journal.unwritten(files.journal) as is_free:
        yield is_free


@contextlib.contextmanager
def _where_writable() -> Iterator[None]:
    """Leave the block quietly where nothing can be written: an archive, or a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise


def last_event(path: Path, *, other_than: str | None = None) -> dict[str, Any] | None:
    """The last whole record of a journal; None if there is none. Damaged lines after it are passed over.

    Args:
        other_than: an event to pass over too.
    """
    if not path.exists():
        return None
    with files.open_regular(path) as file:
        size = file.seek(0, os.SEEK_END)
        length = 2**13
        while True:
            start = max(size - length, 0)
            file.seek(start)
            lines = file.read(size - start).split(b"\n")[:-1]
            for line in reversed(lines if start == 0 else lines[1:]):
                try:
                    event = journal.parse(line)
                except ValueError:
                    continue
                if event["event"] != other_than:
                    return event
            if start == 0:
                return None
            length *= 4


def _close_record(files: RunFiles, ending: Ending, dead_pid: int | None) -> bool:
    """Write the ending into run.json. False: a new attempt has begun meanwhile, and the file is its own."""
    record = identity.read_run(files.directory)
    with _where_writable(), _without_trainer(files, record, dead_pid) as is_dead:
        record = identity.read_run(files.directory)
        attempt = record["attempts"][-1]
        if not is_dead or attempt["status"] != "RUNNING":
            return False
        moment = datetime.fromtimestamp(ending.time_ms / 1000).astimezone(day.zone(record["timezone"]))
        record["status"] = attempt["status"] = ending.status
        attempt["ended"] = moment.isoformat()
        attempt["seconds"] = max((moment - datetime.fromisoformat(attempt["started"])).total_seconds(), 0.0)
        identity.write_run(files.directory, record)
    return True

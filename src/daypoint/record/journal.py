"""The journal of a run, `journal.jsonl`: every event of the run, one line each, appended and never changed.

Everything else that is known about a run's values (statistics, plots, MLflow) is computed from it. A line is a strict JSON object
that ends in the CRC-32 of the bytes before it:

    {"event":"batch","time":1774707302123,"step":0,"epoch":0,"metrics":{"loss":2.31},"crc":"0f3a9c41"}

The rare events (a start, an epoch, a checkpoint, an end) also say in "at" at which byte of the file they begin, so that lines
that are missing before them are noticed (`misplaced`).

A line is handed to the kernel in one `write()` to a file opened O_APPEND. So it survives SIGKILL of the process the moment
`append` returns (a power cut may take the last seconds; `sync` is for that), and lines of a forked child could never land inside
one another. Reading takes every whole line whose CRC is right, names the damaged ones, and never guesses.

This module knows events as dicts with "event" and "time" (ms since the epoch); it does not know what they mean.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
import weakref
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from daypoint.base import files
from daypoint.base.errors import JournalError, RunError
from daypoint.base.files import decode_metrics, encode_metrics

LOCK_SECONDS = 1.0
_TAIL = len(b',"crc":"00000000"}')


@dataclass(frozen=True)
class Damage:
    """A stretch of a journal that is not a whole, right record."""

    offset_bytes: int
    length_bytes: int
    reason: str

    def __str__(self) -> str:
        return f"bytes {self.offset_bytes} to {self.offset_bytes + self.length_bytes}: {self.reason}"


@dataclass(frozen=True)
class Reading:
    """What a journal holds from some offset on.

    Attributes:
        events: the whole records, in order, metric values restored (NaN and large integers included).
        damages: what was skipped, and why.
        end_bytes: where the last whole line ends; read on from here. An unfinished last line lies beyond it.
        torn_bytes: size of that unfinished last line: 0, unless a write was cut or is in progress.
    """

    events: list[dict[str, Any]]
    damages: list[Damage]
    end_bytes: int
    torn_bytes: int


class Journal:
    """An open journal. One process writes it; the lock is held until that process ends, however it ends."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self.is_torn = False
        """Whether the last line is unfinished."""
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:  # a writer, or a reader that only looks whether there is one
                if time.monotonic() < deadline:
                    time.sleep(0.02)
                    continue
                os.close(descriptor)
                raise RunError(
                    f"{path}: this run is being written by another live process; wait for it, or stop it first"
                ) from None
        _open.add(self)

    @classmethod
    def create(cls, path: Path) -> Journal:
        """Start a new journal.

        Raises:
            FileExistsError: there is one already.
        """
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        return cls(path, os.open(path, flags, 0o666))

    @classmethod
    def reopen(cls, path: Path) -> Journal:
        """Go on with an existing journal. A torn last line stays where it is, closed off and so named as
        damaged.

        Raises:
            FileNotFoundError: there is none.
            RunError: another live process writes it.
        """
        journal = cls(path, files.open_descriptor(path, os.O_RDWR | os.O_APPEND))
        size = os.fstat(journal._descriptor).st_size
        journal.is_torn = size > 0 and os.pread(journal._descriptor, 1, size - 1) != b"\n"
        return journal

    def append(self, event: Mapping[str, Any]) -> None:
        """Record one event. When this returns, the event survives the death of this process.

        Args:
            event: plain data with "event" and "time". The values in a "metrics" map, and in each map of a
                "stats" map, may be any bool, int or float (in "stats" also None).

        Raises:
            JournalError: the line could not be written whole (full disk, quota, I/O error). It is not
                recorded, and the next `append` starts on a line of its own.
        """
        if "metrics" in event:
            event = {**event, "metrics": encode_metrics(event["metrics"])}
        if "stats" in event:
            event = {**event, "stats": {name: encode_metrics(of) for name, of in event["stats"].items()}}
        self.append_encoded(event)

    def append_encoded(self, event: Mapping[str, Any]) -> None:
        """`append` for an event whose metrics are encoded already (`daypoint.files.encode_metrics`)."""
        try:
            data = line(event)
        except TypeError as error:
            raise JournalError(
                f"{self.path}: {error}; event {event.get('event')!r} is not recorded"
            ) from error
        if self.is_torn:
            data = b"\n" + data
        written = self.write(data)
        if written != len(data):
            raise JournalError(
                f"{self.path}: wrote {written} of {len(data)} bytes (disk full or over quota?); "
                f"event {event.get('event')!r} is not recorded, free some space and resume the run"
            )

    def write(self, lines: bytes) -> int:
        """Append as much of these lines as can be written now; returns how many bytes were.

        For `daypoint.record.spool`, which keeps the rest and goes on with it.

        Raises:
            JournalError: none was written.
        """
        try:
            written = os.write(self._descriptor, lines)
        except OSError as error:
            raise JournalError(
                f"{self.path}: cannot write: {error.strerror}; free some space and resume the run"
            ) from error
        self.is_torn = not lines[:written].endswith(b"\n")
        return written

    @property
    def size_bytes(self) -> int:
        """Where the next append begins."""
        return os.fstat(self._descriptor).st_size + self.is_torn

    def sync(self) -> None:
        """Ask the disk to keep what was appended, against a power cut."""
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise JournalError(f"{self.path}: cannot reach the disk: {error.strerror}") from error

    def close(self) -> None:
        """Close the file and give up the lock. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


_open: weakref.WeakSet[Journal] = weakref.WeakSet()


def _close_in_child() -> None:
    """A forked child (a DataLoader worker) must not keep the lock of a trainer that was killed."""
    for journal in list(_open):
        journal.close()


os.register_at_fork(after_in_child=_close_in_child)


def line(event: Mapping[str, Any]) -> bytes:
    """An event as a line of the journal, with its CRC and its newline.

    Raises:
        TypeError: JSON cannot hold it.
    """
    body = orjson.dumps(event)[:-1]
    return b'%b,"crc":"%08x"}\n' % (body, zlib.crc32(body))


def read(path: Path, offset_bytes: int = 0, most_bytes: int | None = None) -> Reading:
    """Read a journal from an offset that an earlier `Reading.end_bytes` gave (0: the beginning).

    A journal that is being written can be read at any moment.

    Args:
        most_bytes: read so much and the rest of a line; None reads everything.

    Raises:
        FileNotFoundError: there is no journal.
    """
    events: list[dict[str, Any]] = []
    damages: list[Damage] = []
    end = offset_bytes
    for text in files.lines(path, offset_bytes):
        if not text.endswith(b"\n"):
            return Reading(events, damages, end, len(text))
        if len(text) > 1:
            try:
                events.append(parse(text[:-1]))
            except ValueError as error:
                damages.append(Damage(end, len(text) - 1, str(error)))
        end += len(text)
        if most_bytes is not None and end - offset_bytes >= most_bytes:
            break
    return Reading(events, damages, end, 0)


def events(path: Path) -> Iterator[dict[str, Any]]:
    """The whole records of a journal one after the other, damaged ones left out; none of them is kept.

    Raises:
        FileNotFoundError: there is no journal.
    """
    for text in files.lines(path):
        if text.endswith(b"\n") and len(text) > 1:
            with contextlib.suppress(ValueError):
                yield parse(text[:-1])


def misplaced(path: Path) -> Iterator[str]:
    """Where lines were taken out of a journal, or put in: each stretch between two events that say where they begin and no
    longer fit, in words.

    Raises:
        FileNotFoundError: there is no journal.
    """
    begin = checked = moved = 0
    for text in files.lines(path):
        if b'"at":' in text:
            with contextlib.suppress(ValueError):
                said = parse_encoded(text[:-1]).get("at", begin - moved)
                if begin - said != moved:
                    gone = moved - (begin - said)
                    what = f"{gone} bytes are missing" if gone > 0 else f"{-gone} bytes were put in"
                    yield f"bytes {checked} to {begin}: {what}; whole lines were changed after they were written"
                    moved = begin - said
                checked = begin
        begin += len(text)


def parse(line: bytes) -> dict[str, Any]:
    """One line, without its newline.

    Raises:
        ValueError: it is not a whole record; says in what way.
    """
    event = parse_encoded(line)
    if "metrics" in event:
        event["metrics"] = decode_metrics(event["metrics"])
    if "stats" in event:
        event["stats"] = {name: decode_metrics(of) for name, of in event["stats"].items()}
    return event


def parse_encoded(line: bytes) -> dict[str, Any]:
    """`parse` in half the time, with the values as they are in the file (`daypoint.files.decode_number`).

    Raises:
        ValueError: it is not a whole record; says in what way.
    """
    body, tail = line[:-_TAIL], line[-_TAIL:]
    if not (tail.startswith(b',"crc":"') and tail.endswith(b'"}')):
        raise ValueError("no checksum at the end of the line; it was cut or overwritten")
    if tail[8:16] != b"%08x" % zlib.crc32(body):
        raise ValueError("the checksum does not match; the line was changed")
    return orjson.loads(body + b"}")


@contextlib.contextmanager
def unwritten(path: Path) -> Iterator[bool]:
    """Whether no live process has the journal open for writing. If so, none can open it within the block.

    (Processes of this machine, or of any on a file system with flock.)
    """
    try:
        descriptor = files.open_descriptor(path)
    except FileNotFoundError:
        yield True
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            is_free = True
        except BlockingIOError:
            is_free = False
        yield is_free
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child that was forked meanwhile has the file open too
        os.close(descriptor)


def is_being_written(path: Path) -> bool:
    """Whether a live process has the journal open for writing."""
    with unwritten(path) as is_free:
        return not is_free

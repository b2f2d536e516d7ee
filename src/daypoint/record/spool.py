"""The spool of a live run: its last few batches, in a memory-mapped file that the kernel keeps when the process is killed.

A line of the journal costs a system call, an encoding and a checksum, all with cold caches. A batch of floats
is instead stored as one row of doubles in a small mapped file, which takes about a microsecond, and `drain` turns many
rows into lines of the journal at once: after 256 rows or half a second, and before anything else is written. The file is there
while the run is live, and gone after its end.

The crash cases. A store to a shared mapping belongs to the kernel, so it outlives SIGKILL (a power cut may
take it, as it may take the end of the journal).

- Killed while a row is written: its first word, the commit word, is cleared first and set last. The row is
  not there, and `log` had not returned.
- Killed after that: the header says at which byte of the journal these rows begin, and nothing else is
  written there meanwhile. So what the journal holds from there on is the beginning of what the rows say, and
  `recover` adds the rest, a half line included. Done twice, it adds nothing.
- Killed while the rows are drained, or after: the same. Commit words are numbers that never come again, and a
  new header gives the number of its first row, so rows of before do not count.
- Killed while a header is written: there are two places for it, used in turn, each with a checksum. The
  header before still holds, and its rows are all in the journal.
- The names change, and with them the places of the commit words: all places are cleared first, so no value is
  mistaken for one.
- The disk is full: the space was taken at the start, so storing a row cannot fail. Draining can; then the
  rows stay, and wait. At the end of the run, and in `recover`, the part of the file that no row lies in is
  given back, which is mostly enough.

This module knows rows of floats; which values may become one is decided in `daypoint.scalars.convert`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from daypoint.base import files
from daypoint.base.errors import JournalError
from daypoint.record import journal
from daypoint.record.journal import Journal
from daypoint.scalars.convert import plain_float

SIZE_BYTES = 2**16
HEADER_BYTES = 2**12
"""One of two. What does not fit, say the names of hundreds of metrics, is not spooled."""
ROWS = 256
SECONDS = 0.5
"""So many rows, and the oldest for so long, wait to become lines of the journal."""
LARGEST_INTEGER = 2**53
"""Below it every integer is a double exactly."""

_FIRST = 2 * HEADER_BYTES // 8
_WORDS = SIZE_BYTES // 8 - _FIRST


class Batch(NamedTuple):
    """Committed rows: whose they are, where in the journal they begin, and what they say."""

    pid: int
    offset_bytes: int
    epoch: int | None
    names: tuple[str, ...]
    rows: list[tuple[float, ...]]


class Spool:
    """The rows of one attempt. Only the process that made it may use it.

    Attributes:
        names: of the values of the next row; None when `begin` has to come first.
        count: rows that are not known to be in the journal.
    """

    def __init__(self, path: Path, of: Journal) -> None:
        """Make the file, with all the space it will need.

        Raises:
            OSError: it exists, or cannot be made.
        """
        self.path = path
        self._journal = of
        self._map: mmap.mmap | None = None
        self._is_whole = True
        with open(path, "x+b") as file:
            try:
                file.write(bytes(SIZE_BYTES))  # written, not only reserved: every file system can do that
                file.flush()
                self._map = mmap.mmap(file.fileno(), SIZE_BYTES)
                self._words = memoryview(self._map).cast("d")
            except OSError as error:
                path.unlink()
                if error.errno != errno.ENODEV:  # without shared mappings every batch is written at once
                    raise
        self.names: tuple[str, ...] | None = None
        self.count = 0
        self._width = 0
        self._epoch: int | None = None
        self._headers = 0
        self._number = 0  # of the last row
        self._written_bytes = 0  # of what the rows say
        self._limit = 0
        self._since_ns = self._due_ns = 0
        if self._map is not None:
            self._header((), None)

    def begin(self, names: tuple[str, ...], epoch: int | None) -> bool:
        """Be ready for rows of these names, after all that is in the journal. False: they cannot be spooled."""
        assert not self.count
        assert not self._journal.is_torn
        self.names = None
        if self._map is None or not self._is_whole:
            return False
        width = len(names) + 3
        limit = min(ROWS, _WORDS // width)
        if limit < ROWS // 16:
            return False
        if width != self._width:
            self._map[2 * HEADER_BYTES :] = bytes(SIZE_BYTES - 2 * HEADER_BYTES)
        if not self._header(names, epoch):
            self._width = 0
            return False
        self._width, self._epoch, self._limit = width, epoch, limit
        self._written_bytes = 0
        self._since_ns = time.time_ns()
        self._due_ns = self._since_ns + int(SECONDS * 1e9)
        self.names = names
        return True

    def put(self, metrics: Mapping[str, Any], step: int) -> bool:
        """Record one batch, if its values are finite floats: Python's, or those of plain tensors in the
        memory of the CPU.

        When it returns True, the batch survives the death of this process.

        Args:
            metrics: with exactly `names`, in their order.
            step: of the batch.

        Returns:
            False when it has to go another way, or the rows have to be drained first; nothing is recorded
            then.
        """
        now_ns = time.time_ns()
        count = self.count
        if count >= self._limit or not self._since_ns <= now_ns < self._due_ns:
            return False
        words = self._words
        first = at = _FIRST + count * self._width
        words[first] = 0.0
        for value in metrics.values():
            if type(value) is not float:
                value = plain_float(value)
                if value is None:
                    return False
            if value - value != 0.0:  # NaN or infinite
                return False
            at += 1
            words[at] = value
        if step >= LARGEST_INTEGER:
            return False
        words[at + 1] = now_ns // 1_000_000
        words[at + 2] = step
        self.count = count = count + 1
        words[first] = self._number + count
        return True

    def latest(self) -> dict[str, float]:
        """The values of the last row; empty without one."""
        if not self.count or self._map is None:
            return {}
        first = _FIRST + (self.count - 1) * self._width
        return dict(zip(self.names, self._words[first + 1 : first + self._width - 2].tolist(), strict=True))

    def drain(self) -> dict[str, tuple[float, ...]]:
        """Write the rows into the journal. `begin` has to come before the next row.

        Returns:
            The values of each name, in order.

        Raises:
            JournalError: it could not be written, or not whole. The rows stay, and the next time goes on
                where this ended.
        """
        columns = {}
        if self.count:
            words = self._words[_FIRST : _FIRST + self.count * self._width].tolist()
            rows = _rows(words, self._width)
            lines = _lines(self.names, self._epoch, rows)
            try:
                while self._written_bytes < len(lines):
                    self._written_bytes += self._journal.write(lines[self._written_bytes :])
            except JournalError as error:
                raise JournalError(
                    f"{error}; until then the last {self.count} batches wait in {self.path}"
                ) from error
            columns = dict(zip(self.names, list(zip(*rows, strict=True))[1:-2], strict=True))
        self._number += self.count
        self.count = 0
        self.names = None
        return columns

    def shrink(self) -> None:
        """Give back the space that no row lies in, for the journal. No row can be stored any more."""
        if self._map is not None:
            self._is_whole = False
            os.truncate(self.path, 8 * (_FIRST + self.count * self._width))

    def remove(self) -> None:
        """At the end of the run: the file goes, unless there are rows in it that are not in the journal.
        Idempotent.
        """
        if self._map is not None:
            self._words.release()
            self._map.close()
            self._map = None
            if not self.count:
                os.unlink(self.path)

    def _header(self, names: tuple[str, ...], epoch: int | None) -> bool:
        try:
            header = journal.line(
                {
                    "pid": os.getpid(),
                    "order": self._headers,
                    "number": self._number,
                    "offset": self._journal.size_bytes,
                    "epoch": epoch,
                    "names": names,
                }
            )
        except TypeError:  # an epoch that is no plain number; the journal will say so
            return False
        if len(header) > HEADER_BYTES:
            return False
        place = self._headers % 2 * HEADER_BYTES
        self._map[place : place + len(header)] = header
        self._headers += 1
        return True


def recover(spool: Path, of: Path, pid: int | None = None) -> None:
    """Add the rows of a dead trainer to its journal, and remove the spool. Any number of processes may do so
    at once.

    Args:
        spool: its path; it need not be there.
        of: the path of the journal.
        pid: the process that is known to be dead. None: the caller knows that nobody writes this run, and
            sees to it that nobody begins to.

    Raises:
        OSError: it cannot be written. Nothing is lost; try again.
    """
    try:
        descriptor = files.open_descriptor(spool, os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink == 0:
            return  # another process was faster
        batch = _committed(os.pread(descriptor, SIZE_BYTES, 0))
        if pid is not None and (batch is None or batch.pid != pid):
            return
        if batch is not None and batch.rows:
            try:
                _complete(of, batch)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                room = 8 * (_FIRST + len(batch.rows) * (len(batch.names) + 3))
                os.ftruncate(descriptor, room)
                _complete(of, batch)
        os.unlink(spool)
    finally:
        os.close(descriptor)


def _complete(path: Path, batch: Batch) -> None:
    descriptor = files.open_descriptor(path, os.O_RDWR | os.O_APPEND)
    try:
        whole = _lines(batch.names, batch.epoch, batch.rows)
        found = os.pread(descriptor, len(whole), batch.offset_bytes)
        if whole.startswith(found):
            missing = whole[len(found) :]
        else:  # damaged, or written after all the rows were there: only whole lines count
            reading = journal.read(path, batch.offset_bytes)
            rest = batch.rows[len(reading.events) + len(reading.damages) :]
            missing = _lines(batch.names, batch.epoch, rest)
            if missing and reading.torn_bytes:
                missing = b"\n" + missing
        while missing:
            missing = missing[os.write(descriptor, missing) :]
    finally:
        os.close(descriptor)


def _committed(content: bytes) -> Batch | None:
    """The rows of the newest whole header."""
    headers = []
    for place in (0, HEADER_BYTES):
        text = content[place : place + HEADER_BYTES].partition(b"\n")[0]
        with contextlib.suppress(ValueError):
            headers.append(journal.parse(text))
    if not headers:
        return None
    header = max(headers, key=lambda header: header["order"])
    words = memoryview(content[: len(content) // 8 * 8]).cast("d").tolist()[_FIRST:]
    width = len(header["names"]) + 3
    rows = []
    for row in _rows(words, width)[:ROWS]:
        if row[0] != header["number"] + len(rows) + 1:
            break
        rows.append(row)
    return Batch(header["pid"], header["offset"], header["epoch"], tuple(header["names"]), rows)


def _rows(words: list[float], width: int) -> list[tuple[float, ...]]:
    """Rows of: commit word, values, time in milliseconds, step."""
    return list(zip(*[iter(words)] * width, strict=False))


def _lines(names: tuple[str, ...], epoch: int | None, rows: list[tuple[float, ...]]) -> bytes:
    return b"".join(
        [
            journal.line(
                {
                    "event": "batch",
                    "time": int(row[-2]),
                    "step": int(row[-1]),
                    "epoch": epoch,
                    "metrics": dict(zip(names, row[1:-2], strict=True)),
                }
            )
            for row in rows
        ]
    )

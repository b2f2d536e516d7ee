"""Copy 0-dim tensors on their own device at once, and read them later, many in one transfer.

So a training step never waits for its device, and at most 64 steps are not yet read. `put` asks the device to copy one
value into memory that the ring owns. All that changes the value afterwards (an in-place operation, the replay of a CUDA graph, the next
call of a function compiled with `mode="reduce-overhead"`) comes later on the same stream, so it does not
change what was put. One half of the ring travels to pinned host memory while the other half fills; only who
asks for everything, or is 64 steps ahead of the device, waits.

A slot holds a value in its own dtype, so every value arrives exactly, also on a device without float64 (MPS).
Each stream has memory of its own, so no stream waits for another. It uses `torch.accelerator`; what is
specific to CUDA is the refusal during a graph capture.

This module knows nothing of journals, epochs and statistics.
"""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from daypoint.base.errors import RunError, ScalarError

STEPS = 64
"""The most steps that are logged and not yet read. A half is sent on its way with half of them."""
SECONDS = 0.5
"""A half is sent with fewer steps when the last one was sent so long ago."""
SLOTS = 256
"""Values in one piece of memory."""
POLL_SECONDS = 1e-4
"""While the device is waited for, Python looks up this often, so that Ctrl-C is heard."""


class Entry(NamedTuple):
    """What one call logged: milliseconds since the epoch, the step, and values by name."""

    time_ms: int
    step: int
    values: dict[str, Any]


class Ring:
    """Values of a few steps, and the entries they belong to, in order.

    Args:
        chunk: makes the memory; a test gives one that is late, or fails.
    """

    def __init__(self, chunk: type[Chunk] | None = None) -> None:
        self._chunk = Chunk if chunk is None else chunk
        self._filling = _Half()
        self._sent: _Half | None = None
        self._sent_seconds = -SECONDS
        self._free: dict[Any, list[Chunk]] = {}
        self.pending = False
        """Whether something was put or added that has not been taken."""

    @staticmethod
    def can_hold(value: Tensor) -> bool:
        """Whether `put` takes this value. A tensor subclass, or an unusual device, has to be read at once."""
        if type(value) is not Tensor and type(value) is not Parameter:
            return False
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return False  # inside vmap or grad nothing outside may be written to
        return value.is_cpu or value.device.type == _accelerator()

    def put(self, value: Tensor, name: str) -> Tensor:
        """Copy a value on its device. Nothing is waited for.

        Args:
            value: 0-dim, one that `can_hold` said yes to.
            name: what it is called in an error.

        Returns:
            The host tensor, of the same dtype, that will hold it; for the values of the next `add`.

        Raises:
            ScalarError: a CUDA graph is being captured: the value is computed at replay only.
        """
        device = value.device
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise ScalarError(
                f"{name}: expected a scalar, got a tensor of a CUDA graph that is being captured, "
                "which has no value yet; log it after graph.replay()"
            )
        stream = None if device.type == "cpu" else torch.accelerator.current_stream(device.index)
        chunks = self._filling.chunks.setdefault(stream, [])
        if not chunks or chunks[-1].used == SLOTS:
            free = self._free.get(stream)
            chunks.append(free.pop() if free else self._chunk(device, stream))
        self.pending = True
        return chunks[-1].put(value)

    def add(self, time_ms: int, step: int, values: dict[str, Any]) -> None:
        """Queue what one call logged. Sends the half on its way when it is due.

        Args:
            time_ms: when, in milliseconds since the epoch.
            step: of the batch.
            values: by name; numbers, and tensors that `put` returned since the last `add`.

        Raises:
            RunError: the device failed; says which values are lost.
        """
        self._filling.entries.append(Entry(time_ms, step, values))
        self.pending = True
        if self._sent is None and (self._is_full() or time.monotonic() - self._sent_seconds >= SECONDS):
            self._send()

    def take(self, everything: bool = False) -> Iterator[Entry]:
        """The entries whose values have arrived, oldest first, now with plain numbers.

        An entry leaves the ring when the next one is asked for: one that could not be dealt with comes again.

        Args:
            everything: wait for the device until nothing is left. Otherwise only when both halves are full.

        Raises:
            RunError: the device failed; says which values are lost.
        """
        must = everything or self._is_full()
        if self._sent is not None and self._has_arrived(wait=must):
            yield from self._unload()
        if must and self._filling.entries:
            self._send()
        if everything and self._sent is not None and self._has_arrived(wait=True):
            yield from self._unload()
        self.pending = self._sent is not None or bool(self._filling.entries)

    def _is_full(self) -> bool:
        return len(self._filling.entries) >= STEPS // 2

    def _send(self) -> None:
        self._sent, self._filling = self._filling, _Half()
        self._sent_seconds = time.monotonic()
        self._has_arrived(wait=False)

    def _has_arrived(self, wait: bool) -> bool:
        """Whether all of the sent half is on the host; sees to it that all of it is on its way."""
        half = self._sent
        assert half is not None
        chunks = [chunk for chunks in half.chunks.values() for chunk in chunks]
        try:
            for chunk in chunks:
                chunk.send()
            while not all(chunk.has_arrived() for chunk in chunks):
                if not wait:
                    return False
                time.sleep(POLL_SECONDS)
        except RuntimeError as error:
            raise self._lose(error) from error
        return True

    def _unload(self) -> Iterator[Entry]:
        half = self._sent
        assert half is not None
        while half.entries:
            entry = half.entries[0]
            yield entry._replace(values={name: _number(value) for name, value in entry.values.items()})
            half.entries.popleft()  # only now: rather twice after a signal in between than never
        self._sent = None  # before its memory is given to others
        for stream, chunks in half.chunks.items():
            for chunk in chunks:
                chunk.clear()
            self._free.setdefault(stream, []).extend(chunks)

    def _lose(self, error: RuntimeError) -> RunError:
        """The device failed. What was not read from it is gone; numbers that were logged with it are kept."""
        halves = [half for half in (self._sent, self._filling) if half is not None]
        names: dict[str, None] = {}
        steps: list[int] = []
        kept = _Half()
        for entry in (entry for half in halves for entry in half.entries):
            lost = [name for name, value in entry.values.items() if isinstance(value, Tensor)]
            rest = {name: value for name, value in entry.values.items() if name not in lost}
            if lost:
                names.update(dict.fromkeys(lost))
                steps.append(entry.step)
            if rest:
                kept.entries.append(entry._replace(values=rest))
        self._sent, self._filling = None, kept
        self._free.clear()
        what = ", ".join(names) or "metrics"
        which = f"steps {min(steps)} to {max(steps)}" if steps else "the last steps"
        return RunError(
            f"{what}: the values of {which} were on the device and are lost with it: {error}; "
            "everything before is recorded. Resume in a new process; to record each step at once, "
            "at the cost of waiting for the device in it, set DAYPOINT_DEFER=0"
        )


@functools.cache
def _accelerator() -> str | None:
    found = torch.accelerator.current_accelerator()
    return found.type if found is not None else None


class _Half:
    """Entries whose values travel together."""

    def __init__(self) -> None:
        self.entries: deque[Entry] = deque()
        self.chunks: dict[Any, list[Chunk]] = {}


class Chunk:
    """Memory for 256 values of any dtype, written from one stream of a device, and its twin on the host.

    On the CPU (where deferral is for tests) there is no stream, and a copy is done when it is asked for.
    """

    def __init__(self, device: torch.device, stream: torch.Stream | None) -> None:
        self.clear()
        self._stream = stream
        self._slots: dict[torch.dtype, tuple[tuple[Tensor, ...], tuple[Tensor, ...]]] = {}
        # What is allocated in inference mode could not be written to outside of it.
        with torch.inference_mode(False):
            self._there = torch.empty(SLOTS, dtype=torch.int64, device=device)
            self._here = torch.empty(SLOTS, dtype=torch.int64, device="cpu", pin_memory=stream is not None)
        self._event = torch.Event(device) if stream is not None else None

    def clear(self) -> None:
        self.used = 0
        self._is_sent = self._has_arrived = False

    def put(self, value: Tensor) -> Tensor:
        dtype = value.dtype
        if dtype not in self._slots:
            self._slots[dtype] = (_slots(self._there, dtype), _slots(self._here, dtype))
        there, here = self._slots[dtype]
        index = self.used
        there[index].copy_(value.detach(), non_blocking=True)
        self.used = index + 1
        return here[index]

    def send(self) -> None:
        """Start the transfer to the host, after all that was put, unless it has been started."""
        if self._is_sent:
            return
        if self._stream is None:
            self._here.copy_(self._there)
        else:
            with self._stream:
                self._here[: self.used].copy_(self._there[: self.used], non_blocking=True)
                self._event.record(self._stream)
        self._is_sent = True  # last: an exception in a signal handler may come in between

    def has_arrived(self) -> bool:
        if not self._has_arrived:
            self._has_arrived = self._event is None or self._event.query()
        return self._has_arrived


def _slots(memory: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """The same memory as that many 0-dim tensors of a dtype of at most 8 bytes."""
    with torch.inference_mode(False):
        return memory.view(dtype)[:: memory.element_size() // dtype.itemsize].unbind()


def _number(value: Any) -> bool | int | float:
    return value.item() if isinstance(value, Tensor) else value

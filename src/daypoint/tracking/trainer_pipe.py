"""The pipe between the training process (the trainer) and its courier: JSON lines in both directions, without blocking.

`LinePipe` is either end; `TrainerPipe` is the courier's end, which also notices that the trainer is gone: its end of the pipe
is closed, or the courier has a new parent process (forked workers may hold the pipe open). What the messages mean is known to
`daypoint.tracking.courier` and `daypoint.tracking.delivery` only.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import time
from typing import Any


class LinePipe:
    """One end of a pipe to another process.

    Args:
        reading: descriptor to read from.
        writing: descriptor to write to; it becomes non-blocking.
    """

    def __init__(self, reading: int, writing: int) -> None:
        os.set_blocking(writing, False)
        self._reading = reading
        self._writing = writing
        self._inbox = b""
        self._outbox = b""
        self.is_closed = False
        """Whether the other end was found to be closed."""

    def tell(self, message: dict[str, Any]) -> None:
        """Send a message, now or, if the pipe is full, with a later call."""
        self._outbox += json.dumps(message).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Write what the pipe takes."""
        try:
            while self._outbox:
                self._outbox = self._outbox[os.write(self._writing, self._outbox) :]
        except BlockingIOError:
            pass
        except OSError:
            self._outbox = b""  # nobody reads it any more

    def hear(self, seconds: float) -> list[dict[str, Any]]:
        """The messages that have arrived, waiting so long for the first."""
        self.flush()
        ready, _, _ = select.select([self._reading], [], [], seconds)
        received = os.read(self._reading, 2**16) if ready else b""
        self.is_closed = bool(ready) and not received
        *lines, self._inbox = (self._inbox + received).split(b"\n")
        messages = []
        for line in lines:
            with contextlib.suppress(ValueError):  # something else may have printed to the pipe
                messages.append(json.loads(line))
        return [message for message in messages if isinstance(message, dict)]


class TrainerPipe(LinePipe):
    """The courier's end of the pipe.

    Args:
        pid: the process of the trainer.
        requests: descriptor to read from.
        answers: descriptor to write to.

    Attributes:
        hung_up_at: when the trainer was found to be gone, on the monotonic clock; infinity while it is there.
    """

    def __init__(self, pid: int, requests: int, answers: int) -> None:
        super().__init__(requests, answers)
        self.pid = pid
        self.hung_up_at = math.inf
        self._is_child = os.getppid() == pid

    @property
    def hung_up(self) -> bool:
        """Whether the trainer was found to be gone."""
        return self.hung_up_at < math.inf

    @property
    def is_dead(self) -> bool:
        """Whether its process is gone, whatever the pipe says."""
        if self._is_child:
            return os.getppid() != self.pid
        try:  # a process stands between the two, such as a wrapper around Python
            os.kill(self.pid, 0)
        except OSError:
            return True
        return False

    def requests(self, seconds: float) -> list[dict[str, Any]]:
        """What the trainer asks for now, waiting so long for the first request; notices when it is gone (`hung_up`)."""
        if self.hung_up:
            self.flush()
            time.sleep(seconds)
            return []
        messages = self.hear(seconds)
        if self.is_closed or self.is_dead:
            self.hung_up_at = time.monotonic()
        return messages

"""The courier's end of the pipe to its trainer: what the trainer asks for, what it is told, and whether it is still there.

JSON lines both ways; what they mean is for `daypoint.tracking.delivery`. A trainer's death is told by the end of its pipe, or by a
new parent: forked workers may hold the pipe open. One number: an answer that the pipe does not take waits here for the
next round, half a second at most.
"""

from __future__ import annotations

import json
import math
import os
import select
import time
from collections.abc import Iterator
from typing import Any


class TrainerPipe:
    """The trainer as its courier sees it.

    Args:
        pid: the process of the trainer.
        requests: descriptor to read from.
        answers: descriptor on which to answer, not blocking.

    Attributes:
        hung_up_at: when the trainer was found to be gone, on the monotonic clock; infinity while it is there.
    """

    def __init__(self, pid: int, requests: int, answers: int) -> None:
        self.pid = pid
        self.hung_up_at = math.inf
        self._requests = requests
        self._answers = answers
        self._is_child = os.getppid() == pid
        self._inbox = b""
        self._outbox = b""

    @property
    def hung_up(self) -> bool:
        """Whether the trainer was found to be gone."""
        return self.hung_up_at < math.inf

    @property
    def is_dead(self) -> bool:
        """Whether its process is gone, whatever the pipe says."""
        if self._is_child:
            return os.getppid() != self.pid
        try:  # something stands between us, such as a wrapper around Python
            os.kill(self.pid, 0)
        except OSError:
            return True
        return False

    def requests(self, seconds: float) -> Iterator[dict[str, Any]]:
        """What it asks for now, waiting so long for the first, and whether it is there to ask: see `hung_up`."""
        self.flush()
        if self.hung_up:
            time.sleep(seconds)
            return
        ready, _, _ = select.select([self._requests], [], [], seconds)
        received = os.read(self._requests, 2**16) if ready else b""
        *lines, self._inbox = (self._inbox + received).split(b"\n")
        if (ready and not received) or self.is_dead:
            self.hung_up_at = time.monotonic()
        yield from map(json.loads, lines)

    def tell(self, message: dict[str, Any]) -> None:
        """Answer. A trainer that does not read does not stop us."""
        self._outbox += json.dumps(message).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Write what the pipe takes."""
        try:
            while self._outbox:
                self._outbox = self._outbox[os.write(self._answers, self._outbox) :]
        except BlockingIOError:
            pass
        except OSError:
            self._outbox = b""  # nobody is there any more

"""Turn the signals that end a program into exceptions, with the exit code of the shell (128 plus the signal's number).

It does not know what a run does when it ends.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator


class Terminated(SystemExit):
    """SIGTERM, SIGUSR1 or SIGUSR2, as an exception, so that the run can end properly; the exit code is the shell's."""

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__(128 + number)

    @property
    def name(self) -> str:
        """Such as SIGTERM."""
        return signal.Signals(self.code - 128).name

    def __str__(self) -> str:
        return f"a signal, {self.name}"


def ended_by(error: BaseException | None) -> str | None:
    """The name of the signal that ended a program, such as Ctrl-C or SIGTERM; None if none did."""
    if isinstance(error, KeyboardInterrupt):
        return "Ctrl-C"
    return error.name if isinstance(error, Terminated) else None


@contextlib.contextmanager
def stops(stop: Callable[[BaseException], object]) -> Iterator[None]:
    """In the block, the first signal calls `stop` with the matching exception; a second one ends the program at once.

    SIGTERM, Ctrl-C, and SIGUSR1 and SIGUSR2, by which clusters announce that a job's time is over. A handler of the user's own is
    left alone. Threads other than the main one get no signals, and no block.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    usual_handlers = {
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGUSR1: signal.SIG_DFL,
        signal.SIGUSR2: signal.SIG_DFL,
        signal.SIGINT: signal.default_int_handler,
    }
    mine = {number: usual for number, usual in usual_handlers.items() if signal.getsignal(number) is usual}

    def first(number: int, _frame: object) -> None:
        for ours, usual in mine.items():
            signal.signal(ours, usual)
        stop(KeyboardInterrupt() if number == signal.SIGINT else Terminated(number))

    for number in mine:
        signal.signal(number, first)
    try:
        yield
    finally:
        for number, usual in mine.items():
            signal.signal(number, usual)

"""The context manager that `daypoint.open_run` returns: it opens the run when its `with` block begins.

Without `with` nothing would be recorded and nobody would notice. So it raises an error when it is used as a run, and
warns when it is thrown away unused. It does not know how a run is opened.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

from daypoint.base.errors import RunError
from daypoint.run.run import Run

_RUN = {"address", "config", "day", "directory", "is_main", "uid"}
"""What a run has that its class has not."""


class Entry(contextlib.ContextDecorator, contextlib.AbstractContextManager[Run]):
    """A run that is not open yet.

    Args:
        opens: makes the context manager of a run.
    """

    def __init__(self, opens: Callable[[], contextlib.AbstractContextManager[Run]]) -> None:
        self._opens = opens
        self._opened: list[contextlib.AbstractContextManager[Run]] = []
        self._is_used = False

    def __enter__(self) -> Run:
        self._is_used = True
        opened = self._opens()
        run = opened.__enter__()
        self._opened.append(opened)
        return run

    def __exit__(self, *raised: Any) -> bool | None:
        return self._opened.pop().__exit__(*raised)

    def __call__(self, function: Any) -> Any:
        self._is_used = True
        return super().__call__(function)

    def __getattr__(self, name: str) -> NoReturn:
        if name not in _RUN and (name.startswith("_") or not hasattr(Run, name)):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self._is_used = True
        raise RunError(
            f"open_run: expected `with daypoint.open_run(...) as run:`, found .{name} on what open_run returned; "
            "the run begins with the block and ends with it"
        )

    def __del__(self) -> None:
        if not self._is_used:
            warnings.warn(
                "daypoint.open_run was called and nothing is recorded: write `with daypoint.open_run(...) as run:`",
                RuntimeWarning,
                stacklevel=2,
            )

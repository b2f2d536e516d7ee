"""Warn during a run, once about each problem: odd steps, values that are not finite, errors on the way to MLflow.

It decides what is worth a warning, not how it is shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from daypoint.base.errors import RunError
from daypoint.run.console import RunConsole


class Remarks:
    """The warnings of one run.

    Args:
        on_nonfinite: the policy, `record`, `warn` or `stop`.
    """

    def __init__(self, console: RunConsole, on_nonfinite: str) -> None:
        self._console = console
        self._on_nonfinite = on_nonfinite
        self._gives_steps = False

    def step(self, step: Any, done: int) -> None:
        """A step was given with `step=`. Two batches at one step are one point in a chart, and a resume cannot tell them apart."""
        self._gives_steps = True
        if type(step) is int and 0 <= step < done:
            self._console.warn(
                f"step {step} comes after step {done - 1}: steps are counted over the whole run, not from 0 in each "
                "epoch; leave step= out, or give the number of the batch in the run (said once)",
                once="step",
            )

    def split(self, first: tuple[str, ...], second: tuple[str, ...]) -> None:
        """What seems to be one batch was logged in two calls; the recorder says so once."""
        if not self._gives_steps:
            self._console.warn(
                f"{', '.join(first)} and {', '.join(second)} are logged in turns, and each log is a step of its own: log what "
                "belongs to one batch together, run.log(a=…, b=…), or give both the same step= (said once)"
            )

    def nonfinite(self, name: str, value: float, step: int) -> None:
        """A value was NaN or infinite, and is recorded.

        Raises:
            RunError: the policy is to stop.
        """
        if self._on_nonfinite == "stop":
            raise RunError(
                f"{name}: {value} at step {step}, and tracking.on_nonfinite is stop; the value is recorded"
            )
        if self._on_nonfinite == "warn":
            what = f"{name} is {value} at step {step}; recorded as it is (said once for each metric)"
            self._console.warn(what, once=f"metric {name}")

    def errors(self, texts: Iterable[str]) -> None:
        """What went wrong on the way to MLflow."""
        for text in texts:
            what = f"MLflow: {text}; training goes on, everything is in the journal"
            self._console.warn(what, once=what)

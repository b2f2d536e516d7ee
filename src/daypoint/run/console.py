"""Print the progress of a run: the opening line, the progress bar, a line for each epoch, warnings, and the closing summary.

The bar is there on a terminal only; elsewhere, such as in a pipe, there is one line for each epoch.
The bar is redrawn at most ten times a second, whatever the number of steps; its parts keep their places, and a metric that
does not fit the terminal is left out. This module reads no file and decides nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from daypoint.base.tables import clean, number

if TYPE_CHECKING:
    from daypoint.run.recorder import Recorder

REDRAW_SECONDS = 0.1
VALUE_WIDTH = 9
"""Four significant digits, a point, a sign and an exponent: `1.234e-05`."""


class RunConsole:
    """What one run prints.

    Args:
        quiet: show nothing but warnings.
    """

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        # A terminal that cannot show a character must not end a training.
        for stream in (sys.stdout, sys.stderr):
            if hasattr(stream, "reconfigure") and (stream.encoding or "").lower().replace("-", "") != "utf8":
                stream.reconfigure(errors="replace")
        self._out = Console(file=sys.stdout, highlight=False, soft_wrap=True)
        self._err = Console(file=sys.stderr, highlight=False, soft_wrap=True)
        self._warned: set[str | None] = set()
        self.has_bar = False
        """Whether `step` has anything to move."""
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._epoch_text = ""
        self._batches: int | None = None
        self._usual_batches: int | None = None
        """Batches of the last complete epoch, for when the number is not given."""
        self._of_epochs: set[str] = set()
        """Metrics that are measured once an epoch; in the bar they would be those of the epoch before."""
        self._room = 0
        self._drawn_seconds = 0.0

    def opening(self, address: str, name: str, directory: str) -> None:
        """Print which run this is and where it is recorded."""
        if not self._quiet:
            self._out.print(Text.assemble(("daypoint ", "bold"), (address, "bold cyan"), f"  {name}"))
            self._out.print(Text(f"  {directory}", "dim"))

    def begin_epoch(self, epoch: int, epochs: int | None, batches: int | None) -> None:
        """Start the bar of an epoch. `batches` is None when their number is not known."""
        whole = str(epochs or "")
        self._epoch_text = f"epoch {epoch + 1:>{len(whole)}}" + (f"/{whole}" if whole else "")
        self._batches = batches or self._usual_batches
        if self._quiet or not (self._err.is_terminal and self._out.is_terminal):
            return
        if self._progress is None:
            self._progress = Progress(
                TextColumn("[bold]{task.description}"),
                BarColumn(bar_width=self._bar_width),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[metrics]}", markup=False),  # `mAP[/0.5]` is a name
                console=self._err,
                transient=True,
                auto_refresh=False,
            )
            self._progress.start()
            self.has_bar = True
        self._remove_task()
        self._task = self._progress.add_task(self._epoch_text, total=self._batches, metrics="")
        count = 2 * len(str(self._batches)) + 1 if self._batches else 10
        self._room = self._err.width - len(self._epoch_text) - self._bar_width - count - len(" 0:00:00 ") - 3
        self._progress.refresh()

    @property
    def _bar_width(self) -> int:
        return max(10, min(30, self._err.width // 5))

    def _remove_task(self) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.remove_task(self._task)
            self._progress.refresh()
            self._task = None

    def step(self, recorder: Recorder) -> None:
        """Move the bar, unless it was drawn a moment ago."""
        if self._progress is None or self._task is None:
            return
        now = time.monotonic()
        done = recorder.steps_in_epoch
        if now - self._drawn_seconds >= REDRAW_SECONDS or done == self._batches:
            self._drawn_seconds = now
            if self._batches is not None and done > self._batches:  # longer than the epochs before
                self._batches = None
                self._progress.tasks[-1].total = None
            self._progress.update(self._task, completed=done, metrics=self._metrics(recorder), refresh=True)

    def _metrics(self, recorder: Recorder) -> str:
        """As many of the batch's metrics as fit, each at a fixed column."""
        text = ""
        for name, value in recorder.latest.items():
            if name not in self._of_epochs:
                part = f"{clean(name)} {number(value):<{VALUE_WIDTH}}  "
                if cell_len(text + part.rstrip()) > self._room:
                    break
                text += part
        return text

    def end_epoch(self, entry: Mapping[str, Any]) -> None:
        """One line about the epoch that ended, in the place of its bar."""
        if self._quiet:
            return
        self._of_epochs.update(entry["metrics"])
        if entry["complete"]:
            self._usual_batches = entry["steps"]
        self._remove_task()
        # Of values that are all NaN there is no mean.
        parts = [
            f"{name} {number(of['last'] if of['mean'] is None else of['mean'])}"
            for name, of in entry["stats"].items()
        ]
        parts += [f"{name} {number(value)}" for name, value in entry["metrics"].items()]
        line = Text.assemble(
            (self._epoch_text, "bold"), "  ", "  ".join(parts), (f"  {entry['seconds']:.1f} s", "dim")
        )
        # With a bar both streams are one terminal: the line has to go past the bar, so through the bar's own console.
        (self._err if self._progress is not None else self._out).print(line)

    def warn(self, text: str, once: str | None = None) -> None:
        """Print a warning, also when quiet; of those with the same `once` only the first."""
        if once is None or once not in self._warned:
            self._warned.add(once)
            self._err.print(Text.assemble(("warning: ", "bold yellow"), text))

    def say(self, text: str) -> None:
        """Print a plain line."""
        if not self._quiet:
            self._out.print(Text(text))

    def stop(self) -> None:
        """Take the bar away."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
            self.has_bar = False
            self._task = None

    def closing(self, rows: Iterable[tuple[str, str]], commands: Iterable[tuple[str, str]]) -> None:
        """Print the summary of the run, and the commands to type next."""
        self.stop()
        if self._quiet:
            return
        self._out.print()
        for label, text in rows:
            self._out.print(Text.assemble((f"{label:<11}", "bold"), text))
        if not (commands := list(commands)):
            return
        self._out.print(Text("next", "bold"))
        width = max(len(command) for command, _ in commands)
        for command, what in commands:
            self._out.print(Text.assemble("  ", (f"{command:<{width}}", "cyan"), ("   # " + what, "dim")))

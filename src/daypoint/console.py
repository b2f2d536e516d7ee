"""What a person sees while a run goes: the opening line, the bar, a line an epoch, warnings, and the closing
words.

On a terminal there is a progress bar; elsewhere, and when the output goes into a pipe, one line an epoch.
The bar is redrawn at most ten times a second, whatever the number of steps. This module reads no file and
decides nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from daypoint.tables import number

if TYPE_CHECKING:
    from daypoint.recorder import Recorder

REDRAW_SECONDS = 0.1


class RunConsole:
    """The screen of one run.

    Args:
        quiet: show nothing but warnings.
    """

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        for stream in (
            sys.stdout,
            sys.stderr,
        ):  # a terminal that cannot show a character must not end a training
            if hasattr(stream, "reconfigure") and (stream.encoding or "").lower().replace("-", "") != "utf8":
                stream.reconfigure(errors="replace")
        self._out = Console(file=sys.stdout, highlight=False, soft_wrap=True)
        self._err = Console(file=sys.stderr, highlight=False, soft_wrap=True)
        self.has_bar = False
        """Whether `step` has anything to move."""
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._epoch_text = ""
        self._batches: int | None = None
        self._drawn_seconds = 0.0

    def opening(self, address: str, name: str, directory: str) -> None:
        """Say which run this is and where it goes."""
        if not self._quiet:
            self._out.print(Text.assemble(("daypoint ", "bold"), (address, "bold cyan"), f"  {name}"))
            self._out.print(Text(f"  {directory}", "dim"))

    def begin_epoch(self, epoch: int, epochs: int | None, batches: int | None) -> None:
        """Start the bar of an epoch. `batches` is None when their number is not known."""
        self._epoch_text = f"epoch {epoch + 1}" + (f"/{epochs}" if epochs else "")
        self._batches = batches
        if self._quiet or not (self._err.is_terminal and self._out.is_terminal):
            return
        if self._progress is None:
            self._progress = Progress(
                TextColumn("[bold]{task.description}"),
                BarColumn(bar_width=30),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[metrics]}", markup=False),  # `mAP[/0.5]` is a name
                console=self._err,
                transient=True,
                auto_refresh=False,
            )
            self._progress.start()
            self.has_bar = True
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(self._epoch_text, total=batches, metrics="")
        self._progress.refresh()

    def step(self, recorder: Recorder) -> None:
        """Move the bar, unless it was drawn a moment ago."""
        if self._progress is None or self._task is None:
            return
        now = time.monotonic()
        if now - self._drawn_seconds >= REDRAW_SECONDS:
            self._drawn_seconds = now
            text = "  ".join(f"{name} {number(value)}" for name, value in recorder.latest.items())
            self._progress.update(self._task, completed=recorder.steps_in_epoch, metrics=text, refresh=True)

    def end_epoch(self, entry: Mapping[str, Any]) -> None:
        """One line about the epoch that ended."""
        if self._quiet:
            return
        parts = [f"{name} {number(of['mean'])}" for name, of in entry["stats"].items()]
        parts += [f"{name} {number(value)}" for name, value in entry["metrics"].items()]
        line = Text.assemble(
            (self._epoch_text, "bold"), "  ", "  ".join(parts), (f"  {entry['seconds']:.1f} s", "dim")
        )
        # With a bar both streams are one terminal: the line has to go past the bar, so through the bar's own console.
        (self._err if self._progress is not None else self._out).print(line)

    def warn(self, text: str) -> None:
        """Say something that the person should know now."""
        self._err.print(Text.assemble(("warning: ", "bold yellow"), text))

    def say(self, text: str) -> None:
        """A plain line."""
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
        """The summary of the run, and the commands worth typing next."""
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

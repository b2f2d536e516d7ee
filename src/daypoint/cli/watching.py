"""The page of a live run, redrawn in the terminal once a second until the run ends.

It only reads files, and holds no lock that the training could wait for.
"""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.text import Text

from daypoint.reading import showing
from daypoint.record import catalog
from daypoint.record.catalog import StoredRun

REDRAW_SECONDS = 1.0
SHOWN = 8
"""Epochs and checkpoints, so that the page fits a screen."""


def watch(
    run: StoredRun,
    outputs: Path,
    *,
    colours: bool = True,
    console: Console | None = None,
    seconds: float = REDRAW_SECONDS,
) -> StoredRun:
    """Show a run until it has ended, or Ctrl-C; the run as it was then.

    Args:
        console: where to draw; by default the terminal.
        seconds: between two looks.
    """
    console = console or Console(highlight=False)

    def drawn() -> Text:
        return Text.from_ansi(showing.page(run, colours=colours, last_epochs=SHOWN))

    try:
        with Live(
            drawn(), console=console, auto_refresh=False, transient=True, vertical_overflow="crop"
        ) as live:
            while run.is_live:
                time.sleep(seconds)
                run = catalog.read(run.directory, outputs)
                live.update(drawn(), refresh=True)
    except KeyboardInterrupt:
        pass
    return run

"""The picture of a trend, as a file. matplotlib is imported inside the function and never opens a window.

This module knows numbers and dates, no run directories. One number: half a second for a picture, most of it the import.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from daypoint.errors import ConfigError

if TYPE_CHECKING:
    from daypoint.trend import Day

FORMATS = ("png", "svg", "pdf")


def draw_trend(days: Sequence[Day], metric: str, path: Path) -> None:
    """Draw the best value of each day as a line, the median as points, and the spread as a band.

    Args:
        days: in order, from `daypoint.trend`; at least one.
        metric: the label of the y axis.
        path: a file that ends in .png, .svg or .pdf; replaced.

    Raises:
        ConfigError: another ending, or matplotlib is not installed.
    """
    from datetime import datetime

    kind = path.suffix.removeprefix(".").lower()
    if kind not in FORMATS:
        raise ConfigError(
            f"{path}: expected a file that ends in .{', .'.join(FORMATS)}, found {path.suffix!r}"
        )
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise ConfigError(f"{path}: drawing needs matplotlib; pip install matplotlib") from None
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    dates = [datetime.strptime(day.day, "%Y%m%d") for day in days]
    axes.fill_between(
        dates, [day.min for day in days], [day.max for day in days], alpha=0.2, label="all runs"
    )
    axes.plot(dates, [day.median for day in days], "o", markersize=4, label="median")
    axes.plot(dates, [day.best for day in days], marker="o", markersize=4, label="best")
    axes.set_ylabel(metric)
    axes.legend()
    axes.grid(alpha=0.3)
    figure.autofmt_xdate()
    figure.savefig(path, format=kind, dpi=150)

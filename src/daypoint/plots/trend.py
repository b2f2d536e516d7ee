"""The picture of a trend: the best value, the median and the spread of each day.

It knows numbers and dates, no run directories. matplotlib is imported only when something is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from daypoint.plots.canvas import figure_at


@dataclass(frozen=True)
class Day:
    """One day of a trend: a day on which the metric was measured.

    Attributes:
        runs: how many measured it.
        best, run: the best value and the address of its run; of two equal ones the later.
    """

    day: str
    runs: int
    min: float
    median: float
    max: float
    best: float
    run: str


def draw_trend(days: Sequence[Day], metric: str, path: Path) -> None:
    """Draw the best value of each day as a line, the median as points, and the spread as a band where there is any.

    Args:
        days: in order, from `daypoint.reading.trend`; at least one.
        metric: the label of the y axis.
        path: a file that ends in .png, .svg or .pdf; replaced.

    Raises:
        ConfigError: another ending, or matplotlib is not installed.
    """
    dates = [datetime.strptime(day.day, "%Y%m%d") for day in days]
    low, high = [day.min for day in days], [day.max for day in days]
    with figure_at(path, 4.5) as figure:
        from matplotlib.dates import AutoDateLocator, DateFormatter, DayLocator

        axes = figure.subplots()
        if low != high:  # else there is nothing to see
            axes.fill_between(dates, low, high, alpha=0.2, linewidth=0)
            axes.vlines(dates, low, high, alpha=0.4, linewidth=2, label="least to greatest")
        axes.plot(dates, [day.median for day in days], "o", markersize=4, label="median")
        axes.plot(dates, [day.best for day in days], marker="o", markersize=4, label="best")
        axes.set_ylabel(metric)
        axes.legend()
        axes.grid(alpha=0.3)
        # One more day at each end, and never parts of a day.
        axes.set_xlim(dates[0] - timedelta(days=1), dates[-1] + timedelta(days=1))
        is_short = (dates[-1] - dates[0]).days < 10
        axes.xaxis.set_major_locator(DayLocator() if is_short else AutoDateLocator(maxticks=10))
        axes.xaxis.set_major_formatter(DateFormatter("%Y-%m-%d"))
        figure.autofmt_xdate()

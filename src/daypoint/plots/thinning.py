"""Fewer points that draw the same line, and smoother ones.

A curve with more points than a picture has pixel columns is thinned to the first, least, greatest and last
value of each column, which draws the very same line (M4: U. Jugel, Z. Jerzak, G. Hackenbroich, V. Markl, "M4:
A Visualization-Oriented Time Series Data Aggregation", VLDB 2014). This module knows arrays only, neither runs nor pictures.
"""

from __future__ import annotations

import math

import numpy as np


def thin(x: np.ndarray, y: np.ndarray, columns: int) -> np.ndarray:
    """Which points to draw, so that a line through them looks like one through all.

    Args:
        x: (n,), ascending.
        y: (n,), may have NaN and infinities.
        columns: how many pixel columns the range of x has.

    Returns:
        Indices, ascending: all n if there are few; otherwise of each column the first, least, greatest and
        last finite value, and the first NaN, infinity and minus infinity, so that gaps stay gaps: at most 7 a
        column.
    """
    if len(x) <= 4 * columns or x[-1] == x[0]:
        return np.arange(len(x))
    column = _columns(x, columns)
    kept = [
        _first_of_each(column, np.flatnonzero(found))
        for found in (np.isnan(y), y == math.inf, y == -math.inf)
    ]
    finite = np.flatnonzero(np.isfinite(y))
    if len(finite):
        of, values = column[finite], y[finite]
        starts = np.flatnonzero(np.diff(of, prepend=-1))
        sizes = np.diff(starts, append=len(of))
        kept += [finite[starts], finite[starts + sizes - 1]]
        for extreme in (np.minimum, np.maximum):
            at = np.flatnonzero(values == np.repeat(extreme.reduceat(values, starts), sizes))
            kept.append(_first_of_each(column, finite[at]))
    return np.unique(np.concatenate(kept))


def means(x: np.ndarray, y: np.ndarray, columns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The last x, the mean and the count of the finite values in each column that has some. A thinned curve is smoothed
    over these: its least and greatest values alone would pull the average to the outliers.
    """
    finite = np.flatnonzero(np.isfinite(y))
    of = _columns(x, columns)[finite]
    counts = np.bincount(of)
    there = np.flatnonzero(counts)
    last = finite[np.searchsorted(of, there, side="right") - 1]
    return x[last].astype(float), np.bincount(of, y[finite] / counts[of])[there], counts[there]


def _columns(x: np.ndarray, columns: int) -> np.ndarray:
    width = max((float(x[-1]) - float(x[0])) / columns, 1e-300)
    return np.minimum(((x - x[0]) / width).astype(np.int64), columns - 1)


def _first_of_each(column: np.ndarray, indices: np.ndarray) -> np.ndarray:
    return indices[np.flatnonzero(np.diff(column[indices], prepend=-1))]


def alone(y: np.ndarray) -> np.ndarray:
    """Which values have a gap, or nothing, on both sides: no line shows them. (n,) bool."""
    finite = np.isfinite(y)
    before, after = np.append(False, finite[:-1]), np.append(finite[1:], False)
    return finite & ~before & ~after


def smooth(values: np.ndarray, weight: float) -> np.ndarray:
    """Exponential moving average, corrected for its start from nothing: each value is a weighted mean of
    those so far, with weights 1, w, w², … into the past. NaN and infinities are left out and stay gaps.

    Args:
        values: (n,).
        weight: at least 0, which changes nothing, and below 1.
    """
    import pandas as pd

    finite = pd.Series(np.where(np.isfinite(values), values, np.nan))
    return finite.ewm(alpha=1 - weight, ignore_na=True).mean().where(finite.notna()).to_numpy()

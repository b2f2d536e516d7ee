"""Running statistics of one metric, updated with each value: count, mean, variance, min, max.

The memory does not grow with the count, and values near 1e9 with a variance of 1 keep that variance, which a sum of squares
would lose. This module does not know what the metric is called, when an epoch ends, or how a number is written.

`update` is B. P. Welford, "Note on a method for calculating corrected sums of squares and products",
Technometrics 4 (3), 1962.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf


class RunningStats:
    """Statistics of the values seen so far. NaN and infinities are counted and change only `last`."""

    __slots__ = ("_mean", "_squares", "count", "last", "max", "min", "nonfinite")

    count: int
    """How many values were seen, finite or not."""
    nonfinite: int
    """How many of them were NaN, infinite, or integers too large for a float."""
    min: float | None
    """The smallest finite value, None if there was none."""
    max: float | None
    """The largest finite value, None if there was none."""
    last: bool | int | float | None
    """The last value exactly as it was given, finite or not; None if there was none."""

    def __init__(self) -> None:
        self.count = 0
        self.nonfinite = 0
        self.min = None
        self.max = None
        self.last = None
        self._mean = 0.0
        self._squares = 0.0  # the sum of squared deviations from the mean

    def update(self, value: bool | int | float) -> None:
        """Take one value in."""
        self.count += 1
        self.last = value
        try:
            value = float(value)
        except OverflowError:
            value = inf
        if value - value != 0.0:  # NaN or infinite
            self.nonfinite += 1
            return
        n = self.count - self.nonfinite
        if n == 1:
            self._mean = self.min = self.max = value
            return
        mean = self._mean
        delta = value - mean
        if delta - delta == 0.0:
            self._mean = moved = mean + delta / n
            self._squares += delta * (value - moved)
        else:  # two values almost as far apart as floats reach: the mean can be held, the variance cannot
            self._mean = mean - mean / n + value / n
            self._squares = inf
        if value < self.min:
            self.min = value
        elif value > self.max:
            self.max = value

    def extend(self, values: Iterable[float]) -> None:
        """`update` with each of these finite floats in turn, to the same last digit, in half the time."""
        values = iter(values)
        if self.count == self.nonfinite:
            for value in values:
                self.update(value)  # the first one is not like the others
                break
        count, n = self.count, self.count - self.nonfinite
        mean, squares, least, most = self._mean, self._squares, self.min, self.max
        value = self.last
        for value in values:
            n += 1
            delta = value - mean
            if delta - delta == 0.0:
                moved = mean + delta / n
                squares += delta * (value - moved)
                mean = moved
            else:
                mean = mean - mean / n + value / n
                squares = inf
            if value < least:
                least = value
            elif value > most:
                most = value
        self.count = count + n - (self.count - self.nonfinite)
        self._mean, self._squares, self.min, self.max, self.last = mean, squares, least, most, value

    @property
    def mean(self) -> float | None:
        """Mean of the finite values, None if there was none."""
        return self._mean if self.count > self.nonfinite else None

    @property
    def variance(self) -> float | None:
        """Population variance (divided by n, not n - 1) of the finite values, None if there was none.

        Never negative. Infinite where the sum of squared deviations is beyond the largest float.
        """
        n = self.count - self.nonfinite
        return self._squares / n if n else None

    def to_dict(self) -> dict[str, bool | int | float | None]:
        """All of it, in the order in which the journal and the train log write it."""
        return {
            "count": self.count,
            "nonfinite": self.nonfinite,
            "mean": self.mean,
            "variance": self.variance,
            "min": self.min,
            "max": self.max,
            "last": self.last,
        }

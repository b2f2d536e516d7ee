"""Running statistics of one metric, a value at a time: count, mean, variance, min, max.

Seven numbers are kept, whatever the count, and a mean of 1e9 does not swallow a variance of 1, as it does in
a sum of squares. This module refuses to know what a metric is called, when an epoch ends, or how a number is
written. One number: an update takes a quarter of a microsecond.

`update` is B. P. Welford, "Note on a method for calculating corrected sums of squares and products",
Technometrics 4 (3), 1962. `merge` is T. F. Chan, G. H. Golub, R. J. LeVeque, "Updating formulae and a
pairwise algorithm for computing sample variances", Stanford STAN-CS-79-773, 1979.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

__all__ = ["RunningStats"]


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

    def merge(self, other: RunningStats) -> None:
        """Take in all that `other` has seen, as if it came after."""
        if other.count == 0:
            return
        mine, theirs = self.count - self.nonfinite, other.count - other.nonfinite
        self.count += other.count
        self.nonfinite += other.nonfinite
        self.last = other.last
        if theirs == 0:
            return
        if mine == 0:
            self._mean, self._squares, self.min, self.max = other._mean, other._squares, other.min, other.max
            return
        share = theirs / (mine + theirs)
        delta = other._mean - self._mean
        if delta - delta == 0.0:
            self._mean += delta * share
            self._squares += other._squares + delta * delta * (mine * share)
        else:
            self._mean = self._mean * (1.0 - share) + other._mean * share
            self._squares = inf
        self.min = min(self.min, other.min)
        self.max = max(self.max, other.max)

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

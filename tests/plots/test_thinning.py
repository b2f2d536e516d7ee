"""Thinned curves keep what a picture shows."""

import math

import numpy as np
import pandas  # noqa: F401 - imported by the first call otherwise, within the deadline of a test
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from daypoint.plots import thinning

NAN, INF = math.nan, math.inf
VALUES = st.floats(allow_nan=True, allow_infinity=True, width=32)


@given(arrays(float, st.integers(1, 600), elements=VALUES), st.integers(1, 20))
def test_thinning_keeps_first_least_greatest_and_last_of_each_column_and_its_gaps(y, columns):
    x = np.arange(len(y)) * 3 + 7
    kept = thinning.thin(x, y, columns)
    assert (np.diff(kept) > 0).all()
    if len(y) <= 4 * columns:
        assert len(kept) == len(y)
        return
    assert len(kept) <= 7 * columns
    column = np.minimum(((x - x[0]) / ((x[-1] - x[0]) / columns)).astype(int), columns - 1)
    for each in np.unique(column):
        all_of, kept_of = y[column == each], y[kept[column[kept] == each]]
        for kind in (np.isnan, np.isposinf, np.isneginf):
            assert kind(all_of).any() == kind(kept_of).any()
        finite, shown = all_of[np.isfinite(all_of)], kept_of[np.isfinite(kept_of)]
        if len(finite):
            assert (shown.min(), shown.max()) == (finite.min(), finite.max())
            assert (shown[0], shown[-1]) == (finite[0], finite[-1])


def test_a_million_points_become_a_few_a_column():
    y = np.random.default_rng(0).normal(size=1_000_000)
    kept = thinning.thin(np.arange(len(y)), y, 1000)
    assert 2000 < len(kept) <= 4000
    assert (y[kept].min(), y[kept].max()) == (y.min(), y.max())


def test_means_of_columns_weigh_as_many_as_they_are():
    y = np.random.default_rng(0).normal(size=10_000)
    y[100:200] = NAN
    steps, means, counts = thinning.means(np.arange(len(y)), y, 50)
    assert counts.sum() == 9900
    assert (means * counts).sum() / counts.sum() == pytest.approx(np.nanmean(y))
    assert steps[-1] == 9999


def test_a_value_between_two_gaps_stands_alone():
    y = np.array([1.0, NAN, 2.0, NAN, 3.0, 4.0, INF, 5.0])
    assert np.flatnonzero(thinning.alone(y)).tolist() == [0, 2, 7]


# ---------------------------------------------------------------- smoothing


@given(arrays(float, st.integers(1, 30), elements=st.floats(-100, 100)), st.floats(0, 0.99))
def test_a_smoothed_value_is_the_weighted_mean_of_those_so_far(y, weight):
    for i, value in enumerate(thinning.smooth(y, weight)):
        weights = weight ** np.arange(i, -1, -1.0)
        assert value == pytest.approx((weights * y[: i + 1]).sum() / weights.sum(), abs=1e-6)


def test_smoothing_leaves_gaps_and_starts_at_the_first_value():
    smoothed = thinning.smooth(np.array([2.0, NAN, INF, 2.0]), 0.9)
    assert smoothed[[0, 3]].tolist() == pytest.approx([2.0, 2.0])
    assert np.isnan(smoothed[1:3]).all()

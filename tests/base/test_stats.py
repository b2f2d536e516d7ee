"""Running statistics against exact rational arithmetic."""

import copy
import math
import pickle
import statistics
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from daypoint.base.stats import RunningStats

settings.register_profile("stats", deadline=None)  # two busy cores: time is not what is tested
settings.load_profile("stats")

EPSILON = 2.0**-52
# Named, because they are rare among all floats.
extremes = st.sampled_from([math.nan, math.inf, -math.inf, 1.7e308, -1.7e308])
anything = st.one_of(st.booleans(), st.integers(), st.floats(), extremes)
moderate = st.floats(min_value=-1e100, max_value=1e100, allow_nan=False)


def seen(values):
    stats = RunningStats()
    for value in values:
        stats.update(value)
    return stats


def exact(values):
    """Count, mean and population variance as fractions."""
    rational = [Fraction(value) for value in values]
    mean = sum(rational) / len(rational)
    return mean, sum((value - mean) ** 2 for value in rational) / len(rational)


def assert_close_to_exact(stats, values):
    """Within a few rounding errors of the data, a bound that no sum of squares could hold at an offset."""
    mean, variance = exact(values)
    largest = max(abs(value) for value in values)
    spread = math.sqrt(variance)
    rounding = 4 * len(values) * EPSILON * largest
    assert abs(Fraction(stats.mean) - mean) <= Fraction(rounding) + Fraction(5e-324) * len(values)
    assert abs(math.sqrt(stats.variance) - spread) <= rounding + 1e-150


# ---------------------------------------------------------------- what an update does


def test_nothing_seen_has_no_statistics():
    expected = {
        "count": 0,
        "nonfinite": 0,
        "mean": None,
        "variance": None,
        "min": None,
        "max": None,
        "last": None,
    }
    assert RunningStats().to_dict() == expected


def test_to_dict_keeps_the_documented_order():
    assert list(RunningStats().to_dict()) == ["count", "nonfinite", "mean", "variance", "min", "max", "last"]


def test_a_known_sample_has_the_textbook_statistics():
    assert seen([2, 4, 4, 4, 5, 5, 7, 9]).to_dict() == {
        "count": 8,
        "nonfinite": 0,
        "mean": 5.0,
        "variance": 4.0,
        "min": 2.0,
        "max": 9.0,
        "last": 9,
    }


def test_one_value_has_variance_zero():
    assert seen([0.1]).to_dict() == {
        "count": 1,
        "nonfinite": 0,
        "mean": 0.1,
        "variance": 0.0,
        "min": 0.1,
        "max": 0.1,
        "last": 0.1,
    }


@given(st.lists(moderate, min_size=1, max_size=60))
def test_mean_and_variance_agree_with_exact_arithmetic(values):
    assert_close_to_exact(seen(values), values)


@given(
    st.lists(st.floats(min_value=-1.0, max_value=1.0), min_size=2, max_size=60),
    st.sampled_from([1e9, -1e12, 1e15]),
)
def test_a_large_offset_does_not_swallow_the_variance(noise, offset):
    values = [offset + value for value in noise]
    assert_close_to_exact(seen(values), values)


def test_noise_of_a_thousandth_on_a_billion_keeps_three_digits_of_variance():
    values = (1e9 + 1e-3 * np.random.default_rng(0).standard_normal(10_000)).tolist()
    mean, variance = exact(values)
    stats = seen(values)
    assert stats.mean == pytest.approx(float(mean), rel=1e-15)
    assert stats.variance == pytest.approx(float(variance), rel=1e-3)


def test_the_sum_of_squares_would_have_failed_there():
    values = (1e9 + 1e-3 * np.random.default_rng(0).standard_normal(10_000)).tolist()
    naive = (
        math.fsum(value * value for value in values) / len(values) - (math.fsum(values) / len(values)) ** 2
    )
    assert naive != pytest.approx(float(exact(values)[1]), rel=0.5)


@given(st.lists(st.floats(min_value=-1e6, max_value=1e6, width=32), min_size=1, max_size=60))
def test_numpy_and_the_standard_library_agree(values):
    stats = seen(values)
    scale = max(abs(value) for value in values)
    assert stats.mean == pytest.approx(np.mean(values), rel=1e-12, abs=1e-12 * scale)
    assert stats.variance == pytest.approx(np.var(values), rel=1e-9, abs=1e-12 * scale**2)
    assert stats.variance == pytest.approx(statistics.pvariance(values), rel=1e-9, abs=1e-12 * scale**2)


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(min_value=1, max_value=200))
def test_a_constant_has_that_mean_and_variance_zero(value, count):
    stats = seen([value] * count)
    assert (stats.mean, stats.variance, stats.min, stats.max) == (value, 0.0, value, value)


@given(st.lists(anything, max_size=40))
def test_every_value_is_counted_and_the_not_finite_ones_apart(values):
    def finite(value):
        try:
            return math.isfinite(value)
        except OverflowError:
            return False

    stats = seen(values)
    assert stats.count == len(values)
    assert stats.nonfinite == sum(not finite(value) for value in values)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=40), st.data())
def test_values_that_are_not_finite_change_nothing_but_count_and_last(values, data):
    strange = st.sampled_from([math.nan, math.inf, -math.inf, 10**400, -(10**400)])
    mixed = list(values)
    for value in data.draw(st.lists(strange, min_size=1, max_size=5)):
        mixed.insert(data.draw(st.integers(min_value=0, max_value=len(mixed))), value)
    clean, stats = seen(values).to_dict(), seen(mixed).to_dict()
    assert stats["count"] - stats["nonfinite"] == clean["count"]
    for key in ("mean", "variance", "min", "max"):
        assert stats[key] == clean[key]


@given(st.lists(anything, min_size=1, max_size=20))
def test_last_is_the_very_value_that_was_given(values):
    assert seen(values).last is values[-1]


def test_a_large_integer_stays_exact_as_last():
    assert seen([1, 2**53 + 1]).last == 2**53 + 1


def test_an_integer_too_large_for_a_float_counts_as_not_finite():
    stats = seen([1, 10**400])
    assert (stats.count, stats.nonfinite, stats.mean, stats.max, stats.last) == (2, 1, 1.0, 1.0, 10**400)


@given(
    st.lists(
        st.one_of(st.booleans(), st.integers(min_value=-(2**60), max_value=2**60)), min_size=1, max_size=20
    )
)
def test_statistics_of_bools_and_integers_are_floats(values):
    stats = seen(values)
    assert [type(x) for x in (stats.mean, stats.variance, stats.min, stats.max)] == [float] * 4


def test_the_mean_of_bools_is_their_rate():
    assert seen([True, False, True, True]).mean == 0.75


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=40))
def test_min_and_max_are_those_of_the_values(values):
    stats = seen(values)
    assert (stats.min, stats.max) == (min(values), max(values))


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=40))
def test_variance_is_never_negative_and_never_nan(values):
    assert seen(values).variance >= 0.0


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=40))
def test_the_mean_of_finite_values_is_finite_and_between_them(values):
    stats = seen(values)
    assert min(values) <= stats.mean <= max(values)


@pytest.mark.parametrize("values", [[1.7e308, -1.7e308], [-1.7e308, 1.7e308, 1.7e308, 1.0], [1e200, -1e200]])
def test_values_at_the_end_of_the_float_range_keep_a_mean_and_an_infinite_variance(values):
    stats = seen(values)
    assert stats.mean == pytest.approx(float(exact(values)[0]), rel=1e-12, abs=1e-12 * max(values))
    assert stats.variance == math.inf


def test_ten_thousand_extremes_stay_finite_in_the_mean():
    stats = seen([1.7e308, -1.7e308] * 5_000)
    assert abs(stats.mean) <= 1e296
    assert stats.variance == math.inf


# ---------------------------------------------------------------- as an object


def test_it_survives_pickle_and_copy():
    stats = seen([1.0, 5.0, math.nan])
    for twin in (pickle.loads(pickle.dumps(stats)), copy.deepcopy(stats)):
        stats_again = twin.to_dict()
        assert repr(stats_again) == repr(stats.to_dict())
        twin.update(9.0)
        assert twin.count == stats.count + 1


def test_a_misspelt_attribute_is_an_error():
    with pytest.raises(AttributeError):
        RunningStats().cuont = 1


@given(
    st.lists(anything, max_size=4),
    st.lists(st.one_of(st.floats(allow_nan=False, allow_infinity=False), extremes.filter(math.isfinite))),
)
@example([], [1.7e308, -1.7e308])
def test_many_at_once_are_the_same_to_the_last_digit(before, values):
    one, many = RunningStats(), RunningStats()
    for value in before:
        one.update(value)
        many.update(value)
    for value in values:
        one.update(value)
    many.extend(values)
    assert repr(many.to_dict()) == repr(one.to_dict())
    assert repr((many._mean, many._squares)) == repr((one._mean, one._squares))

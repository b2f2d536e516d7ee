"""Ranges of days."""

from datetime import date

import pytest

from daypoint.base.errors import AddressError
from daypoint.record.ranges import parse

TODAY = date(2026, 3, 28)


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("20260301..20260328", ("20260301", "20260328")),
        ("2026-03-01 .. today", ("20260301", "20260328")),
        ("20260301..", ("20260301", "99999999")),
        ("..yesterday", ("00000000", "20260327")),
        ("last 7 days", ("20260322", "20260328")),
        ("last day", ("20260328", "20260328")),
        ("Last  2 weeks", ("20260315", "20260328")),
        ("last 99999 years", ("00000000", "20260328")),
    ],
)
def test_a_range_has_a_first_and_a_last_day(text, days):
    assert parse(text, today=TODAY) == days


@pytest.mark.parametrize(
    "text", ["20260328", "last", "20260328/1415", "../outputs/20260328/141502-123456", "today", ""]
)
def test_what_is_no_range_may_be_an_address(text):
    assert parse(text, today=TODAY) is None


@pytest.mark.parametrize("text", ["20260328..20260301", "20261301..20261302", "last 0 days", "a..b"])
def test_a_wrong_range_is_refused(text):
    with pytest.raises(AddressError, match="expected"):
        parse(text, today=TODAY)

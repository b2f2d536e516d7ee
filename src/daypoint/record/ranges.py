"""Parses ranges of days: `20260301..20260328`, `20260301..`, `last 7 days`, `last week`, or one day.

A range is a first and a last day tag, both included. A run belongs to the day of its directory, whatever the time zone
of whoever asks; only `today`, `yesterday` and `last 7 days` are counted from the reader's own calendar. This module reads
no file.
"""

from __future__ import annotations

import re
from datetime import date, timedelta

from daypoint.base.day import parse_day, tag
from daypoint.base.errors import AddressError

_LAST = re.compile(r"last (?:(\d{1,5}) )?(day|week|month|year)s?", re.IGNORECASE)
_DAYS = {"day": 1, "week": 7, "month": 30, "year": 365}


def parse(text: str, *, today: date | None = None) -> tuple[str, str] | None:
    """The first and the last day of a range; None if the text is no range (it may be an address).

    An open end is `00000000` or `99999999`. `last 7 days` are today and the six before.

    Raises:
        AddressError: it is a range, but not of days of the calendar, or it ends before it begins.
    """
    today = today or date.today()
    if match := _LAST.fullmatch(" ".join(text.split())):
        count = int(match[1] or 1) * _DAYS[match[2].lower()]
        if count == 0:
            raise AddressError(f"{text}: expected at least one day")
        try:
            return tag(today - timedelta(days=count - 1)), tag(today)
        except OverflowError:
            return "00000000", tag(today)
    first, dots, last = text.partition("..")
    if not dots or "/" in text or not (first + last).strip():  # a path
        return None
    begin = parse_day(first.strip(), today=today) if first.strip() else "00000000"
    end = parse_day(last.strip(), today=today) if last.strip() else "99999999"
    if end < begin:
        raise AddressError(f"{text}: expected the earlier day first; {end}..{begin}")
    return begin, end

"""Tables as text, CSV, JSON and HTML."""

import csv
import io
import json
import math
from html.parser import HTMLParser

import pytest

from daypoint.base.tables import LONGEST, Table, as_csv, as_html, as_json, fitting, has_colours, text

TABLE = Table(["run", "lr", "on"], [["a", 1e-5, True], ["long name", 123456.789, None], ["c", 3, False]])


def test_text_is_aligned_with_numbers_to_the_right():
    assert text(TABLE).splitlines() == [
        "run               lr  on",
        "a              1e-05  true",
        "long name  1.235e+05",
        "c                  3  false",
    ]


def test_wide_characters_take_two_columns():
    assert text(Table(["a", "b"], [["日本", "x"], ["ab", "y"]])).splitlines()[1:] == ["日本  x", "ab    y"]


def test_control_characters_do_not_reach_the_terminal():
    shown = text(Table(["a"], [["\x1b[31mred\nnew"]]))
    assert "\x1b" not in shown
    assert len(shown.splitlines()) == 2


def test_only_text_is_cut_and_never_the_first_column():
    shown = text(Table(["run", "n", "t"], [["x" * 100, 10**60, "y" * 100]])).splitlines()[1]
    assert "x" * 100 in shown
    assert "1" + "0" * 60 in shown
    assert shown.endswith("y…")


def test_a_table_too_wide_for_a_terminal_is_several_that_fit():
    table = Table(["key", *(f"run{i}" for i in range(6))], [["a", *["x" * 30] * 6], ["b", *range(6)]])
    parts = fitting(table, 50)
    assert [name for part, _ in parts for name in part.columns if name != "key"] == table.columns[1:]
    for part, longest in parts:
        assert max(map(len, text(part, longest=longest).splitlines())) <= 50
    assert fitting(table, None) == [(table, LONGEST)]


def test_colours_do_not_move_columns():
    plain = Table(["run", "status"], [["a", "FAILED"], ["b", "FINISHED"]])
    coloured = text(plain, colours=True)
    assert "\x1b[31mFAILED\x1b[0m" in coloured
    for code in ("0", "1", "31", "32"):
        coloured = coloured.replace(f"\x1b[{code}m", "")
    assert [line.rstrip() for line in coloured.splitlines()] == text(plain).splitlines()


def test_no_colours_in_a_pipe_and_where_nobody_wants_them(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    assert has_colours(Terminal())
    assert not has_colours(io.StringIO())
    monkeypatch.setenv("TERM", "dumb")
    assert not has_colours(Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not has_colours(Terminal())


def test_csv_has_every_digit_and_reads_back():
    table = Table(["a,b", "x"], [['say "hi"\n', 0.1 + 0.2], [[1, 2], math.nan], [None, True]])
    rows = list(csv.reader(io.StringIO(as_csv(table))))
    assert rows == [["a,b", "x"], ['say "hi"\n', "0.30000000000000004"], ["[1,2]", "nan"], ["", "true"]]


@pytest.mark.parametrize("rows", [[], [{"a": math.inf}], [{"a": 1}, {"b": [math.nan]}]])
def test_json_is_strict_json_whatever_the_number_of_rows(rows):
    read = json.loads("".join(as_json(rows)), parse_constant=lambda name: pytest.fail(name))
    assert len(read) == len(rows)


def test_html_is_one_escaped_page_that_loads_nothing():
    page = as_html("<script>alert(1)</script>", [("a & b", Table(["<x>"], [["</td><img src=x>"], [1.5]]))])
    seen = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag, attrs):
            seen.append((tag, dict(attrs)))

    Reader().feed(page)
    assert {tag for tag, _ in seen} <= {
        "html",
        "meta",
        "title",
        "style",
        "h1",
        "h2",
        "table",
        "tr",
        "th",
        "td",
    }
    assert not any(key in ("src", "href") for _, attrs in seen for key in attrs)
    assert "url(" not in page

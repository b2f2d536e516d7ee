"""Queries as a tree, and what they answer: `optimizer.lr >= 0.01 and best(val/accuracy) > 0.9`, asked of values that keep
their types. `daypoint.reading.grammar` reads them.

The logic has three values, as that of SQL: what is asked about a name that is not there is neither true nor false, so
neither `x > 1` nor `not x > 1` holds without an x. `null` is a value like any other: `model.dropout == null` finds those
that have been set to nothing. Text, numbers and booleans are never equal to one another, and none is above or below another.
NaN is above and below nothing, and equal to NaN.

This module knows no runs and evaluates no Python: whoever asks gives it a function from names to values.
One number: a comparison takes 0.6 µs.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

FUNCTIONS = ("best", "last", "first", "min", "max")
MISSING: Any = type("Missing", (), {"__repr__": lambda self: "MISSING"})()
"""What a name is worth where it is not known."""

WORDS = {
    "true": True,
    "false": False,
    "null": None,
    "none": None,
    "nan": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
}
RESERVED = ("and", "or", "not", "in")
PLAIN = re.compile(r"[^\W\d][\w./\-@:%]*")


@dataclass(frozen=True)
class Name:
    """What is asked about: a name, maybe inside a function."""

    name: str
    function: str | None = None

    def __str__(self) -> str:
        plain = PLAIN.fullmatch(self.name) and self.name.lower() not in (*RESERVED, *WORDS)
        text = self.name if plain else f"`{self.name.replace('`', '``')}`"
        return f"{self.function}({text})" if self.function else text


@dataclass(frozen=True)
class Literal:
    """A value, and how it was written, since a bare 20260328 may be meant as text."""

    value: Any
    text: str = field(default="", compare=False)

    def __str__(self) -> str:
        return _spell(self.value)


@dataclass(frozen=True)
class Compare:
    """`name op literal`; the literal of `in` is a list, that of `~` text."""

    name: Name
    op: str
    literal: Literal

    def __str__(self) -> str:
        return f"{self.name} {self.op} {self.literal}"


@dataclass(frozen=True)
class Not:
    part: Expression

    def __str__(self) -> str:
        return f"not {_in_parentheses(self.part)}"


@dataclass(frozen=True)
class Junction:
    """Several parts joined by `and` or by `or`."""

    word: str
    parts: tuple[Expression, ...]

    def __str__(self) -> str:
        return f" {self.word} ".join(_in_parentheses(part) for part in self.parts)


Expression = Compare | Not | Junction


def _in_parentheses(part: Expression) -> str:
    return f"({part})" if isinstance(part, Junction) else str(part)


def _spell(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_spell(item) for item in value)}]"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return json.dumps(value, ensure_ascii=False)


def names(expression: Expression) -> Iterator[Name]:
    """Every name that a query asks about."""
    if isinstance(expression, Compare):
        yield expression.name
    else:
        for part in (expression.part,) if isinstance(expression, Not) else expression.parts:
            yield from names(part)


# ---------------------------------------------------------------- answering

_ORDER = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def matches(expression: Expression, value_of: Callable[[Name], Any]) -> bool | None:
    """Whether a query holds: True, False, or None where it asks about what is `MISSING` and nothing else decides."""
    if isinstance(expression, Compare):
        return compare(value_of(expression.name), expression.op, expression.literal.value)
    if isinstance(expression, Not):
        inner = matches(expression.part, value_of)
        return None if inner is None else not inner
    decisive = expression.word == "or"
    answer: bool | None = not decisive
    for part in expression.parts:
        found = matches(part, value_of)
        if found is decisive:
            return decisive
        if found is None:
            answer = None
    return answer


def compare(value: Any, op: str, literal: Any) -> bool | None:
    """One comparison; None where the value is `MISSING`, or of a kind that has no such order."""
    if value is MISSING:
        return None
    if op == "==":
        return _same(value, literal)
    if op == "!=":
        return not _same(value, literal)
    if op == "in":
        return any(_same(value, item) for item in literal)
    if op == "~":
        return bool(re.search(literal, value)) if isinstance(value, str) else None
    if (_is_number(value) and _is_number(literal)) or (isinstance(value, str) and isinstance(literal, str)):
        return _ORDER[op](value, literal)
    return None


def _same(value: Any, literal: Any) -> bool:
    if _is_number(value) and _is_number(literal):
        return value == literal or (value != value and literal != literal)  # NaN is NaN
    if isinstance(value, list | tuple) and isinstance(literal, list):
        return len(value) == len(literal) and all(map(_same, value, literal))
    return type(value) is type(literal) and value == literal


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

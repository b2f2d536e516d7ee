"""A query as a tree, and its answer for one run's values: `optimizer.lr >= 0.01 and best(val/accuracy) > 0.9`.

`daypoint.reading.grammar` makes the tree from text. The logic has three values, as in SQL: a comparison with a name that is
missing is neither true nor false, so neither `x > 1` nor `not x > 1` holds without an x. `null` is a value like any other:
`model.dropout == null` finds the runs where it was set to null. Text, numbers and booleans are never equal to one another, and
have no order between them. NaN equals NaN, and is neither above nor below anything.

This module knows no runs and evaluates no Python: the caller gives it a function from names to values.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

FUNCTIONS = ("best", "last", "first", "min", "max")
MISSING: Any = type("Missing", (), {"__repr__": lambda self: "MISSING"})()
"""The value of a name that a run does not have."""

WORDS = {
    "true": True,
    "false": False,
    "null": None,
    "none": None,
    "nan": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
}
_PLAIN = re.compile(r"[^\W\d][\w./\-@:%]*")


def is_plain(name: str) -> bool:
    """Whether a name can be written without backticks."""
    return bool(_PLAIN.fullmatch(name)) and name.lower() not in ("and", "or", "not", "in", *WORDS)


@dataclass(frozen=True)
class Name:
    """A name, maybe inside a function."""

    name: str
    function: str | None = None

    def __str__(self) -> str:
        text = self.name if is_plain(self.name) else f"`{self.name.replace('`', '``')}`"
        return f"{self.function}({text})" if self.function else text


@dataclass(frozen=True)
class Literal:
    """A value, and how it was written, since a bare 20260328 may be meant as text. Of a list, both are lists."""

    value: Any
    text: Any


@dataclass(frozen=True)
class Compare:
    """`name op literal`; the literal of `in` is a list, that of `~` text."""

    name: Name
    op: str
    literal: Literal


@dataclass(frozen=True)
class Not:
    part: Expression


@dataclass(frozen=True)
class Junction:
    """Several parts joined by `and` or by `or`."""

    word: str
    parts: tuple[Expression, ...]


Expression = Compare | Not | Junction


def names(expression: Expression) -> Iterator[Name]:
    """Every name in a query."""
    if isinstance(expression, Compare):
        yield expression.name
    else:
        for part in (expression.part,) if isinstance(expression, Not) else expression.parts:
            yield from names(part)


def matches(expression: Expression, value_of: Callable[[Name], Any]) -> bool | None:
    """Whether a query holds: True, False, or None where it depends on a value that is `MISSING`."""
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


_ORDER = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


def compare(value: Any, op: str, literal: Any) -> bool | None:
    """One comparison; None where the value is `MISSING`, or the two have no order."""
    if value is MISSING:
        return None
    if op in ("==", "!="):
        return same(value, literal) == (op == "==")
    if op == "in":
        return any(same(value, item) for item in literal)
    if op == "~":
        return bool(re.search(literal, value)) if isinstance(value, str) else None
    if (_is_number(value) and _is_number(literal)) or (isinstance(value, str) and isinstance(literal, str)):
        return _ORDER[op](value, literal)
    return None


def same(a: Any, b: Any) -> bool:
    """Equality that tells true from 1, and takes NaN for NaN."""
    if _is_number(a) and _is_number(b):
        return a == b or (a != a and b != b)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

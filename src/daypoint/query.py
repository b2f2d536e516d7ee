"""Queries: `optimizer.lr>=0.01 and best(val/accuracy) > 0.9`, read into a tree and asked of values that keep their types.

    expression   not, and, or, in this order of strength; parentheses
    comparison   NAME OP LITERAL, with OP one of == = != < <= > >=; NAME ~ REGEX; NAME [not] in [LITERAL, …]
    NAME         letters, digits and `_ . / - @ : %`; any other name between backticks; alone it stands for `NAME == true`
    FUNCTION     best(NAME), last(…), first(…), min(…), max(…)
    LITERAL      numbers, nan, inf, true, false, null, [lists], "text", 'text', and bare words, which are text

The logic has three values, as that of SQL: what is asked about a name that is not there is neither true nor false, so
neither `x > 1` nor `not x > 1` holds without an x. `null` is a value like any other: `model.dropout == null` finds those
that have been set to nothing. Text, numbers and booleans are never equal to one another, and none is above or below another.

This module knows no runs and evaluates no Python: whoever asks gives it a function from names to values.
One number: a million comparisons in about 0.4 s.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from daypoint.errors import ConfigError

FUNCTIONS = ("best", "last", "first", "min", "max")
DEEPEST = 100
"""Parentheses and nots inside one another."""
MISSING: Any = type("Missing", (), {"__repr__": lambda self: "MISSING"})()
"""What a name is worth where it is not known."""

_WORDS = {"true": True, "false": False, "null": None, "none": None, "nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_RESERVED = ("and", "or", "not", "in")
_TOKEN = re.compile(
    r"""\s*(?:(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<quoted>`[^`]+`)"""
    r"""|(?P<op>==|!=|<=|>=|=|<|>|~|\(|\)|\[|\]|,)|(?P<word>[^\s"'`=!<>~()\[\],]+))""",
    re.DOTALL,
)
_NAME = re.compile(r"[^\W\d][\w./\-@:%]*")
_NUMBER = re.compile(r"[+-]?(\d[\d_]*\.?\d*|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True)
class Name:
    """What is asked about: a name, maybe inside a function."""

    name: str
    function: str | None = None

    def __str__(self) -> str:
        plain = _NAME.fullmatch(self.name) and self.name.lower() not in (*_RESERVED, *_WORDS)
        text = self.name if plain else f"`{self.name}`"
        return f"{self.function}({text})" if self.function else text


@dataclass(frozen=True)
class Literal:
    """A value, and how it was written, since a bare 20260328 may be meant as text."""

    value: Any
    text: str = ""

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
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return json.dumps(value, ensure_ascii=False)


# ---------------------------------------------------------------- reading


def parse(text: str) -> Expression:
    """Read a query. `str` of what comes back reads as the same query.

    Raises:
        ConfigError: it is none; points at the place.
    """
    return _Parser(text).whole()


def parse_name(text: str) -> Name:
    """Read a name alone, as a column or what to sort by is given.

    Raises:
        ConfigError: it is none.
    """
    parser = _Parser(text)
    name = parser.name()
    parser.end()
    return name


def names(expression: Expression) -> Iterator[Name]:
    """Every name that a query asks about."""
    if isinstance(expression, Compare):
        yield expression.name
    else:
        for part in (expression.part,) if isinstance(expression, Not) else expression.parts:
            yield from names(part)


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    position: int

    def is_word(self, word: str) -> bool:
        return self.kind == "word" and self.text.lower() == word


class _Parser:
    """Recursive descent, one token ahead."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.depth = 0
        self.tokens = self._scan()
        self.next = next(self.tokens)

    def _scan(self) -> Iterator[_Token]:
        position = 0
        while self.text[position:].strip():
            match = _TOKEN.match(self.text, position)
            if match is None:
                rest = len(self.text) - len(self.text[position:].lstrip())
                self.refuse("expected a name, a value or an operator", rest)
            kind = str(match.lastgroup)
            yield _Token(kind, match[kind], match.start(kind))
            position = match.end()
        while True:
            yield _Token("end", "", len(self.text))

    def refuse(self, expected: str, position: int | None = None) -> NoReturn:
        position = self.next.position if position is None else position
        start = max(position - 60, 0)
        shown = self.text[start : position + 20].replace("\n", " ").replace("\t", " ")
        found = f"found {self.text[position : position + 20]!r}" if position < len(self.text) else "found its end"
        raise ConfigError(f"query: {expected}, {found}\n  {shown}\n  {' ' * (position - start)}^")

    def take(self) -> _Token:
        token, self.next = self.next, next(self.tokens)
        return token

    def end(self) -> None:
        if self.next.kind != "end":
            self.refuse("expected the end, or `and` or `or`")

    def whole(self) -> Expression:
        found = self.junction("or")
        self.end()
        return found

    def junction(self, word: str) -> Expression:
        parts = [self.junction("and") if word == "or" else self.negation()]
        while self.next.is_word(word):
            self.take()
            parts.append(self.junction("and") if word == "or" else self.negation())
        return Junction(word, tuple(parts)) if len(parts) > 1 else parts[0]

    def negation(self) -> Expression:
        self.depth += 1
        if self.depth > DEEPEST:
            self.refuse(f"expected at most {DEEPEST} parentheses inside one another")
        if self.next.is_word("not"):
            self.take()
            found: Expression = Not(self.negation())
        elif self.next.text == "(" and self.next.kind == "op":
            self.take()
            found = self.junction("or")
            self.close(")")
        else:
            found = self.comparison()
        self.depth -= 1
        return found

    def close(self, bracket: str) -> None:
        if self.next.kind != "op" or self.next.text != bracket:
            self.refuse(f"expected {bracket}")
        self.take()

    def name(self) -> Name:
        token = self.next
        if token.kind == "quoted":
            self.take()
            return Name(token.text[1:-1])
        lower = token.text.lower()
        if token.kind != "word" or not _NAME.fullmatch(token.text) or lower in (*_RESERVED, *_WORDS):
            self.refuse("expected a name (in `backticks` if it has other characters than letters, digits and _./-@:%)")
        self.take()
        if not (self.next.kind == "op" and self.next.text == "("):
            return Name(token.text)
        if token.text not in FUNCTIONS:
            self.refuse(f"expected one of {', '.join(FUNCTIONS)} before a parenthesis", token.position)
        self.take()
        inner = self.name()
        if inner.function is not None:
            self.refuse(f"expected a metric inside {token.text}(…), not a function", token.position)
        self.close(")")
        return Name(inner.name, token.text)

    def comparison(self) -> Expression:
        name = self.name()
        if self.next.is_word("in"):
            self.take()
            return Compare(name, "in", self.list())
        if self.next.is_word("not"):
            self.take()
            if not self.next.is_word("in"):
                self.refuse("expected `in` after `not`")
            self.take()
            return Not(Compare(name, "in", self.list()))
        if self.next.kind != "op" or self.next.text in "()[],":
            return Compare(name, "==", Literal(True, "true"))
        op = self.take().text
        position = self.next.position
        literal = self.literal()
        if op == "~":
            try:
                re.compile(literal.text)
            except re.error as error:
                self.refuse(f"expected a regular expression ({error})", position)
            literal = Literal(literal.text, literal.text)
        return Compare(name, "==" if op == "=" else op, literal)

    def list(self) -> Literal:
        if self.next.kind != "op" or self.next.text != "[":
            self.refuse("expected a list in brackets, such as [1, 2]")
        self.take()
        self.depth += 1
        if self.depth > DEEPEST:
            self.refuse(f"expected at most {DEEPEST} brackets inside one another")
        items: list[Literal] = []
        while self.next.text != "]" or self.next.kind != "op":
            if items:
                self.close(",")
            items.append(self.literal())
        self.take()
        self.depth -= 1
        return Literal([item.value for item in items], "\0".join(item.text for item in items))

    def literal(self) -> Literal:
        token = self.next
        if token.kind == "op" and token.text == "[":
            return self.list()
        if token.kind == "string":
            self.take()
            text = re.sub(r"\\(.)", r"\1", token.text[1:-1], flags=re.DOTALL) if "\\" in token.text else token.text[1:-1]
            return Literal(text, text)
        if token.kind not in ("word", "quoted"):
            self.refuse("expected a value")
        self.take()
        if token.kind == "word" and token.text.lower() in _WORDS:
            return Literal(_WORDS[token.text.lower()], token.text)
        if token.kind == "word" and _NUMBER.fullmatch(token.text):
            whole = re.fullmatch(r"[+-]?[\d_]+", token.text)
            return Literal(int(token.text) if whole and len(token.text) < 4000 else float(token.text), token.text)
        text = token.text.strip("`")
        return Literal(text, text)


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

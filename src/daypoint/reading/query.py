"""Queries: `optimizer.lr >= 0.01 and best(val/accuracy) > 0.9` as a tree, and the answer for one run's values.

    expression   not, and, or, in this order of strength; parentheses
    comparison   NAME OP LITERAL, with OP one of = == != < <= > >=; NAME ~ REGEX; NAME [not] in [LITERAL, …]
    NAME         letters, digits and `_ . / - @ : %`; any other name between backticks; alone it stands for `NAME == true`
    FUNCTION     best(NAME), last(…), first(…), min(…), max(…)
    LITERAL      numbers, nan, inf, true, false, null, [lists], "text", 'text', and bare words, which are text

The logic has three values, as in SQL: a comparison with a name that is missing is neither true nor false, so neither `x > 1` nor
`not x > 1` holds without an x. `null` is a value like any other: `model.dropout == null` finds the runs where it was set to null.
Text, numbers and booleans are never equal to one another, and have no order between them. NaN equals NaN, and is neither above
nor below anything.

This module knows no runs and evaluates no Python: the caller gives it a function from names to values.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from daypoint.base.errors import ConfigError

T = TypeVar("T")

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


# ---------------------------------------------------------------- reading text

_DEEPEST = 100
"""Levels of brackets and nots; Python's stack has room for that many."""
_OPERATORS = ("==", "!=", "<=", ">=", "=", "<", ">", "~")
_TOKEN = re.compile(
    r"""\s*(?:(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<quoted>`(?:[^`]|``)+`)"""
    r"""|(?P<op>==|!=|<=|>=|=|<|>|~|\(|\)|\[|\]|,)|(?P<word>[^\s"'`=!<>~()\[\],]+))""",
    re.DOTALL,
)
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def parse(text: str) -> Expression:
    """Read a query.

    Raises:
        ConfigError: it is none; points at the place.
    """
    parser = _Parser(text)
    return parser.whole(parser.disjunction)


def parse_name(text: str) -> Name:
    """Read a name alone: a column, or what to sort by.

    Raises:
        ConfigError: it is none.
    """
    parser = _Parser(text)
    return parser.whole(parser.name)


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    position: int


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
        found = repr(self.text[position : position + 20]) if position < len(self.text) else "its end"
        raise ConfigError(f"query: {expected}, found {found}\n  {shown}\n  {' ' * (position - start)}^")

    def take(self) -> _Token:
        token, self.next = self.next, next(self.tokens)
        return token

    def accept(self, *texts: str) -> str | None:
        """Take the next token if it is one of these operators or words."""
        return self.take().text if self.next.text.lower() in texts else None

    def expect(self, text: str, called: str | None = None) -> None:
        if not self.accept(text):
            self.refuse(f"expected {called or text}")

    def nested(self, part: Callable[[], T]) -> T:
        self.depth += 1
        if self.depth > _DEEPEST:
            self.refuse(f"expected at most {_DEEPEST} brackets and nots inside one another")
        found = part()
        self.depth -= 1
        return found

    def whole(self, part: Callable[[], T]) -> T:
        found = part()
        if self.next.kind != "end":
            self.refuse("expected the end, or `and` or `or`")
        return found

    def disjunction(self) -> Expression:
        return self.joined("or", lambda: self.joined("and", self.negation))

    def joined(self, word: str, part: Callable[[], Expression]) -> Expression:
        parts = [part()]
        while self.accept(word):
            parts.append(part())
        return Junction(word, tuple(parts)) if len(parts) > 1 else parts[0]

    def negation(self) -> Expression:
        if self.accept("not"):
            return Not(self.nested(self.negation))
        if self.accept("("):
            found = self.nested(self.disjunction)
            self.expect(")")
            return found
        return self.comparison()

    def name(self) -> Name:
        token = self.next
        if token.kind != "quoted" and not (token.kind == "word" and is_plain(token.text)):
            self.refuse(
                "expected a name (in `backticks` if it has other characters than letters, digits and _./-@:%)"
            )
        self.take()
        if token.kind == "quoted":
            return Name(_unquoted(token.text))
        if not self.accept("("):
            return Name(token.text)
        if token.text not in FUNCTIONS:
            self.refuse(f"expected one of {', '.join(FUNCTIONS)} before a parenthesis", token.position)
        inner = self.nested(self.name)
        if inner.function is not None:
            self.refuse(f"expected a metric inside {token.text}(…), not a function", token.position)
        self.expect(")")
        return Name(inner.name, token.text)

    def comparison(self) -> Expression:
        name = self.name()
        if self.accept("in"):
            return Compare(name, "in", self.list())
        if self.accept("not"):
            self.expect("in", "`in` after `not`")
            return Not(Compare(name, "in", self.list()))
        op = self.accept(*_OPERATORS)
        if op is None:
            return Compare(name, "==", Literal(True, "true"))
        position = self.next.position
        literal = self.literal()
        if op == "~":
            literal = Literal(str(literal.text), literal.text)
            try:
                re.compile(literal.value)
            except re.error as error:
                self.refuse(f"expected a regular expression ({error})", position)
        return Compare(name, "==" if op == "=" else op, literal)

    def list(self) -> Literal:
        self.expect("[", "a list in brackets, such as [1, 2]")
        items: list[Literal] = []
        while not self.accept("]"):
            if items:
                self.expect(",")
            items.append(self.nested(self.literal))
        return Literal([item.value for item in items], [item.text for item in items])

    def literal(self) -> Literal:
        token = self.next
        if token.text == "[":
            return self.list()
        if token.kind not in ("word", "string", "quoted"):
            self.refuse("expected a value")
        self.take()
        text = token.text if token.kind == "word" else _unquoted(token.text)
        value: object = text
        if token.kind == "word" and text.lower() in WORDS:
            value = WORDS[text.lower()]
        elif token.kind == "word" and _NUMBER.fullmatch(text):
            try:
                value = int(text)
            except ValueError:  # a fraction, or more digits than Python turns into an int
                value = float(text)
        return Literal(value, text)


def _unquoted(text: str) -> str:
    """Inside quotes a backslash makes a quote or a backslash plain; before anything else it stands for itself, so that
    regular expressions can be written as they are. Inside backticks a backtick is written twice.
    """
    if text[0] == "`":
        return text[1:-1].replace("``", "`")
    return re.sub(r"""\\(["'\\])""", r"\1", text[1:-1])

"""The parser of queries: text into the tree of `daypoint.reading.query`, or a message that points at the place.

    expression   not, and, or, in this order of strength; parentheses
    comparison   NAME OP LITERAL, with OP one of = == != < <= > >=; NAME ~ REGEX; NAME [not] in [LITERAL, …]
    NAME         letters, digits and `_ . / - @ : %`; any other name between backticks; alone it stands for `NAME == true`
    FUNCTION     best(NAME), last(…), first(…), min(…), max(…)
    LITERAL      numbers, nan, inf, true, false, null, [lists], "text", 'text', and bare words, which are text

Nothing is evaluated: there is no arithmetic, and no way to call anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from daypoint.base.errors import ConfigError
from daypoint.reading.query import (
    FUNCTIONS,
    WORDS,
    Compare,
    Expression,
    Junction,
    Literal,
    Name,
    Not,
    is_plain,
)

T = TypeVar("T")

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

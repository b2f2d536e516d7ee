"""The grammar of queries: text into the tree of `daypoint.reading.query`, or a message that points at the place.

    expression   not, and, or, in this order of strength; parentheses
    comparison   NAME OP LITERAL, with OP one of = == != < <= > >=; NAME ~ REGEX; NAME [not] in [LITERAL, …]
    NAME         letters, digits and `_ . / - @ : %`; any other name between backticks; alone it stands for `NAME == true`
    FUNCTION     best(NAME), last(…), first(…), min(…), max(…)
    LITERAL      numbers, nan, inf, true, false, null, [lists], "text", 'text', and bare words, which are text

Nothing in it is evaluated: there is no arithmetic, and no way to call anything. One number: 35 µs for three comparisons.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from daypoint.base.errors import ConfigError
from daypoint.reading.query import (
    FUNCTIONS,
    PLAIN,
    RESERVED,
    WORDS,
    Compare,
    Expression,
    Junction,
    Literal,
    Name,
    Not,
)

DEEPEST = 100
"""Parentheses and nots inside one another."""
_TOKEN = re.compile(
    r"""\s*(?:(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<quoted>`(?:[^`]|``)+`)"""
    r"""|(?P<op>==|!=|<=|>=|=|<|>|~|\(|\)|\[|\]|,)|(?P<word>[^\s"'`=!<>~()\[\],]+))""",
    re.DOTALL,
)
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


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
        found = (
            f"found {self.text[position : position + 20]!r}" if position < len(self.text) else "found its end"
        )
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
            return Name(_unquoted(token.text))
        lower = token.text.lower()
        if token.kind != "word" or not PLAIN.fullmatch(token.text) or lower in (*RESERVED, *WORDS):
            self.refuse(
                "expected a name (in `backticks` if it has other characters than letters, digits and _./-@:%)"
            )
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
            return Literal(text := _unquoted(token.text), text)
        if token.kind not in ("word", "quoted"):
            self.refuse("expected a value")
        self.take()
        if token.kind == "word" and token.text.lower() in WORDS:
            return Literal(WORDS[token.text.lower()], token.text)
        if token.kind == "word" and _NUMBER.fullmatch(token.text):
            is_whole = (
                token.text.lstrip("+-").isdigit() and len(token.text) < 4000
            )  # longer ones Python refuses
            return Literal(int(token.text) if is_whole else float(token.text), token.text)
        text = token.text if token.kind == "word" else _unquoted(token.text)
        return Literal(text, text)


def _unquoted(text: str) -> str:
    """Inside quotes a backslash makes a quote or a backslash plain; before anything else it stands for itself, so that
    regular expressions can be written as they are. Inside backticks a backtick is written twice.
    """
    if text[0] == "`":
        return text[1:-1].replace("``", "`")
    return re.sub(r"""\\(["'\\])""", r"\1", text[1:-1])

"""Queries and their grammar: what is written reads back, and answers are those of a slow and simple reading."""

import contextlib
import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daypoint.base.errors import ConfigError
from daypoint.reading.query import (
    MISSING,
    Compare,
    Junction,
    Literal,
    Name,
    Not,
    matches,
    names,
    parse,
    parse_name,
)

texts = st.text(max_size=8)
plain = st.sampled_from(
    ["a", "b.c", "val/accuracy", "top-5", "acc@1", "not", "true", "x y", "a`b", "5shot", "é"]
)
numbers = st.one_of(st.integers(-(10**20), 10**20), st.floats(allow_nan=True))
scalars = st.one_of(numbers, texts, st.booleans(), st.none())
functions = st.sampled_from([None, "best", "last", "first", "min", "max"])
asked = st.builds(Name, plain, functions)


def literals(values):
    return values.map(lambda value: Literal(value, None))


compares = st.one_of(
    st.builds(
        Compare,
        asked,
        st.sampled_from(["==", "!=", "<", "<=", ">", ">="]),
        literals(st.one_of(scalars, st.lists(scalars, max_size=3))),
    ),
    st.builds(Compare, asked, st.just("in"), literals(st.lists(scalars, max_size=3))),
    st.builds(Compare, asked, st.just("~"), literals(texts.map(re.escape))),
)
expressions = st.recursive(
    compares,
    lambda part: st.one_of(
        st.builds(Not, part),
        st.builds(
            Junction, st.sampled_from(["and", "or"]), st.lists(part, min_size=2, max_size=3).map(tuple)
        ),
    ),
    max_leaves=8,
)


def written(expression):
    """A query as a person could write it."""
    if isinstance(expression, Compare):
        return f"{expression.name} {expression.op} {spelt(expression.literal.value)}"
    if isinstance(expression, Not):
        return f"not {in_parentheses(expression.part)}"
    return f" {expression.word} ".join(map(in_parentheses, expression.parts))


def in_parentheses(part):
    return f"({written(part)})" if isinstance(part, Junction) else written(part)


def spelt(value):
    if isinstance(value, list):
        return f"[{', '.join(map(spelt, value))}]"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return json.dumps(value, ensure_ascii=False)


@given(expressions)
def test_what_is_written_reads_back_as_the_same_query(expression):
    assert written(parse(written(expression))) == written(expression)


@given(asked)
def test_a_name_reads_back_as_the_same_name(name):
    assert parse_name(str(name)) == name


def naive(expression, values):
    """The answer by the truth tables of three values: 1, 0 and a half."""
    if isinstance(expression, Not):
        return 1 - naive(expression.part, values)
    if isinstance(expression, Junction):
        return (min if expression.word == "and" else max)(naive(part, values) for part in expression.parts)
    value, literal = values.get(expression.name, MISSING), expression.literal.value
    if value is MISSING:
        return 0.5
    if expression.op == "~":
        return float(re.search(literal, value) is not None) if type(value) is str else 0.5
    if expression.op in ("==", "!=", "in"):
        found = any(naively_equal(value, one) for one in (literal if expression.op == "in" else [literal]))
        return float(found != (expression.op == "!="))
    kinds = {kind(value), kind(literal)}
    if kinds not in ({"number"}, {"text"}):
        return 0.5
    below, same = value < literal, value == literal
    answers = {"<": below, "<=": below or same, ">": literal < value, ">=": literal < value or same}
    return float(answers[expression.op])


def kind(value):
    return {int: "number", float: "number", str: "text", bool: "bool", type(None): "null", list: "list"}[
        type(value)
    ]


def naively_equal(a, b):
    if kind(a) != kind(b):
        return False
    if kind(a) == "list":
        return len(a) == len(b) and all(naively_equal(x, y) for x, y in zip(a, b, strict=True))
    return a == b or (a != a and b != b)


@given(expressions, st.data())
def test_answers_are_those_of_the_truth_tables(expression, data):
    values = {}
    for name in set(names(expression)):
        value = data.draw(st.one_of(scalars, st.lists(scalars, max_size=3), st.just(MISSING)))
        values[name] = value
    answer = matches(expression, lambda name: values[name])
    assert {True: 1, False: 0, None: 0.5}[answer] == naive(expression, values)


@given(st.text(max_size=40))
def test_any_text_is_a_query_or_one_message(text):
    with contextlib.suppress(ConfigError):
        parse(text)


VALUES = {
    "optimizer.lr": 1e-5,
    "model.dropout": None,
    "data.kind": "None",
    "amp": True,
    "betas": [0.9, 0.95],
    "loss": math.nan,
    "acc@1": 0.5,
    "name": "cnn-v2",
    "zero": 0,
}


def holds(text):
    return matches(parse(text), lambda name: VALUES.get(name.name, MISSING))


@pytest.mark.parametrize(
    "text",
    [
        "optimizer.lr = 0.00001",
        "optimizer.lr == 1e-5 and amp",
        "optimizer.lr<1 or nowhere>1",
        "model.dropout == null",
        "model.dropout = NULL",
        "data.kind = 'None'",
        "data.kind != null",
        "amp = true",
        "amp != 1",
        "betas = [0.9, 0.95]",
        "loss = nan",
        "not loss > 0",
        "acc@1 >= .5",
        "`acc@1` in [1, 0.5]",
        "name = cnn-v2",
        'name ~ "^cnn-v\\d$"',
        "name not in [mlp, 'cnn']",
        "NOT (amp = false OR zero != 0)",
        "zero = 0 and not zero",
    ],
)
def test_holds(text):
    assert holds(text) is True


@pytest.mark.parametrize(
    "text",
    [
        "optimizer.lr > 0.1",
        "data.kind = null",
        "model.dropout = 'None'",
        "amp = 1",
        "loss > 0",
        "loss < 0",
        "zero = false",
    ],
)
def test_does_not_hold(text):
    assert holds(text) is False


@pytest.mark.parametrize(
    "text",
    [
        "nowhere > 1",
        "not nowhere > 1",
        "nowhere != 1",
        "name > 3",
        "amp > 0",
        "model.dropout < 1",
        "zero ~ 0",
    ],
)
def test_is_neither_true_nor_false(text):
    assert holds(text) is None


@pytest.mark.parametrize(
    ("text", "place", "expected"),
    [
        ("", 0, "expected a name"),
        ("a >", 3, "expected a value, found its end"),
        ("a > 1 b", 6, "expected the end"),
        ("(a > 1", 6, "expected )"),
        ("a in 3", 5, "expected a list"),
        ("a in [1, 2", 10, "expected ,"),
        ("a ~ '('", 4, "expected a regular expression"),
        ("a > 'x", 4, "expected a name, a value or an operator"),
        ("mean(a) > 1", 0, "expected one of best, last"),
        ("best(min(a))", 0, "expected a metric inside"),
        ("1 < a", 0, "expected a name"),
        ("a not 3", 6, "expected `in`"),
    ],
)
def test_a_message_points_at_the_place(text, place, expected):
    with pytest.raises(ConfigError, match=re.escape(expected)) as caught:
        parse(text)
    assert str(caught.value).splitlines()[-1] == "  " + " " * place + "^"


@pytest.mark.parametrize("text", ["(" * 5000 + "a" + ")" * 5000, "not " * 5000 + "a", "a in " + "[" * 5000])
def test_endless_nesting_is_one_message(text):
    with pytest.raises(ConfigError, match="inside one another"):
        parse(text)


def test_nothing_is_evaluated():
    for text in ("__import__('os').system('x')", "a > (lambda: 1)()", "a = f(1)"):
        with pytest.raises(ConfigError):
            parse(text)

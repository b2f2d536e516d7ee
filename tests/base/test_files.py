"""Strict JSON in and out, and atomic replacement."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daypoint.base import files

numbers = st.one_of(st.booleans(), st.integers(), st.floats())
plain = st.recursive(
    st.one_of(st.none(), numbers, st.text()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
    max_leaves=20,
)


def same(a, b):
    """Equal in value and type, NaN being equal to itself and -0.0 not to 0.0."""
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return type(b) is float and (
            (math.isnan(a) and math.isnan(b)) or (a, math.copysign(1, a)) == (b, math.copysign(1, b))
        )
    return type(a) is type(b) and a == b


def refuse_constant(name):
    raise AssertionError(f"{name} is not JSON")


@given(st.dictionaries(st.text(), numbers))
def test_metrics_come_back_exactly(metrics):
    text = orjson.dumps(files.encode_metrics(metrics))
    json.loads(text, parse_constant=refuse_constant)
    assert same(files.decode_metrics(orjson.loads(text)), metrics)


@given(plain)
def test_plain_data_comes_back_exactly(value):
    if not (isinstance(value, dict) and value.keys() & {"$float", "$int"}):
        text = files.dumps(value)
        json.loads(text, parse_constant=refuse_constant)
        assert same(files.loads(text), value)


def test_nan_in_a_config_is_not_the_text_nan():
    assert files.dumps({"clip": math.inf, "name": "Infinity"}, indent=False) == (
        b'{"clip":{"$float":"Infinity"},"name":"Infinity"}\n'
    )


def test_what_is_no_plain_data_is_refused_with_its_place():
    with pytest.raises(TypeError, match=r"\$\.a\[1\].*Path"):
        files.dumps({"a": [1, Path("x")]})


def test_a_key_that_is_no_text_is_refused():
    with pytest.raises(TypeError, match="JSON keys are strings"):
        files.dumps({1: "a", "1": "b"})


def test_write_atomic_replaces_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "run.json"
    files.write_atomic(path, b"old")
    files.write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["run.json"]


def test_a_failed_write_leaves_the_old_content_and_no_leftover(tmp_path):
    path = tmp_path / "run.json"
    files.write_atomic(path, b"old")
    script = (
        "import resource, sys; from pathlib import Path; from daypoint.base.files import write_atomic\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"write_atomic(Path({str(path)!r}), b'x' * 5000)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "File too large" in done.stderr
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["run.json"]


def test_an_escaped_dollar_is_a_dollar():
    """A file that another program has written: what is not plain is looked at in any spelling."""
    assert math.isinf(files.loads(b'{"a": {"\\u0024float": "Infinity"}}')["a"])
    assert files.loads('{"a": {"$int": "9007199254740993"}}') == {"a": 2**53 + 1}

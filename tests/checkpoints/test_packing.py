"""Packing: what goes in comes out, equal in value and type; what cannot is refused by its path."""

from __future__ import annotations

import datetime
import decimal
import enum
import json
import math
import pathlib
from collections import Counter, OrderedDict, defaultdict, deque

import numpy as np
import orjson
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from daypoint.base.errors import CheckpointError
from daypoint.checkpoints.packing import Spare, pack, unpack
from daypoint.checkpoints.tensorfile import read_tensors, write_tensors


def through(value, tmp_path=None, *, copy=True):
    """The round trip, through real JSON and, when there is a place for it, a real safetensors file."""
    tensors, document = pack(value, "state", copy=copy)
    text = orjson.dumps(document)
    if tmp_path is not None:
        path = tmp_path / "tensors.safetensors"
        write_tensors(path, tensors, {})
        tensors, _ = read_tensors(path)
    return unpack(tensors, orjson.loads(text), "state")


def same(left, right) -> bool:
    """Equal in type and value, to the last bit, NaN included."""
    if isinstance(left, torch.Tensor):
        return (
            isinstance(right, torch.Tensor)
            and left.dtype == right.dtype
            and left.shape == right.shape
            and bits(left) == bits(right)
        )
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ndarray | np.generic):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    if isinstance(left, dict):
        return len(left) == len(right) and all(
            same(a, b) and same(left[a], right[b]) for a, b in zip(left, right, strict=True)
        )
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, complex):
        return same(left.real, right.real) and same(left.imag, right.imag)
    if isinstance(left, float):
        both_nan = math.isnan(left) and math.isnan(right)
        return both_nan or (left == right and math.copysign(1, left) == math.copysign(1, right))
    return left == right


def bits(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes()


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters())
    | st.binary(max_size=20)
    | st.complex_numbers()
)
keys = st.integers() | st.text() | st.booleans() | st.none() | st.tuples(st.integers(), st.text())
trees = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(), inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=4).map(OrderedDict)
    ),
    max_leaves=15,
)


@given(trees)
@settings(max_examples=150, deadline=None)
def test_plain_data_comes_back_equal_in_type_and_value(value):
    assert same(through(value), value)


@given(trees)
@settings(max_examples=50, deadline=None)
def test_the_document_is_strict_json(value):
    _, document = pack(value)
    json.dumps(document, allow_nan=False)  # refuses NaN and infinities, which orjson would turn into null
    assert orjson.loads(orjson.dumps(document)) == document


@pytest.mark.parametrize(
    "value",
    [
        {"$float": "NaN"},
        {"dict": {"tensor": "x"}},
        {"float": "NaN"},
        {"tensor": "state.0"},
        {"pairs": [[1, 2]]},
        {1: "a", "1": "b", (1,): "c", None: "d", False: "e"},
        {"a": 2**53, "b": -(2**64), "c": 10**400},
        {"": {"": None}},
        {"lone surrogate": "\ud800", "\ud800": 1},
        [math.nan, math.inf, -math.inf, -0.0, 5e-324],
        {3, 1, 2},
        frozenset({"ab"}),
        Counter({30: 1, 80: 2}),
        torch.Size([2, 3]),
        torch.float8_e4m3fn,
        torch.device("cuda:1"),
        complex(math.nan, -0.0),
    ],
    ids=str,
)
def test_values_that_look_like_our_own_marks_and_rare_kinds_come_back(value):
    assert same(through(value), value)


DTYPES = sorted(
    {
        value
        for value in vars(torch).values()
        if isinstance(value, torch.dtype)
        and not str(value).startswith(("torch.q", "torch.bits", "torch.int", "torch.uint"))
    }
    | {
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint8,
        torch.uint16,
        torch.uint32,
        torch.uint64,
    },
    key=str,
)


@pytest.mark.filterwarnings("ignore:B?Complex.* support is experimental")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_comes_back_to_the_last_bit(dtype, tmp_path):
    raw = (
        torch.arange(3 * 16, dtype=torch.uint8) % 2
        if dtype is torch.bool
        else torch.arange(200, 248).to(torch.uint8)
    )
    value = raw.view(dtype)
    back = through({"all": value, "scalar": value[0], "empty": value[:0]}, tmp_path)
    assert same(back["all"], value)
    assert same(back["scalar"], value[0])
    assert same(back["empty"], value[:0])


@pytest.mark.parametrize("copy", [True, False])
def test_views_and_odd_layouts_come_back_with_their_values(tmp_path, copy):
    base = torch.arange(24.0).reshape(2, 3, 4)
    value = {
        "transposed": base.transpose(0, 2),
        "slice": base[:, 1],
        "strided": base[..., ::2],
        "expanded": torch.ones(1).expand(5),
        "channels_last": torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "conj": torch.tensor([1 + 2j]).conj(),
        "negative view": torch.tensor([1 + 2j]).conj().imag,
        "scalar": torch.tensor(1.5),
        "empty": torch.empty(0, 3),
        "grad": torch.ones(2, requires_grad=True),
    }
    back = through(value, tmp_path, copy=copy)
    assert back.keys() == value.keys()
    assert all(same(back[name], tensor) for name, tensor in value.items())


def test_a_tensor_that_occurs_twice_is_stored_once_and_is_one_again():
    tensor = torch.rand(3)
    tensors, _ = pack([tensor, {"again": tensor}])
    assert len(tensors) == 1
    first, second = through([tensor, {"again": tensor}])
    assert first is second["again"]


def test_tensors_that_share_memory_come_back_with_their_own_values(tmp_path):
    base = torch.arange(6.0)
    back = through([base, base[2:], base.view(2, 3)], tmp_path)
    assert [t.tolist() for t in back] == [[0, 1, 2, 3, 4, 5], [2, 3, 4, 5], [[0, 1, 2], [3, 4, 5]]]


def test_a_copy_does_not_follow_the_live_tensor():
    live = torch.zeros(3)
    tensors, document = pack({"x": live})
    live += 1
    assert unpack(tensors, document)["x"].tolist() == [0, 0, 0]


def test_paths_that_read_alike_keep_their_own_tensors():
    value = {
        "a.b": torch.tensor(1.0),
        "a": {"b": torch.tensor(2.0), "b#2": torch.tensor(3.0)},
        "__metadata__": torch.tensor(4.0),
    }
    back = through(value)
    assert back["a.b"] == 1
    assert back["a"]["b"] == 2
    assert back["a"]["b#2"] == 3
    assert unpack(*pack({"__metadata__": torch.tensor(4.0)})) == {"__metadata__": torch.tensor(4.0)}


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6.0).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(10)[::-2],
        np.array(1.5, dtype=np.float16),
        np.zeros((0, 3), dtype=np.int8),
        np.array([1 + 2j], dtype=np.complex128),
        np.array(["a", "bcd"]),
        np.array([b"a", b"\0b"]),
        np.array(["2026-03-28"], dtype="datetime64[ns]"),
        np.array([1], dtype=">i4"),
        np.float64(math.nan),
        np.float32(0.1),
        np.int64(2**62),
        np.bool_(True),
        np.uint8(255),
        np.complex64(1 + 2j),
        np.str_("text"),
        np.datetime64("2026-03-28T12:00:00"),
    ],
    ids=repr,
)
def test_numpy_comes_back_as_numpy(value, tmp_path):
    assert same(through({"x": value}, tmp_path)["x"], value)


class Colour(enum.Enum):
    RED = 1


class Sub(dict):
    pass


class Point(tuple):
    pass


@pytest.mark.parametrize(
    "value",
    [
        pathlib.Path("/x"),
        datetime.datetime(2026, 3, 28),
        decimal.Decimal("1.5"),
        Colour.RED,
        Sub(a=1),
        Point((1, 2)),
        defaultdict(int),
        deque([1]),
        lambda: None,
        object(),
        torch.nn.Linear(1, 1),
        torch.Generator(),
        range(3),
        np.array([object()]),
        np.zeros(2, dtype=[("a", "f4")]),
        np.ma.masked,
        np.str_(""),
        bytearray(b"x"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_not_on_the_list_is_refused_by_its_path(value):
    with pytest.raises(CheckpointError, match=r"^state\.outer\.1\.inner: cannot store"):
        pack({"outer": [0, {"inner": value}]}, "state")


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (lambda: torch.eye(3).to_sparse(), "to_dense"),
        (lambda: torch.eye(3).to_sparse_csr(), "to_dense"),
        (lambda: torch.empty(2, device="meta"), "to_empty"),
        (lambda: torch.nn.LazyLinear(3).weight, "run one batch"),
        (lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "dequantize"),
    ],
    ids=["coo", "csr", "meta", "lazy", "quantized"],
)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta", "ignore:.*[Qq]uantiz")
def test_a_tensor_without_plain_data_is_refused_with_advice(make, advice):
    with pytest.raises(CheckpointError, match=rf"^extra\.x: cannot store .*{advice}"):
        pack({"x": make()}, "extra")


def test_data_that_contains_itself_is_refused():
    loop: dict = {}
    loop["self"] = [loop]
    with pytest.raises(CheckpointError, match="does it contain itself"):
        pack(loop, "extra")


def test_data_100_deep_comes_back():
    value: list = []
    for _ in range(99):
        value = [value]
    assert through(value) == value


@pytest.mark.parametrize(
    "document",
    [
        {"tensor": "absent"},
        {"unknown": 1},
        {},
        {"torch.dtype": "load"},
        {"scalar": "AAAA", "dtype": "|O"},
        {"array": "x", "dtype": "<f8", "shape": [10**12]},
        {"tensor": "x", "dtype": "float64", "shape": [7]},
        {"pairs": [[{"pairs": []}, 1]]},
        {"float": "1e5"},
    ],
    ids=str,
)
def test_a_document_that_we_would_not_write_is_refused(document):
    with pytest.raises(CheckpointError, match=r"^file\.json: not what daypoint packs"):
        unpack({"x": torch.zeros(8, dtype=torch.uint8)}, document, "file.json")


# ---------------------------------------------------------------- memory of an earlier copy


def test_a_copy_in_spare_memory_is_as_good_as_any():
    value = {
        "a": torch.arange(6.0).reshape(2, 3),
        "b": [torch.tensor(1), torch.zeros(2, 3)],
        "c": torch.ones(4),
    }
    first, _ = pack(value)
    places = {tensor.data_ptr() for tensor in first.values()}
    spare = Spare(first.values())
    value = {"a": torch.full((2, 3), 7.0), "b": [torch.tensor(2), torch.ones(3, 2).T, torch.ones(5)]}
    second, document = pack(value, spare=spare)
    back = unpack(second, document)
    assert torch.equal(back["a"], value["a"])
    assert all(torch.equal(one, other) for one, other in zip(back["b"], value["b"], strict=True))
    assert len({tensor.data_ptr() for tensor in second.values()}) == 4
    assert len({tensor.data_ptr() for tensor in second.values()} & places) == 3
    assert all(tensor.is_contiguous() for tensor in second.values())


def test_memory_of_a_copy_in_inference_mode_is_not_written_to():
    with torch.inference_mode():
        first, _ = pack({"a": torch.ones(3)})
    second, _ = pack({"a": torch.zeros(3)}, spare=Spare(first.values()))
    assert torch.equal(second["a"], torch.zeros(3))

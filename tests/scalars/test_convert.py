"""The strict door. Every dtype that torch and numpy have is on one of two lists: taken exactly, or refused by name."""

import contextlib
import enum
import math
import re
import struct
import subprocess
import sys
import warnings
import weakref
from collections import namedtuple
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
import warm
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from daypoint.base.errors import ScalarError
from daypoint.scalars.convert import check_scalar, scalar_loss, to_py, to_step

settings.register_profile("scalar", deadline=None)  # two busy cores: time is not what is tested
settings.load_profile("scalar")

INTEGERS = {
    torch.uint8: "B",
    torch.uint16: "<H",
    torch.uint32: "<I",
    torch.uint64: "<Q",
    torch.int8: "b",
    torch.int16: "<h",
    torch.int32: "<i",
    torch.int64: "<q",
}
FLOATS = {torch.float16: "<e", torch.float32: "<f", torch.float64: "<d"}
# exponent bits, mantissa bits, bias, and what the patterns that are no number mean
FP8 = {
    torch.float8_e4m3fn: (4, 3, 7, {0x7F: math.nan, 0xFF: math.nan}),
    torch.float8_e4m3fnuz: (4, 3, 8, {0x80: math.nan}),
    torch.float8_e5m2: (5, 2, 15, {0x7C: math.inf, 0xFC: -math.inf}),
    torch.float8_e5m2fnuz: (5, 2, 16, {0x80: math.nan}),
    torch.float8_e8m0fnu: (8, 0, 127, {0xFF: math.nan}),
}
REAL = {torch.bool, torch.bfloat16, *INTEGERS, *FLOATS, *FP8}
EVERY_DTYPE = {dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
NUMPY_REAL = "?bhilqBHILQefd"

real_dtypes = st.sampled_from(sorted(REAL, key=str))
wrong_shapes = st.lists(st.integers(min_value=0, max_value=4), min_size=1, max_size=4).map(tuple)


def from_bytes(pattern, dtype):
    """A 0-dim tensor of that dtype with exactly those bytes."""
    return torch.frombuffer(bytearray(pattern), dtype=torch.uint8).view(dtype).reshape(())


def zeros(shape, dtype):
    """A tensor of zero bytes; torch.zeros is not there for every dtype."""
    count = math.prod(shape)
    flat = torch.zeros(count * torch.empty(1, dtype=dtype).element_size(), dtype=torch.uint8).view(dtype)
    return flat.reshape(shape)


def same(found, expected):
    """Equal in type, in value and in sign, where NaN is NaN."""
    if type(found) is not type(expected):
        return False
    if isinstance(expected, float):
        return struct.pack("d", found) == struct.pack("d", expected) or (
            found != found and expected != expected
        )
    return found == expected


def decode_fp8(byte, dtype):
    exponent_bits, mantissa_bits, bias, special = FP8[dtype]
    if byte in special:
        return special[byte]
    if dtype is torch.float8_e8m0fnu:
        return 2.0 ** (byte - bias)
    if dtype is torch.float8_e5m2 and byte & 0x7C == 0x7C:
        return math.nan
    sign = -1.0 if byte & 0x80 else 1.0
    exponent = (byte >> mantissa_bits) & (2**exponent_bits - 1)
    mantissa = (byte & (2**mantissa_bits - 1)) / 2**mantissa_bits
    return sign * (
        mantissa * 2.0 ** (1 - bias) if exponent == 0 else (1 + mantissa) * 2.0 ** (exponent - bias)
    )


def refusal(x, name="value", batch_size=None):
    """The text with which `x` is refused, after making sure that `to_py` and `check_scalar` say the same."""
    with pytest.raises(ScalarError) as converting:
        to_py(x, name, batch_size=batch_size)
    with pytest.raises(ScalarError) as checking:
        check_scalar(x, name, batch_size)
    assert str(checking.value) == str(converting.value)
    return str(checking.value)


# ---------------------------------------------------------------- taken: Python numbers


@given(st.one_of(st.booleans(), st.integers(), st.floats()))
def test_a_python_number_is_itself(value):
    assert to_py(value) is value
    assert check_scalar(value) is None


def test_subclasses_of_python_numbers_become_the_builtin():
    class Colour(enum.IntEnum):
        RED = 3

    class Liar(float):
        def __float__(self):
            return 0.0

    class Count(int):
        def __int__(self):
            return 0

    for value, expected in ((Colour.RED, 3), (Liar(1.5), 1.5), (Count(7), 7), (np.float64(0.1), 0.1)):
        assert same(to_py(value), expected)


# ---------------------------------------------------------------- taken: torch


def test_every_dtype_of_this_torch_is_taken_or_refused():
    refused = set()
    for dtype in EVERY_DTYPE - REAL:
        with warnings.catch_warnings(action="ignore"):  # creating a quantized or complex32 tensor warns
            x = torch.empty((), dtype=dtype)
        text = refusal(x, "acc")
        assert str(dtype).removeprefix("torch.") in text
        refused.add(dtype)
    for dtype in REAL:
        assert type(to_py(zeros((), dtype))) in (bool, int, float)
    assert refused | REAL == EVERY_DTYPE
    assert len(refused) >= 20


@given(st.sampled_from(sorted({*INTEGERS, *FLOATS}, key=str)), st.binary(min_size=8, max_size=8))
def test_any_bit_pattern_comes_out_exactly(dtype, pattern):
    code = INTEGERS.get(dtype) or FLOATS[dtype]
    pattern = pattern[: struct.calcsize(code)]
    (expected,) = struct.unpack(code, pattern)
    assert same(to_py(from_bytes(pattern, dtype)), expected)


def test_every_bit_pattern_of_bfloat16_comes_out_exactly():
    wrong = []
    for bits in range(0, 2**16, 7):  # coprime to 2: meets every exponent and both signs
        (expected,) = struct.unpack("<f", struct.pack("<I", bits << 16))
        if not same(to_py(from_bytes(struct.pack("<H", bits), torch.bfloat16)), expected):
            wrong.append(bits)
    assert wrong == []


@pytest.mark.parametrize("dtype", FP8, ids=str)
def test_every_bit_pattern_of_fp8_comes_out_exactly(dtype):
    wrong = [b for b in range(256) if not same(to_py(from_bytes(bytes([b]), dtype)), decode_fp8(b, dtype))]
    assert wrong == []


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (torch.bfloat16, 0.10009765625),
        (torch.float16, 0.0999755859375),
        (torch.float32, 0.10000000149011612),
        (torch.float64, 0.1),
        (torch.float8_e4m3fn, 0.1015625),
        (torch.float8_e5m2, 0.09375),
        (torch.float8_e8m0fnu, 0.125),
    ],
    ids=str,
)
def test_a_tenth_is_what_the_dtype_makes_of_it(dtype, expected):
    assert same(to_py(torch.tensor(0.1, dtype=torch.float64).to(dtype)), expected)


@pytest.mark.parametrize("value", [True, False])
def test_a_boolean_tensor_is_a_bool(value):
    assert to_py(torch.tensor(value)) is value


def test_the_largest_unsigned_integer_is_exact():
    assert same(to_py(torch.tensor(2**64 - 1, dtype=torch.uint64)), 2**64 - 1)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.0])
def test_values_that_are_not_finite_are_numbers(value):
    assert same(to_py(torch.tensor(value)), value)
    assert same(to_py(torch.tensor(value, dtype=torch.bfloat16)), value)
    assert same(to_py(np.float32(value)), value)


def tensors_of_every_kind():
    class Subclass(torch.Tensor):
        pass

    with torch.inference_mode():
        inference = torch.tensor(1.5)
    grid = torch.arange(6.0).reshape(2, 3) / 2
    dual = torch.tensor([1 + 1.5j]).conj().imag.neg()[0]
    return {
        "plain": torch.tensor(1.5),
        "leaf with grad": torch.tensor(1.5, requires_grad=True),
        "result with grad": torch.tensor(0.5, requires_grad=True) * 3,
        "Parameter": torch.nn.Parameter(torch.tensor(1.5)),
        "Buffer": torch.nn.Buffer(torch.tensor(1.5)),
        "inference": inference,
        "view": grid[1, 0],
        "expanded": torch.tensor(1.5).expand(1)[0],
        "negative bit": dual,
        "subclass": torch.tensor(1.5).as_subclass(Subclass),
        "pinned layout": torch.tensor(1.5).clone(memory_format=torch.contiguous_format),
        "shared memory": torch.tensor(1.5).share_memory_(),
    }


@pytest.mark.parametrize("kind", tensors_of_every_kind())
def test_every_kind_of_real_tensor_is_taken(kind):
    x = tensors_of_every_kind()[kind]
    assert same(to_py(x), 1.5)
    assert check_scalar(x) is None


def test_a_zero_tensor_without_memory_is_zero():
    assert same(to_py(torch._efficientzerotensor(())), 0.0)


def test_the_tensor_stays_as_it_is():
    weight = torch.tensor(2.0, requires_grad=True)
    loss = weight * weight
    version = loss._version
    assert to_py(loss) == 4.0
    assert (loss._version, loss.requires_grad, weight.grad) == (version, True, None)
    loss.backward()
    assert weight.grad == 4.0


def test_the_graph_is_not_kept_alive():
    class Saved:
        def __init__(self, tensor):
            self.tensor = tensor

    saved = []

    def pack(tensor):
        box = Saved(tensor)
        saved.append(weakref.ref(box))
        return box

    weight = torch.tensor(2.0, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda box: box.tensor):
        loss = weight.sin()
    value = to_py(loss)
    check_scalar(loss)
    scalar_loss(loss)
    assert [box() is not None for box in saved] == [True]
    del loss
    assert [box() for box in saved] == [None]
    assert value == pytest.approx(math.sin(2))


def test_a_loss_with_grad_gives_no_warning_under_w_error():
    program = (
        "import torch; from daypoint.scalars.convert import to_py, scalar_loss\n"
        "print(to_py(torch.tensor(1.5, requires_grad=True)), to_py(torch.nn.Parameter(torch.tensor(2.))))\n"
        "w = torch.ones(2, requires_grad=True); l = scalar_loss((w * w).mean()); l.backward(); print(to_py(l))"
    )
    done = subprocess.run(
        [warm.python(), "-W", "error", "-c", program], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1.5 2.0\n1.0\n", "")


def test_importing_it_brings_neither_torch_nor_numpy():
    program = (
        "import sys; from daypoint.scalars.convert import to_py, to_step\n"
        "assert to_py(0.5) == 0.5 and to_step(3) == 3\n"
        "try: to_py([1.0])\n"
        "except TypeError: print(sorted({'torch', 'numpy', 'mlflow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_checking_runs_no_operation_at_all():
    ran = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            ran.append(func)
            return func(*args, **(kwargs or {}))

    ones, one = torch.ones(8), torch.tensor(1.5, requires_grad=True)
    with Watch():
        check_scalar(one)
        with pytest.raises(ScalarError):
            check_scalar(ones)
        assert ran == []
        to_py(one)
    assert ran == [torch.ops.aten._local_scalar_dense.default]


# ---------------------------------------------------------------- taken: numpy and other arrays


@given(st.sampled_from(NUMPY_REAL), st.sampled_from("<>"), st.binary(min_size=8, max_size=8))
def test_any_numpy_scalar_and_0d_array_comes_out_exactly(code, order, pattern):
    dtype = np.dtype(order + code)
    pattern = bytes([pattern[0] & 1]) if code == "?" else pattern[: dtype.itemsize]
    (expected,) = (
        struct.unpack(order + {4: "i", 8: "q"}[dtype.itemsize], pattern)
        if code in "l"
        else (struct.unpack(order + (code if code != "L" else "Q"), pattern))
    )
    array = np.frombuffer(pattern, dtype=dtype).reshape(())
    assert same(to_py(array), expected)
    assert same(to_py(array[()]), expected)
    assert check_scalar(array) is None


@pytest.mark.parametrize(
    "value", [np.longdouble(0.1), np.longdouble("-inf"), np.longdouble("nan"), np.longdouble(2) ** 60]
)
def test_a_longdouble_that_a_float_equals_is_taken(value):
    assert same(to_py(value), float(value))
    assert same(to_py(np.array(value)), float(value))


@pytest.mark.skipif(np.finfo(np.longdouble).nmant <= 52, reason="longdouble is double here")
@pytest.mark.parametrize("text", ["0.1", "1e-4000", "1e4000", "9007199254740993"])
def test_a_longdouble_that_no_float_equals_is_refused(text):
    for value in (np.longdouble(text), np.array(np.longdouble(text))):
        with pytest.raises(
            ScalarError, match=r"^lr: expected a scalar, got .* of shape \(\) float128(?: on cpu)?; no float"
        ):
            to_py(value, "lr")


class Array:
    """As little as an array of another library must have."""

    def __init__(self, value, shape=(), dtype="float32", device="gpu:0"):
        self.value, self.shape, self.dtype, self.device = value, shape, dtype, device

    def item(self):
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


@given(st.one_of(st.booleans(), st.integers(), st.floats()))
def test_any_other_array_of_no_dimension_with_item_is_taken(value):
    assert to_py(Array(value)) is value


def test_checking_another_array_does_not_fetch_it():
    assert check_scalar(Array(AssertionError("fetched"))) is None


@pytest.mark.parametrize("value", [None, "0.5", Decimal(1), np.float32(1), [1.0], 1 + 0j])
def test_what_item_gives_must_be_a_python_number(value):
    with pytest.raises(ScalarError, match=r"^acc: .*Array of shape \(\) float32 on gpu:0; "):
        to_py(Array(value), "acc")


@pytest.mark.parametrize("error", [TypeError("traced"), ValueError("no"), NotImplementedError("key")])
def test_an_item_that_refuses_is_a_refusal_that_keeps_the_cause(error):
    with pytest.raises(
        ScalarError, match=rf"; its \.item\(\) raised {type(error).__name__}: {error}$"
    ) as refused:
        to_py(Array(error))
    assert refused.value.__cause__ is error


def test_an_item_that_fails_on_its_device_is_not_called_a_wrong_kind():
    with pytest.raises(RuntimeError, match=r"^device lost$"):
        to_py(Array(RuntimeError("device lost")))


# ---------------------------------------------------------------- refused: shapes


@given(real_dtypes, wrong_shapes)
def test_every_shape_but_none_is_refused_and_named(dtype, shape):
    text = refusal(zeros(shape, dtype), "train/loss")
    dtype_name = str(dtype).removeprefix("torch.")
    assert text.startswith(
        f"train/loss: expected a scalar, got a tensor of shape {shape} {dtype_name} on cpu; "
    )


@given(st.sampled_from(NUMPY_REAL), wrong_shapes)
def test_every_numpy_shape_but_none_is_refused_and_named(code, shape):
    text = refusal(np.zeros(shape, code), "acc")
    assert text.startswith(
        f"acc: expected a scalar, got a numpy.ndarray of shape {shape} {np.dtype(code)} on cpu; "
    )


@given(wrong_shapes)
def test_every_other_shape_of_another_array_is_refused_without_fetching_it(shape):
    text = refusal(Array(AssertionError("fetched"), shape), "acc")
    assert f"of shape {shape} float32 on gpu:0; " in text


PER_SAMPLE = "it looks per-sample (batch size 8): reduce it first, e.g. loss.mean()"
STACKED = "if these are several losses stacked, add them (loss_a + loss_b) or log each under its own name"


@pytest.mark.parametrize(
    ("shape", "batch_size", "remedy"),
    [
        ((8,), 8, PER_SAMPLE),
        ((8, 10), 8, PER_SAMPLE),
        ((8,), None, f"if it is per-sample, reduce it first, e.g. loss.mean(); {STACKED}"),
        ((2,), None, f"if it is per-sample, reduce it first, e.g. loss.mean(); {STACKED}"),
        ((2,), 8, f"its length is not the batch size (8): {STACKED}; otherwise reduce it, e.g. loss.mean()"),
        ((3, 4), None, "reduce it first, e.g. loss.mean()"),
        ((1,), None, "loss.squeeze() or index [0]"),
        ((1,), 8, "loss.squeeze() or index [0]"),
        ((1, 1), None, "loss.squeeze() or index [0, 0]"),
        ((1,), 1, "loss.squeeze() or index [0]; or, if it is per-sample (batch size 1), loss.mean()"),
        ((0,), None, "the batch was empty, or a mask left nothing of it: log nothing for such a batch"),
        ((0,), 0, "the batch was empty, or a mask left nothing of it: log nothing for such a batch"),
    ],
)
def test_the_remedy_is_that_of_the_shape(shape, batch_size, remedy):
    text = refusal(torch.zeros(shape), "train/loss", batch_size)
    assert text == f"train/loss: expected a scalar, got a tensor of shape {shape} float32 on cpu; {remedy}"


def test_other_metrics_than_losses_are_called_values():
    assert "if these are several values stacked, add them (acc_a + acc_b)" in refusal(torch.zeros(2), "acc")


def test_a_name_that_is_no_word_of_python_does_not_pretend_to_be_one():
    assert refusal(torch.zeros(8), "val/top-5 acc", 8).endswith("e.g. value.mean()")


# ---------------------------------------------------------------- refused: tensors that are no number


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("value", [1 + 2j, 1 + 0j])
def test_a_complex_tensor_is_refused_even_without_an_imaginary_part(dtype, value):
    name = str(dtype).removeprefix("torch.")
    text = refusal(torch.tensor(value, dtype=dtype), "z")
    assert text == (
        f"z: expected a scalar, got a tensor of shape () {name} on cpu; "
        "a complex number is two numbers: log z.real or z.abs()"
    )


@pytest.mark.parametrize("value", [1 + 0j, np.complex64(1), np.complex128(1 + 2j), np.array(1j)])
def test_other_complex_numbers_are_refused_too(value):
    assert "a complex number is two numbers: log its .real or its abs()" in refusal(value, "z")


@pytest.mark.parametrize("shape", [(), (8,)])
def test_a_meta_tensor_is_refused(shape):
    text = refusal(torch.empty(shape, device="meta"), "loss")
    assert text.startswith(
        f"loss: expected a scalar, got a tensor of shape {shape} float32 on meta; it stands for"
    )


def test_a_fake_tensor_is_refused_though_it_gives_a_number():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.tensor(1.5)
    assert fake.item() == 1.5
    assert "a FakeTensor of shape () float32 on cpu; it stands for a tensor and holds no value" in refusal(
        fake
    )


def test_a_sparse_tensor_is_refused():
    text = refusal(torch.tensor(3.0).to_sparse(), "loss")
    assert text.endswith(
        "a tensor of shape () float32 sparse_coo on cpu; make it dense first: loss.to_dense()"
    )


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_a_quantized_tensor_is_refused_though_it_gives_a_number():
    quantized = torch.quantize_per_tensor(torch.tensor(1.5), 0.1, 0, torch.qint8)
    assert quantized.item() == 1.5
    assert refusal(quantized, "loss").endswith(
        "qint8 on cpu; make it floating point first: loss.dequantize()"
    )


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_nested_tensor_is_refused(layout):
    nested = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=layout)
    assert "it is a nested tensor" in refusal(nested)


@pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors:UserWarning")
@pytest.mark.parametrize("mask", [True, False])
def test_a_masked_tensor_is_refused(mask):
    masked = torch.masked.masked_tensor(torch.tensor(1.0), torch.tensor(mask))
    assert "a MaskedTensor of shape () float32 on cpu; masked values are no numbers" in refusal(masked)


def test_a_lazy_parameter_is_refused():
    text = refusal(torch.nn.UninitializedParameter(), "scale")
    assert text.startswith(
        "scale: expected a scalar, got an UninitializedParameter float32 on cpu; it is a lazy"
    )


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is")  # torch.func.jvp itself
def test_a_tensor_inside_a_torch_func_transform_is_refused():
    said = []

    def probe(x):
        said.append(refusal(x, "loss"))
        return x * 2

    torch.func.vmap(probe)(torch.arange(3.0))
    torch.func.grad(probe)(torch.tensor(1.0))
    torch.func.vmap(torch.func.grad(probe))(torch.arange(3.0))
    torch.func.jvp(probe, (torch.tensor(1.0),), (torch.tensor(1.0),))
    torch.func.functionalize(probe)(torch.tensor(1.0))
    assert (
        said
        == [
            "loss: expected a scalar, got a tensor of shape () float32 on cpu; "
            "it is inside vmap, grad or another torch.func transform: return it and log it outside"
        ]
        * 5
    )


@pytest.fixture
def mesh():
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield DeviceMesh("cpu", [0])
    finally:
        dist.destroy_process_group()


def test_a_dtensor_is_refused_with_how_to_gather_it(mesh):
    from torch.distributed.tensor import DTensor, Partial, Replicate

    for placement in (Replicate(), Partial()):
        sharded = DTensor.from_local(torch.tensor(1.5), mesh, [placement])
        text = refusal(sharded, "train/loss")
        assert text.startswith("train/loss: expected a scalar, got a DTensor of shape () float32 on cpu; ")
        assert text.endswith("loss.full_tensor()")
        assert same(to_py(sharded.full_tensor()), 1.5)
        assert scalar_loss(sharded) is sharded


# ---------------------------------------------------------------- refused: inside torch.compile


def compiled(function, **options):
    torch._dynamo.reset()
    return torch.compile(function, backend="eager", **options)


INSIDE = r"train/loss: expected a scalar, got a tensor inside torch\.compile, .*; return it from the compiled function"


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("door", [to_py, check_scalar])
def test_inside_torch_compile_it_fails_instead_of_breaking_the_graph(door, fullgraph):
    reached = []

    def step(x):
        loss = (x * x).mean()
        door(loss, "train/loss")
        reached.append(1)
        return loss

    with pytest.raises(Exception, match=INSIDE):
        compiled(step, fullgraph=fullgraph)(torch.ones(3))
    assert reached == []


def test_inside_torch_compile_it_cannot_be_swallowed():
    def step(x):
        loss = (x * x).mean()
        with contextlib.suppress(TypeError):
            to_py(loss, "train/loss")
        return loss

    with pytest.raises(Exception, match=INSIDE):
        compiled(step)(torch.ones(3))


@pytest.mark.parametrize("strict", [True, False])
def test_inside_torch_export_it_fails(strict):
    class Model(torch.nn.Module):
        def forward(self, x):
            loss = (x * x).mean()
            to_py(loss, "train/loss")
            return loss

    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"train/loss: expected a scalar, got "):
        torch.export.export(Model(), (torch.ones(3),), strict=strict)


def test_the_first_tensor_of_a_process_may_be_met_inside_torch_compile():
    program = (
        "import torch; from daypoint.scalars.convert import to_py, scalar_loss\n"
        "try: torch.compile(lambda x: to_py(x.mean(), 'acc'), backend='eager')(torch.ones(3))\n"
        "except Exception as error: print('acc: expected a scalar' in str(error))\n"
        "f = torch.compile(lambda x: scalar_loss((x * x).mean()), backend='eager', fullgraph=True)\n"
        "print(to_py(f(torch.ones(3))))"
    )
    done = subprocess.run([warm.python(), "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.returncode) == ("True\n1.0\n", 0), done.stderr


def test_outside_of_a_compiled_function_all_is_well():
    step = compiled(lambda x: (x * x).mean(), fullgraph=True)
    assert same(to_py(step(torch.ones(3)), "loss"), 1.0)


# ---------------------------------------------------------------- refused: numpy


@pytest.mark.parametrize(
    ("value", "found", "remedy"),
    [
        (np.str_("0.5"), "numpy.str_", "convert it first"),
        (np.bytes_(b"1"), "numpy.bytes_", "convert it first"),
        (np.datetime64(1, "ns"), "numpy.datetime64", "without a unit"),
        (np.timedelta64(1, "s"), "numpy.timedelta64", "without a unit"),
        (np.array(None), "numpy.ndarray of shape () object", "convert it first"),
        (np.array(0.5, object), "numpy.ndarray of shape () object", "convert it first"),
        (np.array("1"), "numpy.ndarray of shape () <U1", "convert it first"),
        (np.array(b"1"), "numpy.ndarray of shape () |S1", "convert it first"),
        (np.array(1, "m8[ns]"), "numpy.ndarray of shape () timedelta64[ns]", "without a unit"),
        (np.array(1, "M8[ns]"), "numpy.ndarray of shape () datetime64[ns]", "without a unit"),
        (np.array((1.0,), [("a", "f4")]), "numpy.ndarray of shape () [('a', '<f4')]", "convert it first"),
        (np.array((1.0,), [("a", "f4")])[()], "numpy.void of shape ()", "convert it first"),
        (
            np.array("1", np.dtypes.StringDType()),
            "numpy.ndarray of shape () StringDType()",
            "convert it first",
        ),
        (np.ma.masked, "MaskedConstant of shape ()", "masked values are no numbers"),
        (np.ma.array(0.5), "MaskedArray of shape ()", "masked values are no numbers"),
        (np.ma.array(0.5, mask=True), "MaskedArray of shape ()", "masked values are no numbers"),
        (np.ma.array([1.0, 2.0]), "MaskedArray of shape (2,)", "masked values are no numbers"),
    ],
)
def test_what_numpy_holds_beside_numbers_is_refused(value, found, remedy):
    text = refusal(value, "acc")
    assert text.startswith("acc: expected a scalar, got a numpy.")
    assert found in text
    assert remedy in text.partition("; ")[2]


def test_every_scalar_type_of_numpy_is_taken_or_refused():
    taken, refused = set(), set()
    for kind in {*np.sctypeDict.values()} - {np.object_}:  # whose scalars are any Python object
        value = np.zeros((), kind)[()]
        try:
            assert type(to_py(value)) in (bool, int, float)
            taken.add(np.dtype(kind).kind)
        except ScalarError:
            refused.add(np.dtype(kind).kind)
    assert (taken, refused) == (set("biuf"), set("cmMSUV"))


# ---------------------------------------------------------------- refused: everything else

Point = namedtuple("Point", "x")


class Metric:
    def compute(self):
        return 0.5


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None; it was not computed: leave it out of this call, or log float('nan')"),
        ("0.5", "a str '0.5'; text is no number: convert it yourself, float(x), or keep it in the config"),
        (b"1", "a bytes b'1'; text is no number: convert it yourself, float(x), or keep it in the config"),
        (bytearray(b"1"), "a bytearray; convert it to a number first, e.g. float(x)"),
        (Decimal("0.1"), "a decimal.Decimal Decimal('0.1'); round it yourself: float(x)"),
        (Fraction(1, 3), "a fractions.Fraction Fraction(1, 3); round it yourself: float(x)"),
        (1 + 0j, "a complex (1+0j); a complex number is two numbers: log its .real or its abs()"),
        ([0.5], "a list; index [0]"),
        ((0.5,), "a tuple; index [0]"),
        ([], "a list; log each item under its own name, or reduce them to one number"),
        ([torch.tensor(1.0)] * 2, "a list; log each item under its own name, or reduce them to one number"),
        ({"a": 1.0}, "a dict; log its entries, each under its own name"),
        ({1.0}, "a set; convert it to a number first, e.g. float(x)"),
        (object(), "an object; convert it to a number first, e.g. float(x)"),
        (torch.tensor(1.0).item, "a builtin_function_or_method; call it: acc()"),
        (float, "a type; call it: acc()"),
        (torch.float32, "a dtype; convert it to a number first, e.g. float(x)"),
        (torch.Size([]), "a Size; log each item under its own name, or reduce them to one number"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else value[:12],
)
def test_what_is_no_number_is_refused_by_its_type(value, text):
    assert refusal(value, "val/acc") == f"val/acc: expected a scalar, got {text}"


def test_a_metric_object_is_refused_with_how_to_read_it():
    assert refusal(Metric(), "acc").endswith("Metric; it is a metric object: log acc.compute()")


def test_a_number_that_python_does_not_write_can_still_be_refused():
    text = refusal(Fraction(10**5000, 3), "acc")
    assert (
        text
        == "acc: expected a scalar, got a fractions.Fraction with too many digits to be written; round it yourself: float(x)"
    )


def test_a_long_text_is_cut_in_the_message():
    assert len(refusal("x" * 10_000)) < 200


class OddShape:
    shape = 3

    def item(self):
        return 1.0


class NoItem:
    shape = ()


@pytest.mark.parametrize("value", [OddShape(), NoItem(), Point(1.0), range(1), iter([1.0]), Exception("1")])
def test_what_only_looks_like_an_array_is_refused(value):
    assert type(value).__name__ in refusal(value, "acc")


scraps = st.recursive(
    st.one_of(
        st.none(),
        st.text(max_size=5),
        st.binary(max_size=5),
        st.decimals(),
        st.fractions(),
        st.complex_numbers(),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(scraps, st.text(max_size=10))
def test_whatever_is_no_number_is_refused_with_its_name(value, name):
    assert refusal(value, name).startswith(f"{name}: expected a scalar, got ")


def test_a_refusal_is_a_type_error():
    with pytest.raises(TypeError):
        to_py(None)


# ---------------------------------------------------------------- scalar_loss


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("grad", [True, False])
def test_a_good_loss_is_the_very_same_tensor(dtype, grad):
    loss = torch.ones(3, dtype=dtype, requires_grad=grad).mean()
    assert scalar_loss(loss) is loss


def test_a_loss_goes_through_inside_torch_func_and_torch_compile():
    def loss(x):
        return scalar_loss((x * x).sum())

    x = torch.tensor([1.0, 2.0])
    assert torch.func.grad(loss)(x).tolist() == [2.0, 4.0]
    assert torch.func.vmap(lambda v: scalar_loss(v * v))(x).tolist() == [1.0, 4.0]
    assert compiled(loss, fullgraph=True)(x).item() == 5.0


WANTED = "expected a 0-dim floating-point tensor, got"


@pytest.mark.parametrize(
    ("loss", "batch_size", "text"),
    [
        (torch.zeros(8), 8, f"a tensor of shape (8,) float32 on cpu; {PER_SAMPLE}"),
        (torch.zeros(1), 8, "a tensor of shape (1,) float32 on cpu; loss.squeeze() or index [0]"),
        (
            torch.zeros(2),
            None,
            f"a tensor of shape (2,) float32 on cpu; if it is per-sample, .*; {STACKED}",
        ),
        (torch.zeros(0), 8, "a tensor of shape (0,) float32 on cpu; the batch was empty"),
        (torch.tensor(3), None, "a tensor of shape () int64 on cpu; integers have no gradient"),
        (torch.tensor(True), None, "a tensor of shape () bool on cpu; integers have no gradient"),
        (torch.tensor(1j), None, "a tensor of shape () complex64 on cpu; .* take loss.real or loss.abs()"),
        (
            torch.tensor(1.0).to_sparse(),
            None,
            "a tensor of shape () float32 sparse_coo on cpu; reduce it to one dense",
        ),
        (0.5, None, "a float 0.5; it is detached: a Python number has no gradient"),
        (np.float64(0.5), None, "a numpy.float64 0.5 of shape () float64.*; it is detached"),
        (np.float32(0.5), None, "a numpy.float32 0.5 of shape () float32.*; it is detached"),
        (np.zeros(8), 8, "a numpy.ndarray of shape (8,) float64 on cpu; an array of another library"),
        (None, None, "None; pass the tensor that the criterion returned"),
        ("0.5", None, "a str '0.5'; pass the tensor that the criterion returned"),
        ({"loss": torch.tensor(1.0)}, None, "a dict; take the loss out of it first: ['loss']"),
        ((torch.tensor(1.0), {}), None, "a tuple; take the loss out of it first, e.g. [0]"),
        (torch.nn.MSELoss(), None, "a MSELoss; pass the tensor that the criterion returned"),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else None,
)
def test_a_loss_that_backward_could_not_start_from_is_refused(loss, batch_size, text):
    pattern = ".*".join(re.escape(part) for part in text.split(".*"))
    with pytest.raises(ScalarError, match=f"^loss: {WANTED} {pattern}"):
        scalar_loss(loss, batch_size=batch_size)


@given(
    st.sampled_from([d for d in sorted(REAL, key=str) if d.is_floating_point]),
    wrong_shapes,
    st.integers(0, 5),
)
def test_a_loss_of_any_other_shape_is_refused_under_its_name(dtype, shape, batch_size):
    with pytest.raises(ScalarError, match=re.escape(f"kl: {WANTED} a tensor of shape {shape} ")):
        scalar_loss(zeros(shape, dtype), name="kl", batch_size=batch_size)


# ---------------------------------------------------------------- to_step


@given(st.integers(min_value=0, max_value=2**63 - 1))
def test_a_step_is_an_exact_int_from_any_kind_of_integer(step):
    for value in (step, np.int64(step), np.uint64(step), np.array(step), torch.tensor(step)):
        assert same(to_step(value), step)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_a_step_may_be_of_any_integer_dtype(dtype):
    assert same(to_step(torch.tensor(7, dtype=dtype)), 7)


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (True, r"got True \(bool\); count the steps"),
        (torch.tensor(True), r"got True \(tensor\); count the steps"),
        (np.bool_(True), r"got True \(numpy.bool\); count the steps"),
        (5.0, r"got 5.0 \(float\); convert it yourself: int\(step\)"),
        (np.float32(5), r"got 5.0 \(numpy.float32\); convert it yourself: int\(step\)"),
        (torch.tensor(5.0), r"got 5.0 \(tensor\); convert it yourself: int\(step\)"),
        (math.nan, r"got nan \(float\)"),
        (-1, r"got -1 \(int\); count from 0"),
        (torch.tensor(-1), r"got -1 \(tensor\); count from 0"),
        (2**63, r"got 9223372036854775808 \(int\); a store keeps steps in 64 bits"),
        (torch.tensor(2**63, dtype=torch.uint64), r"got 9223372036854775808 \(tensor\); a store"),
        (torch.tensor([5]), r"got a tensor of shape \(1,\) int64 on cpu; step.squeeze\(\) or index \[0\]"),
        ("5", r"got a str '5'; convert it yourself: int\(step\)$"),
        (Fraction(5), r"got a fractions.Fraction .*; convert it yourself: int\(step\)$"),
        (None, r"got None; convert it yourself: int\(step\)$"),
        pytest.param(10**5000, r"got with too many digits to be written \(int\); a store", id="huge"),
    ],
)
def test_what_is_no_step_is_refused(step, text):
    with pytest.raises(ScalarError, match=f"^step: expected .*{text}"):
        to_step(step)


def test_the_decoder_of_this_test_knows_the_published_values():
    assert decode_fp8(0x7E, torch.float8_e4m3fn) == 448.0
    assert decode_fp8(0x7B, torch.float8_e5m2) == 57344.0
    assert decode_fp8(0x7F, torch.float8_e4m3fnuz) == 240.0
    assert decode_fp8(0x01, torch.float8_e5m2) == 2.0**-16
    assert {dtype for dtype in EVERY_DTYPE if "float8" in str(dtype)} == set(FP8)

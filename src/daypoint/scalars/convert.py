"""Convert one real number to exactly one Python number, or raise a `ScalarError` that says what to do.

`to_py` converts. `check_scalar` refuses the same things without touching the value, for values fetched later.
`scalar_loss` holds a loss to what `backward()` needs. `to_step` makes an exact step number.

`.item()` and `float()` are not strict: both take shape `[1]`, `float()` drops a zero imaginary part, a
masked array gives 0.0, a sharded tensor its local part, a fake tensor a meaningless number. So kind,
shape and dtype are checked first, and the type of the result last.

This module does not know what a value means: no reduction, no rounding, no policy on NaN. It imports
neither torch nor numpy: a program that has a value of theirs has imported them.
"""

from __future__ import annotations

import numbers
import sys
from typing import TYPE_CHECKING, Any

from daypoint.base.errors import ScalarError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["check_scalar", "scalar_loss", "to_py", "to_step"]

LARGEST_STEP = 2**63 - 1
"""MLflow and SQLite count steps in signed 64-bit integers."""
_STEP = "step: expected an integer from 0 to 2**63 - 1"

_REAL_NAMES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("bfloat16", "float16", "float32", "float64"),  # and every float8_*
)

# Bound when the first tensor is seen (`_meet_torch`), so that no conversion has to look them up.
_torch: Any = None
_Tensor: Any = None
_is_tracing: Any = None
_REAL: frozenset[Any] = frozenset()
_FLOATING: frozenset[Any] = frozenset()


def to_py(x: Any, name: str = "value", *, batch_size: int | None = None) -> bool | int | float:
    """The value of one real number, exactly: a builtin `bool`, `int` or `float`, by its dtype.

    Accepts Python numbers, numpy scalars and 0-d arrays, 0-dim torch tensors of any real dtype (bool, all
    integers, fp64 to fp8) on any device, with or without gradient, and any other array with `shape == ()`
    and `item()` (JAX, CuPy). NaN and infinities are numbers. The tensor and its graph stay as they are. A
    value on a device is waited for.

    Args:
        x: the value, of shape `()`.
        name: what it is called in an error.
        batch_size: lets an error tell a per-sample value from a stack of a few.

    Raises:
        ScalarError: it has another shape, is complex, holds no value (meta, fake, inside vmap) or only part
            of it (DTensor, masked), or is no number. Inside torch.compile the compilation fails with that text.
    """
    kind = type(x)
    if kind is float or kind is int or kind is bool:
        return x
    if kind is _Tensor:
        try:
            # data_ptr() is 0 or raises for what has no data of its own: meta, sparse, inside vmap or grad.
            plain = not _is_tracing() and x.dtype in _REAL and not x.dim() and x.data_ptr() != 0
        except RuntimeError:
            plain = False
        if plain:
            return x.item()
    check_scalar(x, name, batch_size)
    return _take(x, name)


def plain_float(x: Any) -> float | None:
    """The value of a 0-dim floating-point tensor on the CPU, which is logged most often; None for anything else, which is then
    for `to_py` to convert or refuse.
    """
    if type(x) is not _Tensor:
        return None
    try:  # as in to_py
        if x.is_cpu and x.dtype in _FLOATING and not x.dim() and x.data_ptr() != 0 and not _is_tracing():
            return x.item()
    except RuntimeError:
        pass
    return None


def check_scalar(x: Any, name: str = "value", batch_size: int | None = None) -> None:
    """Refuse what `to_py` refuses, by kind, shape and dtype: nothing is computed, fetched or waited for.

    Raises:
        ScalarError: as `to_py`, except where only the value tells (a longdouble that no float equals).
    """
    remedy = _remedy(x, name, batch_size)
    if remedy is not None:
        raise _refusal(name, "a scalar", x, remedy)


def scalar_loss(loss: Any, *, name: str = "loss", batch_size: int | None = None) -> Tensor:
    """The very same tensor, once sure that `backward()` can start from it: shape `()`, real floating point.

    A loss that requires no gradient is fine (validation, a frozen model). So is one inside torch.compile or
    `torch.func.grad`, or a DTensor, since its value is not needed here.

    Raises:
        ScalarError: it is unreduced, stacked, of shape `[1]`, of integers, complex, sparse, or no tensor.
    """
    torch = _torch or _meet_torch()
    if torch is None or not isinstance(loss, torch.Tensor):
        remedy = _no_tensor_remedy(loss, name)
    elif loss.is_nested or loss.layout is not torch.strided:
        remedy = "reduce it to one dense number first"
    elif loss.dim():
        remedy = _shape_remedy(tuple(loss.shape), name, batch_size)
    elif loss.dtype.is_complex:
        remedy = f"complex numbers have no order, so no smallest loss: take {_call(name, '.real')} or {_call(name, '.abs()')}"
    elif not loss.dtype.is_floating_point:
        remedy = "integers have no gradient (a count or an accuracy is no loss): compute it in floating point"
    else:
        return loss
    raise _refusal(name, "a 0-dim floating-point tensor", loss, remedy)


def to_step(x: Any) -> int:
    """A step as an exact `int` from 0 to 2**63 - 1, out of an int, a numpy integer or a 0-dim integer tensor.

    Raises:
        ScalarError: it is a bool, a float, negative, too large, of another shape, or no number.
    """
    try:
        step = to_py(x, "step")
    except ScalarError:
        if _shape(x) is not None:
            raise
        raise ScalarError(f"{_STEP}, got {_found(x)}; convert it yourself: int(step)") from None
    if type(step) is int and 0 <= step <= LARGEST_STEP:
        return step
    if type(step) is float:
        remedy = "convert it yourself: int(step)"
    elif type(step) is bool:
        remedy = "count the steps: 0, 1, 2, …"
    else:
        remedy = "count from 0" if step < 0 else "a store keeps steps in 64 bits"
    raise ScalarError(f"{_STEP}, got {_literal(step)} ({_kind(x)}); {remedy}")


# ---------------------------------------------------------------- taking the value


def _meet_torch() -> Any:
    """torch, if the program has imported it; otherwise no value can be a tensor."""
    global _torch, _Tensor, _is_tracing, _REAL, _FLOATING
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "compiler"):  # another thread may still be importing it
        return None
    names = [name for name in vars(torch) if name in _REAL_NAMES or name.startswith("float8_")]
    _REAL = frozenset(getattr(torch, name) for name in names)
    _FLOATING = frozenset(dtype for dtype in _REAL if dtype.is_floating_point)
    _is_tracing = torch.compiler.is_dynamo_compiling
    _Tensor = torch.Tensor
    _torch = torch
    return torch


def _take(x: Any, name: str) -> bool | int | float:
    """The value of something that `check_scalar` let through."""
    if isinstance(x, bool):
        return x
    if isinstance(x, int):
        return int.__int__(x)  # an IntEnum, say; its class may have redefined int()
    if isinstance(x, float):
        return float.__float__(x)  # np.float64 is a float, but prints and pickles as its own type
    try:
        value = x.item()
    except (TypeError, ValueError, NotImplementedError) as error:  # a traced JAX array, an odd subclass
        raise _refusal(name, "a scalar", x, f"its .item() raised {type(error).__name__}: {error}") from error
    kind = type(value)
    if kind is float or kind is int or kind is bool:
        return value
    if kind is complex:
        raise _refusal(name, "a scalar", x, _TWO_NUMBERS)
    if kind.__module__ == "numpy" and kind.__name__ == "longdouble":
        rounded = float(value)
        if rounded == value or value != value:
            return rounded
        raise _refusal(name, "a scalar", x, "no float has exactly this value: round it yourself, float(x)")
    raise _refusal(name, "a scalar", x, f"its .item() gave {_found(value)}: convert it first, e.g. float(x)")


# ---------------------------------------------------------------- what is wrong, and what to do

_TWO_NUMBERS = "a complex number is two numbers: log its .real or its abs()"
_NO_VALUE = "it stands for a tensor and holds no value: log outside of tracing, on a real device"


def _remedy(x: Any, name: str, batch_size: int | None) -> str | None:
    """What to do about `x`, or None if it is one real number as far as can be told without its value."""
    if isinstance(x, (bool, int, float)):
        return None
    torch = _torch or _meet_torch()
    if torch is not None and isinstance(x, torch.Tensor):
        return _tensor_remedy(torch, x, name, batch_size)
    shape = _shape(x)
    if shape is None or not callable(getattr(x, "item", None)):
        return _object_remedy(x, name)
    return _array_remedy(x, shape, name, batch_size)


def _tensor_remedy(torch: Any, x: Tensor, name: str, batch_size: int | None) -> str | None:
    if torch.compiler.is_dynamo_compiling():
        _fail_compilation(name)
    if type(x) is not torch.Tensor:
        classes = {base.__name__ for base in type(x).__mro__ if base.__module__.partition(".")[0] == "torch"}
        if "DTensor" in classes:
            return f"each process holds a part of it: gather it first, {_call(name, '.full_tensor()')}"
        if classes & {"FakeTensor", "FunctionalTensor"}:
            return _NO_VALUE
        if "MaskedTensor" in classes:
            return "masked values are no numbers: take what is not masked first"
        if "UninitializedTensorMixin" in classes:
            return "it is a lazy parameter without a value: run the model once first"
    if x.is_meta:
        return _NO_VALUE
    if x.is_nested:
        return "it is a nested tensor: reduce it to one number, or log each part under its own name"
    if x.layout is not torch.strided:
        return f"make it dense first: {_call(name, '.to_dense()')}"
    if x.is_quantized:
        return f"make it floating point first: {_call(name, '.dequantize()')}"
    if torch._C._functorch.is_functorch_wrapped_tensor(x):
        return "it is inside vmap, grad or another torch.func transform: return it and log it outside"
    if x.dim():
        return _shape_remedy(tuple(x.shape), name, batch_size)
    if x.dtype.is_complex:
        return f"a complex number is two numbers: log {_call(name, '.real')} or {_call(name, '.abs()')}"
    return None if x.dtype in _REAL else "its dtype is not one real number: convert it first, e.g. to float32"


def _fail_compilation(name: str) -> None:
    """Fail the compilation. `comptime` runs a function inside the compiler, so its errors reach the user. A plain
    `raise` only breaks the graph, and training would go on, slower and without a message."""
    from torch._dynamo.comptime import comptime

    comptime(_raise_while_compiling)


def _raise_while_compiling(context: Any) -> None:
    name = context.get_local("name").as_python_constant()
    raise ScalarError(
        f"{name}: expected a scalar, got a tensor inside torch.compile, which has no value there; "
        "return it from the compiled function and log it outside"
    )


def _array_remedy(x: Any, shape: tuple[int, ...], name: str, batch_size: int | None) -> str | None:
    """For numpy and its like, which share its one-letter kinds of dtype. Without one, `_take` decides."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(x, numpy.ma.MaskedArray):
        return "masked values are no numbers: take what is not masked, e.g. x.compressed().mean()"
    dtype = getattr(x, "dtype", None)
    kind = getattr(dtype, "kind", None)
    if kind == "c":
        return _TWO_NUMBERS
    if kind in ("M", "m"):
        return "a time is no number without a unit: divide it, e.g. x / np.timedelta64(1, 's')"
    # ml_dtypes registers bfloat16 and its like with numpy as kind V (isbuiltin == 2); a record is V as well.
    if kind in ("O", "S", "U", "T") or (kind == "V" and getattr(dtype, "isbuiltin", 2) != 2):
        return "its dtype is no number: convert it first, e.g. float(x)"
    return _shape_remedy(shape, name, batch_size) if shape else None


def _shape_remedy(shape: tuple[int, ...], name: str, batch_size: int | None) -> str:
    """For every shape but `()`."""
    mean = _call(name, ".mean()")
    if 0 in shape:
        return "the batch was empty, or a mask left nothing of it: log nothing for such a batch"
    if all(size == 1 for size in shape):
        squeeze = f"{_call(name, '.squeeze()')} or index [{', '.join('0' * len(shape))}]"
        return f"{squeeze}; or, if it is per-sample (batch size 1), {mean}" if batch_size == 1 else squeeze
    if shape[0] == batch_size:
        return f"it looks per-sample (batch size {batch_size}): reduce it first, e.g. {mean}"
    if len(shape) > 1:
        return f"reduce it first, e.g. {mean}"
    stem = _variable(name)
    several = "several losses" if stem.endswith("loss") else "several values"
    add = f"add them ({stem}_a + {stem}_b) or log each under its own name"
    if batch_size is None:
        return f"if it is per-sample, reduce it first, e.g. {mean}; if these are {several} stacked, {add}"
    found = f"its length is not the batch size ({batch_size})"
    return f"{found}: if these are {several} stacked, {add}; otherwise reduce it, e.g. {mean}"


def _object_remedy(x: Any, name: str) -> str:
    """For what is no array."""
    if x is None:
        return "it was not computed: leave it out of this call, or log float('nan')"
    if isinstance(x, complex):
        return _TWO_NUMBERS
    if isinstance(x, numbers.Number):
        return "round it yourself: float(x)"
    if isinstance(x, (str, bytes)):
        return "text is no number: convert it yourself, float(x), or keep it in the config"
    if isinstance(x, dict):
        return "log its entries, each under its own name"
    if isinstance(x, (list, tuple)):
        return (
            "index [0]" if len(x) == 1 else "log each item under its own name, or reduce them to one number"
        )
    if callable(getattr(x, "compute", None)):
        return f"it is a metric object: log {_call(name, '.compute()')}"
    if callable(x):
        return f"call it: {_variable(name)}()"
    return "convert it to a number first, e.g. float(x)"


def _no_tensor_remedy(loss: Any, name: str) -> str:
    """For a loss that is no tensor."""
    if isinstance(loss, numbers.Number):
        return "it is detached: a Python number has no gradient (.item() and float() cut it); pass the tensor"
    if isinstance(loss, dict) and "loss" in loss:
        return "take the loss out of it first: ['loss']"
    if isinstance(loss, (list, tuple)):
        return "take the loss out of it first, e.g. [0]"
    if _shape(loss) is not None:
        return "an array of another library has no torch gradient: compute the loss with torch"
    return "pass the tensor that the criterion returned"


# ---------------------------------------------------------------- saying what was found


def _refusal(name: str, expected: str, x: Any, remedy: str) -> ScalarError:
    return ScalarError(f"{name}: expected {expected}, got {_found(x)}; {remedy}")


def _found(x: Any) -> str:
    """For example `a tensor of shape (8,) float32 on cpu`, `a str '0.5'`, `None`."""
    if x is None:
        return "None"
    kind, shape = _kind(x), _shape(x)
    text = f"{'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}"
    if isinstance(x, (str, bytes, numbers.Number)) and not shape:
        text += f" {str(x) if shape == () else _literal(x):.40}"
    dtype, layout, device = (_attribute(x, name) for name in ("dtype", "layout", "device"))
    if shape is not None:
        text += f" of shape {shape}"
    if dtype is not None:
        text += f" {dtype}".replace("torch.", "")
    if layout is not None and str(layout) != "torch.strided":
        text += f" {layout}".replace("torch.", "")
    if device is not None:
        text += f" on {device}"
    return text


def _kind(x: Any) -> str:
    module, name = type(x).__module__.partition(".")[0], type(x).__qualname__
    if module == "torch":
        return "tensor" if name == "Tensor" else name
    return name if module == "builtins" else f"{module}.{name}"


def _literal(x: Any) -> str:
    try:
        return repr(x)
    except ValueError:  # Python writes an integer of at most 4,300 digits
        return "with too many digits to be written"


def _shape(x: Any) -> tuple[int, ...] | None:
    try:
        return tuple(_attribute(x, "shape"))
    except TypeError:
        return None


def _attribute(x: Any, name: str) -> Any:
    try:
        return getattr(x, name, None)
    except RuntimeError:  # a lazy parameter or a nested tensor has no shape to tell
        return None


def _variable(name: str) -> str:
    """The likely name of the variable in the user's code: `loss` for `train/loss`."""
    word = name.rpartition("/")[2]
    return word if word.isidentifier() else "value"


def _call(name: str, method: str) -> str:
    return _variable(name) + method

"""The strict door: one real number in, exactly one Python number out, or a `ScalarError` that says what to do.

`to_py` converts, `check_scalar` refuses the same things without touching the value (for values that are fetched later),
`scalar_loss` holds a loss to what `backward()` needs, `to_step` makes an exact step number.

`.item()` and `float()` are no such door: both take shape `[1]`, `float()` drops a zero imaginary part, a masked array
gives 0.0, a sharded tensor gives its local part, a fake tensor gives a number that nobody computed. So the kind, the
dimension and the dtype are looked at first, and the type of the result last.

This module refuses to know what a value means: no reduction, no rounding, no policy on NaN. It imports neither torch nor
numpy; a value of theirs brings them along. One number: a CPU float32 tensor costs 0.4 µs, where `.item()` alone takes 0.15.
"""

from __future__ import annotations

import numbers
import sys
from typing import TYPE_CHECKING, Any

from daypoint.errors import ScalarError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["check_scalar", "scalar_loss", "to_py", "to_step"]

LARGEST_STEP = 2**63 - 1
"""What a step may be: MLflow and SQLite count in signed 64-bit integers."""

# Bound when the first tensor is seen (`_meet_torch`): looking them up through sys.modules would cost a third more a call.
_torch: Any = None
_Tensor: Any = None
_is_tracing: Any = None
_REAL: frozenset[Any] = frozenset()


def to_py(x: Any, name: str = "value", *, batch_size: int | None = None) -> bool | int | float:
    """The value of one real number, exactly: a builtin `bool`, `int` or `float`, by its dtype.

    Accepts Python numbers, numpy scalars and 0-d arrays, 0-dim torch tensors of any real dtype (bool, all integers, fp64
    to fp8) on any device, with or without gradient, and any other array with `shape == ()` and `item()` (JAX, CuPy).
    NaN and infinities are numbers. The tensor and its graph are left as they are. A device value is waited for.

    Args:
        x: the value, of shape `()`.
        name: what it is called in an error.
        batch_size: lets an error tell a per-sample value from a stack of a few.

    Raises:
        ScalarError: it has another shape, is complex, holds no value (meta, fake, vmapped), holds only a part of it
            (DTensor, masked) or is no number at all. Inside torch.compile the compiler raises it, as part of its own error.
    """
    kind = type(x)
    if kind is float or kind is int or kind is bool:
        return x
    if kind is _Tensor:
        try:
            # data_ptr() is zero or raises for whatever has no data of its own: meta, sparse, inside vmap or grad.
            plain = not _is_tracing() and x.dtype in _REAL and not x.dim() and x.data_ptr() != 0
        except RuntimeError:
            plain = False
        if plain:
            return x.item()
    check_scalar(x, name, batch_size)
    return _take(x, name)


def check_scalar(x: Any, name: str = "value", batch_size: int | None = None) -> None:
    """Refuse what `to_py` refuses, by kind, shape and dtype alone: nothing is computed, fetched or waited for.

    Raises:
        ScalarError: as `to_py`; what only the value itself can tell (a longdouble that no float equals) is left to it.
    """
    remedy = _remedy(x, name, batch_size)
    if remedy is not None:
        raise _refusal(name, "a scalar", x, remedy)


def scalar_loss(loss: Any, *, name: str = "loss", batch_size: int | None = None) -> Tensor:
    """The same tensor, once it is sure that `backward()` can start from it: shape `()`, real floating point.

    A loss that requires no gradient is fine (validation, a frozen model), and so is one inside torch.compile,
    `torch.func.grad` or a DTensor, since its value is not needed here.

    Raises:
        ScalarError: the loss is unreduced, stacked, of shape `[1]`, of integers, complex, sparse, or no tensor.
    """
    torch = _torch or _meet_torch()
    if torch is None or not isinstance(loss, torch.Tensor):
        remedy = _loss_remedy(loss, name)
    elif loss.is_nested or loss.layout is not torch.strided:
        remedy = "reduce it to one dense number first, e.g. with .to_dense() and .mean()"
    elif loss.dim():
        remedy = _shape_remedy(tuple(loss.shape), name, batch_size)
    elif loss.dtype.is_complex:
        remedy = "a complex loss has no direction to go down: take its .real or .abs()"
    elif not loss.dtype.is_floating_point:
        remedy = "integers have no gradient (a count, an argmax or an accuracy is not a loss): compute it in floating point"
    else:
        return loss
    raise _refusal(name, "a 0-dim floating-point tensor", loss, remedy)


def to_step(x: Any) -> int:
    """A step number as an exact `int` from 0 to 2**63 - 1, from an int, a numpy integer or a 0-dim integer tensor.

    Raises:
        ScalarError: it is a bool, a float, negative, too large, of another shape, or no number.
    """
    step = to_py(x, "step")
    if type(step) is not int:
        remedy = "convert it yourself: int(step)" if type(step) is float else "count the steps: 0, 1, 2, …"
        raise ScalarError(f"step: expected an integer from 0 on, got {step!r} ({_kind(x)}); {remedy}")
    if not 0 <= step <= LARGEST_STEP:
        remedy = "steps count from 0" if step < 0 else "the largest step is 2**63 - 1"
        raise ScalarError(f"step: expected an integer from 0 on, got {step}; {remedy}")
    return step


# ---------------------------------------------------------------- taking the value


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
    except (
        TypeError,
        ValueError,
        NotImplementedError,
    ) as error:  # a traced JAX array, a tensor subclass without it
        raise _refusal(name, "a scalar", x, f"its .item() raised {type(error).__name__}: {error}") from error
    kind = type(value)
    if kind is float or kind is int or kind is bool:
        return value
    if kind.__module__ == "numpy" and kind.__name__ == "longdouble":
        rounded = float(value)
        if rounded == value or value != value:
            return rounded
        raise _refusal(name, "a scalar", x, "no float has that value exactly: round it yourself, float(x)")
    remedy = (
        "log its .real or its abs()" if kind is complex else f"its .item() is {_kind(value)}, not a number"
    )
    raise _refusal(name, "a scalar", x, remedy)


def _meet_torch() -> Any:
    """torch, if the program has imported it; otherwise no value can be a tensor."""
    global _torch, _Tensor, _is_tracing, _REAL
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "compiler"):
        names = (
            "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 bfloat16 float32 float64".split()
        )
        names += [name for name in vars(torch) if name.startswith("float8_")]
        _REAL = frozenset(getattr(torch, name) for name in names)
        _is_tracing = torch.compiler.is_dynamo_compiling
        _Tensor = torch.Tensor
        _torch = torch
    return _torch


# ---------------------------------------------------------------- what is wrong, and what to do


def _remedy(x: Any, name: str, batch_size: int | None) -> str | None:
    """What to do about `x`, or None if it is one real number as far as can be told without its value."""
    if isinstance(x, bool | int | float):
        return None
    torch = _torch or _meet_torch()
    if torch is not None and isinstance(x, torch.Tensor):
        return _tensor_remedy(torch, x, name, batch_size)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(x, numpy.ndarray | numpy.generic):
        if isinstance(x, numpy.ma.MaskedArray):
            return "masked values are no numbers: take what is not masked, e.g. x.compressed().mean()"
        # isbuiltin == 2: a registered number type such as ml_dtypes.bfloat16, whose kind numpy cannot tell
        real = x.dtype.kind in "biuf" or x.dtype.isbuiltin == 2
        return _array_remedy(x.shape, x.dtype.kind, name, batch_size) if not real or x.shape else None
    shape = _shape(x)
    if shape is None or not callable(getattr(x, "item", None)):
        return _object_remedy(x, name)
    kind = getattr(getattr(x, "dtype", None), "kind", "")
    return _array_remedy(shape, kind, name, batch_size) if shape or kind in ("c", *"OSUMm") else None


def _tensor_remedy(torch: Any, x: Tensor, name: str, batch_size: int | None) -> str | None:
    if _is_tracing():
        _stop_compiler(name)
    classes = {base.__name__ for base in type(x).__mro__ if base.__module__.partition(".")[0] == "torch"}
    if "DTensor" in classes:
        return f"each process holds a part of it: gather it first, {_call(name, '.full_tensor()')}"
    if classes & {"FakeTensor", "FunctionalTensor"} or x.is_meta:
        return "it stands for a tensor without holding a value: log outside of tracing, on a real device"
    if "MaskedTensor" in classes:
        return "masked values are no numbers: take what is not masked first"
    if "UninitializedTensorMixin" in classes:
        return "it is a lazy parameter that has no value yet: run the model once first"
    if x.is_nested:
        return "it is a nested tensor: reduce it first, or log each part under its own name"
    if x.layout is not torch.strided:
        return f"it is stored as {_plain(x.layout)}: make it dense first, {_call(name, '.to_dense()')}"
    if x.is_quantized:
        return f"it is quantized: {_call(name, '.dequantize()')} first"
    if torch._C._functorch.is_functorch_wrapped_tensor(x):
        return "it is inside vmap, grad or another torch.func transform: return it (has_aux=True) and log it outside"
    if x.dim():
        return _shape_remedy(tuple(x.shape), name, batch_size)
    if x.dtype.is_complex:
        return f"a complex number is two numbers: log {_call(name, '.real')} or {_call(name, '.abs()')}"
    return (
        None
        if x.dtype in _REAL
        else "its dtype holds no single real number: convert it first, e.g. to float32"
    )


def _stop_compiler(name: str) -> None:
    """Fail the compilation. A plain `raise` would be taken for a reason to break the graph, and training would go on,
    slower and without a word; what is raised by code that runs inside the compiler reaches the user."""
    from torch._dynamo.comptime import comptime

    comptime(_raise_while_compiling)


def _raise_while_compiling(context: Any) -> None:
    name = context.get_local("name").as_python_constant()
    raise ScalarError(
        f"{name}: expected a scalar, got a tensor inside torch.compile, which has no value there; "
        "return it from the compiled function and log it outside"
    )


def _array_remedy(shape: tuple[int, ...], kind: str, name: str, batch_size: int | None) -> str:
    """For numpy and its like; `kind` is numpy's one-letter kind of dtype."""
    if kind == "c":
        return "a complex number is two numbers: log its .real or its abs()"
    if kind in ("M", "m"):
        return "a time is no number without a unit: convert it first, e.g. x / np.timedelta64(1, 's')"
    if kind in ("O", "S", "U", "V"):
        return "its dtype is no number: convert it first, e.g. float(x)"
    return _shape_remedy(shape, name, batch_size)


def _shape_remedy(shape: tuple[int, ...], name: str, batch_size: int | None) -> str:
    """For every shape but `()`."""
    mean = _call(name, ".mean()")
    variable = _variable(name)
    if 0 in shape:
        return (
            "it is empty: the batch, or what a mask left of it, had no elements; log nothing for such a batch"
        )
    if all(size == 1 for size in shape):
        squeeze = f"{_call(name, '.squeeze()')} or index {list(shape[1:]) and [0] * len(shape) or [0]}"
        return squeeze if batch_size != 1 else f"{squeeze}; if it is per-sample (the batch size is 1), {mean}"
    if shape[0] == batch_size:
        return f"it looks per-sample (batch size {batch_size}): reduce it first, e.g. {mean}"
    if len(shape) > 1:
        return f"reduce it first, e.g. {mean}"
    stacked = f"if these are several values stacked, add them ({variable}_a + {variable}_b) or log each under its own name"
    if batch_size is not None:
        return f"it is not per-sample (batch size {batch_size}): {stacked}; otherwise reduce it, e.g. {mean}"
    return f"if it is per-sample, reduce it first, e.g. {mean}; {stacked}"


def _object_remedy(x: Any, name: str) -> str:
    """For what is no array."""
    if x is None:
        return "nothing was computed: leave it out of this call, or log float('nan')"
    if isinstance(x, complex):
        return "a complex number is two numbers: log its .real or its abs()"
    if isinstance(x, numbers.Number):
        return "say what precision is lost: log float(x)"
    if isinstance(x, str | bytes):
        return "text is no number: convert it yourself, float(x), or keep it in the config"
    if isinstance(x, dict):
        return "log its entries, each under its own name"
    if isinstance(x, list | tuple):
        return (
            "index [0]" if len(x) == 1 else "log each item under its own name, or reduce them to one number"
        )
    if callable(getattr(x, "compute", None)):
        return f"it is a metric object: {_call(name, '.compute()')} gives its value"
    if callable(x):
        return f"it was not called: {_variable(name)}()"
    return "convert it to a number first, e.g. float(x)"


def _loss_remedy(x: Any, name: str) -> str:
    """For a loss that is no tensor."""
    if isinstance(x, numbers.Number):
        return "a Python number has no gradient (.item() and float() cut it off): pass the tensor itself"
    if isinstance(x, dict) and "loss" in x:
        return "take the loss out of it first: ['loss']"
    if isinstance(x, list | tuple):
        return "take the loss out of it first: [0]" if x else "it is empty"
    if hasattr(x, "shape"):
        return "an array of another library has no torch gradient: compute the loss with torch"
    return _object_remedy(x, name)


# ---------------------------------------------------------------- saying what was found


def _refusal(name: str, expected: str, x: Any, remedy: str) -> ScalarError:
    return ScalarError(f"{name}: expected {expected}, got {_found(x)}; {remedy}")


def _found(x: Any) -> str:
    """For example `a tensor of shape (8,) float32 on cpu`, `a str '0.5'`, `None`."""
    if x is None:
        return "None"
    kind = _kind(x)
    text = f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
    if isinstance(x, str | bytes | numbers.Number) and _shape(x) is None:
        return f"{text} {x!r:.40}"
    shape, dtype, device = _shape(x), _attribute(x, "dtype"), _attribute(x, "device")
    if shape is not None:
        text += f" of shape {shape}"
    if dtype is not None and _plain(dtype) != kind.rpartition(".")[2]:
        text += f" {_plain(dtype)}"
    if shape is not None and device is not None:
        text += f" on {device}"
    return text


def _kind(x: Any) -> str:
    kind = type(x)
    if kind is _Tensor:
        return "tensor"
    package = kind.__module__.partition(".")[0]
    return kind.__qualname__ if package == "builtins" else f"{package}.{kind.__qualname__}"


def _shape(x: Any) -> tuple[int, ...] | None:
    try:
        return tuple(_attribute(x, "shape"))
    except TypeError:
        return None


def _attribute(x: Any, name: str) -> Any:
    try:
        return getattr(x, name, None)
    except RuntimeError:  # lazy parameters and nested tensors have no shape to tell
        return None


def _plain(torch_name: Any) -> str:
    return str(torch_name).removeprefix("torch.")


def _variable(name: str) -> str:
    """The word that most likely stands in the user's code for a metric of that name: `train/loss` is `loss`."""
    word = name.rpartition("/")[2]
    return word if word.isidentifier() else "value"


def _call(name: str, method: str) -> str:
    return f"{_variable(name)}{method}"

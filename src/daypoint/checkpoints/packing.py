"""Turn nested Python data that contains tensors into named tensors and strict JSON, and back, without pickle.

    {"lr": 0.1, "state": {0: (tensor(...), None)}}

    ->  {"state.0.0": tensor(...)},
        {"dict": {"lr": 0.1, "state": {"pairs": [[0, {"tuple": [{"tensor": "state.0.0"}, null]}]]}}}

Numbers, texts and lists stand for themselves; everything else is an object whose first key says what it is,
so user data cannot be mistaken for such a key. What comes back is equal in value and in
type: tuples, int keys, NaN, large ints, bytes, numpy and complex included. An object of any other type is
refused with its path; nothing is guessed.
"""

from __future__ import annotations

import base64
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import numpy as np
import torch

from daypoint.base.errors import CheckpointError
from daypoint.base.files import SAFE_INTEGER
from daypoint.checkpoints.tensorfile import NATIVE, as_bytes

_DEEPEST = 100
_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_MAPS: dict[str, type] = {"OrderedDict": OrderedDict, "Counter": Counter}
_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


class Spare:
    """The memory of an earlier copy, for the next one. Memory that is new to the process costs as much time as writing it to a fast
    disk.

    Args:
        tensors: an earlier copy that is no longer needed.
    """

    def __init__(self, tensors: Iterable[torch.Tensor] = ()) -> None:
        self._free: dict[tuple[torch.Size, torch.dtype], list[torch.Tensor]] = {}
        for tensor in tensors:
            if not tensor.is_inference():  # which could not be written to
                self._free.setdefault((tensor.shape, tensor.dtype), []).append(tensor)

    def copy_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor as a contiguous one on the CPU, in memory of its own."""
        free = self._free.get((tensor.shape, tensor.dtype))
        into = free.pop() if free else torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        return into.copy_(tensor)


def pack(
    value: Any, where: str = "", *, copy: bool = True, spare: Spare | None = None
) -> tuple[dict[str, torch.Tensor], Any]:
    """Take plain data apart into tensors and a strict JSON document.

    Args:
        value: dicts, lists, tuples, sets, Python and numpy numbers, texts, bytes, None, tensors, numpy
            arrays, torch dtypes, devices and sizes, nested as you like. Views, shared, non-contiguous, 0-dim,
            empty and complex tensors are fine; a tensor that occurs twice is stored once.
        where: how to call `value` in messages and tensor names.
        copy: whether the tensors are copies, so that training may go on; otherwise they may share memory.
        spare: memory for the copies, as far as it fits.

    Raises:
        CheckpointError: it contains something else; names its path and its type.
    """
    packer = _Packer(copy, spare or Spare())
    document = packer.pack(value, where, 0)
    return packer.tensors, document


def unpack(tensors: dict[str, torch.Tensor], document: Any, where: str = "") -> Any:
    """What `pack` was given. Tensors come back on the CPU, contiguous, without grad; parameters as tensors.

    Raises:
        CheckpointError: the two do not belong together.
    """
    try:
        return _Unpacker(tensors).unpack(document)
    except (KeyError, ValueError, TypeError, AttributeError, RuntimeError, RecursionError) as error:
        raise CheckpointError(f"{where}: not what daypoint packs: {error!r}") from error


def host(tensor: torch.Tensor, where: str, *, copy: bool, spare: Spare) -> torch.Tensor:
    """A tensor as a contiguous one on the CPU; arguments as for `pack`.

    Raises:
        CheckpointError: it has no plain data of its own; says what to do.
    """
    if type(tensor) not in _TENSORS:
        lazy = torch.nn.parameter.is_lazy(tensor)
        advice = "run one batch through the model first" if lazy else "turn it into a plain tensor first"
        _refuse(where, f"a {type(tensor).__name__}", advice)
    if tensor.is_meta:
        _refuse(where, "a tensor on the meta device, which has no data", "materialise it with to_empty()")
    if tensor.is_quantized:
        _refuse(
            where, f"a quantized tensor ({tensor.dtype})", "store dequantize() or int_repr() with its scale"
        )
    if tensor.layout is not torch.strided:
        _refuse(where, f"a tensor of layout {tensor.layout}", "store to_dense()")
    plain = tensor.detach().resolve_conj().resolve_neg()
    return spare.copy_of(plain) if copy else plain.to("cpu").contiguous()


def _refuse(where: str, found: str, advice: str) -> NoReturn:
    raise CheckpointError(f"{where or 'the value'}: cannot store {found}; {advice}")


class _Packer:
    def __init__(self, copy: bool, spare: Spare) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.copy = copy
        self.spare = spare
        # Keeps each tensor alive beside its id, which would otherwise be given to another one.
        self.seen: dict[int, tuple[torch.Tensor, dict[str, Any]]] = {}

    def pack(self, value: Any, where: str, depth: int) -> Any:
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is str:
            return value if _is_unicode(value) else {"text": _base64(value.encode("utf-8", "surrogatepass"))}
        if kind is int:
            return value if -SAFE_INTEGER <= value <= SAFE_INTEGER else {"int": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {"float": _name_of(value)}
        if isinstance(value, torch.Tensor):
            return self.tensor(value, where)
        if depth == _DEEPEST:
            _refuse(where[:200], f"data nested more than {_DEEPEST} deep", "does it contain itself?")
        if kind is list:
            return self.items(value, where, depth)
        if kind is tuple:
            return {"tuple": self.items(value, where, depth)}
        if kind in (set, frozenset):
            return {kind.__name__: self.items(sorted(value, key=repr), where, depth)}
        if kind is dict and all(type(key) is str and _is_unicode(key) for key in value):
            return {
                "dict": {key: self.pack(item, _join(where, key), depth + 1) for key, item in value.items()}
            }
        if kind is dict or kind in _MAPS.values():
            pairs = [
                [self.pack(key, f"{where} (key)", depth + 1), self.pack(item, _join(where, key), depth + 1)]
                for key, item in value.items()
            ]
            return {"pairs" if kind is dict else kind.__name__: pairs}
        return self.rare(value, kind, where)

    def items(self, values: Any, where: str, depth: int) -> list[Any]:
        return [self.pack(item, _join(where, index), depth + 1) for index, item in enumerate(values)]

    def rare(self, value: Any, kind: type, where: str) -> Any:
        if kind is complex:
            return {"complex": [self.pack(value.real, where, 0), self.pack(value.imag, where, 0)]}
        if kind is bytes:
            return {"bytes": _base64(value)}
        if kind is torch.Size:
            return {"torch.Size": list(value)}
        if kind is torch.dtype:
            return {"torch.dtype": str(value).removeprefix("torch.")}
        if kind is torch.device:
            return {"torch.device": str(value)}
        if kind is np.ndarray or (isinstance(value, np.generic) and kind is value.dtype.type):
            code = value.dtype.str
            if value.dtype.hasobject or not value.dtype.itemsize or np.dtype(code) != value.dtype:
                _refuse(where, f"numpy data of dtype {value.dtype}", "store its parts as arrays of numbers")
            if kind is not np.ndarray:
                return {"scalar": _base64(value.tobytes()), "dtype": code}
            name = self.add(where, torch.tensor(np.frombuffer(value.tobytes(), np.uint8)))
            return {"array": name, "dtype": code, "shape": list(value.shape)}
        return _refuse(
            where,
            f"a {kind.__module__}.{kind.__qualname__}",
            "expected numbers, texts, bytes, tensors, arrays, and dicts, lists, tuples or sets of them",
        )

    def tensor(self, value: torch.Tensor, where: str) -> dict[str, Any]:
        if id(value) not in self.seen:
            plain = host(value, where, copy=self.copy, spare=self.spare)
            if plain.dtype in NATIVE:
                mark: dict[str, Any] = {"tensor": self.add(where, plain)}
            else:
                name = self.add(where, as_bytes(plain))
                mark = {
                    "tensor": name,
                    "dtype": str(plain.dtype).removeprefix("torch."),
                    "shape": list(plain.shape),
                }
            self.seen[id(value)] = (value, mark)
        return self.seen[id(value)][1]

    def add(self, where: str, tensor: torch.Tensor) -> str:
        """Under a name that says where it was; two places may read alike (`{"a.b": …}`, `{"a": {"b": …}}`)."""
        name = base = where.encode("utf-8", "backslashreplace").decode() or "value"
        number = 2
        while name in self.tensors or name == "__metadata__":
            name, number = f"{base}#{number}", number + 1
        self.tensors[name] = tensor
        return name


class _Unpacker:
    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.tensors = tensors
        self.seen: dict[str, torch.Tensor] = {}
        self.readers: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
            "dict": lambda value, _: {key: self.unpack(item) for key, item in value.items()},
            "pairs": lambda value, _: dict(self.pairs(value)),
            "OrderedDict": lambda value, _: OrderedDict(self.pairs(value)),
            "Counter": lambda value, _: Counter(dict(self.pairs(value))),
            "tuple": lambda value, _: tuple(map(self.unpack, value)),
            "set": lambda value, _: set(map(self.unpack, value)),
            "frozenset": lambda value, _: frozenset(map(self.unpack, value)),
            "int": lambda value, _: int(value, 16),
            "float": lambda value, _: _FLOATS[value],
            "text": lambda value, _: base64.b64decode(value).decode("utf-8", "surrogatepass"),
            "bytes": lambda value, _: base64.b64decode(value),
            "complex": lambda value, _: complex(*map(self.unpack, value)),
            "tensor": self.tensor,
            "array": self.array,
            "scalar": lambda value, mark: np.frombuffer(base64.b64decode(value), mark["dtype"])[0],
            "torch.Size": lambda value, _: torch.Size(value),
            "torch.dtype": lambda value, _: _dtype(value),
            "torch.device": lambda value, _: torch.device(value),
        }

    def unpack(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.unpack(item) for item in value]
        if not isinstance(value, dict):
            return value
        tag = next(iter(value), "nothing")
        return self.readers[tag](value[tag], value)

    def pairs(self, value: Any) -> list[tuple[Any, Any]]:
        return [(self.unpack(key), self.unpack(item)) for key, item in value]

    def tensor(self, name: str, mark: dict[str, Any]) -> torch.Tensor:
        if name not in self.seen:
            tensor = self.tensors[name]
            if "dtype" in mark:
                tensor = tensor.view(_dtype(mark["dtype"])).reshape(mark["shape"])
            self.seen[name] = tensor
        return self.seen[name]

    def array(self, name: str, mark: dict[str, Any]) -> np.ndarray:
        content = self.tensors[name].numpy().tobytes()
        return np.ndarray(mark["shape"], mark["dtype"], content).copy()


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"torch.{name} is no dtype")
    return found


def _join(where: str, key: Any) -> str:
    return f"{where}.{key}" if where else str(key)


def _is_unicode(text: str) -> bool:
    """Whether UTF-8 can hold it; lone surrogates cannot be written as JSON."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _name_of(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()

"""Strict JSON in and out, the opening of files, and atomic replacement of a file.

Strict JSON (RFC 8259) has no NaN, no infinities, and only doubles to count on. So that `jq`, orjson and a browser
read the same numbers that were written:

- in a map of metrics, where text has no place, a value that JSON cannot hold is a string: `"NaN"`,
  `"Infinity"`, `"-Infinity"`, and an integer beyond 2**53 - 1 in decimal digits (`encode_metrics`,
  `decode_metrics`);
- anywhere else it is an object: `{"$float": "NaN"}`, `{"$int": "9007199254740993"}` (`dumps`, `loads`).

This module knows nothing of runs or days.
"""

from __future__ import annotations

import errno
import math
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from daypoint.base.errors import FileError

SAFE_INTEGER = 2**53 - 1
"""The largest integer that every JSON reader keeps (I-JSON, RFC 7493)."""

_NAMES = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _float_name(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def encode_metrics(metrics: Mapping[str, bool | int | float]) -> dict[str, bool | int | float | str]:
    """Metric values as strict JSON can hold them; `decode_metrics` gives exactly the same values back."""
    encoded: dict[str, bool | int | float | str] = {}
    for name, value in metrics.items():
        if type(value) is float:
            encoded[name] = value if math.isfinite(value) else _float_name(value)
        elif type(value) is int:
            encoded[name] = value if -SAFE_INTEGER <= value <= SAFE_INTEGER else str(value)
        else:
            encoded[name] = value
    return encoded


def decode_metrics(encoded: Mapping[str, Any]) -> dict[str, bool | int | float]:
    """The values that `encode_metrics` was given."""
    return {name: decode_number(value) for name, value in encoded.items()}


def decode_number(value: Any) -> Any:
    """One value of a metrics map; anything but a string is itself."""
    if not isinstance(value, str):
        return value
    return _NAMES[value] if value in _NAMES else int(value)


def without_nonfinite(value: Any) -> Any:
    """Plain data in which NaN and infinities are text, for readers that do not know the objects of `dumps`."""
    if isinstance(value, dict):
        return {key: without_nonfinite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nonfinite(item) for item in value]
    return _float_name(value) if isinstance(value, float) and not math.isfinite(value) else value


def dumps(value: Any, *, indent: bool = True) -> bytes:
    """Plain data as strict JSON, with a final newline.

    Raises:
        TypeError: something in it is not a dict with string keys, list, tuple, str, bool, int, float or None.
    """
    option = orjson.OPT_APPEND_NEWLINE | (orjson.OPT_INDENT_2 if indent else 0)
    return orjson.dumps(_encode(value, "$"), option=option)


def loads(text: bytes | str) -> Any:
    """What `dumps` was given (tuples come back as lists).

    Raises:
        ValueError: the text is not strict JSON.
    """
    value = orjson.loads(text)
    # Most files hold no such object, and looking for one costs three times the reading.
    mark, escaped = ("$", "\\u0024") if isinstance(text, str) else (b"$", b"\\u0024")
    return _decode(value) if mark in text or escaped in text else value


def _encode(value: Any, where: str) -> Any:
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is float:
        return value if math.isfinite(value) else {"$float": _float_name(value)}
    if kind is int:
        return value if -SAFE_INTEGER <= value <= SAFE_INTEGER else {"$int": str(value)}
    if isinstance(value, Mapping):
        for key in value:
            if type(key) is not str:
                raise TypeError(f"{where}: JSON keys are strings, found {key!r} ({type(key).__name__})")
        return {key: _encode(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encode(item, f"{where}[{i}]") for i, item in enumerate(value)]
    raise TypeError(f"{where}: expected plain data, found {kind.__module__}.{kind.__qualname__}")


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if isinstance(value, dict):
        if len(value) == 1:
            if isinstance(name := value.get("$float"), str) and name in _NAMES:
                return _NAMES[name]
            if isinstance(digits := value.get("$int"), str):
                return int(digits)
        return {key: _decode(item) for key, item in value.items()}
    return value


def open_descriptor(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """Open a regular file and nothing else: to open a FIFO would wait for its other end, and a device never ends.

    Raises:
        FileError: something else is there.
        OSError: it cannot be opened.
    """
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        # ENXIO: a socket, or a FIFO to be written that nobody reads; EISDIR: a directory to be written.
        if error.errno in (errno.ENXIO, errno.EISDIR):
            raise FileError(_kind(os.stat(path).st_mode), os.fspath(path)) from None
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise FileError(_kind(mode), os.fspath(path))
    return descriptor


def open_regular(path: str | os.PathLike[str], *, buffering: int = -1) -> BinaryIO:
    """`open(path, "rb")` for a regular file and nothing else.

    Raises:
        FileError: something else is there.
        OSError: it cannot be opened.
    """
    return os.fdopen(open_descriptor(path), "rb", buffering=buffering)


def read_bytes(path: str | os.PathLike[str], *, most_bytes: int | None = None) -> bytes:
    """The content of a regular file, of the size that it has when it is opened: one that grows meanwhile does not matter.

    Args:
        most_bytes: read no more than so much; None: all of it.

    Raises:
        FileError: something else is there.
        OSError: it cannot be read.
    """
    with open_regular(path, buffering=0) as file:
        left = os.fstat(file.fileno()).st_size
        left = left if most_bytes is None else min(left, most_bytes)
        parts = []
        while left and (part := file.read(left)):
            parts.append(part)
            left -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def lines(path: str | os.PathLike[str], offset_bytes: int = 0) -> Iterator[bytes]:
    """The lines of a regular file from an offset on that begin before the end that it has when it is opened.

    Raises:
        FileError: something else is there.
        OSError: it cannot be read.
    """
    with open_regular(path, buffering=2**20) as file:
        size, begin = os.fstat(file.fileno()).st_size, file.seek(offset_bytes)
        for line in file:
            yield line
            begin += len(line)
            if begin >= size:
                return


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFDIR: "a directory",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "no regular file")


def write_atomic(path: Path, content: bytes) -> None:
    """Replace `path` by `content` so that a reader, or a crash at any instant, sees the old file or the new one.

    The content is on disk before the rename makes it visible (otherwise a power cut could leave an empty file
    under the final name), and the rename is on disk when this returns. A crash before the rename leaves a
    `.tmp` file, which nothing reads. The temporary name is unique, so two writers cannot mix their bytes.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Put the names in a directory on disk: without it a rename can be undone by a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

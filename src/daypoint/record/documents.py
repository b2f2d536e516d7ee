"""Reads the JSON documents that daypoint keeps (run.json, identity cards, manifests) and says what is wrong with a damaged one.

A file may hold anything: half of it, another program's JSON, JSON nested so deeply that whoever walks through it would not come
back. This module does not know what the entries of a document mean.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daypoint.base import files
from daypoint.base.errors import DaypointError

if TYPE_CHECKING:
    from filelock import FileLock

_LARGEST_BYTES = 32 * 2**20
_DEEPEST = 200


def read(
    path: Path,
    what: str,
    document_format: str,
    needed: Mapping[str, type],
    *,
    error: type[DaypointError],
    remedy: str = "restore it from a backup",
) -> dict[str, Any]:
    """The content of a document.

    Args:
        what: the kind of document, in words.
        document_format: what its "format" has to be.
        needed: entries without which it cannot be used, with their types.
        error: what to raise for a document that is not as it should be.
        remedy: what to do about a damaged one.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        content = _object(path)
        found = content.get("format")
        if found != document_format:
            raise error(
                f"{path}: expected format {document_format!r}, found {found!r}; a newer daypoint may have written it"
            )
        if (key := lacking(content, needed)) is not None:
            raise ValueError(f"no proper {key}")
    except ValueError as problem:
        raise error(f"{path}: expected {what}, found {problem}; {remedy}") from problem
    return content


def lacking(content: Mapping[str, Any], needed: Mapping[str, type]) -> str | None:
    """The first key whose value is missing or of another type; None if there is none."""
    return next((key for key, kind in needed.items() if type(content.get(key)) is not kind), None)


def _object(path: Path) -> dict[str, Any]:
    """A JSON object from a file that may hold anything. ValueError says what was found instead."""
    text = files.read_bytes(path, most_bytes=_LARGEST_BYTES + 1)
    if len(text) > _LARGEST_BYTES:
        raise ValueError(f"more than {_LARGEST_BYTES // 2**20} MiB")
    try:
        value = files.loads(text)
    except ValueError as error:
        raise ValueError(f"{len(text)} bytes that are not strict JSON ({error})") from error
    except RecursionError as error:
        raise ValueError("JSON nested too deeply to read") from error
    if not isinstance(value, dict):
        raise ValueError(f"a JSON {type(value).__name__}")
    if text.count(b"{") + text.count(b"[") > _DEEPEST and _is_deep(value, _DEEPEST):
        raise ValueError("JSON nested too deeply to read")
    return value


def _is_deep(value: Any, left: int) -> bool:
    """Whether containers are nested more than `left` times."""
    if left == 0:
        return True
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(_is_deep(child, left - 1) for child in children)


def locked(path: Path) -> FileLock:
    """The lock under which a document is read, changed and replaced."""
    from filelock import FileLock  # most readers change nothing

    return FileLock(path.with_name(f".{path.name}.lock"), timeout=60)


def sha256(path: Path) -> str:
    """The SHA-256 of a file's content, as hexadecimal digits."""
    with files.open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

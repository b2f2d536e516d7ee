"""The manifest of a packaged model: which checkpoint it was made from, and size and SHA-256 of every file.

It is `daypoint.json` in the model directory. With it a packaged model is checked before it is sent to MLflow, and in
`daypoint verify`. It guards against accidents and careless edits; it is not a signature. This module knows neither torch nor
mlflow.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from daypoint.base import files
from daypoint.base.day import PackageFiles
from daypoint.base.errors import PackageError
from daypoint.record import documents

FORMAT = "daypoint/package/1"

_NEEDED: dict[str, type] = {
    "uid": str,
    "day": str,
    "experiment": str,
    "checkpoint": str,
    "step": int,
    "card_sha256": str,
    "kind": str,
    "files": dict,
}


def write(directory: Path, facts: Mapping[str, Any]) -> None:
    """Write the manifest of a model directory as it is now.

    Args:
        facts: plain data about the model; everything but "format" and "files".
    """
    listed = {name: _describe(path) for name, path in sorted(_contents(directory).items())}
    content = {"format": FORMAT, **facts, "files": listed}
    files.write_atomic(PackageFiles(directory).manifest, files.dumps(content))


def read(directory: Path) -> dict[str, Any]:
    """What the manifest says; the files are not looked at.

    Raises:
        PackageError: there is none, or daypoint did not write it.
    """
    path = PackageFiles(directory).manifest
    remedy = _again(directory)
    try:
        return documents.read(path, "a manifest", FORMAT, _NEEDED, error=PackageError, remedy=remedy)
    except OSError as error:
        raise PackageError(f"{path}: the manifest cannot be read: {error.strerror}; {remedy}") from error


def problems(directory: Path) -> list[str]:
    """What is wrong with a model directory, in a line a problem that names the file; empty if all is well."""
    try:
        listed = read(directory)["files"]
    except PackageError as error:
        return [str(error)]
    there = _contents(directory)
    found = [f"{directory / name}: missing" for name in sorted(listed.keys() - there.keys())]
    found += [f"{there[name]}: not listed in the manifest" for name in sorted(there.keys() - listed.keys())]
    for name in sorted(listed.keys() & there.keys()):
        try:
            if _describe(there[name]) != listed[name]:
                found.append(f"{there[name]}: the content has changed since it was written")
        except OSError as error:
            found.append(f"{there[name]}: cannot be read: {error.strerror}")
    return found


def trusted(directory: Path) -> dict[str, Any]:
    """The manifest of a model directory that is about to be used; every file is as it was written.

    Raises:
        PackageError: one is not; says which.
    """
    content = read(directory)
    if wrong := problems(directory):
        raise PackageError(f"the packaged model was changed: {'; '.join(wrong)}; {_again(directory)}")
    return content


def size_bytes(directory: Path) -> int:
    """All files together."""
    return sum(path.stat().st_size for path in _contents(directory).values())


def _again(directory: Path) -> str:
    return f"remove it and make it anew: rm -r {quote(str(directory))} && daypoint package {quote(str(directory.parent))}"


def _contents(directory: Path) -> dict[str, Path]:
    """Every file by its relative name, but for the manifest and what Python caches when it is served from here."""
    own = PackageFiles(directory).manifest
    return {
        path.relative_to(directory).as_posix(): path
        for path in directory.rglob("*")
        if (path.is_symlink() or path.is_file()) and path != own and "__pycache__" not in path.parts
    }


def _describe(path: Path) -> dict[str, Any]:
    if path.is_symlink():  # wherever it leads, what is there is not ours
        return {"symlink": str(path.readlink())}
    return {"bytes": path.stat().st_size, "sha256": documents.sha256(path)}

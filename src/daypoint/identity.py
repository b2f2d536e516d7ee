"""Identity: who a run and a checkpoint are. run.json, the code, the versions, the config's hash, the identity card.

This module imports neither torch nor mlflow nor hydra, so that every reader of runs can afford it. It knows nothing of
tensors or journals: numbers come in as Python numbers. One number: 3 ms to write a card.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from daypoint import files
from daypoint.errors import AddressError, RunError

RUN_FORMAT = "daypoint/run/1"

_LARGEST_JSON_BYTES = 32 * 2**20


# ---------------------------------------------------------------- run.json


def write_run(directory: Path, record: dict[str, Any]) -> None:
    """Replace the run.json of a run directory, atomically.

    Raises:
        TypeError: the record holds something other than plain data.
    """
    files.write_atomic(directory / "run.json", files.dumps(record))


def read_run(directory: Path) -> dict[str, Any]:
    """The run.json of a run directory.

    Raises:
        AddressError: there is none, so this is no run.
        RunError: it is damaged, too large to be one, or written by a later daypoint.
    """
    path = directory / "run.json"
    try:
        record = _read_json(path)
    except FileNotFoundError:
        raise AddressError(f"{directory}: expected a run directory, found no run.json in it") from None
    except ValueError as error:
        raise RunError(f"{path}: expected a run record, found {error}; restore it from a backup") from error
    found = record.get("format")
    if found != RUN_FORMAT:
        raise RunError(f"{path}: expected format {RUN_FORMAT!r}, found {found!r}; a newer daypoint may have written it")
    if not isinstance(record.get("uid"), str):
        raise RunError(f"{path}: expected a run record, found one without a uid; restore it from a backup")
    return record


def _read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file that may hold anything. ValueError says what was found instead."""
    with open(path, "rb") as file:
        text = file.read(_LARGEST_JSON_BYTES + 1)
    if len(text) > _LARGEST_JSON_BYTES:
        raise ValueError(f"more than {_LARGEST_JSON_BYTES // 2**20} MiB")
    try:
        value = files.loads(text)
    except ValueError as error:
        raise ValueError(f"{len(text)} bytes that are not strict JSON ({error})") from error
    except RecursionError as error:
        raise ValueError("JSON nested too deeply to read") from error
    if not isinstance(value, dict):
        raise ValueError(f"a JSON {type(value).__name__}")
    return value

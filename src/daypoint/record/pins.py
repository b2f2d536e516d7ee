"""The file `promoted.json` of a day: which checkpoint a person chose as the model of the day, and which packaged model has the
day's alias in MLflow.

It says both for each experiment. The alias in MLflow is a copy of what stands here, so that a store that is built anew has the
same one. Two people may promote at once, so every change is made under a lock. This module reads no run.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from daypoint.base import day, files
from daypoint.base.errors import CheckpointError
from daypoint.record import documents

FORMAT = "daypoint/promoted/1"


def read_pins(outputs: Path, day_tag: str) -> dict[str, dict[str, str]]:
    """What `promote` has pinned on a day, by experiment: the uid of a run and the name of its checkpoint.

    Raises:
        CheckpointError: the file is damaged.
    """
    return _read(outputs, day_tag)["pins"]


@contextlib.contextmanager
def held_aliases(outputs: Path, day_tag: str) -> Iterator[dict[str, dict[str, str]]]:
    """Which packaged model has the alias of a day, by experiment: the uid of its run and the seal of its card.

    Nobody changes them within the block: two who send models at once leave MLflow with the right alias.

    Raises:
        CheckpointError: the file is damaged.
    """
    path = day.promoted_file(outputs, day_tag)
    with contextlib.ExitStack() as stack:
        try:
            if path.exists():
                stack.enter_context(documents.locked(path))
        except OSError as error:  # an archive that cannot be written: nobody else can change it either
            if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise
        yield _read(outputs, day_tag)["aliases"]


def pin(outputs: Path, day_tag: str, experiment: str, *, uid: str, checkpoint: str) -> None:
    """Make a checkpoint the model of its day."""
    _change(outputs, day_tag, "pins", experiment, {"uid": uid, "checkpoint": checkpoint})


def give_alias(outputs: Path, day_tag: str, experiment: str, *, uid: str, card_sha256: str) -> None:
    """Give the alias of a day to a packaged model."""
    _change(outputs, day_tag, "aliases", experiment, {"uid": uid, "card_sha256": card_sha256})


def _read(outputs: Path, day_tag: str) -> dict[str, Any]:
    path = day.promoted_file(outputs, day_tag)
    try:
        content = files.loads(files.read_bytes(path))
        return {name: dict(content.get(name, {})) for name in ("pins", "aliases")}
    except FileNotFoundError:
        return {"pins": {}, "aliases": {}}
    except (ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path}: expected the pins of a day as strict JSON ({error}); remove it"
        ) from error


def _change(outputs: Path, day_tag: str, what: str, experiment: str, value: dict[str, str]) -> None:
    path = day.promoted_file(outputs, day_tag)
    try:
        with documents.locked(path):
            content = _read(outputs, day_tag)
            content[what][experiment] = value
            files.write_atomic(path, files.dumps({"format": FORMAT, **content}))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written: {error.strerror or error}") from error

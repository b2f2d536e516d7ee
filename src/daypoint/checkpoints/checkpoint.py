"""Save and load checkpoints: a checkpoint is written whole or not at all, and loaded only when it matches its card.

A checkpoint is a directory `checkpoints/step000300/` with the weights, the training state and the identity card.
It is written under a temporary name, every file is brought to the disk, and then one rename makes it a
checkpoint. So at any instant, power cuts and full disks included, there are only whole checkpoints and `.tmp`
leftovers, which the next save removes (a run has one writer, the one that holds its journal).

Nothing is unpickled. Finding and verifying checkpoints is left to `daypoint.record.shelf`, and what is taken out of live
objects to `daypoint.checkpoints.snapshot`. torch is imported only to save and to load.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from daypoint.base import files as disk
from daypoint.base.day import CheckpointFiles, RunFiles
from daypoint.base.errors import CheckpointError
from daypoint.record import identity
from daypoint.record.shelf import move_pointers, trusted_card

if TYPE_CHECKING:
    import torch

    from daypoint.checkpoints.snapshot import Restored, Snapshot

_RENAME_EXCHANGE = 2  # linux/fs.h
_AT_FDCWD = -100


# ---------------------------------------------------------------- saving


def take(
    *,
    step: int,
    epoch: int | None,
    record: Mapping[str, Any],
    attempt: int,
    metrics: Mapping[str, bool | int | float] | None = None,
    parent: Mapping[str, Any] | None = None,
    **training: Any,
) -> tuple[Snapshot, dict[str, Any]]:
    """What a checkpoint of this moment holds, for `write`.

    Args:
        step: steps done.
        record: the run's run.json.
        metrics: Python numbers by name; those of `record["monitor"]` decide which checkpoint is the best.
        parent: `identity.reference` of the checkpoint that this training went on from.
        training: the model and the rest of the training, as for `snapshot.take`.

    Returns:
        The snapshot, and the card that will be sealed when the files are there.

    Raises:
        CheckpointError: something in it cannot be stored; names it.
    """
    from daypoint.checkpoints import snapshot

    taken = snapshot.take(**training)
    about = {"step": step, "epoch": epoch, "attempt": attempt, "metrics": metrics or {}, "parent": parent}
    return taken, identity.make_card(record, **about, device=taken.device)


def write(files: RunFiles, taken: Snapshot, card: Mapping[str, Any]) -> Path:
    """Write a checkpoint and its card, then move the pointers. When it returns, all of it is on the disk.

    It touches nothing of the live training and may run in another thread. The same step saved again (a resumed run redoes
    steps) replaces the old one, in one system call where the file system can exchange two directories.

    Args:
        taken, card: from `take`.

    Returns:
        The checkpoint directory.

    Raises:
        CheckpointError: the disk did not take it; earlier checkpoints are whole.
    """
    from daypoint.checkpoints import tensorfile

    target = files.checkpoint(card["step"])
    temporary = files.checkpoints / f".{target.name}.{secrets.token_hex(4)}.tmp"
    inside = CheckpointFiles(temporary, files.day)
    try:
        _prepare(files)
        temporary.mkdir()
        listed = {
            inside.weights.name: tensorfile.write_tensors(inside.weights, taken.weights, taken.metadata),
            inside.state_tensors.name: tensorfile.write_tensors(inside.state_tensors, taken.tensors, {}),
            inside.state.name: tensorfile.write_bytes(inside.state, [orjson.dumps(taken.document)]),
        }
        tensorfile.write_bytes(inside.card, [identity.seal(card, listed)])
        disk.sync_directory(temporary)
        _commit(temporary, target)
        disk.sync_directory(files.checkpoints)
    except OSError as error:
        raise CheckpointError(
            f"{target}: cannot write the checkpoint: {error.strerror or error}; "
            "earlier checkpoints are whole, free some space and save again"
        ) from error
    except TypeError as error:
        raise CheckpointError(f"{target}: the card can hold plain data only: {error}") from error
    finally:
        # After the commit this is the checkpoint that was replaced, if any; after an error, what was written.
        shutil.rmtree(temporary, ignore_errors=True)
    move_pointers(files)
    return target


def _prepare(files: RunFiles) -> None:
    """The directory for checkpoints, without what killed writers have left in it."""
    if not files.checkpoints.is_dir():
        files.checkpoints.mkdir(parents=True, exist_ok=True)
        disk.sync_directory(files.directory)
    for leftover in files.checkpoints.glob(".*.tmp"):
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)


def _commit(temporary: Path, target: Path) -> None:
    try:
        os.rename(temporary, target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if not _exchange(temporary, target):
            # Only here, where directories cannot be exchanged, a crash between the two loses this one step.
            aside = temporary.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
            os.rename(target, aside)
            os.rename(temporary, target)
            shutil.rmtree(aside, ignore_errors=True)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two directories in one step. False where the system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    return renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0


# ---------------------------------------------------------------- loading


def load_weights(directory: Path, model: torch.nn.Module, *, full_verify: bool = False) -> dict[str, Any]:
    """Load a checkpoint's weights into a model, wrapped or not; names, shapes and dtypes have to be the same.

    Args:
        full_verify: check the content of the files before, not only their sizes.

    Returns:
        The identity card.

    Raises:
        CheckpointError: the checkpoint is damaged or does not fit; the model is unchanged.
    """
    from daypoint.checkpoints import snapshot, tensorfile

    card = trusted_card(directory, full=full_verify)
    path = CheckpointFiles(directory, card["day"]).weights
    weights, metadata = tensorfile.read_tensors(path)
    snapshot.put_weights(model, weights, metadata, str(path))
    return card


def restore(directory: Path, *, model: torch.nn.Module, **rest: Any) -> tuple[Restored, dict[str, Any]]:
    """Put a training back to where the checkpoint was taken, all random number generators included.

    Args:
        model: built anew from the same config.
        rest: `optimizer`, `scheduler` and `scaler`, likewise; None is left out.

    Returns:
        What else was in it, and its identity card.

    Raises:
        CheckpointError: the checkpoint is damaged, or holds something else than these objects.
    """
    from daypoint.checkpoints import snapshot, tensorfile

    card = trusted_card(directory, full=False)
    paths = CheckpointFiles(directory, card["day"])
    weights, metadata = tensorfile.read_tensors(paths.weights)
    tensors, _ = tensorfile.read_tensors(paths.state_tensors)
    try:
        document = orjson.loads(disk.read_bytes(paths.state))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{paths.state}: expected strict JSON: {error}") from error
    saved = snapshot.Snapshot(weights, metadata, tensors, document)
    return snapshot.put_back(saved, str(directory), model=model, **rest), card

"""Checkpoints on disk: saved whole or not at all, found, verified, loaded, thinned out. Nothing is ever unpickled.

A checkpoint is a directory `checkpoints/step000300/` with the weights, the training state and the identity card. It is
written under a name that nobody reads, every file is brought to the disk, and then one rename makes it a checkpoint. So
at any instant, power cuts and full disks included, there are only whole checkpoints and `.tmp` leftovers, which the next
save removes (a run has one writer, the one that holds its journal). Which one is the last or the best is told by the
cards; the pointer files `last.json` and `best.json` repeat it for people and other programs.

This module imports torch only to save and to load, and never mlflow. One number: a small checkpoint takes 8 ms.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import math
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from daypoint import files as disk
from daypoint import identity
from daypoint.day import CheckpointFiles, RunFiles
from daypoint.errors import AddressError, CheckpointError, RunError

if TYPE_CHECKING:
    import torch

    from daypoint.snapshot import Snapshot

_STEP = re.compile(r"step(\d{6,})")
_RENAME_EXCHANGE = 2  # linux/fs.h
_AT_FDCWD = -100


@dataclass(frozen=True)
class State:
    """Where a restored training stands.

    Attributes:
        step: steps done.
        epoch: the epoch at the time of saving.
        extra: as it was given to `save`.
        card: the identity card; `identity.reference(state.card)` is the `parent` of what is saved from now on.
        overridden: settings of the optimizer that it was built with and the checkpoint replaced, name -> (old, new).
        notes: what could not be restored, in words.
    """

    step: int
    epoch: int | None
    extra: dict[str, Any] | None
    card: dict[str, Any]
    overridden: dict[str, tuple[Any, Any]]
    notes: list[str]


@dataclass(frozen=True)
class Found:
    """A search for a checkpoint.

    Attributes:
        path: the newest whole one; None if there is none.
        skipped: newer ones that are damaged, and how, in words.
    """

    path: Path | None
    skipped: list[str]


# ---------------------------------------------------------------- saving


def save(
    files: RunFiles,
    *,
    step: int,
    epoch: int | None,
    record: Mapping[str, Any],
    attempt: int,
    model: torch.nn.Module,
    optimizer: Any = None,
    scheduler: Any = None,
    scaler: Any = None,
    extra: Mapping[str, Any] | None = None,
    metrics: Mapping[str, bool | int | float] | None = None,
    parent: Mapping[str, Any] | None = None,
    gradients: bool = False,
) -> Path:
    """Write a checkpoint and its card, then move the pointers. When it returns, all of it is on the disk.

    The same step saved again (a resumed run redoes steps) replaces the old one, in one system call where the file
    system can exchange two directories.

    Args:
        step: steps done.
        record: the run's run.json.
        optimizer, scheduler, scaler: whatever has a `state_dict` of plain data.
        extra: more plain data and tensors, see `packing.pack`.
        metrics: Python numbers by name; those of `record["monitor"]` decide which checkpoint is the best.
        parent: `identity.reference` of the checkpoint that this training went on from.
        gradients: keep the gradients too, for a step in the middle of an accumulation.

    Returns:
        The checkpoint directory.

    Raises:
        CheckpointError: something in it cannot be stored, or the disk did not take it; earlier checkpoints are whole.
    """
    from daypoint import snapshot

    taken = snapshot.take(model, optimizer, scheduler, scaler, extra, gradients=gradients, copy=False)
    card = identity.make_card(
        record, step=step, epoch=epoch, attempt=attempt, metrics=metrics or {}, parent=parent, device=taken.device
    )
    return write(files, taken, card)


def write(files: RunFiles, taken: Snapshot, card: Mapping[str, Any]) -> Path:
    """The second half of `save`, which touches nothing of the live training. Returns and raises as `save`."""
    from daypoint import tensorfile

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
        # After a commit this is the checkpoint that was replaced, if any; after an error what was written so far.
        shutil.rmtree(temporary, ignore_errors=True)
    _move_pointers(files)
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
            # Here alone, on a file system that cannot exchange, a crash between the two would take this one step.
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


def _move_pointers(files: RunFiles) -> None:
    whole = history(files)
    metric, mode = _monitor(whole)
    for name, ranked in (("last", whole), ("best", _ranked(whole))):
        pointer = files.pointer(name)
        if not ranked:
            pointer.unlink(missing_ok=True)
            continue
        path, card = ranked[-1]
        content: dict[str, Any] = {
            "format": "daypoint/pointer/1",
            "checkpoint": path.name,
            "step": card["step"],
            "epoch": card["epoch"],
            "attempt": card["attempt"],
            "card_sha256": card["card_sha256"],
        }
        if name == "best":
            value = disk.encode_metrics({metric: card["metrics"][metric]})[metric]
            content |= {"metric": metric, "mode": mode, "value": value}
        text = disk.dumps(content)
        try:
            if not pointer.is_file() or pointer.read_bytes() != text:
                disk.write_atomic(pointer, text)
        except OSError as error:
            raise CheckpointError(
                f"{pointer}: cannot write the pointer: {error.strerror}; the checkpoint itself is whole"
            ) from error


# ---------------------------------------------------------------- verifying


def verify(directory: Path, *, full: bool = True) -> list[str]:
    """What is wrong with a checkpoint: every file against the card, the card against itself, its place and its run.

    Args:
        full: compare the content of the files (SHA-256), not only their sizes.

    Returns:
        One sentence a problem, each beginning with the file; empty for a whole checkpoint.
    """
    try:
        card = read_card(directory)
    except CheckpointError as error:
        return [str(error)]
    return _problems(directory, card, _uid_of_run(directory.parent.parent), full=full)


def read_card(directory: Path) -> dict[str, Any]:
    """The identity card of a checkpoint directory.

    Raises:
        CheckpointError: there is none, more than one, or it is not as it was written.
    """
    found = sorted(directory.glob("model_*.json"))
    if not found:
        what = "no such directory" if not directory.is_dir() else "no identity card (model_*.json) in it"
        raise CheckpointError(f"{directory}: expected a checkpoint, found {what}")
    if len(found) > 1:
        raise CheckpointError(f"{directory}: expected one identity card, found {', '.join(p.name for p in found)}")
    return identity.read_card(found[0])


def _problems(directory: Path, card: Mapping[str, Any], uid: str | None, *, full: bool) -> list[str]:
    problems = []
    expected = CheckpointFiles(directory, card["day"])
    if not expected.card.is_file():
        problems.append(f"{directory}: the card says day {card['day']}, its file name says another")
    step = _STEP.fullmatch(directory.name)
    if step and int(step[1]) != card["step"]:
        problems.append(f"{expected.card}: the card is of step {card['step']}, the directory of step {int(step[1])}")
    if uid is not None and card["uid"] != uid:
        problems.append(f"{expected.card}: the card is of run {card['uid']}, the directory of run {uid}")
    names = {path.name for path in (expected.weights, expected.state_tensors, expected.state)}
    if card["files"].keys() != names:
        problems.append(f"{expected.card}: it lists {sorted(card['files'])}, expected {sorted(names)}")
    for name in sorted(names & card["files"].keys()):
        path, listed = directory / name, card["files"][name]
        try:
            size = path.stat().st_size
            if size != listed["bytes"]:
                problems.append(f"{path}: expected {listed['bytes']} bytes, found {size}")
            elif full and (found := _sha256(path)) != listed["sha256"]:
                problems.append(
                    f"{path}: the content has changed since it was written "
                    f"(SHA-256 {found[:12]}…, the card says {listed['sha256'][:12]}…)"
                )
        except FileNotFoundError:
            problems.append(f"{path}: missing")
        except OSError as error:
            problems.append(f"{path}: cannot be read: {error.strerror}")
    for path in sorted(directory.iterdir()):
        if path.name not in names and path != expected.card and not path.name.startswith("."):
            problems.append(f"{path}: not listed in the card")
    return problems


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _uid_of_run(directory: Path) -> str | None:
    """None when the checkpoint was copied out of its run, or that run cannot be read: then there is nothing to compare."""
    try:
        return identity.read_run(directory)["uid"]
    except (AddressError, RunError, OSError):
        return None


def _trusted(directory: Path, *, full: bool) -> dict[str, Any]:
    card = read_card(directory)
    problems = _problems(directory, card, _uid_of_run(directory.parent.parent), full=full)
    if problems:
        raise CheckpointError(f"not loaded, the checkpoint is damaged: {'; '.join(problems)}")
    return card


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
    from daypoint import snapshot, tensorfile

    card = _trusted(directory, full=full_verify)
    path = CheckpointFiles(directory, card["day"]).weights
    weights, metadata = tensorfile.read_tensors(path)
    snapshot.put_weights(model, weights, metadata, str(path))
    return card


def restore(
    directory: Path,
    *,
    model: torch.nn.Module,
    optimizer: Any = None,
    scheduler: Any = None,
    scaler: Any = None,
    full_verify: bool = False,
) -> State:
    """Put a training back to where the checkpoint was taken, the states of all random number generators included.

    Args:
        model, optimizer, scheduler, scaler: built anew from the same config; None is left out.
        full_verify: check the content of the files before, not only their sizes.

    Raises:
        CheckpointError: the checkpoint is damaged, or holds something else than these objects.
    """
    from daypoint import snapshot, tensorfile

    card = _trusted(directory, full=full_verify)
    paths = CheckpointFiles(directory, card["day"])
    weights, metadata = tensorfile.read_tensors(paths.weights)
    tensors, _ = tensorfile.read_tensors(paths.state_tensors)
    try:
        document = orjson.loads(paths.state.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{paths.state}: expected strict JSON: {error}") from error
    put = snapshot.put_back(
        snapshot.Snapshot(weights, metadata, tensors, document),
        str(directory),
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        scaler=scaler,
    )
    return State(card["step"], card["epoch"], put.extra, card, put.overridden, put.notes)


# ---------------------------------------------------------------- finding and thinning out


def history(files: RunFiles) -> list[tuple[Path, dict[str, Any]]]:
    """The checkpoints of a run with their cards, in the order in which they were made; damaged ones left out.

    Files are checked by size only.
    """
    return _look(files)[0]


def latest(files: RunFiles, *, full: bool = True) -> Found:
    """The newest whole checkpoint, and the newer ones that had to be skipped.

    Args:
        full: check the content of the files, not only their sizes.
    """
    whole, damaged = _look(files)
    skipped = []
    found: Path | None = None
    for path, card in reversed(whole):
        problems = _problems(path, card, None, full=True) if full else []
        if not problems:
            found = path
            break
        skipped += problems
    newer = [problems for path, problems in damaged if found is None or _step_of(path) > _step_of(found)]
    return Found(found, [problem for problems in newer for problem in problems] + skipped)


def best(files: RunFiles, *, full: bool = False) -> Path | None:
    """The whole checkpoint with the best value of the monitored metric; None if none has that metric.

    NaN never wins, and of two equal values the later one does.
    """
    for path, card in reversed(_ranked(history(files))):
        if not full or not _problems(path, card, None, full=True):
            return path
    return None


def prune(files: RunFiles, keep_last: int | None, keep_best: int | None) -> list[Path]:
    """Remove checkpoints, but the last so many and the best so many; never the last and the best one.

    Args:
        keep_last, keep_best: None: there is no such rule. With neither, everything is kept.

    Returns:
        What was removed. Damaged checkpoints do not count and are not removed.

    Raises:
        CheckpointError: something could not be removed.
    """
    if keep_last is None and keep_best is None:
        return []
    whole = history(files)
    ranked = _ranked(whole)
    kept = {path for path, _ in whole[-max(1, keep_last or 0) :] + ranked[-max(1, keep_best or 0) :]}
    removed = [path for path, _ in whole if path not in kept]
    for path in removed:
        # Renamed first, so that a half-removed one is none.
        aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        try:
            os.rename(path, aside)
            shutil.rmtree(aside)
        except OSError as error:
            raise CheckpointError(f"{path}: cannot remove the old checkpoint: {error.strerror}") from error
    return removed


def _look(files: RunFiles) -> tuple[list[tuple[Path, dict[str, Any]]], list[tuple[Path, list[str]]]]:
    """The whole checkpoints in order, and the damaged ones with what is wrong with them."""
    whole, damaged = [], []
    uid = _uid_of_run(files.directory)
    paths = files.checkpoints.iterdir() if files.checkpoints.is_dir() else ()
    for path in sorted(path for path in paths if _STEP.fullmatch(path.name) and path.is_dir()):
        try:
            card = read_card(path)
        except CheckpointError as error:
            damaged.append((path, [str(error)]))
            continue
        if problems := _problems(path, card, uid, full=False):
            damaged.append((path, problems))
        else:
            whole.append((path, card))
    # A later attempt may have gone on from an earlier step; what it made is newer all the same.
    whole.sort(key=lambda item: (item[1]["attempt"], item[1]["step"]))
    return whole, damaged


def _monitor(whole: list[tuple[Path, dict[str, Any]]]) -> tuple[str, str]:
    monitor = (whole[-1][1]["monitor"] or {}) if whole else {}
    return monitor.get("metric", ""), monitor.get("mode", "max")


def _ranked(whole: list[tuple[Path, dict[str, Any]]]) -> list[tuple[Path, dict[str, Any]]]:
    """Those that have the monitored metric, the best one last."""
    metric, mode = _monitor(whole)
    sign = -1 if mode == "min" else 1
    measured = [item for item in whole if metric in item[1]["metrics"]]
    measured = [item for item in measured if not math.isnan(item[1]["metrics"][metric])]
    return sorted(measured, key=lambda item: sign * item[1]["metrics"][metric])  # stable: the later of two equals wins


def _step_of(path: Path) -> int:
    return int(path.name.removeprefix("step"))

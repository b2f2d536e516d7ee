"""The checkpoints of a run as they lie on disk: which are whole, which is the newest, which the best, and which to remove.

The identity cards decide which checkpoint is the last or the best, each time anew, so that a crash between a save and its
pointers leaves nothing wrong. `last.json` and `best.json` repeat the answer for people and for other programs.

This module imports no torch, so that listing and verifying stay cheap, and it never looks into the weights.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daypoint.base import files as disk
from daypoint.base.day import CheckpointFiles, RunFiles
from daypoint.base.errors import AddressError, CheckpointError, RunError
from daypoint.record import documents, identity

_ALWAYS_HASHED_BYTES = 64 * 2**20
"""Up to this size the content is checked before every load; it takes 40 ms."""
_STEP = re.compile(r"step(\d{6,})")


@dataclass(frozen=True)
class Found:
    """A search for a checkpoint.

    Attributes:
        path: the newest whole one; None if there is none.
        skipped: newer ones that are damaged, and how, in words.
    """

    path: Path | None
    skipped: list[str]


# ---------------------------------------------------------------- verifying


def verify(directory: Path, *, full: bool = True) -> list[str]:
    """What is wrong with a checkpoint: every file against its card, the card against itself and its place.

    Args:
        full: compare the content of the files (SHA-256), not only their sizes.

    Returns:
        One sentence a problem, each beginning with the file; empty for a whole checkpoint.
    """
    try:
        card = read_card(directory)
    except CheckpointError as error:
        return [str(error)]
    problems = _problems(directory, card, _uid_of_run(directory.parent.parent), full=full)
    known = {CheckpointFiles(directory, card["day"]).card.name, *card["files"]}
    strangers = [p for p in sorted(directory.iterdir()) if p.name not in known and not p.name.startswith(".")]
    return problems + [f"{path}: not listed in the card" for path in strangers]


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
        raise CheckpointError(
            f"{directory}: expected one identity card, found {', '.join(p.name for p in found)}"
        )
    return identity.read_card(found[0])


def _problems(directory: Path, card: Mapping[str, Any], uid: str | None, *, full: bool) -> list[str]:
    problems = []
    expected = CheckpointFiles(directory, card["day"])
    if not expected.card.is_file():
        problems.append(f"{directory}: the card says day {card['day']}, its file name says another")
    step = _STEP.fullmatch(directory.name)
    if step and int(step[1]) != card["step"]:
        problems.append(
            f"{expected.card}: the card is of step {card['step']}, the directory of step {int(step[1])}"
        )
    if uid is not None and card["uid"] != uid:
        problems.append(f"{expected.card}: the card is of run {card['uid']}, the directory of run {uid}")
    names = {path.name for path in (expected.weights, expected.state_tensors, expected.state)}
    if card["files"].keys() != names:
        problems.append(f"{expected.card}: it lists {sorted(card['files'])}, expected {sorted(names)}")
    for name in sorted(names & card["files"].keys()):
        path, listed = directory / name, card["files"][name]
        try:
            with disk.open_regular(path) as file:
                size = os.fstat(file.fileno()).st_size
            if size != listed["bytes"]:
                problems.append(f"{path}: expected {listed['bytes']} bytes, found {size}")
            elif full and documents.sha256(path) != listed["sha256"]:
                problems.append(f"{path}: the content has changed since it was written")
        except FileNotFoundError:
            problems.append(f"{path}: missing")
        except OSError as error:
            problems.append(f"{path}: cannot be read: {error.strerror}")
    return problems


def _uid_of_run(directory: Path) -> str | None:
    """None when the checkpoint was copied out of its run, or that run cannot be read: nothing to compare."""
    try:
        return identity.read_run(directory)["uid"]
    except (AddressError, RunError, OSError):
        return None


def trusted_card(directory: Path, *, full: bool) -> dict[str, Any]:
    """The card of a checkpoint that is about to be loaded.

    Raises:
        CheckpointError: something is wrong with the checkpoint; says what.
    """
    card = read_card(directory)
    full = full or sum(listed["bytes"] for listed in card["files"].values()) <= _ALWAYS_HASHED_BYTES
    problems = _problems(directory, card, _uid_of_run(directory.parent.parent), full=full)
    if problems:
        raise CheckpointError(f"not loaded, the checkpoint is damaged: {'; '.join(problems)}")
    return card


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
    for path, card in reversed(by_metric(history(files))):
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
    ranked = by_metric(whole)
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


def _monitor(whole: list[tuple[Any, dict[str, Any]]]) -> tuple[str, str]:
    monitor = (whole[-1][1].get("monitor") or {}) if whole else {}
    return monitor.get("metric", ""), monitor.get("mode", "max")


def by_metric(whole: list[tuple[Any, dict[str, Any]]]) -> list[tuple[Any, dict[str, Any]]]:
    """Of checkpoints (anything, card) in order of time: those that have the monitored metric, the best one last."""
    metric, mode = _monitor(whole)
    sign = -1 if mode == "min" else 1
    measured = [item for item in whole if metric in item[1]["metrics"]]
    measured = [item for item in measured if not math.isnan(item[1]["metrics"][metric])]
    # Sorting is stable, so that of two equal values the later one wins.
    return sorted(measured, key=lambda item: sign * item[1]["metrics"][metric])


def _step_of(path: Path) -> int:
    return int(path.name.removeprefix("step"))


# ---------------------------------------------------------------- pointers


def move_pointers(files: RunFiles) -> None:
    """Make `last.json` and `best.json` say what the cards say.

    Raises:
        CheckpointError: one could not be written.
    """
    whole = history(files)
    metric, mode = _monitor(whole)
    for name, ranked in (("last", whole), ("best", by_metric(whole))):
        pointer = files.pointer(name)
        if not ranked:
            pointer.unlink(missing_ok=True)
            continue
        path, card = ranked[-1]
        content: dict[str, Any] = {
            "format": "daypoint/pointer/1",
            "checkpoint": path.name,
            "step": card["step"],
            "epoch": card.get("epoch"),
            "attempt": card["attempt"],
            "card_sha256": card["card_sha256"],
        }
        if name == "best":
            value = disk.encode_metrics({metric: card["metrics"][metric]})[metric]
            content |= {"metric": metric, "mode": mode, "value": value}
        text = disk.dumps(content)
        try:
            if not pointer.is_file() or disk.read_bytes(pointer) != text:
                disk.write_atomic(pointer, text)
        except OSError as error:
            raise CheckpointError(
                f"{pointer}: cannot write the pointer: {error.strerror}; the checkpoint itself is whole"
            ) from error

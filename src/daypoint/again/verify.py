"""Whether the files of a run are still what they were when they were written.

Compared are: each file of each checkpoint with the identity card beside it; the card with its own seal and with the config of the
run's attempt; each line of the journal with its checksum and with the place that it names; run.json, the configs, the journal and
the train log with one another (`daypoint.again.agreement`); the pointers with what is there; the uncommitted changes of each
attempt with their hash in run.json; a packaged model with its manifest. Nothing is unpickled, and nothing is repaired. SHA-256
takes about a second a gibibyte.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from typing import Any

from daypoint.again import agreement
from daypoint.base import files
from daypoint.base.errors import DaypointError, FileError
from daypoint.record import journal, manifest, shelf
from daypoint.record.catalog import StoredRun


def verify_run(run: StoredRun) -> list[str]:
    """What is wrong with a run, each problem in one line that names the file; empty if all is well."""
    is_live = run.is_live  # asked first: what is read after the trainer's end is final
    try:
        return [
            *_journal(run, is_live),
            *agreement.configs(run.files, run.record),
            *_checkpoints(run),
            *_pointers(run),
            *_diffs(run),
            *(manifest.problems(run.files.package) if run.files.package.exists() else ()),
        ]
    except (KeyError, TypeError, AttributeError) as error:
        return [f"{run.files.run}: not as daypoint writes it ({error!r}); restore it from a backup"]


def _journal(run: StoredRun, is_live: bool) -> list[str]:
    path = run.files.journal
    try:
        reading = journal.read(path)
    except FileNotFoundError:
        return [f"{path}: expected the journal, found nothing"]
    except FileError as error:
        return [str(error)]
    problems = [f"{path}: {damage}" for damage in reading.damages]
    if not problems:  # else it is known already that something is missing
        problems += [f"{path}: {place}" for place in journal.misplaced(path)]
        problems += agreement.attempts(run.files, run.record, reading.events)
        if not is_live and not problems:
            problems += agreement.log(run.files, reading.events)
    if reading.torn_bytes and not is_live:
        problems.append(f"{path}: the last line, {reading.torn_bytes} bytes, was never finished")
    if run.files.spool.exists() and not is_live:
        problems.append(
            f"{run.files.spool}: batches that are not in the journal yet, since that cannot be written; "
            "free some space, or make the directory writable, and look again"
        )
    return problems


def _checkpoints(run: StoredRun) -> Iterator[str]:
    sha256 = run.record["config_sha256"]
    configs = {attempt.get("config_sha256", sha256) for attempt in run.record["attempts"]}
    for directory in run.checkpoints:
        found = shelf.verify(directory)
        card: dict[str, Any] = {}
        with contextlib.suppress(DaypointError, OSError):
            card = shelf.read_card(directory)
        if not directory.exists():
            continue  # thinned out meanwhile
        yield from found
        if not found and card and card["config_sha256"] not in configs:
            yield (
                f"{directory}: the card's hyperparameters are those of no attempt of this run; "
                "the card or run.json was changed"
            )


def _pointers(run: StoredRun) -> Iterator[str]:
    for name in ("last", "best"):
        path = run.files.pointer(name)
        try:
            files.open_regular(path).close()
        except FileNotFoundError:
            continue
        except FileError as error:
            yield str(error)
        target = run.pointer(name)
        is_there = target is None or (run.files.checkpoints / target).is_dir()
        if not is_there and run.pointer(name) == target:  # else it was moved meanwhile
            yield f"{run.files.pointer(name)}: it points to {target}, which is not there"


def _diffs(run: StoredRun) -> Iterator[str]:
    """The uncommitted changes of each attempt, against the hash that run.json has of them."""
    for attempt in run.record["attempts"]:
        path = run.files.uncommitted_diff(attempt["number"])
        expected = (attempt.get("git") or {}).get("diff_sha256")
        if expected is None:
            continue
        try:
            found = hashlib.sha256(files.read_bytes(path)).hexdigest()
        except OSError as error:
            yield f"{path}: expected the uncommitted changes of the code, found {error.strerror}"
            continue
        if found != expected:
            yield (
                f"{path}: the content has changed since it was written "
                f"(SHA-256 {found[:12]}…, run.json says {expected[:12]}…)"
            )

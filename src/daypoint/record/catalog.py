"""The catalog: finds runs by their address and reads what they left on disk.

It reads run directories and nothing else, so it works without MLflow, and it imports neither torch nor
mlflow. A run that says RUNNING but whose journal no live process holds is reported as KILLED, because its process has died.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from daypoint.base import day, files
from daypoint.base.day import RunFiles
from daypoint.base.errors import AddressError, DaypointError, FileError, RunError
from daypoint.record import documents, identity, ranges
from daypoint.record.ending import is_abandoned, last_event, recover

_UID = re.compile(r"[0-9a-f]{6,16}")
_NEEDED = {"day": str, "name": str, "status": str, "started": str, "config": dict, "attempts": list}
"""Without these a record cannot be read; any other key may be missing from one that an older daypoint wrote."""


@dataclass(frozen=True)
class StoredRun:
    """One run, as its directory tells it.

    Attributes:
        directory: the run directory.
        address: how it is called, such as `20260328/141502-123456`.
        record: the content of run.json.
    """

    directory: Path
    address: str
    record: dict[str, Any]

    @property
    def files(self) -> RunFiles:
        return RunFiles(self.directory, self.record["day"])

    @cached_property
    def is_live(self) -> bool:
        """Whether a process is writing it now."""
        return self.record["status"] == "RUNNING" and not is_abandoned(self.directory)

    @property
    def status(self) -> str:
        """RUNNING, FINISHED, FAILED or KILLED."""
        if self.record["status"] != "RUNNING" or self.is_live:
            return self.record["status"]
        last = self.last_event
        return last["status"] if last is not None and last["event"] == "end" else "KILLED"

    @cached_property
    def log(self) -> dict[str, Any]:
        """The train log as it stands in its file (`daypoint.train_log.read_epochs` restores its numbers); empty before the
        first epoch has ended.
        """
        try:
            log = files.loads(files.read_bytes(self.files.train_log))
            whole = all(
                isinstance(of["stats"], dict) and isinstance(of["metrics"], dict) for of in log["epochs"]
            )
            return log if whole else {}
        except (FileNotFoundError, FileError, ValueError, KeyError, TypeError):
            return {}  # not there, or damaged; the journal has it all, and `daypoint verify` names the damage

    @cached_property
    def epochs(self) -> list[dict[str, Any]]:
        """The epochs in the train log; empty before the first one has ended."""
        from daypoint.record.train_log import read_epochs  # a list of runs does without

        try:
            return read_epochs(self.log) if self.log else []
        except (ValueError, KeyError, TypeError, AttributeError):
            return []

    @cached_property
    def last_event(self) -> dict[str, Any] | None:
        """The last whole record of the journal that says where training is; a checkpoint was taken earlier."""
        return last_event(self.files.journal, other_than="checkpoint")

    @property
    def steps(self) -> int:
        """Steps done."""
        if self.record["status"] != "RUNNING" and (done := self.log.get("steps")) is not None:
            return done
        event = self.last_event or {}
        done = event.get("step", 0) + (1 if event.get("event") in ("batch", "epoch_metrics", "epoch") else 0)
        return max(done, *(epoch["first_step"] + epoch["steps"] for epoch in self.epochs), 0)

    @property
    def metrics(self) -> dict[str, Any]:
        """What the last epoch that said anything measured: epoch metrics, and the means of the batch metrics."""
        for epoch in reversed(self.epochs):
            means = {name: of["mean"] for name, of in epoch["stats"].items()}
            if means or epoch["metrics"]:
                return {**means, **epoch["metrics"]}
        return (self.last_event or {}).get("metrics") or {}  # a run that was killed in its first epoch

    @cached_property
    def checkpoints(self) -> list[Path]:
        """The committed checkpoints, oldest first."""
        found = [path for path in self.files.checkpoints.glob("step[0-9]*") if path.name[4:].isdigit()]
        return sorted(found, key=lambda path: int(path.name[4:]))

    def pointer(self, name: str) -> str | None:
        """The checkpoint that `last` or `best` points to."""
        try:
            return files.loads(files.read_bytes(self.files.pointer(name)))["checkpoint"]
        except (FileNotFoundError, FileError, ValueError, KeyError, TypeError):
            return None


def read(directory: Path, outputs: Path) -> StoredRun:
    """Read one run directory.

    Raises:
        AddressError: it holds no run.
        RunError: its record is damaged.
    """
    record = identity.read_run(directory)
    if damaged := _damaged(record):
        raise RunError(
            f"{directory}: expected a run record, found one without a proper {damaged!r}; restore run.json from a backup"
        )
    recover(RunFiles(directory, record["day"]), record)
    return StoredRun(directory, day.address_of(directory, outputs), record)


def _damaged(record: dict[str, Any]) -> str | None:
    """The first key that cannot be done without, and is not as it should be."""
    if (key := documents.lacking(record, _NEEDED)) is not None:
        return key
    if not re.fullmatch(r"\d{8}", record["day"]):  # it becomes part of file names
        return "day"
    last = record["attempts"][-1] if record["attempts"] else None
    return None if isinstance(last, dict) and {"status", "pid", "host"} <= last.keys() else "attempts"


def each(directories: Iterable[Path], outputs: Path, complaints: list[str]) -> Iterator[StoredRun]:
    """Read runs one after the other, keeping none. What could not be read is added to `complaints`, in words."""
    for directory in directories:
        try:
            yield read(directory, outputs)
        except DaypointError as error:
            complaints.append(str(error))
        except OSError as error:
            complaints.append(f"{directory}: cannot be read: {error.strerror}")


def list_runs(outputs: Path, day_tag: str | None = None) -> tuple[list[StoredRun], list[str]]:
    """Every run, oldest first, and what could not be read, in words."""
    complaints: list[str] = []
    return list(each(day.run_directories(outputs, day_tag), outputs, complaints)), complaints


def directories(address: str, outputs: Path) -> list[Path]:
    """The run directories that an address or a range of days (`daypoint.record.ranges`) names, oldest first; of a range or a
    day maybe none.

    Raises:
        AddressError: it names no run, and is neither a day nor a range.
    """
    if (days := ranges.parse(address)) is not None:
        tags = sorted(path.name for path in outputs.glob("[0-9]" * 8) if days[0] <= path.name <= days[1])
        return [directory for tag in tags for directory in day.run_directories(outputs, tag)]
    if found := day.run_directories(outputs)[-1:] if address == "last" else day.matching(address, outputs):
        return found
    if _UID.fullmatch(address):
        runs = each(day.run_directories(outputs), outputs, [])
        if found := [run.directory for run in runs if run.record["uid"].startswith(address)]:
            return found
    if address in ("today", "yesterday") or (day.DAY.fullmatch(address) and day.parse_day(address)):
        return []
    raise _nothing(address, outputs)


def _nothing(address: str, outputs: Path) -> AddressError:
    days = sorted(path.name for path in outputs.glob("[0-9]" * 8))
    there = f"the days there are: {', '.join(days[-5:])}" if days else f"there are no runs in {outputs}"
    shown = address if len(address) <= 200 else f"{address[:200]}…"
    return AddressError(
        f"{shown}: expected a day such as 20260328, a range, a run, a path or a run uid; it names no run; {there}"
    )


def find(address: str, outputs: Path) -> list[StoredRun]:
    """The runs that an address names: a day, a range of days, a run, the unique beginning of one, a sweep, a path, a run
    uid, or `last`, the newest run.

    Raises:
        AddressError: it names none; says what there is instead.
    """
    if found := directories(address, outputs):
        return [read(directory, outputs) for directory in found]
    raise _nothing(address, outputs)


def find_one(address: str, outputs: Path) -> StoredRun:
    """The one run that an address names.

    Raises:
        AddressError: it names none, or several; those are listed.
    """
    found = find(address, outputs)
    if len(found) > 1:
        lines = "\n".join(f"  {run.address}  {run.status}  {run.record['name']}" for run in found[-20:])
        raise AddressError(f"{address}: expected one run, found {len(found)}; say which:\n{lines}")
    return found[0]

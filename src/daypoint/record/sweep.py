"""The manifest of a sweep, `sweep.json`: its jobs, how each ended, and the value each reached.

Jobs may run in one process or in many, on one machine or on several that share a file system, so every change is
read, changed and replaced under a lock. A job's own run.json says more about it; the manifest also lists jobs that failed before
they had a run. This module knows neither Hydra nor MLflow.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from daypoint.base import day, files
from daypoint.base.errors import AddressError, ConfigError, RunError
from daypoint.base.redaction import HIDDEN
from daypoint.record import documents

FORMAT = "daypoint/sweep/1"
_NEEDED: dict[str, type] = {
    "uid": str,
    "status": str,
    "started_ms": int,
    "jobs": dict,
    "overrides": list,
    "space": dict,
    "host": str,
    "pid": int,
}
DONE = ("FINISHED", "SKIPPED")
"""Statuses of jobs that a resumed sweep does not run again."""


def create(
    directory: Path,
    *,
    moment: datetime,
    overrides: list[str],
    space: Mapping[str, list[str]],
    hydra_overrides: Sequence[str] = (),
    resumes: bool = False,
) -> None:
    """Write the manifest of a new sweep, or mark an old one as running again.

    Args:
        directory: the sweep directory.
        overrides: the command line of the sweep, secrets hidden.
        space: the values of each override that has several.
        hydra_overrides: what it says about Hydra itself.
        resumes: whether an old sweep goes on.

    Raises:
        ConfigError: the directory holds another sweep, or one that is being run now.
    """

    def begin(manifest: dict[str, Any]) -> None:
        if manifest and not resumes:
            raise ConfigError(
                f"{directory}: this directory holds a sweep already; leave hydra.sweep.dir alone to get a new one, or go on "
                f"with it: -m sweep.resume={directory}"
            )
        if manifest and (busy := _busy(manifest)) is not None:
            raise ConfigError(
                f"{directory}: this sweep is being run by process {busy} now; wait for its end, or stop it first"
            )
        if not manifest:
            manifest |= {
                "format": FORMAT,
                "uid": secrets.token_hex(8),
                "started": moment.isoformat(),
                "started_ms": int(moment.timestamp() * 1000),
                "jobs": {},
            }
        manifest |= {"status": "RUNNING", "ended": None, "overrides": overrides, "space": dict(space)}
        manifest |= {"hydra_overrides": list(hydra_overrides), "stopped": False, **this_process()}

    change(directory, begin)


def read(directory: Path) -> dict[str, Any]:
    """The manifest of a sweep directory.

    Raises:
        AddressError: there is none.
        RunError: it is damaged.
    """
    path, what = day.sweep_file(directory), "the manifest of a sweep"
    try:
        manifest = documents.read(path, what, FORMAT, _NEEDED, error=RunError)
    except (FileNotFoundError, NotADirectoryError):
        raise AddressError(f"{directory}: expected a sweep directory, found no {path.name} in it") from None
    for number, job in manifest["jobs"].items():
        if not (
            number.isdigit()
            and isinstance(job, dict)
            and type(job.get("overrides")) is list
            and job.get("status")
        ):
            raise RunError(
                f"{path}: expected {what}, found no proper jobs.{number}; restore it from a backup"
            )
    return manifest


def change(directory: Path, edit: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Change the manifest, whoever else wants to; returns it as it is now.

    Args:
        edit: changes the manifest that it is given; an empty one where there is none yet.
    """
    path = day.sweep_file(directory)
    with documents.locked(path):
        manifest = read(directory) if path.exists() else {}
        edit(manifest)
        files.write_atomic(path, files.dumps(manifest))
    return manifest


def change_job(directory: Path, number: int, /, **facts: Any) -> dict[str, Any]:
    """Write down facts about one job."""
    return change(directory, lambda manifest: manifest["jobs"].setdefault(str(number), {}).update(facts))


def jobs_of(manifest: Mapping[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """The jobs with their numbers, in order."""
    return sorted(((int(number), job) for number, job in manifest["jobs"].items()), key=lambda item: item[0])


def status_of(manifest: Mapping[str, Any]) -> str:
    """RUNNING, FINISHED, FAILED (some job did) or KILLED (the process that ran the sweep is gone)."""
    if manifest["status"] == "RUNNING" and not _is_alive(manifest):
        return "KILLED"
    return manifest["status"]


def this_process() -> dict[str, Any]:
    """What tells this process from all others: host, number, and when it began (a number is used again)."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "began": _began(os.getpid())}


def _began(pid: int) -> str | None:
    """When a process began, in clock ticks since the boot; None where the system does not say."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None


def _is_alive(process: Mapping[str, Any]) -> bool:
    if process["host"] != socket.gethostname():
        return True  # nobody here can tell
    try:
        os.kill(process["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return process.get("began") in (None, _began(process["pid"]))


def _busy(manifest: Mapping[str, Any]) -> int | None:
    """The process that runs the sweep now, or is left over from it and trains one of its jobs."""
    jobs = [job for _, job in jobs_of(manifest) if job["status"] == "RUNNING" and "pid" in job]
    running = [manifest] if manifest["status"] == "RUNNING" else []
    return next((each["pid"] for each in running + jobs if _is_alive(each)), None)


# ---------------------------------------------------------------- the jobs, added up


def counts(manifest: Mapping[str, Any]) -> dict[str, int]:
    """How many jobs ended in each way; a job that still says RUNNING in a sweep that is over was killed."""
    over = status_of(manifest) != "RUNNING"
    found = dict.fromkeys(("FINISHED", "FAILED", "KILLED", "SKIPPED", "RUNNING"), 0)
    for _, job in jobs_of(manifest):
        status = job["status"]
        found["KILLED" if over and status == "RUNNING" else status] += 1
    return found


def best(manifest: Mapping[str, Any]) -> tuple[int, dict[str, Any]] | None:
    """The job with the best value; of two equal ones the later. None if no job has one, or if they are of several metrics."""
    done = _done(manifest)
    if not done or len({job.get("metric") for _, job in done}) > 1:
        return None
    sign = -1 if next((job["mode"] for _, job in reversed(done) if job.get("mode")), None) == "min" else 1
    return max(done, key=lambda item: (sign * item[1]["value"], item[0]))


def all_best(manifest: Mapping[str, Any]) -> list[int]:
    """The numbers of all jobs that are as good as the best one, which is the last of them."""
    found = best(manifest)
    return [] if found is None else [n for n, job in _done(manifest) if job["value"] == found[1]["value"]]


def _done(manifest: Mapping[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """The jobs that are done and have a value, with their numbers."""
    return [
        (number, job)
        for number, job in jobs_of(manifest)
        if job["status"] in DONE and value_of(job) is not None
    ]


def value_of(job: Mapping[str, Any]) -> float | None:
    """The value that a job reached, if it is a number that can be compared; None for NaN or without one."""
    value = job.get("value")
    return value if type(value) in (int, float) and value == value else None


def over_seeds(manifest: Mapping[str, Any]) -> list[tuple[list[str], int, float, float]]:
    """Jobs that differ in nothing but a seed, as one: (overrides without the seed, jobs, mean, sample standard deviation).

    Empty when the sweep has no seed with several values.
    """
    seeds = {key for key, values in manifest["space"].items() if len(values) > 1 and is_seed(key)}
    groups: dict[tuple[str, ...], list[float]] = {}
    for _, job in _done(manifest) if seeds else ():
        rest = tuple(
            text for text in varying(job["overrides"], manifest) if text.partition("=")[0] not in seeds
        )
        groups.setdefault(rest, []).append(job["value"])
    return [
        (list(rest), len(values), statistics.fmean(values), statistics.stdev(values))
        for rest, values in groups.items()
        if len(values) > 1
    ]


def is_seed(key: str) -> bool:
    """Whether a config key is that of a seed (`trainer.seed`, `seed`, `data.split_seed`)."""
    return key.rpartition(".")[2].rpartition("_")[2] == "seed"


def varying(overrides: Iterable[str], manifest: Mapping[str, Any]) -> list[str]:
    """Of a job's overrides those that set it apart from the others."""
    return [text for text in overrides if text.lstrip("+").partition("=")[0] in manifest["space"]]


# ---------------------------------------------------------------- finding a sweep


def find(address: str, outputs: Path) -> Path:
    """The directory of a sweep: `last`, `20260328/sweep-1502` (its unique beginning), or a path.

    Raises:
        AddressError: it names none, or several; says which there are.
    """
    path = day.as_path(address)
    if path is not None and day.sweep_file(path).is_file():
        return path
    there = sorted(
        path.parent for path in outputs.glob(f"{'[0-9]' * 8}/sweep-*/{day.sweep_file(outputs).name}")
    )
    if address == "last" and there:
        return there[-1]
    text = address.replace(os.sep, "/")
    first, _, rest = text.partition("/")
    with contextlib.suppress(AddressError):
        text = f"{day.parse_day(first)}/{rest}"
    found = [p for p in there if f"{p.parent.name}/{p.name}".startswith(text)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(f"{p.parent.name}/{p.name}" for p in (found or there)[-5:])
    raise AddressError(
        f"{address}: expected one sweep, found {len(found)}; "
        + (f"there are {names}" if names else f"there are no sweeps in {outputs}")
    )


def job_done(manifest: Mapping[str, Any], overrides: Sequence[str]) -> tuple[int, dict[str, Any]] | None:
    """The job that has done these overrides already. Hidden values may have been different ones."""
    if any(HIDDEN in text for text in overrides):
        return None
    for number, job in jobs_of(manifest):
        if job["status"] in DONE and sorted(job["overrides"]) == sorted(overrides):
            return number, job
    return None

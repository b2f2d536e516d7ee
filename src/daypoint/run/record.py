"""The record of a run: builds what run.json says about who a run is, and how each attempt at it went.

Reading and writing run.json is `identity`'s; this module only fills in the facts: code, versions, data,
names. What git says it is given.
One number: about 5 ms, most of it the versions of packages.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import socket
import sys
import traceback
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from daypoint.base import day, files, keys, redaction
from daypoint.base.errors import DaypointError
from daypoint.hydra.app import HydraJob
from daypoint.ranks import group
from daypoint.record import identity
from daypoint.record import sweep as sweeps
from daypoint.record.config import Tracking
from daypoint.run import provenance
from daypoint.tracking import store

REPRODUCES_VARIABLE = "DAYPOINT_REPRODUCES"
"""Tells a script that `daypoint reproduce` starts which run it runs again."""


def new_record(
    *,
    directory: Path,
    moment: datetime,
    settings: Tracking,
    plain: Mapping[str, Any],
    job: HydraJob | None,
    root: Path,
    git: dict[str, Any],
    uri: str | None,
    data: Any = None,
    monitor: str | None = None,
    mode: str | None = None,
    keep: int | None = None,
    device: str | None = None,
    references: dict[str, str] | None = None,
    filled: dict[str, str | None] | None = None,
    reproduces: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The content of run.json at the start of a run.

    Args:
        directory: the run directory, absolute.
        moment: the instant of the start, aware; day and name come from it.
        plain: the resolved config.
        job: what Hydra knows, or None.
        git: the state of the code, see `provenance.inspect`.
        uri: the MLflow store, or None when tracking is off.
        references, filled: which values of the config followed others, or were put in by the program; a
            resume needs it.
        reproduces: the run that is run again, see `reproduced`.
    """
    day_tag = _day_of(directory, root / settings.outputs, moment)
    config = redaction.redact(plain)
    sweep = None
    if job is not None and job.sweep_job is not None:
        sweep = {
            "directory": str(directory.parent),
            "job": job.sweep_job,
            "uid": _sweep_uid(directory.parent),
            "place": directory.name,
        }
    return {
        "format": identity.RUN_FORMAT,
        "uid": secrets.token_hex(8),
        "day": day_tag,
        "name": settings.name or _name(day_tag, moment, plain, job, sweep),
        "started": moment.isoformat(),
        "started_ms": int(moment.timestamp() * 1000),
        "timezone": settings.timezone,
        "status": "RUNNING",
        "host": socket.gethostname(),
        "user": _user(),
        "device": device,
        "threads": _threads(),
        "ranks": group.count(),
        "root": str(root),
        "experiment": experiment_name(settings, plain, data),
        "tracking_uri": uri,
        "artifact_root": store.artifact_root(uri, root) if uri is not None else None,
        "tags": redaction.redact(settings.tags or {}),
        "config_sha256": identity.config_sha256(config),
        "config": config,
        "git": git,
        "versions": provenance.versions(),
        "data": _describe(data),
        "monitor": {"metric": monitor, "mode": mode or keys.mode_of(monitor)} if monitor else None,
        "keep": keep,
        "references": references or {},
        "filled": filled or {},
        "choices": job.choices if job is not None else {},
        "sweep": sweep,
        "reproduces": reproduces,
        "attempts": [{**new_attempt(1, moment, job, git), "config_sha256": identity.config_sha256(config)}],
    }


def _sweep_uid(directory: Path) -> str | None:
    try:
        return sweeps.read(directory)["uid"]
    except DaypointError:
        return None  # started by something that wrote no manifest


def new_attempt(
    number: int, moment: datetime, job: HydraJob | None, git: dict[str, Any], from_step: int = 0
) -> dict[str, Any]:
    """The entry of one attempt, from its start."""
    return {
        "number": number,
        "status": "RUNNING",
        "started": moment.isoformat(),
        "ended": None,
        "seconds": None,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "argv": redaction.redact_overrides([_text(argument) for argument in sys.argv]),
        "overrides": redaction.redact_overrides([_text(item) for item in job.overrides] if job else []),
        "git": git,
        "cwd": _text(os.getcwd()),
        "module": getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", None),
        "from_step": from_step,
        "changes": {},
        "error": None,
    }


def reproduced() -> dict[str, Any] | None:
    """Which run this process runs again, as `daypoint reproduce` tells it: `uid`, `day`, `address`, `card_sha256` and
    `batches`, after how many the run ends; None in a run of its own.
    """
    told = os.environ.get(REPRODUCES_VARIABLE)
    return files.loads(told) if told else None


def close_attempt(
    record: dict[str, Any], status: str, moment: datetime, seconds: float, error: BaseException | None
) -> None:
    """Write down how the last attempt ended, in the record itself."""
    record["status"] = status
    attempt = record["attempts"][-1]
    attempt.update(status=status, ended=moment.isoformat(), seconds=round(seconds, 6))
    if error is not None:
        attempt["error"] = {
            "type": type(error).__name__,
            "message": redaction.redact_text(_text(message_of(error))),
            "traceback": redaction.redact_text(_text(_traceback(error))),
        }


def experiment_name(settings: Tracking, plain: Mapping[str, Any], data: Any = None) -> str:
    """The MLflow experiment: as configured, else the name of the data, else of the script."""
    section = plain.get("data")
    configured = section.get("name") if isinstance(section, dict) else None
    if name := settings.experiment or getattr(data, "name", None) or configured:
        return str(name)
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(script).stem if script else day.project_root().name


def _day_of(directory: Path, outputs: Path, moment: datetime) -> str:
    """A run under a day's directory belongs to that day, also a job that a sweep starts after midnight."""
    if directory.is_relative_to(outputs):
        first = directory.relative_to(outputs).parts[:1]
        if first and len(first[0]) == 8 and first[0].isdigit():
            return first[0]
    return day.tag(moment)


def _name(
    day_tag: str,
    moment: datetime,
    plain: Mapping[str, Any],
    job: HydraJob | None,
    sweep: dict[str, Any] | None,
) -> str:
    """Such as `20260328-141502 mlp-adamw`; a job of a sweep has its number and what sets it apart."""
    what = "-".join(part for section in ("model", "optimizer") if (part := _member(section, plain, job)))
    if sweep is None or job is None:
        return f"{day_tag}-{moment:%H%M%S} {what}".strip()
    when = Path(sweep["directory"]).name.removeprefix("sweep-").partition("-")[0]
    given = [text for text in redaction.redact_overrides(job.overrides) if not text.startswith("sweep.")]
    with contextlib.suppress(DaypointError):  # without a manifest nothing is known of the other jobs
        given = sweeps.varying(given, sweeps.read(Path(sweep["directory"])))
    overrides = ",".join(given)
    return f"{day_tag}-{when}/{sweep['place']} {overrides or what}"[:250]


def _member(section: str, plain: Mapping[str, Any], job: HydraJob | None) -> str | None:
    if job is not None and section in job.choices:
        return job.choices[section]
    values = plain.get(section)
    if isinstance(values, dict):
        values = str(values.get("_target_", "")).rpartition(".")[2].lower()
    return values if isinstance(values, str) and values else None


def _describe(data: Any) -> dict[str, Any] | None:
    if data is None:
        return None
    return {
        "name": str(data.name),
        "rows": int(data.rows),
        "fingerprint": data.fingerprint(),
        "source": str(getattr(data, "source", data.name)),
        # What it takes to give the model new rows, and to read its answers, without the data.
        "classes": getattr(data, "classes", None),
        "preparation": getattr(data, "preparation", None),
    }


def message_of(error: BaseException) -> str:
    """What an exception says, also if saying it fails."""
    try:
        return str(error)
    except Exception as failure:
        return f"(its message cannot be had: {type(failure).__name__})"


def _traceback(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception:
        return "".join(traceback.format_tb(error.__traceback__))


def _text(text: str) -> str:
    """Text that JSON can hold: bytes of a command line that are no UTF-8 are written as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _threads() -> int | None:
    """How many threads torch computes with; sums come out differently with another number."""
    torch = sys.modules.get("torch")
    return torch.get_num_threads() if torch is not None else None


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return None  # a container without an account for this uid

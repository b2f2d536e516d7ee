"""Build the content of run.json: what describes a run (code, versions, data, names), and how each attempt at it went.

It does not read or write run.json (`daypoint.record.identity` does), and is given what git says.
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
from daypoint.record import identity, source
from daypoint.record import sweep as sweeps
from daypoint.run import provenance
from daypoint.run.request import Request
from daypoint.tracking import store

REPRODUCES_VARIABLE = "DAYPOINT_REPRODUCES"
"""Set by `daypoint reproduce` for the script that it starts: which run is to be reproduced."""


def place_of(request: Request, directory: Path) -> dict[str, str]:
    """Where project and run are now, by which it is noticed that they were moved."""
    return {"root": str(request.root), "directory": str(directory)}


def new_record(request: Request, directory: Path, moment: datetime, git: dict[str, Any]) -> dict[str, Any]:
    """The content of run.json at the start of a run.

    Args:
        directory: the run directory, absolute.
        moment: the instant of the start, aware; day and name come from it.
        git: the state of the code, see `provenance.inspect`.
    """
    settings, plain, job, uri = request.settings, request.plain, request.job, request.uri
    # A run under a day's directory belongs to that day, also a job that a sweep starts after midnight.
    day_tag = day.address_of(directory, request.outputs).partition("/")[0] or day.tag(moment)
    kinds = [_member(section, plain, job) for section in ("model", "optimizer")]
    what = "-".join(filter(None, kinds))
    name, sweep = f"{day_tag}-{moment:%H%M%S} {what}".strip(), None
    if job is not None and job.sweep_job is not None:
        name, sweep = _job_of_sweep(job, directory, day_tag, what)
    config = redaction.redact(plain)
    monitor = request.monitor
    return {
        "format": identity.RUN_FORMAT,
        "uid": secrets.token_hex(8),
        "day": day_tag,
        "name": settings.name or name,
        "started": moment.isoformat(),
        "started_ms": int(moment.timestamp() * 1000),
        "timezone": settings.timezone,
        "status": "RUNNING",
        "host": socket.gethostname(),
        "user": _user(),
        "device": request.device,
        "threads": _threads(),
        "ranks": group.count(),
        "root": str(request.root),
        "place": place_of(request, directory),
        "experiment": request.experiment,
        "tracking_uri": uri,
        "artifact_root": store.artifact_root(uri, request.root) if uri is not None else None,
        "tags": redaction.redact(settings.tags or {}),
        "config_sha256": identity.config_sha256(config),
        "config": config,
        "git": git,
        "code": source.recorded(config.get("model"), request.root),
        "versions": provenance.versions(),
        "data": _describe(request.data),
        "monitor": {"metric": monitor, "mode": request.mode or keys.mode_of(monitor)} if monitor else None,
        "keep": request.keep,
        "references": request.references,
        "filled": request.filled,
        "choices": job.choices if job is not None else {},
        "sweep": sweep,
        "reproduces": reproduced(),
        "attempts": [new_attempt(1, moment, job, git, config)],
    }


def _job_of_sweep(job: HydraJob, directory: Path, day_tag: str, what: str) -> tuple[str, dict[str, Any]]:
    """The name of a job's run, such as `20260328-150233/3 lr=0.1`, and its place in the sweep."""
    uid = None
    given = [text for text in redaction.redact_overrides(job.overrides) if not text.startswith("sweep.")]
    with contextlib.suppress(DaypointError):  # started by something that wrote no manifest
        manifest = sweeps.read(directory.parent)
        uid, given = manifest["uid"], sweeps.varying(given, manifest)
    when = directory.parent.name.removeprefix("sweep-").partition("-")[0]
    name = f"{day_tag}-{when}/{directory.name} {','.join(given) or what}"[:250]
    place = directory.name
    return name, {"directory": str(directory.parent), "job": job.sweep_job, "uid": uid, "place": place}


def new_attempt(
    number: int, moment: datetime, job: HydraJob | None, git: dict[str, Any], config: Mapping[str, Any]
) -> dict[str, Any]:
    """The entry of one attempt in run.json when it starts.

    Args:
        config: the resolved config, secrets redacted.
    """
    return {
        "number": number,
        "status": "RUNNING",
        "started": moment.isoformat(),
        "ended": None,
        "seconds": None,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "argv": redaction.redact_overrides([json_text(argument) for argument in sys.argv]),
        "overrides": redaction.redact_overrides([json_text(item) for item in job.overrides] if job else []),
        "git": git,
        "cwd": json_text(os.getcwd()),
        "module": getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", None),
        "from_step": 0,
        "changes": {},
        "error": None,
        "config_sha256": identity.config_sha256(config),
    }


def reproduced() -> dict[str, Any] | None:
    """The run that this process reproduces, as `daypoint reproduce` gives it: `uid`, `day`, `address`, `card_sha256` and
    `batches`, the number after which to end. None in any other run.
    """
    told = os.environ.get(REPRODUCES_VARIABLE)
    return files.loads(told) if told else None


def close_attempt(
    record: dict[str, Any], status: str, moment: datetime, seconds: float, error: BaseException | None
) -> None:
    """Enter into the record how the last attempt ended."""
    record["status"] = status
    attempt = record["attempts"][-1]
    attempt.update(status=status, ended=moment.isoformat(), seconds=round(seconds, 6))
    if error is not None:
        attempt["error"] = {
            "type": type(error).__name__,
            "message": redaction.redact_text(json_text(message_of(error))),
            "traceback": redaction.redact_text(json_text("".join(traceback.format_exception(error)))),
        }


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
    """The message of an exception, also of one whose `__str__` fails."""
    try:
        return str(error)
    except Exception as failure:
        return f"(no message: its __str__ raised {type(failure).__name__})"


def json_text(text: str) -> str:
    """Text that JSON can hold: bytes of a command line or a file name that are not UTF-8 are written as escapes."""
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

"""Runs in an outputs directory, written in a moment: run.json, train log and the last lines of a journal."""

from __future__ import annotations

import socket
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from daypoint.base import files
from daypoint.base.day import RunFiles, claim, tag
from daypoint.base.stats import RunningStats
from daypoint.record import identity
from daypoint.record.journal import line
from daypoint.record.train_log import train_log

OPTIONAL = (
    "tags", "git", "versions", "data", "monitor", "choices", "sweep", "user", "host", "device", "experiment",
)  # fmt: skip
"""Keys that a run.json may lack."""


def epoch(number: int, *, batches: dict[str, list[Any]] | None = None, **metrics: Any) -> dict[str, Any]:
    """The entry of an epoch in the train log. Metric names may have `__` for `/`."""
    stats = {}
    for name, values in (batches or {}).items():
        running = RunningStats()
        for value in values:
            running.update(value)
        stats[name] = running.to_dict()
    steps = max((len(values) for values in (batches or {}).values()), default=1)
    measured = {name.replace("__", "/"): value for name, value in metrics.items()}
    return {
        "epoch": number, "complete": True, "first_step": number * steps, "steps": steps, "seconds": 1.0,
        "stats": stats, "time": 1774707302123, "metrics": measured,
    }  # fmt: skip


def file_run(
    outputs: Path,
    when: str,
    *,
    config: dict[str, Any] | None = None,
    epochs: list[dict[str, Any]] = (),
    status: str = "FINISHED",
    monitor: str | None = "val/accuracy",
    mode: str = "max",
    seconds: float | None = 60.0,
    drop: tuple[str, ...] = (),
    **record: Any,
) -> Path:
    """Write a run; returns its directory.

    Args:
        when: its start, such as `20260328-141502`, in UTC.
        drop: keys that run.json shall not have.
        record: what run.json says differently.
    """
    moment = datetime.strptime(when, "%Y%m%d-%H%M%S").replace(tzinfo=UTC)
    directory = claim(outputs, moment)
    run = RunFiles(directory, tag(moment))
    host = socket.gethostname()
    attempt = {
        "number": 1,
        "status": status,
        "started": moment.isoformat(),
        "ended": None,
        "seconds": seconds,
    }
    attempt |= {"pid": 1, "host": host, "argv": ["train.py"], "overrides": [], "from_step": 0, "error": None}
    content = {
        "format": identity.RUN_FORMAT,
        "uid": f"{abs(hash(str(directory))):016x}"[-16:],
        "day": tag(moment),
        "name": f"{when} mlp-adamw",
        "started": moment.isoformat(),
        "started_ms": int(moment.timestamp() * 1000),
        "timezone": "UTC",
        "status": status,
        "host": host,
        "user": "ada",
        "device": "cpu",
        "experiment": "digits",
        "tracking_uri": None,
        "tags": {"team": "blue"},
        "config": config or {},
        "git": {"commit": "c" * 40, "branch": "main", "dirty": False, "reason": None, "diff_sha256": None},
        "versions": {"torch": "2.13.0"},
        "data": {"name": "digits", "rows": 1797, "fingerprint": "f" * 32},
        "monitor": {"metric": monitor, "mode": mode} if monitor else None,
        "choices": {},
        "sweep": None,
        "attempts": [attempt],
        **record,
    }
    steps = sum(one["steps"] for one in epochs)
    run.train_log.write_bytes(files.dumps(train_log(run, epochs, steps)))
    end = {
        "event": "end",
        "time": content["started_ms"] + 60_000,
        "attempt": 1,
        "status": status,
        "step": steps,
    }
    run.journal.write_bytes(line(end))
    identity.write_run(directory, {key: value for key, value in content.items() if key not in drop})
    return directory

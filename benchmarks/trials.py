"""One measurement: a session in the contender's environment, ended or killed, and what is left on disk compared with what was logged.

Every process has its end: a session that takes too long is killed, and so are helper processes that outlive their trainer for a minute.
A point is 8 bytes that have to be found again; a value in float32 counts as rounded, not as kept.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contender import METRICS, Points
from contenders import CONTENDERS
from environments import one_line
from processes import descendants, is_alive

HERE = Path(__file__).parent
SILENCE = {  # no peer phones home
    "DO_NOT_TRACK": "1",
    "DVC_NO_ANALYTICS": "1",
    "GRADIO_ANALYTICS_ENABLED": "False",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "WANDB_ERROR_REPORTING": "false",
}
SESSION_SECONDS = 600
HELPER_SECONDS = 60
"""How long a contender's helper processes may go on when the trainer is gone."""


@dataclass
class Entry:
    """A contender and what was measured of it."""

    name: str
    project: Path
    python: str = ""
    version: str = ""
    failure: str | None = None
    pace: list[dict[str, Any]] = field(default_factory=list)
    keep: list[dict[str, Any]] = field(default_factory=list)
    kill: list[dict[str, Any]] = field(default_factory=list)


class Failed(Exception):
    """A session did not come to its end; the text says why."""


def start(entry: Entry, script: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a script in a contender's environment; its output goes into files in the project."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("MLFLOW_", "DAYPOINT_", "WANDB_", "TRACKIO_", "HYDRA_"))
    }
    with open(entry.project / "session.out", "w") as out, open(entry.project / "session.err", "w") as err:
        command = [entry.python, "-W", "ignore", str(HERE / script), *arguments]
        return subprocess.Popen(
            command, cwd=entry.project, env={**kept, **SILENCE}, stdout=out, stderr=err, text=True
        )


def finish(entry: Entry, process: subprocess.Popen[str]) -> Any:
    """Wait for it, and take its result: the last line that it printed.

    Raises:
        Failed: it crashed, or took too long.
    """
    try:
        process.wait(SESSION_SECONDS)
    except subprocess.TimeoutExpired:
        helpers = descendants(process.pid)
        for pid in [process.pid, *helpers]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        process.wait()
        raise Failed(f"not done after {SESSION_SECONDS} s") from None
    if process.returncode != 0:
        raise Failed(one_line((entry.project / "session.err").read_text()))
    return json.loads((entry.project / "session.out").read_text().splitlines()[-1])


def session(entry: Entry, action: str, options: dict[str, Any]) -> dict[str, Any]:
    """A whole session (session.py)."""
    return finish(entry, start(entry, "session.py", action, entry.name, json.dumps(options)))


def outlive(helpers: list[int]) -> float:
    """Wait for a contender's helper processes to end on their own; the seconds it took. Those that do not are killed."""
    began = time.monotonic()
    while any(map(is_alive, helpers)) and time.monotonic() - began < HELPER_SECONDS:
        time.sleep(0.05)
    took = time.monotonic() - began
    for pid in filter(is_alive, helpers):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)
    return took


def keep(
    entry: Entry, common: dict[str, Any], name: str, steps: int, kill_at: int | None = None
) -> dict[str, Any]:
    """Log so many steps, or be killed when so many were acknowledged; then read back and compare."""
    acks, handle = entry.project / f"{name}.acks", entry.project / f"{name}.handle"
    acks.write_bytes(bytes(8 + 24 * steps))
    options = {**common, "name": name, "steps": steps, "acks": str(acks), "handle": str(handle)}
    options["started"] = time.monotonic()
    process = start(entry, "session.py", "keep", entry.name, json.dumps(options))
    if kill_at is None:
        measured = finish(entry, process)
        measured["finish_seconds"] = time.monotonic() - measured.pop("last_step_at")
        measured["helpers_seconds"] = outlive(measured.pop("helpers"))
    else:
        deadline = time.monotonic() + SESSION_SECONDS
        while _count(acks) < kill_at and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.001)
        helpers = descendants(process.pid)
        process.kill()
        process.wait()
        if _count(acks) < kill_at:
            raise Failed(one_line((entry.project / "session.err").read_text()))
        measured = {"helpers_seconds": outlive(helpers)}
    if not CONTENDERS[entry.name].keeps:
        return measured
    found = finish(entry, start(entry, "contenders.py", entry.name, str(entry.project), handle.read_text()))
    return {**measured, **compare(acks.read_bytes(), found)}


def _count(acks: Path) -> int:
    with open(acks, "rb") as file:
        return int.from_bytes(file.read(8), "little")


def compare(acks: bytes, found: Points) -> dict[str, int]:
    """Points that were acknowledged, against those that were found, value by value."""
    count = int.from_bytes(acks[:8], "little")
    rows = list(struct.iter_unpack("<3d", acks[8 : 8 + 24 * count]))
    tally = {"steps": count, "logged": 3 * count, "kept": 0, "rounded": 0, "wrong": 0, "doubled": 0}
    for column, name in enumerate(METRICS):
        by_step: dict[int, list[float]] = {}
        for step, value in found[name]:
            by_step.setdefault(step, []).append(value)
        for step, row in enumerate(rows):
            values = by_step.get(step, [])
            tally["doubled"] += len(values) > 1
            if row[column] in values:
                tally["kept"] += 1
            elif _float32(row[column]) in values:
                tally["rounded"] += 1
            else:
                tally["wrong"] += bool(values)
    return tally


def _float32(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]

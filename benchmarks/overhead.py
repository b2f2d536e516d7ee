"""What logging three scalars a step costs inside a training loop, daypoint and its peers side by side.

    python benchmarks/overhead.py                           all of them; half an hour on two cores
    python benchmarks/overhead.py --peers tensorboard,wandb daypoint and the baselines, with these peers
    python benchmarks/overhead.py --quick                   seconds; for tests, its times mean little

Each measurement is a process of its own (session.py), in the peer's own environment (environments.py). They are interleaved: every
round measures every contender once, in a new random order, so that a drift of the machine hits all alike. Writes a JSON and a
Markdown file (results.py). This module measures nothing itself. benchmarks/README.md says how to read the numbers.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import results
from contenders import CONTENDERS, METRICS, Points
from environments import Unavailable, one_line, python_with, version_of
from processes import descendants, is_alive

HERE = Path(__file__).parent
BASELINES = ["none", "list"]
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


# ---------------------------------------------------------------- one session


def start(entry: Entry, action: str, options: dict[str, Any]) -> subprocess.Popen[str]:
    """Start a session; its output goes into files beside the project."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("MLFLOW_", "DAYPOINT_", "WANDB_", "TRACKIO_", "HYDRA_"))
    }
    out, err = (open(entry.project / f"session.{kind}", "w") for kind in ("out", "err"))
    with out, err:
        command = [entry.python, "-W", "ignore", str(HERE / "session.py"), action, entry.name, json.dumps(options)]
        return subprocess.Popen(command, cwd=entry.project, env={**kept, **SILENCE}, stdout=out, stderr=err, text=True)


def finish(entry: Entry, process: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for a session and take its result.

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


def run(entry: Entry, action: str, options: dict[str, Any]) -> dict[str, Any]:
    return finish(entry, start(entry, action, options))


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


def keep(entry: Entry, common: dict[str, Any], name: str, steps: int, kill_at: int | None = None) -> dict[str, Any]:
    """Log so many steps, or be killed when so many were acknowledged; then read back and compare."""
    acks, handle = entry.project / f"{name}.acks", entry.project / f"{name}.handle"
    acks.write_bytes(bytes(8 + 24 * steps))
    options = {**common, "name": name, "steps": steps, "acks": str(acks), "handle": str(handle)}
    process = start(entry, "keep", {**options, "started": time.monotonic()})
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
    found = run(entry, "read", options)["points"]
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


# ---------------------------------------------------------------- the whole


def prepare(entries: list[Entry], environments: Path) -> None:
    """Environments, and one short session of each, so that what is measured is never the first run on the machine."""
    for entry in entries:
        kind = CONTENDERS[entry.name]
        entry.project.mkdir()
        (entry.project / "pyproject.toml").touch()  # what makes it a project for daypoint
        try:
            entry.python = python_with(kind.packages, environments)
            entry.version = version_of(entry.python, kind.imports)
            tally = keep(entry, {"project": str(entry.project), "width": 64}, "first", 30)
            if kind.keeps and tally["kept"] + tally["rounded"] != tally["logged"]:
                say(f"{entry.name}: of its first {tally['logged']} points it kept {tally['kept']}")
        except (Unavailable, Failed) as reason:
            entry.failure = str(reason)
        say(f"{entry.name:<16} {entry.version or '–':<10} {entry.failure or 'ready'}")


def measure(entries: list[Entry], common: dict[str, Any], options: argparse.Namespace) -> None:
    """All rounds."""
    chance = random.Random(options.seed)
    kinds = ["keep"] * options.keeps + ["kill"] * options.kills + ["pace"] * options.paces
    chance.shuffle(kinds)
    for number, kind in enumerate(kinds):
        chance.shuffle(entries)
        for entry in entries:
            if entry.failure is not None or (kind == "kill" and not CONTENDERS[entry.name].keeps):
                continue
            name = f"{kind}-{number}"
            kill_at = chance.randrange(options.steps // 10, options.steps - options.steps // 10)
            began = time.monotonic()
            try:
                if kind == "pace":
                    measured = run(entry, "pace", {**common, "project": str(entry.project), "name": name})
                else:
                    settings = {**common, "project": str(entry.project)}
                    measured = keep(entry, settings, name, options.steps, kill_at if kind == "kill" else None)
            except Failed as reason:
                entry.failure = f"{kind}: {reason}"
                say(f"{name} {entry.name}: failed: {reason}")
                continue
            getattr(entry, kind).append(measured)
            say(f"{number + 1}/{len(kinds)} {kind} {entry.name:<16} {time.monotonic() - began:5.1f} s")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", help="comma-separated, besides none and list; default: all", metavar="NAMES")
    parser.add_argument("--quick", action="store_true", help="a small run: are all points kept?")
    parser.add_argument("--envs", type=Path, default=Path("~/.cache/daypoint-benchmarks").expanduser(), metavar="DIR")
    parser.add_argument("--out", type=Path, default=HERE / "results", metavar="DIR", help="where the result goes")
    parser.add_argument("--step-ms", type=float, default=1.0, help="length of a step without logging")
    parser.add_argument("--steps", type=int, help="steps of a session that counts points", default=2000)
    parser.add_argument("--keeps", type=int, help="sessions that count points", default=3)
    parser.add_argument("--kills", type=int, help="sessions that are killed", default=3)
    parser.add_argument("--paces", type=int, help="sessions that measure the cost of a step", default=4)
    parser.add_argument("--rounds", type=int, help="rounds of stretches in each of those", default=5)
    parser.add_argument("--stretch-seconds", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.quick:
        options.steps, options.keeps, options.kills, options.paces, options.rounds = 200, 1, 1, 1, 2
        options.stretch_seconds = 0.1
    names = options.peers.split(",") if options.peers else list(CONTENDERS)
    if unknown := set(names) - set(CONTENDERS):
        parser.error(f"--peers: {', '.join(sorted(unknown))}: not one of {', '.join(CONTENDERS)}")
    options.names = list(dict.fromkeys([*BASELINES, *names]))
    return options


def main() -> None:
    options = arguments()
    moment = datetime.now().astimezone()
    began = time.monotonic()
    scratch = Path(tempfile.mkdtemp(prefix="overhead-"))
    try:
        entries = [Entry(name, scratch / name) for name in options.names]
        prepare(entries, options.envs)
        calibration = run(entries[0], "calibrate", {"target_ms": options.step_ms})
        say(f"a step takes {calibration['step_ms']:.2f} ms, width {calibration['width']}")
        common = {
            "width": calibration["width"],
            "rounds": options.rounds,
            "stretch_seconds": options.stretch_seconds,
            "most_steps": int(3000 * options.stretch_seconds / options.step_ms) + 100,
        }
        measure(entries[:], common, options)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    document = {
        "format": "daypoint/overhead/1",
        "date": moment.isoformat(timespec="seconds"),
        "command": shlex.join(["python", "benchmarks/overhead.py", *sys.argv[1:]]),
        "minutes": round((time.monotonic() - began) / 60, 1),
        "machine": results.machine(),
        "settings": {key: getattr(options, key) for key in ("steps", "keeps", "kills", "paces", "rounds", "stretch_seconds")},
        "calibration": calibration,
        "contenders": results.summaries(entries),
    }
    page = results.write(options.out, document, moment)
    print(page)


if __name__ == "__main__":
    main()

"""What logging three scalars a step costs inside a training loop, daypoint and its peers side by side.

    python benchmarks/overhead.py                           all of them; half an hour on two cores
    python benchmarks/overhead.py --peers daypoint,wandb    these two, and the baselines
    python benchmarks/overhead.py --quick                   a small run for tests: its times mean little

Each measurement is a process of its own (session.py), in the peer's own environment (environments.py). They are interleaved: every
round measures every contender once, in a new random order, so that a drift of the machine hits all alike. Writes a JSON and a
Markdown file (results.py). This module measures nothing itself. benchmarks/README.md says how to read the numbers.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import results
from contenders import CONTENDERS
from environments import Unavailable, python_with, version_of
from trials import Entry, Failed, keep, session

HERE = Path(__file__).parent
BASELINES = ["none", "list"]


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
                say(
                    f"{entry.name}: of its first {tally['logged']} points it kept {tally['kept'] + tally['rounded']}"
                )
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
                    measured = session(entry, "pace", {**common, "project": str(entry.project), "name": name})
                else:
                    settings = {**common, "project": str(entry.project)}
                    measured = keep(entry, settings, name, options.steps, kill_at if kind == "kill" else None)
            except Failed as reason:
                entry.failure = f"{kind}: {reason}"
                say(f"{name} {entry.name}: failed: {reason}")
                continue
            getattr(entry, kind).append(measured)
            say(f"{number + 1}/{len(kinds)} {kind} {entry.name:<16} {time.monotonic() - began:5.1f} s")


def command(options: argparse.Namespace) -> str:
    """The command line, less what changes no number."""
    words = ["python", "benchmarks/overhead.py"] + ["--quick"] * options.quick
    words += [f"--peers={options.peers}"] if options.peers else []
    names = (
        ()
        if options.quick
        else ("step_ms", "steps", "keeps", "kills", "paces", "rounds", "stretch_seconds", "seed")
    )
    return " ".join(words + [f"--{name.replace('_', '-')}={getattr(options, name)}" for name in names])


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--peers", help="comma-separated, besides none and list; default: all", metavar="NAMES"
    )
    parser.add_argument("--quick", action="store_true", help="a small run: are all points kept?")
    parser.add_argument(
        "--envs", type=Path, default=Path("~/.cache/daypoint-benchmarks").expanduser(), metavar="DIR"
    )
    parser.add_argument(
        "--out", type=Path, default=HERE / "results", metavar="DIR", help="where the result goes"
    )
    parser.add_argument("--step-ms", type=float, default=1.0, help="length of a step without logging")
    parser.add_argument("--steps", type=int, help="steps of a session that counts points", default=2000)
    parser.add_argument("--keeps", type=int, help="sessions that count points", default=3)
    parser.add_argument("--kills", type=int, help="sessions that are killed", default=3)
    parser.add_argument("--paces", type=int, help="sessions that measure the cost of a step", default=3)
    parser.add_argument("--rounds", type=int, help="rounds of stretches in each of those", default=4)
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
    measured_commit = results.commit()
    scratch = Path(tempfile.mkdtemp(prefix="overhead-"))
    try:
        entries = [Entry(name, scratch / name) for name in options.names]
        prepare(entries, options.envs)
        width = (
            128
            if options.quick
            else session(entries[0], "calibrate", {"target_ms": options.step_ms})["width"]
        )
        common = {
            "width": width,
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
        "command": command(options),
        "minutes": round((time.monotonic() - began) / 60, 1),
        "machine": results.machine(),
        "settings": {
            key: getattr(options, key)
            for key in ("steps", "keeps", "kills", "paces", "rounds", "stretch_seconds")
        },
        "model_width": width,
        "commit": measured_commit,
        "contenders": results.summaries(entries),
    }
    page = results.write(options.out, document, moment, "overhead", results.markdown)
    print(page)


if __name__ == "__main__":
    main()

"""How long `daypoint ls` takes on so many runs, and how much memory, interpreter included.

    python benchmarks/listing.py                 1,000 runs of 20 epochs, in a temporary directory
    python benchmarks/listing.py --runs 10000    the same for ten thousand

The run directories are synthetic: run.json, train log and the end of a journal as a training of train.py leaves them. Every command is
a process of its own; each is started several times, and the fastest and the median time are shown, the processor time, and the peak resident memory.
Other work on the machine makes the times longer, less so the processor time.
"""

from __future__ import annotations

import argparse
import copy
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from daypoint.base import files
from daypoint.base.day import RunFiles, claim, tag
from daypoint.record import identity
from daypoint.record.journal import line
from daypoint.record.train_log import train_log

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "daypoint --version": ["-m", "daypoint", "--version"],
    "daypoint ls": ["-m", "daypoint", "ls"],
    "daypoint ls -n 0": ["-m", "daypoint", "ls", "-n", "0"],
    "daypoint ls --where (1 %)": ["-m", "daypoint", "ls", "--where", "optimizer.lr>=0.099"],
    "daypoint ls --where (metrics)": [
        "-m",
        "daypoint",
        "ls",
        "--where",
        "best(val/accuracy)>0.99 and status=FINISHED",
    ],
    "daypoint ls --sort": ["-m", "daypoint", "ls", "--sort=-best", "-n", "10"],
    "daypoint ls --json -n 0": ["-m", "daypoint", "ls", "--json", "-n", "0"],
    "daypoint trend": ["-m", "daypoint", "trend", "val/accuracy"],
}


def write_runs(outputs: Path, count: int, epochs: int, seed: int = 0) -> None:
    """Synthetic runs over a month, each with `epochs` epochs of three batch metrics and two validated ones."""
    chance = random.Random(seed)
    begin = datetime(2026, 3, 1, 8, 0, 0, tzinfo=UTC)
    for number in range(count):
        moment = begin + timedelta(seconds=number * 28 * 86400 / count)
        directory = claim(outputs, moment)
        record = _record(number, moment, chance)
        run = RunFiles(directory, tag(moment))
        log = train_log(run, [_epoch(i, chance) for i in range(epochs)], epochs * 100)
        run.train_log.write_bytes(files.dumps(log))
        (directory / "run.json").write_bytes(files.dumps(record))
        event = {
            "event": "end",
            "time": record["started_ms"] + 60_000,
            "status": "FINISHED",
            "step": epochs * 100,
        }
        batch = line(
            {"event": "batch", "time": record["started_ms"], "step": 0, "epoch": 0, "metrics": {"loss": 1.0}}
        )
        run.journal.write_bytes(batch * 200 + line(event))
        run.config.write_text("synthetic: true\n")


def _record(number: int, moment: datetime, chance: random.Random) -> dict:
    config = copy.deepcopy(CONFIG)
    config["optimizer"]["lr"] = round(10 ** chance.uniform(-4, -1), 5)
    config["trainer"]["seed"] = number % 10
    config["model"]["hidden"] = chance.choice([[64], [64, 64], [128, 64]])
    attempt = {"number": 1, "status": "FINISHED", "started": moment.isoformat(), "ended": moment.isoformat()}
    attempt |= {
        "seconds": 60.0,
        "pid": 1,
        "host": "bench",
        "argv": ["train.py"],
        "overrides": [],
        "from_step": 0,
    }
    return {
        "format": identity.RUN_FORMAT,
        "uid": f"{number:016x}",
        "day": tag(moment),
        "name": f"{moment:%Y%m%d-%H%M%S} mlp-adamw",
        "started": moment.isoformat(),
        "started_ms": int(moment.timestamp() * 1000),
        "timezone": "UTC",
        "status": "FINISHED",
        "host": "bench",
        "user": "ada",
        "device": "cpu",
        "root": ".",
        "experiment": "digits",
        "tracking_uri": None,
        "artifact_root": None,
        "tags": {"team": "blue"},
        "config_sha256": "0" * 64,
        "config": config,
        "git": {"commit": "c" * 40, "branch": "main", "dirty": False, "reason": None, "diff_sha256": None},
        "versions": dict.fromkeys(("python", "torch", "numpy", "hydra-core", "mlflow", "pandas"), "1.2.3"),
        "data": {"name": "digits", "fingerprint": "f" * 32, "rows": 1797, "source": "sklearn"},
        "monitor": {"metric": "val/accuracy", "mode": "max"},
        "keep": None,
        "choices": {"model": "mlp", "optimizer": "adamw"},
        "sweep": None,
        "attempts": [{**attempt, "changes": {}, "error": None}],
    }


def _epoch(number: int, chance: random.Random) -> dict:
    def stats() -> dict:
        low, high = sorted((chance.random(), chance.random()))
        middle = (low + high) / 2
        return {
            "count": 100,
            "nonfinite": 0,
            "mean": middle,
            "variance": 0.01,
            "min": low,
            "max": high,
            "last": high,
        }

    return {
        "epoch": number,
        "complete": True,
        "first_step": number * 100,
        "steps": 100,
        "seconds": 1.25,
        "stats": {name: stats() for name in ("loss", "lr", "grad_norm")},
        "time": 1774707302123,
        "metrics": {"val/loss": chance.random(), "val/accuracy": chance.random()},
    }


CONFIG = {
    "data": {"_target_": "daypoint.zoo.data.Digits", "batch_size": 64, "split_seed": 0, "name": "digits", "outputs": 10},
    "model": {"_target_": "daypoint.zoo.models.MLP", "hidden": [64], "dropout": None, "activation": "relu"},
    "loss": {"_target_": "daypoint.zoo.losses.auto", "task": "classification", "label_smoothing": 0.0},
    "optimizer": {"_target_": "torch.optim.AdamW", "lr": 0.001, "betas": [0.9, 0.999], "weight_decay": 0.01},
    "scheduler": {"_target_": "torch.optim.lr_scheduler.CosineAnnealingLR", "T_max": 460, "eta_min": 0.0},
    "trainer": {
        "epochs": 20, "seed": 0, "device": "cpu", "precision": "fp32", "accumulate": 1, "clip_norm": 1.0,
        "save_every": 1, "keep": 3, "monitor": None, "compile": False, "updates": 460,
    },
    "tracking": {"enabled": False, "outputs": "outputs", "uri": None, "experiment": None, "timezone": "UTC", "tags": {}},
    "experiment": None, "resume": None, "debug": None,
}  # fmt: skip


def measure(arguments: list[str], outputs: Path, rounds: int) -> tuple[float, float, float, int]:
    """(fastest, median and least processor seconds, peak resident bytes) of a python process."""
    seconds, busy, peak = [], [], 0
    environment = {**os.environ, "DAYPOINT_OUTPUTS": str(outputs)}
    for _ in range(rounds):
        begin = time.perf_counter()
        process = subprocess.Popen([sys.executable, *arguments], env=environment, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        seconds.append(time.perf_counter() - begin)
        busy.append(usage.ru_utime + usage.ru_stime)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise SystemExit(f"{' '.join(arguments)}: exit code {process.returncode}")
        peak = max(peak, usage.ru_maxrss * 1024)
    return min(seconds), statistics.median(seconds), min(busy), peak


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        outputs = Path(directory) / "outputs"
        write_runs(outputs, options.runs, options.epochs)
        print(
            f"{options.runs} runs of {options.epochs} epochs, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n"
        )
        print("| command | fastest | median | processor time | peak memory |\n|---|---|---|---|---|")
        for name, arguments in COMMANDS.items():
            fastest, median, busy, peak = measure(arguments, outputs, options.rounds)
            print(
                f"| `{name}` | {fastest:.2f} s | {median:.2f} s | {busy:.2f} s | {peak / 1e6:.0f} MB |",
                flush=True,
            )


if __name__ == "__main__":
    main()

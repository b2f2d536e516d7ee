"""Run directories for tests, written as a trainer writes them: run.json through identity, events through the journal."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from daypoint.base import files
from daypoint.base.day import RunFiles, claim
from daypoint.base.stats import RunningStats
from daypoint.record import identity
from daypoint.record.journal import Journal
from daypoint.tracking import store

START = datetime(2026, 3, 28, 14, 15, 2, 123456, tzinfo=UTC)


class WrittenRun:
    """A run that a trainer would have written, step by step.

    Args:
        root: the project; the run lies under its `outputs`, its store is `mlruns/mlflow.db` in it.
        record: what run.json says differently.
    """

    def __init__(self, root: Path, *, uri: str | None = None, **record: Any) -> None:
        self.directory = claim(root / "outputs", START)
        day = f"{START:%Y%m%d}"
        self.files = RunFiles(self.directory, day)
        self.uri = uri or store.tracking_uri("sqlite:///mlruns/mlflow.db", root)
        self.time_ms = int(START.timestamp() * 1000)
        self.step = 0
        self.points: list[tuple[str, float, int, int]] = []
        self.journal = Journal.create(self.files.journal)
        self._event("start", uid="", attempt=1, step=0)
        self.record = {
            "format": "daypoint/run/1",
            "uid": secrets.token_hex(8),
            "day": day,
            "name": f"{day}-141502 mlp-adamw",
            "started": START.isoformat(),
            "started_ms": self.time_ms,
            "timezone": "UTC",
            "status": "RUNNING",
            "host": socket.gethostname(),
            "user": "ada",
            "device": "cpu",
            "root": str(root),
            "experiment": "digits",
            "tracking_uri": self.uri,
            "artifact_root": store.artifact_root(self.uri, root),
            "config_sha256": "0" * 64,
            "config": {"optimizer": {"lr": 0.01, "betas": [0.9, 0.95]}, "model": {"dropout": None}},
            "git": {"commit": "c" * 40, "branch": "main", "dirty": False, "reason": None},
            "versions": {},
            "data": {"name": "digits", "fingerprint": "f" * 32, "rows": 1797, "source": "sklearn"},
            "monitor": None,
            "sweep": None,
            "attempts": [attempt(1)],
            **record,
        }
        files.write_atomic(self.files.config, b"optimizer:\n  lr: 0.01\n")
        self.write_record()

    def write_record(self) -> None:
        identity.write_run(self.directory, self.record)

    def _event(self, kind: str, **fields: Any) -> None:
        self.journal.append({"event": kind, "time": self.time_ms, **fields})

    def log(self, **metrics: Any) -> None:
        """One batch, 7 ms after the one before."""
        self.time_ms += 7
        self._event("batch", step=self.step, epoch=0, metrics=metrics)
        self.points += [(name, value, self.time_ms, self.step) for name, value in metrics.items()]
        self.step += 1

    def log_epoch(self, **metrics: Any) -> None:
        self._event("epoch_metrics", step=self.step - 1, epoch=0, metrics=metrics)
        self.points += [(name, value, self.time_ms, self.step - 1) for name, value in metrics.items()]

    def epoch(self, **values: list[float]) -> None:
        stats = {}
        for name, of in values.items():
            running = RunningStats()
            for value in of:
                running.update(value)
            stats[name] = files.encode_metrics(running.to_dict())
        self._event(
            "epoch", step=self.step - 1, epoch=0, seconds=1.25, first_step=0, steps=self.step, stats=stats
        )

    def resume(self, step: int) -> None:
        """A second attempt goes on from a checkpoint."""
        number = len(self.record["attempts"]) + 1
        self.journal = Journal.reopen(self.files.journal)
        self.time_ms += 60_000
        self.step = step
        self._event("start", uid=self.record["uid"], attempt=number, step=step)
        self.record["status"] = "RUNNING"
        self.record["attempts"].append(attempt(number))
        self.write_record()

    def die(self) -> None:
        """SIGKILL: the lock is gone and nothing is said."""
        self.journal.close()

    def end(self, status: str = "FINISHED", error: str | None = None) -> None:
        """The orderly end."""
        number = len(self.record["attempts"])
        self._event("end", attempt=number, status=status, step=self.step, error=error)
        files.write_atomic(self.files.train_log, b'{"epochs":[]}\n')
        self.record["status"] = self.record["attempts"][-1]["status"] = status
        ended = START + timedelta(milliseconds=self.time_ms - self.record["started_ms"])
        self.record["attempts"][-1]["ended"] = ended.isoformat()
        self.write_record()
        self.journal.close()


def attempt(number: int) -> dict[str, Any]:
    return {
        "number": number,
        "status": "RUNNING",
        "started": START.isoformat(),
        "ended": None,
        "seconds": None,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "argv": ["train.py", "optimizer.lr=0.01"],
        "overrides": ["optimizer.lr=0.01"],
        "from_step": 0,
        "error": None,
    }


def stored_points(uri: str, uid: str) -> list[tuple[str, float | None, int, int]]:
    """The points of a run in a SQLite store, as (key, value, time, step), sorted; NaN as None."""
    question = (
        "SELECT m.key, CASE WHEN is_nan THEN NULL ELSE m.value END, timestamp, step FROM metrics m JOIN tags t "
        "ON t.run_uuid = m.run_uuid AND t.key = 'daypoint.uid' AND t.value = ? ORDER BY m.key, step, timestamp"
    )
    with contextlib.closing(sqlite3.connect(store.sqlite_path(uri), timeout=30)) as database:
        return database.execute(question, (uid,)).fetchall()


def unused_port() -> int:
    """A port of this machine at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]

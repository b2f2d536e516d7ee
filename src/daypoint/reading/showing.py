"""One run: the page of `daypoint show` as text for people, and the same as plain data for programs.

On the page epochs are counted from 1, as on the screen of the training; in the data from 0, as in the files. The page never reads
weights; of checkpoints it reads the cards.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from daypoint.base import keys, tables
from daypoint.base.day import CheckpointFiles
from daypoint.base.errors import CheckpointError
from daypoint.base.tables import Table
from daypoint.reading.facts import RunFacts
from daypoint.record import shelf
from daypoint.record.catalog import StoredRun
from daypoint.tracking import store


def page(run: StoredRun, *, colours: bool = False, last_epochs: int | None = None) -> str:
    """Everything about a run that a person may want to read.

    Args:
        colours: bold labels.
        last_epochs: at most so many epochs and checkpoints; None for all.
    """
    bold = ("\x1b[1m", "\x1b[0m") if colours else ("", "")
    lines = [
        f"{bold[0]}{label:<12}{bold[1]}" + "\n".join(map(tables.clean, text.split("\n")))
        for label, text in _head(run)
    ]
    parts = ["\n".join(lines)]
    for title, table, more in _tables(run, last_epochs):
        note = f"  ({more} more above)" if more else ""
        parts.append(f"{bold[0]}{title}{bold[1]}{note}\n{tables.text(table, header=title != 'files')}")
    settings = "\n".join(
        f"  {tables.clean(key)} = {tables.clean(value)}"
        for key, value in sorted(keys.flatten(run.record["config"]).items())
        if run.record.get("sweep") or not key.startswith("sweep.")
    )
    return "\n\n".join([*parts, f"{bold[0]}hyperparameters{bold[1]}\n{settings}"])


def _head(run: StoredRun) -> Iterator[tuple[str, str]]:
    record, attempt, of = run.record, run.record["attempts"][-1], RunFacts(run)
    yield "run", f"{run.address}  (uid {record['uid']})"
    yield "name", record["name"]
    yield "status", run.status + (" (now)" if run.is_live else "")
    yield "directory", str(run.directory)
    yield "started", f"{record['started']} on {record.get('host') or 'an unknown machine'}"
    yield "took", f"{of.seconds:.1f} s, {run.steps} step{'' if run.steps == 1 else 's'}"
    if run.is_live:
        yield "now", _now(run)
    if error := attempt.get("error"):
        yield "error", f"{error.get('type')}: {error.get('message')}"
    if sweep := record.get("sweep"):
        yield "sweep", f"job {sweep.get('job')} of {of.sweep}"
    if len(record["attempts"]) > 1:
        yield "resumed", f"attempt {len(record['attempts'])}, from step {attempt.get('from_step')}"
    if again := record.get("reproduces"):
        yield "reproduces", f"{again.get('address')}  (uid {again.get('uid')})"
    git = record.get("git") or {}
    if git.get("commit"):
        changes = f" with uncommitted changes (SHA-256 {str(git.get('diff_sha256'))[:12]}…)"
        yield "git", f"{git['commit']}{changes if git.get('dirty') else ''}"
    elif git.get("reason"):
        yield "git", git["reason"]
    if data := record.get("data"):
        yield "data", f"{data.get('name')}, {data.get('rows')} rows, fingerprint {data.get('fingerprint')}"
    yield "mlflow", _mlflow(run.directory, record)
    if attempt.get("overrides"):
        yield "overrides", " ".join(attempt["overrides"])
    if (card := best_card(run)) is not None:
        measured = dict(sorted(card["metrics"].items(), key=lambda item: item[0] != of.monitor))
        where = f"step {card['step']}{_epoch_text(card.get('epoch'))}, weights SHA-256 {_weights(card)}"
        yield "best" if run.pointer("best") else "last", f"{where}\n{'':<12}{_numbers(measured)}".rstrip()


def _now(run: StoredRun) -> str:
    event = run.last_event or {}
    metrics = _numbers(event.get("metrics") or {})
    return f"step {run.steps}{_epoch_text(event.get('epoch'))}  {metrics}".rstrip()


def _numbers(metrics: dict[str, Any]) -> str:
    return "  ".join(f"{name} {tables.number(value)}" for name, value in metrics.items())


def _epoch_text(epoch: int | None) -> str:
    return "" if epoch is None else f", epoch {epoch + 1}"


def _mlflow(directory: Path, record: dict[str, Any]) -> str:
    uri = store.of_run(directory, record)[0] if record.get("tracking_uri") else None
    if uri is None:
        return "nowhere (tracking is off)"
    where = f"experiment {record.get('experiment')} in {uri}"
    found = store.page_of(uri, record["uid"])
    return f"{where}\n{'':<12}{store.UI_ADDRESS}/{found} (while `daypoint ui` runs)" if found else where


def _weights(card: dict[str, Any]) -> str:
    name = CheckpointFiles(Path(), card["day"]).weights.name
    return f"{(card['files'].get(name) or {}).get('sha256', 'unknown')[:16]}…"


def best_card(run: StoredRun) -> dict[str, Any] | None:
    """The card of the checkpoint that `best` points to, else of `last`; None if there is none that can be read."""
    for name in ("best", "last"):
        if target := run.pointer(name):
            try:
                return shelf.read_card(run.files.checkpoints / target)
            except CheckpointError:
                return None
    return None


def _tables(run: StoredRun, last: int | None) -> Iterator[tuple[str, Table, int]]:
    """(title, table, rows left out at its top)."""

    def cut(title: str, table: Table) -> tuple[str, Table, int]:
        more = max(len(table.rows) - last, 0) if last is not None else 0
        return title, Table(table.columns, table.rows[more:]).without_empty(), more

    if run.epochs:
        names = dict.fromkeys(name for epoch in run.epochs for name in (*epoch["stats"], *epoch["metrics"]))
        rows = []
        for epoch in run.epochs:
            means = {name: of["mean"] for name, of in epoch["stats"].items()}
            values = {**means, **epoch["metrics"]}
            end = None if epoch.get("complete", True) else "left early"
            rows.append([epoch["epoch"] + 1, epoch["steps"], *map(values.get, names), end])
        yield cut("epochs", Table(["epoch", "steps", *names, ""], rows))
    if checkpoints := _checkpoints(run):
        rows = []
        for one in checkpoints:
            epoch = None if one["epoch"] is None else one["epoch"] + 1
            marks = " ".join(one["marks"]) or None
            rows.append([one["name"], one["step"], epoch, size(one["bytes"]), marks])
        yield cut("checkpoints", Table(["checkpoint", "step", "epoch", "size", ""], rows))
    yield "files", Table(["file", "size"], [[one["name"], size(one["bytes"])] for one in _files(run)]), 0


def _checkpoints(run: StoredRun) -> list[dict[str, Any]]:
    targets = {name: run.pointer(name) for name in ("best", "last")}
    found = []
    for path in run.checkpoints:
        try:
            epoch = shelf.read_card(path).get("epoch")
        except CheckpointError:
            epoch = None  # `daypoint verify` says what is wrong with it
        total = sum(entry.stat().st_size for entry in os.scandir(path) if entry.is_file())
        marks = [name for name, target in targets.items() if target == path.name]
        one = {"name": path.name, "step": int(path.name[4:]), "epoch": epoch, "bytes": total, "marks": marks}
        found.append(one)
    return found


def _files(run: StoredRun) -> list[dict[str, Any]]:
    found = []
    for path in sorted(run.directory.rglob("*")):
        inside = path.relative_to(run.directory)
        if path.is_file() and inside.parts[0] != run.files.checkpoints.name and not path.name.startswith("."):
            found.append({"name": str(inside), "bytes": path.stat().st_size})
    return found


def size(count: int) -> str:
    """A number of bytes as a person reads it."""
    if count < 1000:
        return f"{count} B"
    power = min((len(str(count)) - 1) // 3, 4)
    return f"{count / 1000**power:.1f} {'kMGT'[power - 1]}B"


def to_dict(run: StoredRun) -> dict[str, Any]:
    """A run for programs: run.json as it is, with its status as found, epochs (0-based), checkpoints and files."""
    return {
        **run.record,
        "address": run.address,
        "directory": str(run.directory),
        "status": run.status,
        "is_live": run.is_live,
        "steps": run.steps,
        "epochs": run.epochs,
        "checkpoints": _checkpoints(run),
        "best": best_card(run),
        "files": _files(run),
    }

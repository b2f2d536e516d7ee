"""`daypoint sync`: sends runs to MLflow now, in this process, and reports what happened to each.

It uses the same `Shipment` as the courier, so what MLflow has is not sent again, and an empty store is filled from the run
directories. Runs that a courier is sending at this moment are left alone. This module starts no process.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from daypoint.base import day
from daypoint.base.day import RunFiles
from daypoint.base.errors import DaypointError, PackageError
from daypoint.record import identity, journal
from daypoint.tracking import registry, store
from daypoint.tracking.registry import Registered
from daypoint.tracking.shipment import DeletedRun, Shipment

if TYPE_CHECKING:
    from mlflow import MlflowClient


@dataclass(frozen=True)
class Sent:
    """What became of one run.

    Attributes:
        directory: the run directory.
        outcome: `sent` (MLflow has everything), `live` (the trainer and its courier are at work), `busy` (another
            process is sending it), `off` (made with tracking.enabled=false), `deleted` (in MLflow, by somebody) or
            `failed`.
        text: the outcome in words.
        points: metric points sent just now.
        model: where the run's packaged model is in MLflow; None if it has none.
    """

    directory: Path
    outcome: str
    text: str
    points: int = 0
    model: Registered | None = None


@dataclass
class Report:
    """What became of all runs."""

    runs: list[Sent] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether MLflow has, or is getting, everything it should have."""
        return not any(run.outcome in ("busy", "failed") for run in self.runs)

    @property
    def lines(self) -> list[str]:
        """One line a run, and a last one that adds up."""
        lines = [f"{run.directory}  {run.outcome}: {run.text}" for run in self.runs]
        points = sum(run.points for run in self.runs)
        counts = Counter(run.outcome for run in self.runs)
        kinds = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
        return [*lines, f"{len(self.runs)} runs: {kinds or 'none'}; {points} points sent now"]


def sync(directories: Iterable[Path], uri: str | None = None, *, wait_seconds: float = 30.0) -> Report:
    """Send to MLflow what it lacks of these runs. Errors of a single run are not raised but reported.

    Args:
        directories: run directories.
        uri: another store than the one that each run was made for, absolute.
        wait_seconds: how long to wait for another process that is sending a run whose trainer is gone.
    """
    report = Report()
    clients: dict[str, MlflowClient] = {}
    down: dict[str, str] = {}
    for directory in directories:
        try:
            report.runs.append(_sync_one(Path(directory).absolute(), uri, clients, down, wait_seconds))
        except DeletedRun as error:
            report.runs.append(Sent(directory, "deleted", str(error)))
        except Exception as error:  # one bad run, or one bad store, must not keep the others from being sent
            report.runs.append(Sent(directory, "failed", one_line(error)))
    for address in clients:
        store.analyze(address)
    return report


def _sync_one(
    directory: Path, uri: str | None, clients: dict[str, Any], down: dict[str, str], wait_seconds: float
) -> Sent:
    address, artifacts = store.of_run(directory, identity.read_run(directory))
    if uri is not None:
        address, artifacts = uri, store.artifact_root(uri, day.project_root(directory))
    if address is None:
        return Sent(directory, "off", "made with tracking.enabled=false; give --uri to send it anyway")
    if address in down:
        return Sent(directory, "failed", down[address])
    try:
        if address not in clients:
            clients[address] = store.prepare(address)
        deadline = time.monotonic() + wait_seconds
        while (shipment := Shipment.begin(directory, clients[address], address, artifacts)) is None:
            if journal.is_being_written(RunFiles(directory, "").journal):
                return Sent(directory, "live", "its courier is sending it while it trains")
            if time.monotonic() > deadline:
                return Sent(directory, "busy", "another process is sending it; try again later")
            time.sleep(0.2)
        with shipment:
            return _send(shipment, clients[address])
    except Exception as error:
        if is_down(error):
            down[address] = one_line(error)
        raise


def _send(shipment: Shipment, client: MlflowClient) -> Sent:
    while shipment.advance():
        pass
    ended = shipment.finish()
    page = shipment.url if shipment.url.startswith("http") else f"{store.UI_ADDRESS}/{shipment.url}"
    text = f"{shipment.status}, {shipment.points} points sent now, {page}"
    if ended and (complaint := shipment.draw()):
        text += f"; {complaint}"
    if shipment.damage:
        text += f"; the journal is damaged ({shipment.damage}), the rest is sent"
    outcome, model = "sent" if ended else "live", None
    if ended and RunFiles(shipment.directory, "").package.exists():
        try:
            model = registry.register(client, shipment)
            text += f", {model.uri}"
        except PackageError as error:
            outcome, text = "failed", f"{text}; its model was not sent: {error}"
    return Sent(shipment.directory, outcome, text, shipment.points, model)


def one_line(error: BaseException) -> str:
    """An error in one line, for a report; with its type unless it is one of daypoint's own."""
    lines = str(error).strip().splitlines()
    text = lines[0][:500] if lines else ""
    return text if isinstance(error, DaypointError) else f"{type(error).__name__}: {text}"


def is_down(error: BaseException) -> bool:
    """Whether a server could not be reached at all."""
    return "API request to" in str(error) and "failed with exception" in str(error)
